"""Partition the output of an expression into boxes whose elements are sums over the same summation interval.

    L[i:9](sum[r:3](x[i + r - 1] | 0))         x of 9 elements

    0:1  r in 1:3        1:8  r in 0:3        8:9  r in 0:2

PET (OSDI'21), sections 5.1 and 5.2: two multilinear programs agree in a box of both where they agree at one
of its corners and at that corner's neighbours (theorem 1), provided that the indices they read are affine
there (`Region.affine`).  Scopes that are read are inlined first, so that one expression has all guards of a
program.  The guards divide points inside an edge from those beyond it; at all places of a box, each guard
holds for the same points of the reduced axes.  `finders/derive/tighten_boundary` and `constant_regions` find
the zeros of an expression by its regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box, Progression, full_box, is_empty, split_into_progressions
from tensaurus.expr.analysis.condition import (
    Condition,
    Undecided,
    collect_conditions,
    depends_on,
    group_axes,
    size_at_deciding_place,
    sorted_axes,
    truth_table,
)
from tensaurus.expr.analysis.condition_cells import Cell, affine_period, partition_into_cells
from tensaurus.expr.ir.scalar_functions import NEUTRAL_ELEMENTS, cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import children
from tensaurus.expr.normal.flatten import FlatBodyTooLarge, flatten
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Poly,
    Size,
    atoms,
    interval,
    is_same_size,
    polynomial,
    product,
    substitute,
)

MAX_QUOTIENTS = 32  # values of a quotient that are told apart by conditions


@dataclass(frozen=True)
class Summation:
    """The points that contribute to a reduction: at all others its terms are neutral, such as 0 of a sum.

    axes      the axes of the reductions around it, and its own
    points    None where the points are the same all over the region, but no product of progressions
    """

    axes: tuple[Axis, ...]
    points: Box | None


@dataclass(frozen=True)
class Region:
    """A box of the output; `summations` is None where nothing is known about it.

    affine    whether every index that is read is affine in the place within the box, and sizes used as
              numbers are constant there
    """

    box: Box
    summations: tuple[Summation, ...] | None
    affine: bool


def summation_regions(scope: Scope, *, affine: bool = False) -> tuple[Region, ...]:
    """Return a partition of the output into boxes in which every reduction has the same contributing points.

    Returns one region without summations where a tensor decides a condition, symbols do not, or there would
    be more than `condition_cells.MAX_BOXES`.  With `affine`, indices are affine in each box, too.
    """
    try:
        body = flatten(scope)
        indices, conditions = list(_indices(body)), collect_conditions(body)
        if affine:
            indices, steps = _fix_quotients(indices)
            conditions = (*conditions, *steps)
        cells = partition_into_cells(scope.axes, conditions, indices if affine else [])
        regions = []
        for cell in cells:
            box = Box(tuple(cell[a] for a in scope.axes))
            if is_empty(box):
                continue
            summations = tuple(_summations(body, representative_places(scope, box), ()))
            has_constant_literals = all(
                is_same_size(cell[a].count, 1)
                for size in literal_sizes(body)
                for a in sorted_axes(size)
                if a in cell
            )
            is_affine = has_constant_literals and all(_is_affine(i, cell) for i in indices)
            regions.append(Region(box, summations, is_affine))
        return tuple(regions)
    except (Undecided, FlatBodyTooLarge):
        return (Region(full_box(scope.shape), None, False),)


def _fix_quotients(indices: Sequence[Size]) -> tuple[list[Size], list[Condition]]:
    """Return the indices with numbers for quotients of few values, and conditions that keep these constant.

    Where the signs of 6*n + w - 6 and the like are constant, so is (6*n + w) // 6.  A quotient of more values
    than its divisor is left: it is affine over steps of the divisor, which cuts an axis less often.
    """
    quotients = {atom for index in indices for atom in atoms(index) if isinstance(atom, Floor)}
    values: dict[Atom, Any] = {}
    conditions = list[Condition]()
    for quotient in sorted(quotients, key=str):
        bounds, divisor = interval(polynomial(quotient)), quotient.bottom
        if not isinstance(divisor, int) or not all(isinstance(bound, int) for bound in bounds):
            continue
        low, high = (bound for bound in bounds if isinstance(bound, int))
        if high - low < min(divisor, MAX_QUOTIENTS):
            values[quotient] = low
            conditions += [(quotient.top - k * divisor,) for k in range(low + 1, high + 1)]
    return [substitute(index, values) for index in indices], conditions


def literal_sizes(body: Body) -> Iterator[Size]:
    """Yield the sizes that are used as numbers."""
    if isinstance(body, Const) and isinstance(body.value, Poly):
        yield body.value
    for child in children(body):
        yield from literal_sizes(child)


def _indices(body: Body) -> Iterator[Size]:
    if isinstance(body, Read):
        yield from body.indices
    for child in children(body):
        yield from _indices(child)


def representative_places(scope: Scope, box: Box) -> list[dict[Atom, Any]]:
    """Return the first place of the box, and the last where the box may be empty.

    A guard that symbols leave undecided at the first place of such a box may be decided at the last:
    `size_at_deciding_place` takes the first of these places that decides it.
    """
    places = (box.first,) if is_empty(box) is False else (box.first, box.last)
    return [dict(zip(scope.axes, place, strict=True)) for place in places]


def support_conditions(body: Body, value: Any) -> tuple[Size, ...]:
    """Return conditions such that the body is `value` where one of them fails, whatever is read."""
    match body:
        case Select(guard, then, Const(other)) if other == value and not isinstance(other, bool):
            return (*guard, *support_conditions(then, value))
        case Select((guard,), Const(first), other) if first == value and not isinstance(first, bool):
            return (-1 - guard, *support_conditions(other, value))
        case Call("mul", args) if value == 0:
            return tuple(size for arg in args for size in support_conditions(arg, 0))
        case Call("neg", (arg,)):
            return support_conditions(arg, -value)
        case Call(fn, (arg,)) if value == 0 and (cast_target(fn) or "").startswith(("float", "bfloat")):
            return support_conditions(arg, 0)
        case Reduce(monoid, axes, inner) if NEUTRAL_ELEMENTS[monoid] == value:
            return tuple(g for g in support_conditions(inner, value) if atoms(g).isdisjoint(axes))
    return ()


def _summations(
    body: Body, places: Sequence[Mapping[Atom, Any]], outer_axes: tuple[Axis, ...]
) -> Iterator[Summation]:
    """Yield each reduction's points at one of the equivalent places, in order of the text."""
    if isinstance(body, Reduce):
        outer_axes = (*outer_axes, *body.axes)
        guards = support_conditions(body.body, NEUTRAL_ELEMENTS[body.monoid])
        yield Summation(
            outer_axes, _contributing_points(outer_axes, [size_at_deciding_place(g, places) for g in guards])
        )
    for child in children(body):
        yield from _summations(child, places, outer_axes)


