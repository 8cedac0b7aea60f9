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

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, pairwise
from itertools import product as choices
from math import gcd, inf, lcm, prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import (
    Box,
    Progression,
    full_box,
    interval_progression,
    is_empty,
    split_into_progressions,
)
from tensaurus.expr.analysis.condition import (
    MAX_POINTS,
    Condition,
    Undecided,
    collect_conditions,
    depends_on,
    group_axes,
    size_at_deciding_place,
    sorted_axes,
    substitute_place,
    truth_table,
)
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import children
from tensaurus.expr.normal.flatten import FlatBodyTooLarge, flatten
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Size,
    Symbol,
    atoms,
    is_nonnegative,
    is_same_size,
    largest,
    polynomial,
    product,
    smallest,
    terms_of,
)

MAX_BOXES = 4096  # an output with more is one region about which nothing is known
MAX_SLICES = 4096  # the same for slices of a box whose axes share conditions
NEUTRAL_ELEMENTS: dict[str, float] = {"sum": 0, "prod": 1, "max": -inf, "min": inf}


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
    be more than `MAX_BOXES`.  With `affine`, indices are affine in each box, too.
    """
    try:
        body = flatten(scope)
        cells = _partition(scope.axes, collect_conditions(body), list(_indices(body)) if affine else [])
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
            is_affine = has_constant_literals and all(_is_affine(i, cell) for i in _indices(body))
            regions.append(Region(box, summations, is_affine))
        return tuple(regions)
    except (Undecided, FlatBodyTooLarge):
        return (Region(full_box(scope.shape), None, False),)


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
    """Return the first place of the box, and the last where the box may be empty."""
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


# ------------- partition: cut axes apart where no condition joins them, each where a condition changes

Cell = dict[Axis, Progression]  # a box, by axes
Signs = tuple[bytes, ...]  # for each condition, the bytes of its truth table over the other axes
Indices = np.ndarray[Any, np.dtype[np.int64]]


def _partition(axes: Sequence[Axis], conditions: Sequence[Condition], indices: Sequence[Size]) -> list[Cell]:
    """Return the cells of the axes' box in which each condition holds for the same points of other axes."""
    for size in chain.from_iterable(conditions):
        if any(not isinstance(atom, (Axis, Symbol, Floor, Largest)) for atom in atoms(size)):
            raise Undecided(f"the sign of {size}")
    # over steps of this length along an axis, all indices are affine
    periods = {a: reduce(lcm, (_period(i, a) or 1 for i in indices), 1) for a in axes}
    dependent = [test for test in conditions if depends_on(test, axes)]
    return [cell for cell, _ in _cells(axes, dependent, periods)]


