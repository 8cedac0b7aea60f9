"""Convert between the index tuple of an element and its row-major position in a tensor.

shape (2, 3):   (i, j)  <->  3*i + j        as `numpy.ravel_multi_index` and `numpy.unravel_index`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensaurus.expr.sizes.size import Size, polynomial


def ravel_index(indices: Iterable[Any], shape: Iterable[Size]) -> Size:
    """Return the row-major position of an index tuple in a shape."""
    position: Size = 0
    for index, extent in zip(indices, shape, strict=True):
        position = position * extent + polynomial(index)
    return position


def unravel_index(position: Size, shape: Sequence[Size]) -> tuple[Size, ...]:
    """Return the index tuple at a row-major position in a shape."""
    indices: list[Size] = []
    for d, extent in reversed(list(enumerate(shape))):
        indices.append(position % extent if d else position)
        position = position // extent if d else position
    return tuple(reversed(indices))