def _contributing_points(axes: Sequence[Axis], guards: Sequence[Size]) -> Box | None:
    """Return the points of the axes where all sizes are >= 0; None if they are no product of progressions."""
    sides = {a: Progression(0, a.extent) for a in axes}
    if not all(truth_table((g,), ()) for g in guards if not depends_on((g,), axes)):  # no point is left
        return full_box((0,) * len(axes))
    for group in group_axes(axes, [(g,) for g in guards]):
        own_guards = tuple(g for g in guards if depends_on((g,), group))
        if not own_guards:
            continue
        is_inside = truth_table(own_guards, group)
        for d, a in enumerate(group):
            indices = np.flatnonzero(is_inside.any(axis=tuple(e for e in range(len(group)) if e != d)))
            sides_found = list(split_into_progressions(indices)) or [Progression(0, 0)]
            if len(sides_found) > 1:  # the indices of the points along this axis are no progression
                return None
            sides[a] = sides_found[0]
        if not is_same_size(product(sides[a].count for a in group), int(is_inside.sum())):
            return None  # the box of these sides has other points, too
    return Box(tuple(sides[a] for a in axes))


def _is_affine(size: Size, cell: Cell) -> bool:
    """Return whether the index is affine in the place within the cell."""
    return all(
        is_same_size(side.count, 1)
        or (period := affine_period(size, a)) is not None
        and side.step % period == 0
        for a, side in cell.items()
    )
