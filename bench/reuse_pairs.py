"""Pairs of operators of one type, one tuned with what was found for the other (ETO, 7.1, Figures 7 and 8).

Of each of ten types some operators of random sizes are tuned, each from nothing for --tuning seconds.  Then
of random pairs of them the first is tuned again, as a model's kernel is where nothing but the second one is
known (`Tuner.least_seconds`), and both kernels of it are timed in turns.

Writes tables/reuse_pairs.md.

    python bench/reuse_pairs.py [--tuning 4] [--operators 14] [--pairs 40] [TYPE ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

from operators import node_of
from reuse import Kernel, kernel_of, timed_in_turns, use_records
from revision import name_commit

from tensaurus.finders.bilinear.convolution_equation import fast_convolution_equation
from tensaurus.finders.bilinear.interpolation_points import best_algorithm
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.kernels.stages.sketch import Schedule
from tensaurus.kernels.tune.kernel_speeds import form_distance
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.scratch import temporary_folder

TABLE = Path(__file__).parent / "tables" / "reuse_pairs.md"
BATCHES = (1, 16)
CHANNELS = (32, 48, 64, 96, 128, 192, 256)
SIDES = (7, 14, 28, 56)


def conv1d(batch: int, rng: Random) -> Node:
    """As in the one-dimensional Inception-ResNet."""
    taps, c, f, side = rng.choice((1, 3, 7)), rng.choice(CHANNELS), rng.choice(CHANNELS), rng.choice(SIDES)
    return node_of(f"Conv f32[{batch},{c},{side * 4}] f32[{f},{c},{taps}] pads=({taps // 2},{taps // 2})")


def conv2d(batch: int, rng: Random) -> Node:
    """As in ResNet-50."""
    taps, c, f, side = rng.choice((1, 3)), rng.choice(CHANNELS), rng.choice(CHANNELS), rng.choice(SIDES)
    pads = ",".join([str(taps // 2)] * 4)
    return node_of(f"Conv f32[{batch},{c},{side},{side}] f32[{f},{c},{taps},{taps}] pads=({pads})")


def conv3d(batch: int, rng: Random) -> Node:
    """As in R(2+1)D."""
    c, f, side, frames = rng.choice(CHANNELS[:4]), rng.choice(CHANNELS[:4]), rng.choice(SIDES[:3]), 4
    taps = rng.choice(((1, 3, 3), (3, 1, 1)))
    pads, sizes = ",".join(str(n // 2) for n in taps * 2), ",".join(map(str, taps))
    return node_of(f"Conv f32[{batch},{c},{frames},{side},{side}] f32[{f},{c},{sizes}] pads=({pads})")


def batch_product(batch: int, rng: Random) -> Node:
    """As in BERT's attention."""
    heads, length, depth = 12 * batch, rng.choice((64, 128, 197)), rng.choice((32, 64))
    left, right = rng.choice((((length, depth), (depth, length)), ((length, length), (length, depth))))
    kinds = [TensorType("float32", (heads, *shape)) for shape in (left, right)]
    scope = (
        f"L[b:{heads}, i:{left[0]}, j:{right[1]}](sum[k:{left[1]}](mul(x0[b, i, k], x1[b, k, j])))"
    )
    return apply(eop, [source("x", kinds[0]), source("y", kinds[1])], {"scope": scope})


def group_conv(batch: int, rng: Random) -> Node:
    """As in ResNeSt-50 and ResNeXt-50."""
    group, width, side = rng.choice((2, 4, 32)), rng.choice((8, 16, 32)), rng.choice(SIDES[:3])
    c = group * width
    return node_of(f"Conv f32[{batch},{c},{side},{side}] f32[{c},{width},3,3] group={group} pads=(1,1,1,1)")


