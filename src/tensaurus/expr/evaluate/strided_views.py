"""Arrays read by index functions as strided views of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.evaluate.labelled_arrays import Labelled, length
from tensaurus.expr.ir.axis_binding import unnested_atoms
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.polynomial import plus, polynomial
from tensaurus.expr.sizes.size import Axis, Size, evaluate

__all__ = ["addressed"]


def addressed(data: Array, indices: Sequence[Size]) -> Labelled | None:
    """data[indices], where the address is affine in the axes though an index is not: what a reshape reads."""
    inside = set().union(*map(unnested_atoms, indices))
    axes = [a for a in inside if isinstance(a, Axis)]
    if len(axes) < len(inside) or not data.size or not all(map(length, axes)):
        return None
    address = reduce(plus, (polynomial(i) * step for i, step in zip(indices, data.strides, strict=True)))
    found = affine_coefficients(address, axes)
    if found is None:
        return None
    steps = {a: slope for a in axes if isinstance(slope := found[0].get(a, 0), int)}
    if len(steps) < len(axes):
        return None
    order = sorted(axes, key=lambda a: (-abs(steps[a]), a.name))  # as in memory
    start = data[tuple(slice(evaluate(index, lambda atom: 0), None) for index in indices)]
    shape, strides = zip(*((length(a), steps[a]) for a in order), strict=True)
    return Labelled(np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False), tuple(order))
