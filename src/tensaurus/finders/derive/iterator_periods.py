"""Proposes numbers by which an iterator may be split into quotient and remainder.

    x[2*h + r]   ->   r by 2        x[h // 3]   ->   h by 3

Any number would be right; strides, dilations and divisors in indices suggest those that simplify indices.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.ir.walk import bodies, sizes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Floor, Size, atoms

__all__ = ["candidate_periods"]

MAX_KERNEL_EXTENT = 16  # a summation iterator up to this extent, as of a filter, is split by every number


def candidate_periods(scope: Scope, a: Axis, *, summation: bool = False) -> list[int]:
    """Return the divisors in ascending order, larger than 1 and smaller than the axis's extent.

    These are slopes of other iterators in an index where the axis has slope 1 or -1, and divisors of the
    axis; for a short `summation` iterator that shares an index with another iterator, all numbers.
    """
    found = {n for body in bodies(scope, nested=False) for size in sizes(body) for n in _suggested(size, a)}
    if not isinstance(a.extent, int):
        return sorted(found)
    if summation and a.extent <= MAX_KERNEL_EXTENT and _shares_index(scope, a):
        found |= set(range(2, a.extent))
    return sorted(step for step in found if 1 < step < a.extent)


def _shares_index(scope: Scope, a: Axis) -> bool:
    """Return whether another iterator occurs in an index together with the axis."""
    found = (atoms(size) for body in bodies(scope, nested=False) for size in sizes(body))
    return any(a in inside and len(inside) > 1 for inside in found)


def _suggested(size: Size, a: Axis) -> Iterator[int]:
    inside = atoms(size)
    if a not in inside:
        return
    for atom in inside:
        if isinstance(atom, Floor) and isinstance(atom.bottom, int) and a in atoms(atom.top):
            yield atom.bottom
    axes = [b for b in inside if isinstance(b, Axis)]
    form = affine_coefficients(size, axes)
    if form is not None and form.slopes.get(a) in (1, -1):
        yield from (abs(slope) for slope in form.slopes.values() if isinstance(slope, int) and abs(slope) > 1)
