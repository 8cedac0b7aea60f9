"""What does each model gain, which search found it, and how well was its time predicted?

Each model is optimized as the command line does it, with a database of its own, so that everything is
measured.  Predictions are of the original: the sum of its operators measured alone, one call each (TASO's
cost, section 5; TENSAT's), and what saturation goes by before it has seen the whole program (operators among
as many weights as the model has, chains that the runtime fuses as one); and of the result, before it was run,
with the costs that the programs run before it have corrected.

Writes tables/optimized.csv (of other backends, optimized_NAME.csv) as it goes, goes on from there with
--resume, and makes the table beside it, and of onnxruntime tables/prediction.png.

With --leave-out, schedules that ship for the model's own operators are not used (`leave_out`).

    python bench/optimized.py [--resume] [--backend onnxruntime] [--time-limit 60] [--leave-out]
                              [--table FILE] [MODELS...]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import exp, isfinite, isnan, log, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import readme
from leave_out import own_schedules_left_out
from measuring import measuring
from revision import name_commit
from rows import grown, optimized, read

from tensaurus.app.zoo.selection import Subject, select_models
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.measure.machine import Machine

TABLES = Path(__file__).parent / "tables"


def rows_of(backend: str) -> Path:
    """The rows of a backend; the table is beside them."""
    return TABLES / ("optimized.csv" if backend == "onnxruntime" else f"optimized_{backend}.csv")


@dataclass
class Row:
    """One model; times in milliseconds, nan where there is none."""

    model: str
    original: float
    result: float
    saturation: float  # of its fastest program
    backtracking: float
    alone: float  # predictions, of the original
    expected: float
    foreseen: float  # of the result, where saturation found it
    error: float  # largest absolute difference from the original, against float64
    equal: str
    seconds: float  # of the search
    limit: float  # seconds for all of it
    wall: float  # that it took, reading and checking included
    measurements: int
    ended: str
    rewrites: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["zoo", "ppocr_rec", "ppocr_det", "ppocr_cls"])
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--table", type=Path, help="where the rows go, and the page beside them")
    parser.add_argument("--leave-out", action="store_true", help="schedules of the model's own operators")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    name_commit()  # of what runs, whatever is committed meanwhile
    names = [subject.name for subject in select_models(options.models)]
    each = partial(
        measured, backend=options.backend, limit=options.time_limit, leave_out=options.leave_out
    )
    path = options.table or rows_of(options.backend)
    rows = grown(path, read(path, Row) if options.resume else [], names, each)
    path.with_suffix(".md").write_text(page(rows, options.backend, options.leave_out))
    if options.backend == "onnxruntime" and options.table is None:
        draw(rows, TABLES / "prediction.png")
        readme.write()


def measured(name: str, backend: str, limit: float, leave_out: bool) -> Row:
    (subject,) = select_models([name])
    with TemporaryDirectory() as folder:
        alone = sum_alone(subject, backend, Path(folder) / "alone.sqlite")
    start = monotonic()
    with own_schedules_left_out() if leave_out else nullcontext():
        known = optimized(subject, backend, limit).summary
    wall = monotonic() - start
    ours = known.found_ms.get("saturation", nan)
    return Row(
        subject.name,
        known.original_ms,
        known.optimized_ms,
        ours,
        known.found_ms.get("backtracking", nan),
        alone,
        known.original_predicted_ms,
        known.predicted_ms if known.rewrites else nan,
        known.equivalence.max_abs_error,
        known.equivalence.detail if known.equivalence.passed else "NOT EQUAL",
        known.search_seconds,
        limit,
        wall,
        known.measurements,
        known.ended_by,
        sum(rewrite.count for rewrite in known.rewrites),
    )


def sum_alone(subject: Subject, backend: str, path: Path) -> float:
    """Milliseconds of the operators, each measured alone."""
    program = import_model(subject.load(), dict(subject.shapes), subject.name)
    with measuring(program, backend, path) as costs:
        return 1e3 * sum(map(costs, program.active))


def page(rows: list[Row], backend: str, leave_out: bool) -> str:
    """The tables as Markdown."""
    machine, limits = Machine.here(), sorted({row.limit for row in rows})
    limit = f"{limits[0]:g}`" if len(limits) == 1 else "SECONDS`, each model with its own (*limit*)"
    lines = [
        "# What each model gains" + (f" in {limits[0]:g} seconds" if len(limits) == 1 else ""),
        "",
        f"{machine.processor}, {machine.threads} threads; `python bench/optimized.py --backend {backend}"
        f" --time-limit {limit}; made by {name_commit()}.",
        *(["Shipped schedules of the model's own operators were left out."] if leave_out else []),
        "Times in milliseconds; the gain is of a second measurement, which did not choose the result.  Those",
        "of the searches are their fastest programs' in the first.  *Predicted* are the original from its",
        "operators alone, and as saturation expects it; and the result, before it was run.",
        "",
        "| model | original | result | gain | saturation | backtracking | error | limit, s"
        " | search, s | all, s | rewrites |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.original:.3g} | {row.result:.3g} | {row.original / row.result:.2f}x"
            f" | {row.saturation:.3g} | {row.backtracking:.3g} | {row.error:.1e} | {row.limit:g}"
            f" | {row.seconds:.0f} | {row.wall:.0f} | {row.rewrites} |"
        )
    lines += [
        "",
        f"Geometric mean of the gains: {mean(row.original / row.result for row in rows):.3f}x;"
        f" of backtracking's time over saturation's:"
        f" {mean(row.backtracking / row.saturation for row in rows):.3f}.",
        "",
        "| model | original | operators alone | | expected | | result | foreseen | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        last = ("", "", "")
        if not isnan(row.foreseen):
            last = (f"{row.result:.3g}", f"{row.foreseen:.3g}", share(row.foreseen, row.result))
        lines.append(
            f"| {row.model} | {row.original:.3g} | {row.alone:.3g} | {share(row.alone, row.original)}"
            f" | {row.expected:.3g} | {share(row.expected, row.original)} | {' | '.join(last)} |"
        )
    kept = [row for row in rows if not isnan(row.foreseen)]
    errors = (
        ("operators alone", [row.alone / row.original for row in rows]),
        ("expected of the original", [row.expected / row.original for row in rows]),
        ("foreseen of the result", [row.foreseen / row.result for row in kept]),
    )
    lines.append("")
    lines += [f"Geometric mean of the error, {words}: {off(ratios):.0%}." for words, ratios in errors]
    return "\n".join(lines) + "\n"


def share(value: float, measured: float) -> str:
    return f"{value / measured - 1:+.0%}" if isfinite(value) else ""


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [log(ratio) for ratio in ratios if ratio > 0]
    return exp(sum(logs) / len(logs)) if logs else nan


def off(ratios: Iterable[float]) -> float:
    """The geometric mean of how far ratios are from 1; there is none where nothing was predicted."""
    return mean(max(ratio, 1 / ratio) for ratio in ratios if isfinite(ratio)) - 1


def draw(rows: list[Row], path: Path) -> None:
    """Predicted over measured, before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = [row.model for row in rows]
    kept = [row for row in rows if not isnan(row.foreseen)]
    for label, models, ratios in (
        ("the original, operators alone", names, [row.alone / row.original for row in rows]),
        ("the original, as expected", names, [row.expected / row.original for row in rows]),
        ("the result", [row.model for row in kept], [row.foreseen / row.result for row in kept]),
    ):
        axes.scatter(models, ratios, label=label, s=22)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhspan(0.95, 1.05, color="black", alpha=0.08, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylabel("predicted over measured time")
    axes.tick_params("x", rotation=90, labelsize=7)
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
