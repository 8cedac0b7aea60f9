"""Rows turned to columns within registers: perfect shuffles, each one interleaving of vectors.

    t[k:256] = s[k // 4 + 64 * (k % 4)]        twice: element 16 * r + c goes to 16 * c + r

Reading with a stride costs a vector as many loads as it has elements; this costs it two instructions for each
shuffle.
"""

from __future__ import annotations

from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Select, Tensor, axis
from tensaurus.expr.sizes.size import floordiv, mod, polynomial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["radix", "shuffled", "turnable"]

RADICES = (4, 2)  # vectors that one interleaving takes: Halide knows those of few


def turnable(rows: int) -> bool:
    """Whether so many rows can be turned: a power of two."""
    return rows > 0 and rows & (rows - 1) == 0


def shuffled(first: Stage, rows: int) -> tuple[Stage, ...]:
    """The stage, whose last axis holds so many rows one after the other, and its shuffles.

    The last of them holds the columns one after the other.  Raises ValueError where rows are not turnable.
    """
    if not turnable(rows):
        raise ValueError(f"{rows} rows, which is no power of two")
    stages = [first]
    while rows > 1:
        ways = next(r for r in RADICES if rows % r == 0)
        stages.append(_shuffle(stages[-1], ways, f"{first.tensor.name}_{len(stages)}"))
        rows //= ways
    return tuple(stages)


def radix(shuffle: Stage) -> int:
    """How many vectors one of the shuffles interleaves."""
    count = 1
    body = shuffle.body
    while isinstance(body, Select):
        count, body = count + 1, body.other
    return count


def _shuffle(source: Stage, ways: int, name: str) -> Stage:
    """Its last axis in `ways` parts, interleaved."""
    axes = tuple(axis(a.extent) for a in source.axes)
    place: Any = polynomial(axes[-1])
    step = extent(axes[-1]) // ways
    parts: list[Body] = [
        Read(source.tensor, (*map(polynomial, axes[:-1]), floordiv(place, ways) + step * k))
        for k in range(ways)
    ]
    body = parts[-1]
    for k in reversed(range(ways - 1)):
        body = Select((k - mod(place, ways),), parts[k], body)
    return Stage(Tensor(name, source.tensor.shape, source.tensor.dtype), axes, body)
