"""Generated kernels beside the runtimes' own, operator by operator.

Each operator, with what follows it, is a model of its own with constant weights.  It is timed on every
runtime, and on onnxruntime as one eOperator whose schedule was tuned from nothing; each in a process of its
own.  Writes tables/operators.csv as it goes, goes on from there with --resume, and makes tables/operators.md
of it: the ratio to the fastest runtime, how much longer the kernel takes on one thread, the share of the
machine's peak (of its arithmetic or of its memory, whichever the operator needs longer), how many schedules
were tried, and the seconds that it took.

    python bench/operators.py [--resume] [--threads N] [--tuning 20] [OPERATOR ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, log
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from rows import read, write

from tensaurus.finders.fuse.composition import compose_region
from tensaurus.graph.ir.node import Node, apply, constant, replace_args, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.kernels.tune.tuned_kernels import TunedKernels
from tensaurus.ops import registry
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.match import make_expander
from tensaurus.rules.language.rule import library
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Stopwatch
from tensaurus.runtimes.price.roofline import Roofline, estimate
from tensaurus.runtimes.price.standalone_model import standalone_model
from tensaurus.system.scratch import temporary_folder

TABLE = Path(__file__).parent / "tables" / "operators.csv"
OPSET = 17

# name: operator, its inputs (the first is the model's, others are weights) and attributes, and what follows
OPERATORS = {
    "transposed 9x9 stride 2, 56 to 1 @224": (
        "ConvTranspose f32[1,56,224,224] f32[56,1,9,9] strides=(2,2) pads=(4,4,4,4) output_padding=(1,1)"
    ),
    "transposed 4x4 stride 2, 448 to 256 @2, batch 16": (
        "ConvTranspose f32[16,448,2,2] f32[448,256,4,4] strides=(2,2) pads=(1,1,1,1)"
    ),
    "transposed 4x4 stride 2, 512 to 256 @4": (
        "ConvTranspose f32[1,512,4,4] f32[512,256,4,4] strides=(2,2) pads=(1,1,1,1)"
    ),
    "transposed 4x4 stride 2, 128 to 64 @16": (
        "ConvTranspose f32[1,128,16,16] f32[128,64,4,4] strides=(2,2) pads=(1,1,1,1)"
    ),
    "5x5, 32 to 1 @224, batch 16": "Conv f32[16,32,224,224] f32[1,32,5,5] pads=(2,2,2,2)",
    "depthwise 3x3 + HardSwish, 96 @112": (
        "Conv f32[1,96,112,112] f32[96,1,3,3] f32[96] group=96 pads=(1,1,1,1) | HardSwish"
    ),
    "depthwise 3x3 stride 2 + HardSwish, 96 @112": (
        "Conv f32[1,96,112,112] f32[96,1,3,3] f32[96] group=96 pads=(1,1,1,1) strides=(2,2) | HardSwish"
    ),
    "depthwise 5x5 + HardSwish, 480 @14": (
        "Conv f32[1,480,14,14] f32[480,1,5,5] f32[480] group=480 pads=(2,2,2,2) | HardSwish"
    ),
    "1x1 + HardSwish, 96 to 192 @56": "Conv f32[1,96,56,56] f32[192,96,1,1] f32[192] | HardSwish",
    "1x1, 480 to 112 @14": "Conv f32[1,480,14,14] f32[112,480,1,1] f32[112]",
    "3x3 in 32 groups, 128 @56": (
        "Conv f32[1,128,56,56] f32[128,4,3,3] f32[128] group=32 pads=(1,1,1,1) | Relu"
    ),
    "3x3 in 32 groups, 512 @14": (
        "Conv f32[1,512,14,14] f32[512,16,3,3] f32[512] group=32 pads=(1,1,1,1) | Relu"
    ),
    "3x3, 64 @56": "Conv f32[1,64,56,56] f32[64,64,3,3] f32[64] pads=(1,1,1,1) | Relu",
    "3x3, 512 @7": "Conv f32[1,512,7,7] f32[512,512,3,3] f32[512] pads=(1,1,1,1) | Relu",
    "3x3 stride 2, 64 to 128 @56": (
        "Conv f32[1,64,56,56] f32[128,64,3,3] f32[128] pads=(1,1,1,1) strides=(2,2) | Relu"
    ),
    "7x7 stride 2, 3 to 64 @224": (
        "Conv f32[1,3,224,224] f32[64,3,7,7] f32[64] pads=(3,3,3,3) strides=(2,2) | Relu"
    ),
    "1x7, 192 @17": "Conv f32[1,192,17,17] f32[192,192,1,7] f32[192] pads=(0,3,0,3) | Relu",
    "7x1, 192 @17": "Conv f32[1,192,17,17] f32[192,192,7,1] f32[192] pads=(3,0,3,0) | Relu",
    "15x1, 256 to 21 @56": "Conv f32[1,256,56,56] f32[21,256,15,1] f32[21] pads=(7,0,7,0)",
    "3x3x3, 64 @8x56x56": "Conv f32[1,64,8,56,56] f32[64,64,3,3,3] f32[64] pads=(1,1,1,1,1,1)",
    "product 64x768x768": "MatMul f32[64,768] f32[768,768]",
    "product 64x768x3072": "MatMul f32[64,768] f32[768,3072]",
    "softmax of 64": "Softmax f32[768,64] axis=-1",
    "softmax of 4096": "Softmax f32[256,4096] axis=-1",
    "layer normalization, 64x768": "LayerNormalization f32[64,768] f32[768] f32[768]",
    "HardSwish, 96 @112": "HardSwish f32[1,96,112,112]",
    "max pool 3x3 stride 2, 64 @112": (
        "MaxPool f32[1,64,112,112] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1)"
    ),
    "average pool 3x3, 88 @28": "AveragePool f32[1,88,28,28] kernel_shape=(3,3) pads=(1,1,1,1)",
}


@dataclass(frozen=True)
class Row:
    """Milliseconds, of the fastest runtime, of the kernel, and of the kernel on one thread."""

    model: str
    processor: str
    threads: int
    peer: str
    peer_ms: float
    kernel_ms: float
    alone_ms: float
    share: float
    tried: int
    seconds: float
    schedule: str


def node_of(text: str) -> Node:
    """The operators of a text, one after the other."""
    first, *others = text.split(" | ")
    name, words = first.split(" ", 1)
    example = parse_example(words)
    args: list[Node] = []
    values = example.values(np.random.default_rng(0))
    for place, (kind, value) in enumerate(zip(example.types, values, strict=True)):
        assert kind is not None and value is not None
        args.append(source("x", kind) if place == 0 else constant(value))
    node = apply(registry[name], args, example.attrs)
    for other in others:
        node = apply(registry[other], [node])
    return node


@dataclass(frozen=True)
class Tuned:
    """Seconds of a kernel, of it on one thread, and of its tuning; what was tried, and what was best."""

    seconds: float
    alone: float
    share: float
    tried: int
    tuning: float
    schedule: str


def tuned(piece: Piece, machine: Machine, tuning: float) -> Tuned | None:
    """A piece as one eOperator whose schedule is tuned from nothing; None where it is none."""
    equation = compose_region(piece)
    if equation is None:
        return None
    right = equation.right[0]
    of = dict(zip(equation.leaves, piece.leaves, strict=True))
    kernel = Piece.of(replace_args(right, tuple(arg and of[arg] for arg in right.args)))
    with temporary_folder() as folder, Database(folder / "times.db") as records:
        roofline = Roofline.here(records, machine)
        tuner = Tuner(records, machine, "native", ships=False)
        kernels = TunedKernels(tuner, lambda least: tuning)
        begin = monotonic()
        builds = BuildCache(folder, make_expander(library()), kernels, kernels.link, folded=False)
        program, feeds = standalone_model(kernel, OPSET)
        build = builds(program)
        seconds = monotonic() - begin
        tuner.close()
        schedule = next(iter(kernels.schedules.values()), "")
        if not build.libraries:
            return None
        own, one = (timed("onnxruntime", build, feeds, n) for n in (machine.threads, 1))
    return Tuned(own, one, estimate(piece, roofline) / own, tuner.tried_count, seconds, schedule)


def peers(piece: Piece, machine: Machine) -> dict[str, float]:
    """Seconds of the runtimes that are installed."""
    with temporary_folder() as folder:
        program, feeds = standalone_model(piece, OPSET)
        build = BuildCache(folder)(program)
        names = [name for name in ("onnxruntime", "openvino") if backends.find(name).installed()]
        return {name: timed(name, build, feeds, machine.threads) for name in names}


def measured(name: str, threads: int | None, tuning: float) -> Row:
    """The operator on every runtime and as a kernel."""
    root = node_of(OPERATORS[name])
    piece = Piece(root, tuple(dict.fromkeys(n for n in _nodes(root) if not n.args)))
    machine = Machine.here(threads)
    kernel = tuned(piece, machine, tuning)
    if kernel is None:
        raise SystemExit(f"{name} has no kernel")
    times = peers(piece, machine)
    peer = min(times, key=lambda peer: times[peer])
    return Row(
        name,
        machine.processor,
        machine.threads,
        peer,
        times[peer] * 1e3,
        kernel.seconds * 1e3,
        kernel.alone * 1e3,
        kernel.share,
        kernel.tried,
        kernel.tuning,
        kernel.schedule,
    )


def _nodes(root: Node) -> list[Node]:
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += [arg for arg in reversed(node.args) if arg is not None]
    return found


def timed(backend: str, build: Build, feeds: Mapping[str, np.ndarray[Any, Any]], threads: int) -> float:
    with Stopwatch(backend, threads=threads) as stopwatch:
        return stopwatch.measure(build, feeds) or inf


def page(rows: list[Row]) -> str:
    """The table."""
    mean = exp(sum(log(r.peer_ms / r.kernel_ms) for r in rows) / len(rows))
    machine = sorted({f"{r.processor}, {r.threads} threads" for r in rows})
    lines = [
        "# Generated kernels, operator by operator",
        "",
        f"{'; '.join(machine)}; `python bench/operators.py`.  Milliseconds of the fastest runtime and of the",
        f"kernel, on threads of its runtime; geometric mean of the ratios {mean:.2f}.",
        "",
        "| operator | runtime | its ms | kernel's ms | ratio | than one thread | of peak | tried | seconds"
        " | schedule |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {r.model} | {r.peer} | {r.peer_ms:.3g} | {r.kernel_ms:.3g} | {r.peer_ms / r.kernel_ms:.2f} |"
        f" {r.alone_ms / r.kernel_ms:.2f} | {r.share:.0%} | {r.tried} | {r.seconds:.0f} | `{r.schedule}` |"
        for r in rows
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tuning", type=float, default=20.0)
    options = parser.parse_args()
    names = options.operators or list(OPERATORS)
    rows = read(TABLE, Row) if options.resume else []
    for name in names:
        if any(row.model == name for row in rows):
            continue
        rows.append(row := measured(name, options.threads, options.tuning))
        write(TABLE, rows)
        ratio = f"{row.peer_ms / row.kernel_ms:.2f}x"
        print(f"{name}: {row.peer} {row.peer_ms:.3g} ms, kernel {row.kernel_ms:.3g} ms, {ratio}", flush=True)
    TABLE.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
