"""Represents schedules as data: for each loop nest a sketch with its parameters filled in (ETO section 4.1).

    block(v=2*16x2, u=0:7, t=1:8, k=2!1!0., c=x0@1, p=1)     a register block of an output
    row(w=64/16, p=1)                                        partial results of a reduction along a row
    flat(u=4*16, p=1)                                        one vector after the other
    flat(u=1*16, b=0:16, p=1)                                the same, 16 rows of a gathered operand at once
    transform(v=16x2, u=1:14, t=7:14, c=16, k=4, p=1)        a bilinear chain
    pack(x1=0/16)                                            a constant input in blocks, packed ahead of time
    band(s0=1/16)                                            a banded product in blocks of rows

An axis is a number here: its position among the axes of a nest's output, or among the axes that the nest
reduces. `t=1:8` in the first line means tiles of 8 along axis 1; the classes below explain every parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class BlockSketch:
    """Keeps accumulators in registers: vectors along one axis times an unrolled block of other axes.

    vector    the axis that vectors lie along; v=2*16x2: along axis 2, of 16 elements, two side by side
    lanes     elements of a vector
    vectors   vectors side by side
    block     (axis, count): by how much other axes are unrolled; u=0:7
    tile      (axis, size): the tiles of the output, outermost loop first; t=1:8
    order     the reduced axes, innermost loop first; k=2!1!0., with ! for unrolled ones
    unrolled  how many axes of `order`, from the innermost, are unrolled
    copies    (tensor, level): operands that are copied, at the root (level 0) or inside loop `level`; c=x0@1
    parallel  how many of the outermost loops are fused to one parallel loop; p=1
    """

    vector: int
    lanes: int
    vectors: int = 1
    block: tuple[tuple[int, int], ...] = ()
    tile: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()
    unrolled: int = 0
    copies: tuple[tuple[str, int], ...] = ()
    parallel: int = 0

    @property
    def text(self) -> str:
        order = "".join(f"{k}{'!' if n < self.unrolled else '.'}" for n, k in enumerate(self.order))
        parts = [f"v={self.vector}*{self.lanes}x{self.vectors}"]
        parts += [f"u={_format_pairs(self.block)}"] if self.block else []
        parts += [f"t={_format_pairs(self.tile)}"] if self.tile else []
        parts += [f"k={order}"] if order else []
        parts += [f"c={'+'.join(f'{name}@{level}' for name, level in self.copies)}"] if self.copies else []
        return f"block({', '.join([*parts, f'p={self.parallel}'])})"


@dataclass(frozen=True)
class RowSketch:
    """Reduces along the last reduced axis to `width` partial results, in vectors of `lanes` elements.

    `parallel` is that of `BlockSketch`.
    """

    lanes: int
    width: int
    parallel: int = 0

    @property
    def text(self) -> str:
        return f"row(w={self.width}/{self.lanes}, p={self.parallel})"


@dataclass(frozen=True)
class FlatSketch:
    """Computes vectors along the last axis, `unroll` of them side by side, without a register block.

    Other nests are computed in the loops over the first `around` axes; 0 stands for all axes that nests
    share.  `beside` has (axis, count) of other axes that are unrolled around the vectors, b=0:16: where a
    vector gathers its elements, the next step along such an axis finds its own in the same cache lines.
    """

    lanes: int
    unroll: int = 1
    parallel: int = 0
    around: int = 0
    beside: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        parts = [f"u={self.unroll}*{self.lanes}"]
        parts += [f"r={self.around}"] if self.around else []
        parts += [f"b={_format_pairs(self.beside)}"] if self.beside else []
        return f"flat({', '.join([*parts, f'p={self.parallel}'])})"


@dataclass(frozen=True)
class ChainSketch:
    """Computes all nests of a bilinear chain (`kernels.stages.bilinear_chain`) together.

    lanes, vectors  elements of a vector of results, and vectors in one block of results
    block           tiles of a register block, along each axis of tiles
    tile            tiles whose input combinations are computed at once, along each axis of tiles
    channel_lanes   channels in one vector of the input combinations
    unrolled        channels whose products are unrolled
    parallel        1: the loop over blocks of tiles is parallel; 2: that over blocks of results; 0: none
    by_points       whether products are computed point by point, each for all results, so that the data and
                    weights of a point are read once; else block by block of results; m=1
    """

    lanes: int
    vectors: int
    block: tuple[int, ...]
    tile: tuple[int, ...]
    channel_lanes: int
    unrolled: int = 4
    parallel: int = 0
    by_points: bool = False

    @property
    def text(self) -> str:
        parts = [f"v={self.lanes}x{self.vectors}"]
        parts += [f"u={':'.join(map(str, self.block))}", f"t={':'.join(map(str, self.tile))}"]
        parts += ["m=1"] if self.by_points else []
        parts += [f"c={self.channel_lanes}", f"k={self.unrolled}", f"p={self.parallel}"]
        return f"transform({', '.join(parts)})"


@dataclass(frozen=True)
class PackedInput:
    """Packs an input of the kernel in blocks of `width` along one dimension; the place in a block comes last.

    `kernels.stages.pack_weights` does so.
    """

    tensor: str
    dimension: int
    width: int

    @property
    def text(self) -> str:
        return f"pack({self.tensor}={self.dimension}/{self.width})"


@dataclass(frozen=True)
class BlockedBand:
    """Computes a banded product in blocks of `rows` along an axis (`kernels.stages.band_blocks`)."""

    stage: str
    axis: int
    rows: int

    @property
    def text(self) -> str:
        return f"band({self.stage}={self.axis}/{self.rows})"


NestChange: TypeAlias = PackedInput | BlockedBand
Sketch: TypeAlias = BlockSketch | RowSketch | FlatSketch | ChainSketch
Schedule: TypeAlias = tuple[NestChange | Sketch, ...]  # all changes of nests, then a sketch for each nest


def nest_changes(schedule: Schedule) -> tuple[NestChange, ...]:
    """Returns the packed inputs and blocked bands of a schedule, which define the nests to sketch."""
    return tuple(part for part in schedule if isinstance(part, PackedInput | BlockedBand))


def select_bands(schedule: Iterable[NestChange | Sketch]) -> tuple[BlockedBand, ...]:
    """Returns the banded products that a schedule computes in blocks."""
    return tuple(part for part in schedule if isinstance(part, BlockedBand))


def select_packs(schedule: Iterable[NestChange | Sketch]) -> tuple[PackedInput, ...]:
    """Returns the inputs that a schedule packs ahead of time."""
    return tuple(part for part in schedule if isinstance(part, PackedInput))


def nest_sketches(schedule: Schedule) -> tuple[Sketch, ...]:
    """Returns the sketches of a schedule, one for each nest."""
    return tuple(part for part in schedule if not isinstance(part, PackedInput | BlockedBand))


def _format_pairs(pairs: tuple[tuple[int, int], ...]) -> str:
    return "+".join(f"{a}:{n}" for a, n in pairs)


def format_schedule(schedule: Schedule) -> str:
    """Formats a schedule as text, which `parse_schedule` reads back."""
    return "; ".join(sketch.text for sketch in schedule)


def parse_schedule(text: str) -> Schedule:
    """Parses the text of a schedule. Raises ValueError."""
    try:
        return tuple(map(_parse_sketch, filter(None, text.split("; "))))
    except (KeyError, ValueError) as error:
        raise ValueError(f"no schedule: {text!r}") from error


def _parse_sketch(text: str) -> NestChange | Sketch:
    if change := re.fullmatch(r"(pack|band)\((\w+)=(\d+)/(\d+)\)", text):
        kind = PackedInput if change[1] == "pack" else BlockedBand
        return kind(change[2], int(change[3]), int(change[4]))
    match = re.fullmatch(r"(block|row|flat|transform)\((.*)\)", text)
    if match is None:
        raise ValueError(f"no sketch: {text!r}")
    values = dict(part.split("=") for part in match[2].split(", "))
    parallel = int(values["p"])
    if match[1] == "flat":
        unroll, lanes = values["u"].split("*")
        beside = _parse_pairs(values.get("b", ""))
        return FlatSketch(int(lanes), int(unroll), parallel, int(values.get("r", 0)), beside)
    if match[1] == "row":
        width, lanes = values["w"].split("/")
        return RowSketch(int(lanes), int(width), parallel)
    if match[1] == "transform":
        lanes, vectors = values["v"].split("x")
        block, tile = (tuple(map(int, filter(None, values[key].split(":")))) for key in "ut")
        channel_lanes, unrolled = int(values["c"]), int(values["k"])
        by_points = values.get("m") == "1"
        return ChainSketch(
            int(lanes), int(vectors), block, tile, channel_lanes, unrolled, parallel, by_points
        )
    vector, shape = values["v"].split("*")
    lanes, vectors = shape.split("x")
    order = re.findall(r"(\d+)([!.])", values.get("k", ""))
    copies = [c.split("@") for c in values.get("c", "").split("+") if c]
    return BlockSketch(
        int(vector),
        int(lanes),
        int(vectors),
        _parse_pairs(values.get("u", "")),
        _parse_pairs(values.get("t", "")),
        tuple(int(k) for k, _ in order),
        sum(mark == "!" for _, mark in order),
        tuple((name, int(level)) for name, level in copies),
        parallel,
    )


def _parse_pairs(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.split(":") for pair in text.split("+") if pair)
    return tuple((int(a), int(n)) for a, n in pairs)
