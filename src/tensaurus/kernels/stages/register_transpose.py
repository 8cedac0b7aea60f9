"""Transposes rows within registers by perfect shuffles, each of which interleaves a few vectors.

    t[k:256] = s[k // 4 + 64 * (k % 4)]        one shuffle, which interleaves 4 parts of 64 elements

Two such shuffles move element 16 * r + c to 16 * c + r, and so transpose 16 rows of 16 elements.

Reading a vector with a stride takes as many loads as the vector has elements; a shuffle takes two
instructions for each vector.
"""

from __future__ import annotations

from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Select, Tensor, axis
from tensaurus.expr.sizes.size import floordiv, mod, polynomial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["shuffle_radix", "transpose_rows", "is_transposable"]

SHUFFLE_RADICES = (4, 2)  # vectors that one shuffle interleaves: Halide has good code for few vectors only


def is_transposable(rows: int) -> bool:
    """Whether this number of rows can be transposed by shuffles: it is a power of two."""
    return rows > 0 and rows & (rows - 1) == 0


def transpose_rows(first: Stage, rows: int) -> tuple[Stage, ...]:
    """Returns the stage, whose last axis holds `rows` rows one after the other, followed by its shuffles.

    The last stage holds the columns one after the other. Raises ValueError where the rows are no power of
    two.
    """
    if not is_transposable(rows):
        raise ValueError(f"{rows} rows, which is no power of two")
    stages = [first]
    while rows > 1:
        ways = next(r for r in SHUFFLE_RADICES if rows % r == 0)
        stages.append(_shuffle(stages[-1], ways, f"{first.tensor.name}_{len(stages)}"))
        rows //= ways
    return tuple(stages)


def shuffle_radix(shuffle: Stage) -> int:
    """Returns how many vectors a shuffle interleaves."""
    count = 1
    body = shuffle.body
    while isinstance(body, Select):
        count, body = count + 1, body.other
    return count


def _shuffle(source: Stage, ways: int, name: str) -> Stage:
    """Returns the stage that interleaves `ways` equal parts of the source's last axis."""
    axes = tuple(axis(a.extent) for a in source.axes)
    place: Any = polynomial(axes[-1])
    step = extent(axes[-1]) // ways
    interleaved: list[Body] = [
        Read(source.tensor, (*map(polynomial, axes[:-1]), floordiv(place, ways) + step * k))
        for k in range(ways)
    ]
    body = interleaved[-1]
    for k in reversed(range(ways - 1)):
        body = Select((k - mod(place, ways),), interleaved[k], body)
    return Stage(Tensor(name, source.tensor.shape, source.tensor.dtype), axes, body)