def _cells(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """Return the cells, each with the truth tables of the conditions there."""
    decided_signs = tuple(
        truth_table(t, sorted_axes(*t)).tobytes() for t in conditions if not depends_on(t, axes)
    )
    cells_by_group: list[list[tuple[Cell, Signs]]] = [[({}, decided_signs)]]
    for group in group_axes(axes, conditions):
        own_conditions = [test for test in conditions if depends_on(test, group)]
        cells_by_group.append((_sides if len(group) == 1 else _slices)(group, own_conditions, periods))
    if prod(map(len, cells_by_group)) > MAX_BOXES:
        raise Undecided("too many boxes")
    result = []  # no condition has axes of two groups: each cell of one meets each cell of the other
    for combination in choices(*cells_by_group):
        cells, signs = zip(*combination, strict=True)
        result.append((dict(ChainMap(*cells)), sum(signs, start=())))
    return result


def _slices(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """Cut axes that share conditions into slices along the shortest one, merging equal slices."""
    extents = [a.extent for a in axes if isinstance(a.extent, int)]
    if len(extents) < len(axes):
        raise Undecided("conditions that join axes without numbers")
    if prod(sorted(extents)[:-1]) > MAX_SLICES:
        raise Undecided("too many slices")
    shortest = axes[extents.index(min(extents))]
    rest = [a for a in axes if a != shortest]
    values_by_cell: dict[Any, list[int]] = {}  # values of `shortest` by (cell, signs, remainder)
    for value in range(min(extents)):
        for cell, signs in _cells(
            rest, [substitute_place(test, {shortest: value}) for test in conditions], periods
        ):
            key = tuple(cell.items()), signs, value % periods[shortest]
            values_by_cell.setdefault(key, []).append(value)
        if len(values_by_cell) > MAX_BOXES:
            raise Undecided("too many boxes")
    return [
        ({shortest: side, **dict(cell)}, signs)
        for (cell, signs, _), values in values_by_cell.items()
        for side in split_into_progressions(np.array(values))
    ]


def _sides(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """Cut one axis into sides in which each condition holds for the same points of other axes."""
    (a,) = axes
    sizes = [size for test in conditions for size in test if a in atoms(size)]
    if not sizes and periods[a] == 1:  # nothing changes along the axis
        return [({a: Progression(0, a.extent)}, ())]
    if not isinstance(a.extent, int) or any(isinstance(atom, Symbol) for s in sizes for atom in atoms(s)):
        if periods[a] != 1:
            raise Undecided(f"{a.extent} in steps of {periods[a]}")
        return [({a: side}, ()) for side in _symbolic_sides(a, sizes)]
    values_by_signs: dict[tuple[int, Signs], list[Indices]] = {}  # by (remainder, signs)
    for members in _values_by_signs(a, a.extent, sizes, periods[a]):  # the first of a class decides for it
        conditions_here = [substitute_place(test, {a: int(members[0])}) for test in conditions]
        signs = tuple(truth_table(test, sorted_axes(*test)).tobytes() for test in conditions_here)
        values_by_signs.setdefault((int(members[0]) % periods[a], signs), []).append(members)
    cells: list[tuple[Cell, Signs]] = []
    for (_, signs), groups in sorted(
        values_by_signs.items(), key=lambda item: min(int(g[0]) for g in item[1])
    ):
        cells += [({a: side}, signs) for side in split_into_progressions(np.sort(np.concatenate(groups)))]
    return cells


def _values_by_signs(a: Axis, extent: int, sizes: Sequence[Size], period: int) -> list[Indices]:
    """Return classes of the axis' values that are alike by `period` and in the signs of every size."""
    cuts = [_cuts(size, a) for size in sizes]
    if period == 1 and None not in cuts:  # all sizes are affine: the classes are stretches between cuts
        inner_cuts = {cut for changes in cuts for cut in changes or () if 0 < cut < extent}
        return [np.arange(*stretch) for stretch in pairwise(sorted({0, *inner_cuts, extent}))]
    values = np.arange(extent)
    class_numbers = values % period
    for size, changes in zip(sizes, cuts, strict=True):
        if changes is None:  # label each value by its row of signs
            rows = truth_table((size,), [a, *(b for b in sorted_axes(size) if b != a)]).reshape(extent, -1)
            labels = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        else:  # by the number of cuts up to it
            labels = np.searchsorted(np.unique(changes), values, side="right")
        class_numbers = np.unique(class_numbers * (extent + 1) + labels, return_inverse=True)[1].reshape(-1)
    order = np.argsort(class_numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(class_numbers[order])) + 1) if extent else []


def _cuts(size: Size, a: Axis) -> list[Any] | None:
    """Return the values of the axis at which the size changes its sign for some point of the other axes.

    None where the size is not affine, or has too many values.  With slope s and the values u of the rest,
    s*a + u >= 0 from a = ceil(-u / s) on; with slope -s, up to a = u // s.
    """
    others = [b for b in atoms(size) if isinstance(b, Axis) and b != a]
    form = affine_coefficients(size, [a, *others])
    if form is None or not isinstance(slope := form[0].get(a, 0), int):
        return None
    values = np.zeros(1, np.int64)
    for b in others:
        step = form[0].get(b, 0)
        if not isinstance(step, int) or not isinstance(b.extent, int) or len(values) * b.extent > MAX_POINTS:
            return None
        values = np.unique(values[:, None] + step * np.arange(b.extent))
    if slope == 0:
        return []
    rests = [form[1] + u for u in values.tolist()]
    return [0 - u // slope if slope > 0 else u // -slope + 1 for u in rests]


def _symbolic_sides(a: Axis, sizes: Sequence[Size]) -> list[Progression]:
    """Cut one axis like `_sides` where sizes have symbols: their bounds must decide the order of cuts."""
    cuts: list[Size] = []
    for size in sizes:
        changes = _cuts(size, a)
        if changes is None:
            raise Undecided(f"the sign of {size}")
        for cut in changes:
            if not (
                is_nonnegative(0 - cut)
                or is_nonnegative(cut - a.extent)
                or any(is_same_size(cut, c) for c in cuts)
            ):
                cuts.append(cut)
    starts: list[Size] = [0]
    while cuts:
        least = next((c for c in cuts if all(is_nonnegative(d - c) for d in cuts)), None)
        if least is None:
            raise Undecided(f"the order of {cuts}")
        cuts.remove(least)
        starts.append(smallest(largest(least, 0), a.extent))
    return [
        interval_progression(low, high) for low, high in zip(starts, [*starts[1:], a.extent], strict=True)
    ]


# ------------------------------------------------------------------------------ within one box


def _summations(
    body: Body, places: Sequence[Mapping[Atom, Any]], outer_axes: tuple[Axis, ...]
) -> Iterator[Summation]:
    """Yield each reduction's points at one of the equivalent places, in order of the text."""
    if isinstance(body, Reduce):
        outer_axes = (*outer_axes, *body.axes)
        guards = support_conditions(body.body, NEUTRAL_ELEMENTS[body.monoid])
        yield Summation(outer_axes, _product(outer_axes, [size_at_deciding_place(g, places) for g in guards]))
    for child in children(body):
        yield from _summations(child, places, outer_axes)


def _product(axes: Sequence[Axis], guards: Sequence[Size]) -> Box | None:
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


def _period(size: Size, a: Axis) -> int | None:
    """Return a step of the axis over which the size grows by a constant; None where none is known."""
    growth = _growth(size, a)
    return None if growth is None else growth[0]


def _growth(size: Size, a: Axis) -> tuple[int, Size] | None:
    """Return the step of `_period`, and how much the size grows over it.

    Where t grows by g over a step, t // k grows by n * g / k over n steps, with the least n such that k
    divides n * g.
    """
    period, step_growths = 1, []
    for factors, coefficient in terms_of(size):
        dependent = [atom for atom in factors if atom == a or a in atoms(polynomial(atom))]
        others = [atom for atom in factors if atom not in dependent]
        if not dependent:
            continue
        step, growth = 1, 1  # of the axis itself; for a quotient see the docstring
        if isinstance(atom := dependent[0], Floor):
            inner = _growth(atom.top, a)
            if inner is None or not isinstance(inner[1], int) or not isinstance(atom.bottom, int):
                return None
            repetitions = atom.bottom // gcd(atom.bottom, inner[1])
            step, growth = inner[0] * repetitions, inner[1] * repetitions // atom.bottom
        if len(dependent) > 1 or not isinstance(atom, (Axis, Floor)):
            return None  # a product of two that vary, or a max or lookup
        if not all(isinstance(other, Symbol) for other in others):
            return None
        step_growths.append((step, growth * coefficient * product(others)))
        period = lcm(period, step)
    return period, sum((growth * (period // step) for step, growth in step_growths), start=0)


def _is_affine(size: Size, cell: Mapping[Axis, Progression]) -> bool:
    """Return whether the index is affine in the place within the cell."""
    return all(
        is_same_size(side.count, 1) or (period := _period(size, a)) is not None and side.step % period == 0
        for a, side in cell.items()
    )
