"""Evaluate conditions, conjunctions of sizes >= 0, at all points of axes.

    i - 1 >= 0 and 3 - i >= 0,  over i:5      ->      False, True, True, True, False

The regions of an output (`summation_regions`) are found by asking where the guards of its expression hold.  A
*place* maps the axes of an output to the indices of one element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.ir.scope import Body, Select
from tensaurus.expr.ir.walk import children
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Size,
    Symbol,
    atoms,
    evaluate,
    is_negative,
    is_nonnegative,
    substitute,
)

MAX_POINTS = 1 << 20  # a condition over more points counts as undecided: evaluating it would take too long

Condition = tuple[Size, ...]
TruthTable = np.ndarray[Any, np.dtype[np.bool_]]


class Undecided(Exception):
    """Raised for a condition that depends on a tensor, or that symbols do not decide."""


def collect_conditions(body: Body) -> tuple[Condition, ...]:
    """Return the conditions of all selects in the body, each guard split into independent conditions.

    Sizes of a guard that share axes, directly or by way of others, form one condition, so that a truth table
    has no more axes than needed.  A size without axes is a condition by itself.
    """
    result: dict[Condition, None] = {}

    def visit(part: Body) -> None:
        if isinstance(part, Select):
            axes = sorted(set().union(*map(sorted_axes, part.guard)), key=str)
            for group in group_axes(axes, [(size,) for size in part.guard]):
                result[tuple(g for g in part.guard if not atoms(g).isdisjoint(group))] = None
            result.update({(g,): None for g in part.guard if not sorted_axes(g)})
        for child in children(part):
            visit(child)

    visit(body)
    return tuple(result)


def group_axes(axes: Sequence[Axis], all_conditions: Sequence[Condition]) -> list[tuple[Axis, ...]]:
    """Return the axes in groups such that no condition has axes of two groups.

    For example i, j, k with the conditions (i - j,) and (k - 2,) are (i, j) and (k,).
    """
    groups = [{a} for a in axes]
    for condition in all_conditions:
        joined = [g for g in groups if depends_on(condition, g)]
        groups = [g for g in groups if g not in joined] + ([set().union(*joined)] if joined else [])
    return sorted((tuple(a for a in axes if a in g) for g in groups), key=lambda g: axes.index(g[0]))


def depends_on(condition: Condition, axes: Iterable[Axis]) -> bool:
    """Return whether the condition contains one of the axes."""
    return any(not atoms(size).isdisjoint(axes) for size in condition)


def substitute_place(condition: Condition, place: Mapping[Atom, Any]) -> Condition:
    """Return the condition with axes replaced by the indices that the place gives them."""
    return tuple(substitute(size, place) for size in condition)


def size_at_deciding_place(size: Size, places: Sequence[Mapping[Atom, Any]]) -> Size:
    """Return the size at the first place at which its sign is decided, else at the last.

    The places are the first and the last index tuple of one box in which the sign is the same everywhere.  In
    1 <= i < H - 1, the size H - 2 - i is never negative: at i = 1 it is H - 3, which is undecided where H may
    be 2 and the box empty; at i = H - 2 it is 0.
    """
    at_places: list[Size] = [substitute(size, place) for place in places]
    for here in at_places[:-1]:
        try:
            truth_table((here,), sorted_axes(here))
            return here
        except Undecided:
            continue
    return at_places[-1]


def sorted_axes(*sizes: Size) -> list[Axis]:
    """Return the axes of some sizes, sorted by name."""
    return sorted((a for a in set().union(*map(atoms, sizes)) if isinstance(a, Axis)), key=str)


def truth_table(condition: Condition, axes: Sequence[Axis]) -> TruthTable:
    """Return whether all sizes are at least 0 at each point, with a dimension for each axis.

    Raises Undecided where an extent is open, there are too many points, or a tensor or symbols would decide.
    """
    shape = tuple(a.extent for a in axes if isinstance(a.extent, int))
    if len(shape) < len(axes) or prod(shape) > MAX_POINTS:
        raise Undecided(f"{condition} over {axes}")
    points: dict[Atom, Any] = dict(zip(axes, np.indices(shape, sparse=True), strict=True))
    return np.broadcast_to(reduce(np.logical_and, [_signs(size, points) for size in condition]), shape)


def _signs(size: Size, points: Mapping[Atom, Any]) -> TruthTable:
    """Return whether the size is at least 0 at each point, given the indices of each axis there.

    With symbols, the part with axes must be a number u at each point; the sign of u plus the rest is asked of
    the symbols' bounds once for each u.  Raises Undecided.
    """
    nested_atoms = atoms(size)
    if not any(isinstance(atom, Symbol) for atom in nested_atoms):
        # an atom that is no quotient, no max and none of the axes, such as a Lookup, has no known value
        if any(not isinstance(atom, (Floor, Largest)) and atom not in points for atom in nested_atoms):
            raise Undecided(f"the sign of {size}")
        return np.asarray(evaluate(size, points.__getitem__) >= 0)
    form = affine_coefficients(size, sorted_axes(size))
    if form is None or not all(isinstance(slope, int) for slope in form.slopes.values()):
        raise Undecided(f"the sign of {size}")
    values = np.asarray(sum((points[b] * s for b, s in form.slopes.items()), start=0))
    signs = {u: _sign(form.rest + u) for u in np.unique(values).tolist()}
    return np.vectorize(signs.__getitem__, otypes=[bool])(values) if values.size else values > 0


def _sign(size: Size) -> bool:
    if is_nonnegative(size):
        return True
    if is_negative(size):
        return False
    raise Undecided(f"the sign of {size}")
