"""Operator sets of whole networks, every operator tuned from nothing (ETO, section 7.2 and Table 2).

What ETO's reuse of kernels has to beat: for each distinct product of a network the seconds of its tuning,
and its time as a kernel beside the fastest runtime's; of the set the sums, each operator as often as it
occurs.  Writes tables/operator_sets.csv as it goes, goes on from there with --resume, and makes
tables/operator_sets.md.

    python bench/operator_sets.py [--resume] [--tuning 5] [SET ...]
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from math import inf
from pathlib import Path

from operators import peers, tuned
from rows import read, write

from tensaurus.app.zoo.selection import select_models
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, intensity
from tensaurus.graph.ir.node import Node, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operation_counts import scopes_of

TABLE = Path(__file__).parent / "tables" / "operator_sets.csv"
SETS = ("resnet50", "mobilenetv2", "resnest50", "inception_resnet_1d", "r2plus1d18", "dcgan", "bert_base_128")


@dataclass(frozen=True)
class Row:
    """One operator of a set: how often it occurs, and milliseconds; a kernel's are infinite without one."""

    model: str
    operators: str
    processor: str
    count: int
    peer: str
    peer_ms: float
    kernel_ms: float
    tried: int
    seconds: float
    schedule: str


def products(name: str) -> list[tuple[Piece, int]]:
    """The distinct operators of a network that add up products, and how often each occurs."""
    (subject,) = select_models([name])
    program = import_model(subject.load())
    found: Counter[Node] = Counter()
    pieces: dict[Node, Piece] = {}
    for node in program.active:
        scopes = scopes_of(node)
        if len(scopes) != 1 or intensity(scopes[0]) < MIN_INTENSITY:
            continue
        piece = Piece.of(node)
        named = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}
        form = piece.with_leaves(named)
        pieces.setdefault(form, piece)
        found[form] += 1
    return [(pieces[form], count) for form, count in found.items()]


def measured(name: str, place: int, piece: Piece, count: int, tuning: float) -> Row:
    machine = Machine.here(None)
    times = peers(piece, machine)
    peer = min(times, key=lambda peer: times[peer])
    kernel = tuned(piece, machine, tuning)
    return Row(
        f"{name} {place}",
        name,
        machine.processor,
        count,
        peer,
        times[peer] * 1e3,
        inf if kernel is None else kernel.seconds * 1e3,
        0 if kernel is None else kernel.tried,
        0.0 if kernel is None else kernel.tuning,
        "" if kernel is None else kernel.schedule,
    )


def page(rows: list[Row]) -> str:
    """The table: a line for each set."""
    machine = sorted({row.processor for row in rows})
    lines = [
        "# Operator sets, tuned from nothing",
        "",
        f"{'; '.join(machine)}, 2 threads; `python bench/operator_sets.py`.  Milliseconds of the fastest",
        "runtime of each operator and of the kernels, every operator as often as it occurs; the better of",
        "both; the schedules that tuning tried, and its seconds.",
        "",
        "| set | operators | runtimes | kernels | ratio | better of both | ratio | tried | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row.operators for row in rows):
        own = [row for row in rows if row.operators == name]
        theirs = sum(row.count * row.peer_ms for row in own)
        ours = sum(row.count * row.kernel_ms for row in own)
        both = sum(row.count * min(row.peer_ms, row.kernel_ms) for row in own)
        tried, seconds = sum(row.tried for row in own), sum(row.seconds for row in own)
        lines.append(
            f"| {name} | {len(own)} | {theirs:.3g} | {ours:.3g} | {theirs / ours:.2f} | {both:.3g} |"
            f" {theirs / both:.2f} | {tried} | {seconds:.0f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tuning", type=float, default=5.0)
    options = parser.parse_args()
    rows = read(TABLE, Row) if options.resume else []
    for name in options.sets or SETS:
        for place, (piece, count) in enumerate(products(name)):
            if any(row.model == f"{name} {place}" for row in rows):
                continue
            rows.append(row := measured(name, place, piece, count, options.tuning))
            write(TABLE, rows)
            times = f"{row.peer} {row.peer_ms:.3g} ms, kernel {row.kernel_ms:.3g} ms"
            print(f"{row.model}: {times}, in {row.seconds:.0f} s", flush=True)
    TABLE.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
