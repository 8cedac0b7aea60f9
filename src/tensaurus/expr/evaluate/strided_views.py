"""Read arrays by index functions as strided views, without copying.

    x[i // 3, i % 3], i:6, of x[2, 3] in row-major order      reads element  3*(i // 3) + i % 3 = i
"""

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

__all__ = ["strided_view"]


def strided_view(data: Array, indices: Sequence[Size]) -> Labelled | None:
    """Return data[indices] as a view, None where the address is not affine in the axes.

    The address may be affine though an index is not, as in the reads of a reshape.
    """
    all_atoms = set().union(*map(unnested_atoms, indices))
    axes = [a for a in all_atoms if isinstance(a, Axis)]
    if len(axes) < len(all_atoms) or not data.size or not all(map(length, axes)):
        return None
    # the address in bytes, relative to the first element of the data
    address = reduce(plus, (polynomial(i) * step for i, step in zip(indices, data.strides, strict=True)))
    linear = affine_coefficients(address, axes)
    if linear is None:
        return None
    steps = {a: slope for a in axes if isinstance(slope := linear[0].get(a, 0), int)}
    if len(steps) < len(axes):
        return None
    order = sorted(axes, key=lambda a: (-abs(steps[a]), a.name))  # memory order
    # the part of the data that begins at the element where all axes are 0
    start = data[tuple(slice(evaluate(index, lambda atom: 0), None) for index in indices)]
    shape, strides = zip(*((length(a), steps[a]) for a in order), strict=True)
    return Labelled(np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False), tuple(order))
