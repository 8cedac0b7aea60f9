"""What do real models that packages ship gain, which of their nodes stay opaque, and why?

Each model is optimized as the command line does it, with a database of its own, so that everything is
measured, and in a process of its own, which is killed where it takes much longer than it may: a model that
takes more than 1.1 times the limit and CHECK seconds more is `hung`.

Writes tables/pretrained.csv as it goes, goes on from there with --resume (what failed is tried again), and
makes tables/pretrained.md of it.  Exits with 1, and names them, where models hung, failed or are not equal.

    python bench/pretrained.py [--resume] [--backend onnxruntime] [--time-limit 60] [--table FILE] [MODELS...]
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import exp, isnan, log, nan
from pathlib import Path
from time import monotonic

from revision import name_commit
from rows import grown, optimized, read

from tensaurus.app.zoo.pretrained import PRETRAINED
from tensaurus.app.zoo.selection import select_models
from tensaurus.graph.ir.census import Census, count_nodes
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.errors import TensaurusError

TABLES = Path(__file__).parent / "tables"
ROWS = TABLES / "pretrained.csv"
ENDED = ("equal", "unchanged")
OVER = 1.1  # times the limit, that a model may take
CHECK = 120.0  # seconds more, for fetching, reading and checking it


@dataclass
class Row:
    """One model; times in milliseconds, nan where there is none."""

    model: str
    package: str
    typed: int
    opaque: int
    why: str  # which nodes are opaque, and why
    original: float
    result: float
    error: float  # largest absolute difference from the original, against float64
    seconds: float  # of the search
    verdict: str  # equal, unchanged, or what went wrong
    wall: float = nan  # seconds of everything: reading, searching, measuring and checking


def main() -> int:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("models", nargs="*", default=["pretrained"])
    told.add_argument("--backend", default="onnxruntime")
    told.add_argument("--time-limit", type=float, default=60.0)
    told.add_argument("--check", type=float, default=CHECK, help="seconds more that a model may take")
    told.add_argument("--table", type=Path, default=ROWS, help="where the rows go, and the page beside them")
    told.add_argument("--resume", action="store_true")
    wanted = told.parse_args()
    name_commit()  # of what runs, whatever is committed meanwhile
    path: Path = wanted.table
    found = [row for row in read(path, Row) if row.verdict in ENDED] if wanted.resume else []
    names = [subject.name for subject in select_models(wanted.models)]
    each = partial(measured, backend=wanted.backend, limit=wanted.time_limit)
    found = grown(path, found, names, each, OVER * wanted.time_limit + wanted.check, unmeasured)
    path.with_suffix(".md").write_text(page(found, wanted.backend, wanted.time_limit))
    failed = failures(found)
    print(*failed, sep="\n", file=sys.stderr)
    return int(bool(failed))


def failures(found: Iterable[Row]) -> list[str]:
    """What went wrong, by the models' names."""
    return [f"{row.model}: {row.verdict}" for row in found if row.verdict not in ENDED]


def measured(name: str, backend: str, limit: float) -> Row:
    (subject,) = select_models([name])
    row, begin = unmeasured(name, ""), monotonic()
    try:
        known = count_nodes(import_model(subject.load(), subject.shapes, name))
        row.typed, row.opaque, row.why = known.typed, sum(known.opaque.values()), reasons(known)
        begin = monotonic()
        summary = optimized(subject, backend, limit).summary
    except Exception as error:  # a table of what works says what does not
        if not isinstance(error, TensaurusError):
            traceback.print_exc()
        row.verdict = f"{type(error).__name__}: {error}"
        return row
    row.original, row.result = summary.original_ms, summary.optimized_ms
    row.error, row.seconds = summary.equivalence.max_abs_error, summary.search_seconds
    row.wall = monotonic() - begin
    if not summary.equivalence.passed:
        row.verdict = f"NOT EQUAL: {summary.equivalence.detail}"
    else:
        row.verdict = "equal" if summary.rewrites else "unchanged"
    return row


def unmeasured(name: str, verdict: str) -> Row:
    """Of a model of which nothing is known but why."""
    entry = PRETRAINED.get(name)
    package = "" if entry is None else f"{entry.package} {entry.version}"
    return Row(name, package, 0, 0, "", nan, nan, nan, nan, verdict)


def reasons(known: Census) -> str:
    """Which operators are opaque, how often, and why; the most frequent first."""
    listed = sorted(known.reasons.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} {operator}: {reason}" for (operator, reason), count in listed)


def page(found: list[Row], backend: str, limit: float) -> str:
    """The table as Markdown."""
    machine = Machine.here()
    measured = [row for row in found if not isnan(row.original) and not isnan(row.result)]
    gains = [log(row.original / row.result) for row in measured]
    lines = [
        "# What real models gain",
        "",
        f"{machine.processor}, {machine.threads} threads; `python bench/pretrained.py --backend {backend} "
        f"--time-limit {limit:g}`; made by {name_commit()}.",
        "Nodes are counted at the shapes of `tensaurus zoo`; times in milliseconds.",
        "",
        "| model | package | typed | opaque | original | result | gain | error | search, s | all, s "
        "| verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in found:
        times = "| | | "
        if not isnan(row.original):
            times = f"| {row.original:.3g} | {row.result:.3g} | {row.original / row.result:.2f}x "
        error = "" if isnan(row.error) else f"{row.error:.1e}"
        seconds, wall = ("" if isnan(n) else f"{n:.0f}" for n in (row.seconds, row.wall))
        verdict = row.verdict.replace("|", "\\|").replace("\n", " ")
        counts = f"| {row.model} | {row.package} | {row.typed} | {row.opaque} "
        lines.append(f"{counts}{times}| {error} | {seconds} | {wall} | {verdict} |")
    if gains:
        lines += ["", f"Geometric mean of the gains: {exp(sum(gains) / len(gains)):.3f}x."]
    lines += ["", "| model | what stays opaque, and why |", "| --- | --- |"]
    lines += [f"| {row.model} | {row.why} |" for row in found if row.why]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
