"""What models gain at shorter and longer time limits, each from nothing but the schedules that ship.

Each model is optimized at each limit with a database of its own, in a process of its own; its gain is that of
the second measurement, which did not choose the result.  Writes tables/gain_over_time.csv as it goes, goes on
from there with --resume, and makes tables/gain_over_time.md and .png of it.

    python bench/gain_over_time.py [--resume] [--limits 15 30 60 120 300] [MODELS...]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import fmean
from time import monotonic

from revision import name_commit
from rows import grown, optimized, read

from tensaurus.app.zoo.selection import select_models
from tensaurus.runtimes.measure.machine import Machine

ROWS = Path(__file__).parent / "tables" / "gain_over_time.csv"
MODELS = ("zoo", "pretrained")
LIMITS = (15.0, 30.0, 60.0, 120.0, 300.0)
CHECK = 180.0  # seconds beyond the limit that reading and checking a model may take
SHORT_MS = 0.1  # faster models are left out: what they gain is measured in microseconds


@dataclass
class Row:
    """One model at one limit; `model` names both: resnet18 at 60."""

    model: str
    original: float  # milliseconds
    result: float
    kernels: int  # that the result uses
    search: float  # seconds
    wall: float  # seconds, check included


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--limits", type=float, nargs="+", default=list(LIMITS))
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--table", type=Path, default=ROWS)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    commit = name_commit()
    found = read(options.table, Row) if options.resume else []
    for limit in options.limits:  # all models at one limit, then at the next: a table of some limits is whole
        names = [f"{subject.name} at {limit:g}" for subject in select_models(options.models)]
        work = partial(measured, backend=options.backend)
        found = grown(options.table, found, names, work, limit + CHECK)
        options.table.with_suffix(".md").write_text(page(found, commit, options.backend), encoding="utf-8")
    plot(found, options.table.with_suffix(".png"))


def measured(name: str, backend: str) -> Row:
    model, _, limit = name.rpartition(" at ")
    (subject,) = select_models([model])
    began = monotonic()
    summary = optimized(subject, backend, float(limit)).summary
    wall = monotonic() - began
    times = summary.original_ms, summary.optimized_ms
    return Row(name, *times, len(summary.kernels), summary.search_seconds, wall)


def gains_by_model(rows: Sequence[Row]) -> dict[str, dict[float, float]]:
    """Return the gain of each model at each limit: {model: {limit: gain}}, without the shortest models."""
    gains: dict[str, dict[float, float]] = {}
    for row in rows:
        model, _, limit = row.model.rpartition(" at ")
        if row.original >= SHORT_MS:
            gains.setdefault(model, {})[float(limit)] = row.original / row.result
    return gains


def mean_gains(gains: dict[str, dict[float, float]]) -> dict[float, float]:
    """Return the geometric mean at each limit, over the models that have all limits."""
    limits = sorted({limit for each in gains.values() for limit in each})
    whole = [each for each in gains.values() if len(each) == len(limits)]
    return {limit: exp(fmean(log(each[limit]) for each in whole)) for limit in limits if whole}


def page(rows: Sequence[Row], commit: str, backend: str) -> str:
    """Return the table: a line for each model, a column for each limit."""
    gains, machine = gains_by_model(rows), Machine.here()
    command = f"python bench/gain_over_time.py --backend {backend}"
    limits = sorted({limit for each in gains.values() for limit in each})
    means = mean_gains(gains)
    lines = [
        "# Gain against time",
        "",
        f"{machine.processor}, {machine.threads} threads; `{command}`;",
        f"made by {commit}.  Gains over {backend} at limits in seconds, each from an empty database.",
        "",
        f"| model | {' | '.join(f'{limit:g} s' for limit in limits)} |",
        f"| --- |{' ---: |' * len(limits)}",
    ]
    for model, each in gains.items():
        cells = " | ".join(f"{each[limit]:.2f}x" if limit in each else "" for limit in limits)
        lines.append(f"| {model} | {cells} |")
    if means:
        last = log(means[limits[-1]])
        lines.append(f"| geometric mean | {' | '.join(f'{means[limit]:.3f}x' for limit in limits)} |")
        shares = (f"{log(means[limit]) / last:.0%}" if last > 0 else "" for limit in limits)
        lines.append(f"| share of the last one's logarithm | {' | '.join(shares)} |")
    late = [row for row in rows if row.wall > 1.1 * float(row.model.rpartition(" at ")[2]) + 1]
    worst = max(late, key=lambda row: row.wall, default=None)
    if worst is not None:
        words = f"{len(late)} of {len(rows)} runs took longer than their limit, for the check of a result;"
        lines += ["", words, f"the longest was {worst.model}: {worst.wall:.0f} s."]
    return "\n".join([*lines, ""])


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the gain of each model, and the mean, against the limit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    gains = gains_by_model(rows)
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for each in gains.values():
        axes.plot(sorted(each), [each[limit] for limit in sorted(each)], color="0.75", linewidth=0.8)
    means = mean_gains(gains)
    axes.plot(list(means), list(means.values()), color="C0", linewidth=2.5, label="geometric mean")
    axes.set(xscale="log", yscale="log", xlabel="time limit, s", ylabel="gain over the runtime")
    ticks = sorted({limit for each in gains.values() for limit in each})
    axes.set_xticks(ticks, [f"{limit:g}" for limit in ticks])
    axes.axhline(1.0, color="0.4", linewidth=0.6)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
