"""Numbers by which an iterator may be divided: those that strides, dilations and remainders suggest."""

from __future__ import annotations

from collections.abc import Iterator

from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.ir.walk import bodies, sizes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Floor, Size, atoms

__all__ = ["periods"]

KERNEL = 16  # values of a summation's iterator at most that is divided without such a reason


def periods(scope: Scope, a: Axis, *, inner: bool = False) -> list[int]:
    """The steps, smallest first: each divides the axis into at least two values of each digit.

    What stands before another iterator in an index in which the axis stands alone, and what the axis is
    divided by; of a summation's iterator (`inner`) that shares an index with others also every number, where
    it has few values.
    """
    found = set(_suggested(scope, a))
    if not isinstance(a.extent, int):
        return sorted(found)
    if inner and a.extent <= KERNEL and _shared(scope, a):
        found |= set(range(2, a.extent))
    return sorted(step for step in found if 1 < step < a.extent)


def _shared(scope: Scope, a: Axis) -> bool:
    """Whether another iterator stands in an index of the axis."""
    found = (atoms(size) for body in bodies(scope, nested=False) for size in sizes(body))
    return any(a in inside and len(inside) > 1 for inside in found)


def _suggested(scope: Scope, a: Axis) -> Iterator[int]:
    for body in bodies(scope, nested=False):
        for size in sizes(body):
            yield from _beside(size, a)


def _beside(size: Size, a: Axis) -> Iterator[int]:
    inside = atoms(size)
    if a not in inside:
        return
    for atom in inside:
        if isinstance(atom, Floor) and isinstance(atom.bottom, int) and a in atoms(atom.top):
            yield atom.bottom
    axes = [b for b in inside if isinstance(b, Axis)]
    form = affine_coefficients(size, axes)
    if form is not None and form[0].get(a) in (1, -1):
        yield from (abs(slope) for slope in form[0].values() if isinstance(slope, int) and abs(slope) > 1)
