"""Conditions: sizes that are all at least 0, and at which points of which axes they are."""

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

POINTS = 1 << 20  # points at which one condition is evaluated

Condition = tuple[Size, ...]
Held = np.ndarray[Any, np.dtype[np.bool_]]


class Unknown(Exception):
    """A condition that is read from a tensor, or that symbols do not decide."""


def conditions(body: Body) -> tuple[Condition, ...]:
    """What must hold for some part of the body to be chosen; sizes that share axes are one condition."""
    tests: dict[Condition, None] = {}

    def visit(part: Body) -> None:
        if isinstance(part, Select):
            axes = sorted(set().union(*map(axes_of, part.guard)), key=str)
            for group in connected(axes, [(size,) for size in part.guard]):
                tests[tuple(g for g in part.guard if not atoms(g).isdisjoint(group))] = None
            tests.update({(g,): None for g in part.guard if not axes_of(g)})
        for child in children(part):
            visit(child)

    visit(body)
    return tuple(tests)


def connected(axes: Sequence[Axis], tests: Sequence[Condition]) -> list[tuple[Axis, ...]]:
    """The axes in groups that no condition joins."""
    groups = [{a} for a in axes]
    for test in tests:
        met = [g for g in groups if meets(test, g)]
        groups = [g for g in groups if g not in met] + ([set().union(*met)] if met else [])
    return sorted((tuple(a for a in axes if a in g) for g in groups), key=lambda g: axes.index(g[0]))


def meets(test: Condition, axes: Iterable[Axis]) -> bool:
    return any(not atoms(size).isdisjoint(axes) for size in test)


def at(test: Condition, place: Mapping[Atom, Any]) -> Condition:
    return tuple(substitute(size, place) for size in test)


def decided(size: Size, places: Sequence[Mapping[Atom, Any]]) -> Size:
    """The size at the first of some places, which are alike to it, where its sign is decided.

    1 <= i < H - 1 says that H - 1 - i > 0; where H - 1 is not known to be more than 1, i = H - 2 shows it.
    """
    at_places: list[Size] = [substitute(size, place) for place in places]
    for here in at_places[:-1]:
        try:
            holds((here,), axes_of(here))
            return here
        except Unknown:
            continue
    return at_places[-1]


def axes_of(*sizes: Size) -> list[Axis]:
    """The axes of some sizes, in one order."""
    return sorted((a for a in set().union(*map(atoms, sizes)) if isinstance(a, Axis)), key=str)


def holds(test: Condition, axes: Sequence[Axis]) -> Held:
    """Whether all sizes are at least 0, at each point of the axes.  Raises Unknown."""
    shape = tuple(a.extent for a in axes if isinstance(a.extent, int))
    if len(shape) < len(axes) or prod(shape) > POINTS:
        raise Unknown(f"{test} over {axes}")
    points: dict[Atom, Any] = dict(zip(axes, np.indices(shape, sparse=True), strict=True))
    return np.broadcast_to(reduce(np.logical_and, [_signs(size, points) for size in test]), shape)


def _signs(size: Size, points: Mapping[Atom, Any]) -> Held:
    inside = atoms(size)
    if not any(isinstance(atom, Symbol) for atom in inside):
        if any(not isinstance(atom, (Floor, Largest)) and atom not in points for atom in inside):
            raise Unknown(f"the sign of {size}")
        return np.asarray(evaluate(size, points.__getitem__) >= 0)
    form = affine_coefficients(size, axes_of(size))
    if form is None or not all(isinstance(slope, int) for slope in form[0].values()):
        raise Unknown(f"the sign of {size}")
    values = np.asarray(sum((points[b] * s for b, s in form[0].items()), start=0))
    signs = {u: _sign(form[1] + u) for u in np.unique(values).tolist()}
    return np.vectorize(signs.__getitem__, otypes=[bool])(values) if values.size else values > 0


def _sign(size: Size) -> bool:
    if is_nonnegative(size):
        return True
    if is_negative(size):
        return False
    raise Unknown(f"the sign of {size}")
