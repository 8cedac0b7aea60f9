"""What schedules are made for: vectors, registers, threads, and the part of a nest that a thread has."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tensaurus.codegen.sketch import Block, Sketch, Transform

__all__ = ["Core", "Shape", "share"]


@dataclass(frozen=True)
class Core:
    """What a schedule is made for: bits of a vector, how many registers of them, threads."""

    bits: int
    registers: int
    threads: int

    def lanes(self, dtype: str) -> int:
        """Elements of a vector."""
        size = 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))
        return self.bits // max(size, 32)


@dataclass(frozen=True)
class Shape:
    """Of a nest: the extents of its output, and how many points it computes."""

    extents: tuple[int, ...]
    points: int


def share(sketch: Sketch, shape: Shape, threads: int) -> float:
    """The part of a nest that the busiest of the threads computes."""
    if isinstance(sketch, Transform):
        tiled = [-(-n // t) for n, t in zip(shape.extents, sketch.tile, strict=False)]
        counts = [1, prod(tiled), shape.extents[-1]][sketch.parallel :][:1]
        return -(-counts[0] // threads) / counts[0] if sketch.parallel else 1.0
    if isinstance(sketch, Block):
        counts = [-(-shape.extents[a] // n) for a, n in sketch.tile if n < shape.extents[a]]
    else:
        counts = list(shape.extents)
    tasks = prod(counts[: sketch.parallel])
    return -(-tasks // threads) / tasks
