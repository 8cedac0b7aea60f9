"""Sizes that are affine in some of their axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensaurus.expr.sizes.polynomial import make, plus, polynomial, terms_of
from tensaurus.expr.sizes.size import Axis, Size, atoms


def coefficients(size: Any, axes: Iterable[Axis]) -> tuple[dict[Axis, Size], Size] | None:
    """({axis: coefficient}, rest) where the size is affine in the axes, else None."""
    wanted = set(axes)
    slopes: dict[Axis, Any] = {}
    rest: Any = 0
    for factors, coefficient in terms_of(size):
        inside = [a for a in factors if a in wanted]
        others = tuple(a for a in factors if a not in wanted)
        if len(inside) > 1 or any(not wanted.isdisjoint(atoms(polynomial(a))) for a in others):
            return None
        piece = make({others: coefficient})
        if inside:
            axis = inside[0]
            assert isinstance(axis, Axis)
            slopes[axis] = plus(slopes.get(axis, 0), piece)
        else:
            rest = plus(rest, piece)
    return slopes, rest