def depthwise_conv(batch: int, rng: Random) -> Node:
    """As in MobileNetV2."""
    c, side, taps = rng.choice((32, 96, 144, 192, 384, 576)), rng.choice(SIDES), rng.choice((3, 5))
    pads = ",".join([str(taps // 2)] * 4)
    return node_of(f"Conv f32[{batch},{c},{side},{side}] f32[{c},1,{taps},{taps}] group={c} pads=({pads})")


def transposed_conv(batch: int, rng: Random) -> Node:
    """As in DCGAN."""
    c, f, side = rng.choice(CHANNELS), rng.choice(CHANNELS), rng.choice((4, 8, 16))
    return node_of(
        f"ConvTranspose f32[{batch},{c},{side},{side}] f32[{c},{f},4,4] strides=(2,2) pads=(1,1,1,1)"
    )


def capsule_conv(batch: int, rng: Random) -> Node:
    """A convolution of 4x4 matrices."""
    c, f, side = rng.choice((8, 16, 32)), rng.choice((8, 16, 32)), rng.choice((7, 14))
    kinds = [
        TensorType("float32", shape) for shape in ((batch, c, side, side, 4, 4), (f, c, 3, 3, 4, 4))
    ]
    scope = (
        f"L[n:{batch}, f:{f}, i:{side}, j:{side}, a:4, b:4](sum[c:{c}, r:3, s:3, k:4]("
        "mul(x0[n, c, i + r - 1, j + s - 1, a, k] | 0, x1[f, c, r, s, k, b])))"
    )
    return apply(eop, [source("x", kinds[0]), source("w", kinds[1])], {"scope": scope})


def winograd_conv(batch: int, rng: Random) -> Node:
    """As in ResNet-50: F(4x4, 3x3)."""
    c, f, side = rng.choice(CHANNELS), rng.choice(CHANNELS), rng.choice(SIDES[1:])
    conv = node_of(f"Conv f32[{batch},{c},{side},{side}] f32[{f},{c},3,3] pads=(1,1,1,1)")
    equation = fast_convolution_equation(conv, (best_algorithm(4, 3), best_algorithm(4, 3)))
    assert equation is not None
    return equation.right[0]


def frobenius_norm(batch: int, rng: Random) -> Node:
    """The root of the sum of squares of each matrix."""
    rows, columns = rng.choice((64, 128, 256)), rng.choice((64, 128, 256))
    scope = f"L[i:{batch}](sqrt(sum[r:{rows}, s:{columns}](mul(x0[i, r, s], x0[i, r, s]))))"
    return apply(eop, [source("x", TensorType("float32", (batch, rows, columns)))], {"scope": scope})


TYPES: dict[str, Callable[[int, Random], Node]] = {
    "C1D": conv1d,
    "C2D": conv2d,
    "C3D": conv3d,
    "BMM": batch_product,
    "GRP": group_conv,
    "DEP": depthwise_conv,
    "T2D": transposed_conv,
    "CAP": capsule_conv,
    "WIN": winograd_conv,
    "FRB": frobenius_norm,
}


@dataclass(frozen=True)
class Tuning:
    """An operator tuned from nothing: its schedule, its database, and how many schedules were compiled."""

    kernel: Kernel
    schedule: Schedule
    records: Path
    tried: int


@dataclass(frozen=True)
class Pair:
    """Throughput with reuse over that of tuning from nothing, and how many schedules each compiled."""

    throughput: float
    tried: int
    reuse_tried: int


def draw_kernels(name: str, number: int, rng: Random, tuner: Tuner) -> Iterator[Kernel]:
    """Yield different operators of a type; their batch sizes take turns."""
    seen: set[str] = set()
    while len(seen) < number:
        kernel = kernel_of(Piece.of(TYPES[name](BATCHES[len(seen) % 2], rng)), tuner)
        assert kernel is not None
        if kernel.form not in seen:
            seen.add(kernel.form)
            yield kernel


def tune(tuner: Tuner, kernel: Kernel, records: Path, seconds: float | None) -> Tuning:
    """Tune a kernel with what a database knows; without `seconds`, for as long as it needs at least."""
    with Database(records) as database:
        use_records(tuner, database)
        tuner.tried_count = 0
        least = tuner.least_seconds(kernel.scope, kernel.types, kernel.is_constant)
        schedule = tuner.best_schedule(
            kernel.scope, kernel.types, kernel.output, least if seconds is None else seconds,
            kernel.is_constant,
        )  # fmt: skip
    if schedule is None:
        raise SystemExit(f"no kernel for {kernel.form}")
    return Tuning(kernel, schedule, records, tuner.tried_count)


def measure_type(name: str, operators: int, pairs: int, seconds: float) -> str:
    """Return the line of a type."""
    rng, measured = Random(name), list[Pair]()
    with temporary_folder() as folder, Database(folder / "none.sqlite") as nothing:
        tuner = Tuner(nothing, Machine.here(None), "native", ships=False)
        tuner.begin_start()
        tuner.wait_for_start()
        tunings = [
            tune(tuner, kernel, folder / f"{number}.sqlite", seconds)
            for number, kernel in enumerate(draw_kernels(name, operators, rng, tuner))
        ]
        reusable = [
            (target, known)
            for target, known in permutations(tunings, 2)
            if form_distance(target.kernel.form, known.kernel.form) < inf
        ]
        for place, (target, known) in enumerate(rng.sample(reusable, min(pairs, len(reusable)))):
            copy = folder / f"pair {place}.sqlite"
            copy.write_bytes(known.records.read_bytes())
            reuse = tune(tuner, target.kernel, copy, None)
            own, reused = timed_in_turns(target.kernel, [target.schedule, reuse.schedule], tuner)
            measured.append(Pair(own / reused, target.tried, reuse.tried))
        tuner.close()
    throughputs = [pair.throughput for pair in measured]
    counted = ((pair.tried, pair.reuse_tried) for pair in measured)
    tried, reuse_tried = (fmean(counts) for counts in zip(*counted, strict=True))
    return (
        f"| {name} | {len(measured)} | {fmean(throughputs):.3f} | {pstdev(throughputs):.3f} |"
        f" {min(throughputs):.2f} | {tried:.1f} | {reuse_tried:.1f} | {tried / reuse_tried:.1f}x |"
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--tuning", type=float, default=4.0)
    parser.add_argument("--operators", type=int, default=14)
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    lines = [
        "# What one operator's tuning tells of another's",
        "",
        f"{Machine.here(None).processor}, 2 threads; `python bench/reuse_pairs.py`; made by {name_commit()}.",
        "Throughput of kernels that were tuned with what is known of one other operator of their type, over",
        "that of kernels tuned from nothing: mean, standard deviation and the worst; schedules compiled.",
        "",
        "| type | pairs | throughput | deviation | worst | compiled | with reuse | saved |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in options.types or TYPES:
        lines.append(measure_type(name, options.operators, options.pairs, options.tuning))
        print(lines[-1], flush=True)
        TABLE.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
