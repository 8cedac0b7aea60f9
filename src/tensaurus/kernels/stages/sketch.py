"""Schedules as data: a sketch with parameters for each nest (ETO section 4.1, here for vectors and caches).

    block(v=2*16x2, u=0:7, t=1:8, k=2!1!0, c=x0@1, p=1)      a register block of an output
    row(w=64, p=1)                                           partial results of a reduction along a row
    flat(u=4, p=1)                                           one element after the other
    transform(v=16x2, u=1:14, t=7:14, c=16, k=4, p=1)        a chain of combinations around products
    pack(x1=0/16)                                            weights in blocks, ahead of time
    band(s0=1/16)                                            a band in blocks of rows

Axes are places in the output of a nest or in the axes that its reduction reduces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Band",
    "Block",
    "Flat",
    "Pack",
    "Prefix",
    "Row",
    "Schedule",
    "Sketch",
    "Transform",
    "bands",
    "loops",
    "packs",
    "parse",
    "prefix",
    "show",
]


@dataclass(frozen=True)
class Block:
    """Accumulators in registers: `vectors` of `lanes` along one axis times a block of others.

    vector    the axis that vectors lie along
    lanes     elements of a vector
    vectors   vectors side by side
    block     (axis, how many): what is unrolled
    tile      (axis, size): the output in tiles, outermost loop first
    order     the reduced axes, innermost loop first
    unrolled  how many of these, from the innermost, are unrolled
    copies    (tensor, level): operands that are copied, at the root (0) or in the so-many-th loop
    parallel  how many of the outermost loops are one parallel loop
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
        parts += [f"u={_pairs(self.block)}"] if self.block else []
        parts += [f"t={_pairs(self.tile)}"] if self.tile else []
        parts += [f"k={order}"] if order else []
        parts += [f"c={'+'.join(f'{name}@{level}' for name, level in self.copies)}"] if self.copies else []
        return f"block({', '.join([*parts, f'p={self.parallel}'])})"


@dataclass(frozen=True)
class Row:
    """A reduction along the last axis in `width` partial results; `parallel` as in `Block`."""

    lanes: int
    width: int
    parallel: int = 0

    @property
    def text(self) -> str:
        return f"row(w={self.width}/{self.lanes}, p={self.parallel})"


@dataclass(frozen=True)
class Flat:
    """Vectors along the last axis, `unroll` of them side by side; other nests in the loops over its first
    `around` axes, all that they have in common where this is 0."""

    lanes: int
    unroll: int = 1
    parallel: int = 0
    around: int = 0

    @property
    def text(self) -> str:
        around = f", r={self.around}" if self.around else ""
        return f"flat(u={self.unroll}*{self.lanes}{around}, p={self.parallel})"


@dataclass(frozen=True)
class Transform:
    """All nests of a chain (`kernels.stages.bilinear_chain`) at once, tile by tile.

    lanes, vectors  of the results, in one block
    block           how many tiles a register block has, along each axis of tiles
    tile            how many tiles are between two combinations before
    deep            channels in one vector of these
    unrolled        channels whose products are one straight line
    parallel        1: blocks of tiles are one parallel loop; 2: blocks of results are
    """

    lanes: int
    vectors: int
    block: tuple[int, ...]
    tile: tuple[int, ...]
    deep: int
    unrolled: int = 4
    parallel: int = 0

    @property
    def text(self) -> str:
        parts = [f"v={self.lanes}x{self.vectors}"]
        parts += [f"u={':'.join(map(str, self.block))}", f"t={':'.join(map(str, self.tile))}"]
        parts += [f"c={self.deep}", f"k={self.unrolled}", f"p={self.parallel}"]
        return f"transform({', '.join(parts)})"


@dataclass(frozen=True)
class Pack:
    """An input of the kernel in blocks of `width` along one of its dimensions, the block's elements last."""

    tensor: str
    dimension: int
    width: int

    @property
    def text(self) -> str:
        return f"pack({self.tensor}={self.dimension}/{self.width})"


@dataclass(frozen=True)
class Band:
    """A banded product in blocks of `rows` along an axis of the stage (`kernels.stages.band_blocks`)."""

    stage: str
    axis: int
    rows: int

    @property
    def text(self) -> str:
        return f"band({self.stage}={self.axis}/{self.rows})"


Prefix: TypeAlias = Pack | Band
Sketch: TypeAlias = Block | Row | Flat | Transform
Schedule: TypeAlias = tuple[Prefix | Sketch, ...]  # what is packed and blocked, then a sketch for each nest


def prefix(schedule: Schedule) -> tuple[Prefix, ...]:
    """What changes the nests before they have sketches."""
    return tuple(part for part in schedule if isinstance(part, Pack | Band))


def bands(schedule: Iterable[Prefix | Sketch]) -> tuple[Band, ...]:
    """What is blocked."""
    return tuple(part for part in schedule if isinstance(part, Band))


def packs(schedule: Iterable[Prefix | Sketch]) -> tuple[Pack, ...]:
    """What is packed ahead of time."""
    return tuple(part for part in schedule if isinstance(part, Pack))


def loops(schedule: Schedule) -> tuple[Sketch, ...]:
    """The sketches of the nests."""
    return tuple(part for part in schedule if not isinstance(part, Pack | Band))


def _pairs(pairs: tuple[tuple[int, int], ...]) -> str:
    return "+".join(f"{a}:{n}" for a, n in pairs)


def show(schedule: Schedule) -> str:
    """As text, which `parse` reads back."""
    return "; ".join(sketch.text for sketch in schedule)


def parse(text: str) -> Schedule:
    """The schedule of a text.  Raises ValueError."""
    try:
        return tuple(map(_sketch, filter(None, text.split("; "))))
    except (KeyError, ValueError) as error:
        raise ValueError(f"no schedule: {text!r}") from error


def _sketch(text: str) -> Prefix | Sketch:
    if of := re.fullmatch(r"(pack|band)\((\w+)=(\d+)/(\d+)\)", text):
        return (Pack if of[1] == "pack" else Band)(of[2], int(of[3]), int(of[4]))
    match = re.fullmatch(r"(block|row|flat|transform)\((.*)\)", text)
    if match is None:
        raise ValueError(f"no sketch: {text!r}")
    values = dict(part.split("=") for part in match[2].split(", "))
    parallel = int(values["p"])
    if match[1] == "flat":
        unroll, lanes = values["u"].split("*")
        return Flat(int(lanes), int(unroll), parallel, int(values.get("r", 0)))
    if match[1] == "row":
        width, lanes = values["w"].split("/")
        return Row(int(lanes), int(width), parallel)
    if match[1] == "transform":
        lanes, vectors = values["v"].split("x")
        block, tile = (tuple(map(int, filter(None, values[key].split(":")))) for key in "ut")
        deep, unrolled = int(values["c"]), int(values["k"])
        return Transform(int(lanes), int(vectors), block, tile, deep, unrolled, parallel)
    vector, shape = values["v"].split("*")
    lanes, vectors = shape.split("x")
    order = re.findall(r"(\d+)([!.])", values.get("k", ""))
    copies = [c.split("@") for c in values.get("c", "").split("+") if c]
    return Block(
        int(vector),
        int(lanes),
        int(vectors),
        _unpaired(values.get("u", "")),
        _unpaired(values.get("t", "")),
        tuple(int(k) for k, _ in order),
        sum(mark == "!" for _, mark in order),
        tuple((name, int(level)) for name, level in copies),
        parallel,
    )


def _unpaired(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.split(":") for pair in text.split("+") if pair)
    return tuple((int(a), int(n)) for a, n in pairs)
