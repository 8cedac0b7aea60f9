"""What schedules are made for: vectors, registers, threads, and the part of a nest that a thread has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, prod

from tensaurus.kernels.stages.sketch import Block, Sketch, Transform

__all__ = ["BYTES", "L1", "L2", "Core", "Shape", "exchanged", "share"]

# Threads share what they compute or what they read: where they make a chain's transformed data together, each
# reads what the others wrote from their caches; where each makes its own, all of them read all weights.  How
# far other cores and caches are changes while a kernel runs, as a host moves virtual cores: a chain with its
# data made together took 0.42 or 0.91 ms, for seconds at a time, those beside it at most a fifth longer.  The
# seconds here lie in between.
BYTE = 0.25e-9  # seconds for each byte that a thread reads of what others wrote
AGAIN = 0.015e-9  # seconds for each byte of weights that another thread reads, too, from behind its own cache
LOOP = 5e-6  # seconds in which threads wait for one another, at the end of a parallel loop
BYTES = 4  # of an element
L1, L2 = 32 << 10, 512 << 10  # bytes: what a block reads of an operand comes from there


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
    """Of a nest: the extents of its output, and how many points it computes.

    `copied` are bytes of copies that threads may make together: of operands, or of a chain's transformed data
    (""); `weights` are bytes that all read.
    """

    extents: tuple[int, ...]
    points: int
    copied: Mapping[str, int] = field(default_factory=dict, hash=False)
    weights: int = 0


def share(sketch: Sketch, shape: Shape, threads: int) -> float:
    """The part of a nest that the busiest of the threads computes."""
    if isinstance(sketch, Transform):
        counts = [1, _rounds(sketch, shape), shape.extents[-1]][sketch.parallel :][:1]
        return -(-counts[0] // threads) / counts[0] if sketch.parallel else 1.0
    if isinstance(sketch, Block):
        counts = [-(-shape.extents[a] // n) for a, n in sketch.tile if n < shape.extents[a]]
    else:
        counts = list(shape.extents)
    tasks = prod(counts[: sketch.parallel])
    return -(-tasks // threads) / tasks


def exchanged(sketch: Sketch, shape: Shape, threads: int) -> float:
    """Seconds that threads lose, about, by what others of them make or read, too."""
    if threads == 1 or not sketch.parallel:
        return 0.0
    if isinstance(sketch, Transform) and sketch.parallel == 1:
        return (threads - 1) * max(0, shape.weights - L2) * AGAIN
    loops, names = 0, list[str]()
    if isinstance(sketch, Transform):
        loops, names = 2 * _rounds(sketch, shape), [""]
    elif isinstance(sketch, Block):
        names = [name for name, level in sketch.copies if level == 0]
        loops = len(names)
    moved = sum(shape.copied.get(name, 0) for name in names)
    return (threads - 1) / threads * moved * BYTE + loops * LOOP


def _rounds(sketch: Transform, shape: Shape) -> int:
    return prod(ceil(n / t) for n, t in zip(shape.extents, sketch.tile, strict=False))
