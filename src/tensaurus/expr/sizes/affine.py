"""Split a size into a linear part over some axes and the rest.

    3*i + n*j + 2   over i, j   ->   {i: 3, j: n}, 2
    i*j + 2         over i, j   ->   None

Analyses of indices (strides, images, regions) begin with this split.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tensaurus.expr.sizes.polynomial import make_polynomial, plus, polynomial, terms_of
from tensaurus.expr.sizes.size import Axis, Size, atoms


class LinearForm(NamedTuple):
    """The size rest + sum of slope * axis."""

    slopes: dict[Axis, Size]
    rest: Size


def affine_coefficients(size: Any, axes: Iterable[Axis]) -> LinearForm | None:
    """Return slopes and rest where the size is affine in the axes, else None.

    Slopes and rest contain none of the axes; an axis that the size lacks has no slope.
    """
    axis_set = set(axes)
    slopes: dict[Axis, Any] = {}
    rest: Any = 0
    for factors, coefficient in terms_of(size):
        own_axes = [a for a in factors if a in axis_set]
        others = tuple(a for a in factors if a not in axis_set)
        if len(own_axes) > 1 or any(not axis_set.isdisjoint(atoms(polynomial(a))) for a in others):
            return None  # a product of axes, or an axis inside another atom, as in i // 2
        term_size = make_polynomial({others: coefficient})
        if own_axes:
            axis = own_axes[0]
            assert isinstance(axis, Axis)
            slopes[axis] = plus(slopes.get(axis, 0), term_size)
        else:
            rest = plus(rest, term_size)
    return LinearForm(slopes, rest)
