"""Read arrays by index functions as strided views, without copying.

    x[i // 3, i % 3], i:6, of x[2, 3] in row-major order      reads element  3*(i // 3) + i % 3 = i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from numpy.lib.stride_tricks import as_strided

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.evaluate.labelled_arrays import LabelledArray, length
from tensaurus.expr.ir.axis_binding import unnested_atoms
from tensaurus.expr.sizes.affine import LinearForm, affine_coefficients
from tensaurus.expr.sizes.polynomial import plus, polynomial
from tensaurus.expr.sizes.size import Axis, Size, evaluate

__all__ = ["affine_indices", "affine_view", "strided_view"]


def strided_view(data: Array, indices: Sequence[Size]) -> LabelledArray | None:
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
    steps = {a: slope for a in axes if isinstance(slope := linear.slopes.get(a, 0), int)}
    if len(steps) < len(axes):
        return None
    order = sorted(axes, key=lambda a: (-abs(steps[a]), a.name))  # memory order
    # the part of the data that begins at the element where all axes are 0
    start = data[tuple(slice(evaluate(index, lambda atom: 0), None) for index in indices)]
    shape, strides = zip(*((length(a), steps[a]) for a in order), strict=True)
    return LabelledArray(as_strided(start, shape, strides, writeable=False), tuple(order))


def affine_indices(indices: Sequence[Size]) -> dict[int, LinearForm]:
    """Return the indices that are affine in axes, with whole slopes, by dimension."""
    forms: dict[int, LinearForm] = {}
    for place, size in enumerate(indices):
        form = affine_coefficients(size, [a for a in unnested_atoms(size) if isinstance(a, Axis)])
        if form is not None and all(isinstance(c, int) for c in (form.rest, *form.slopes.values())):
            forms[place] = form
    return forms


def affine_view(data: Array, forms: Mapping[int, LinearForm]) -> tuple[Array | None, tuple[Axis, ...]]:
    """Return a view of the data at affine indices, given by dimension, and the axes of its last dimensions.

    The dimensions without an index stand in front, whole.  None where there is no element at the indices.
    """
    offset: list[Any] = [slice(None)] * data.ndim
    steps: dict[Axis, int] = {}
    for place, (slopes, rest) in forms.items():
        assert isinstance(rest, int)
        offset[place] = slice(rest, None)
        for a, slope in slopes.items():
            assert isinstance(slope, int)
            steps[a] = steps.get(a, 0) + slope * data.strides[place]
    # only the base's first element, where all axes are 0, counts: a negative slope goes back from there
    base = data[(*offset, ...)] if all(o == slice(None) or o.start >= 0 for o in offset) else data
    whole = [p for p in range(data.ndim) if p not in forms]
    shape = [data.shape[p] for p in whole] + list(map(length, steps))
    strides = [data.strides[p] for p in whole] + list(steps.values())
    return as_strided(base, shape, strides, writeable=False) if base.size else None, tuple(steps)
