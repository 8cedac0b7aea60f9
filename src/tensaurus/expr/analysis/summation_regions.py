"""Where the elements of an expression are alike: boxes of the output with one summation interval.

    L[i:9](sum[r:3](x[i + r - 1] | 0))         x of 9 elements

    0:1  r in 1:3        1:8  r in 0:3        8:9  r in 0:2

PET (OSDI'21), sections 5.1 and 5.2: in a box every element adds up the same points of the reductions, so that
two multilinear programs agree in a box of both where they agree at one of its corners and at that corner's
neighbours (theorem 1), provided that the indices they read are affine there (`Region.affine`).  Reads of
scopes are read through, so boxes are propagated.  Conditions divide what is inside an edge from what is
beyond, and a box is where each condition holds for the same points.
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

BOXES = 4096  # boxes that one output may have
SLICES = 4096  # of the box of axes that conditions join
NEUTRAL: dict[str, float] = {"sum": 0, "prod": 1, "max": -inf, "min": inf}


@dataclass(frozen=True)
class Summation:
    """The points of a reduction, and of those around it, that are not cut off: at most these are not neutral.

    points    None where they are the same all over the box, but no product of progressions
    """

    axes: tuple[Axis, ...]
    points: Box | None


@dataclass(frozen=True)
class Region:
    """A box of the output; `summations` is None where nothing is known of it.

    affine    whether every index that is read is affine in the place within the box, and numbers are constant
    """

    box: Box
    summations: tuple[Summation, ...] | None
    affine: bool


def boxes(scope: Scope, *, affine: bool = False) -> tuple[Region, ...]:
    """A partition of the output into boxes in which every reduction's contributing points are the same.

    One region of which nothing is known where a condition is read from a tensor, where symbols do not decide
    or where there would be more than `BOXES`.  `affine` asks for boxes in which indices are affine, too.
    """
    try:
        body = flatten(scope)
        cells = _partition(scope.axes, collect_conditions(body), list(_indices(body)) if affine else [])
        regions = []
        for cell in cells:
            box = Box(tuple(cell[a] for a in scope.axes))
            if is_empty(box):
                continue
            known = tuple(_summations(body, ends(scope, box), ()))
            fixed = all(
                is_same_size(cell[a].count, 1)
                for size in literals(body)
                for a in sorted_axes(size)
                if a in cell
            )
            regions.append(Region(box, known, fixed and all(_is_affine(i, cell) for i in _indices(body))))
        return tuple(regions)
    except (Undecided, FlatBodyTooLarge):
        return (Region(full_box(scope.shape), None, False),)


def literals(body: Body) -> Iterator[Size]:
    """The sizes that stand for numbers."""
    if isinstance(body, Const) and isinstance(body.value, Poly):
        yield body.value
    for child in children(body):
        yield from literals(child)


def _indices(body: Body) -> Iterator[Size]:
    if isinstance(body, Read):
        yield from body.indices
    for child in children(body):
        yield from _indices(child)


def ends(scope: Scope, box: Box) -> list[dict[Atom, Any]]:
    """The first place of the box; and the last, where it is not known whether there is one."""
    places = (box.first,) if is_empty(box) is False else (box.first, box.last)
    return [dict(zip(scope.axes, place, strict=True)) for place in places]


def support(body: Body, value: Any) -> tuple[Size, ...]:
    """Conditions without each of which the body is `value`, whatever is read."""
    match body:
        case Select(guard, then, Const(other)) if other == value and not isinstance(other, bool):
            return (*guard, *support(then, value))
        case Select((only,), Const(first), rest) if first == value and not isinstance(first, bool):
            return (-1 - only, *support(rest, value))
        case Call("mul", args) if value == 0:
            return tuple(size for arg in args for size in support(arg, 0))
        case Call("neg", (arg,)):
            return support(arg, -value)
        case Call(fn, (arg,)) if value == 0 and (cast_target(fn) or "").startswith(("float", "bfloat")):
            return support(arg, 0)
        case Reduce(monoid, axes, inner) if NEUTRAL[monoid] == value:
            return tuple(g for g in support(inner, value) if atoms(g).isdisjoint(axes))
    return ()


# ------------------------------------------------------------------------------------- partition

Cell = dict[Axis, Progression]
Signs = tuple[bytes, ...]
Indices = np.ndarray[Any, np.dtype[np.int64]]


def _partition(axes: Sequence[Axis], tests: Sequence[Condition], indices: Sequence[Size]) -> list[Cell]:
    """The cells of the axes' box in which each condition holds for the same points."""
    for size in chain.from_iterable(tests):
        if any(not isinstance(atom, (Axis, Symbol, Floor, Largest)) for atom in atoms(size)):
            raise Undecided(f"the sign of {size}")
    periods = {a: reduce(lcm, (_period(i, a) or 1 for i in indices), 1) for a in axes}
    open_ = [test for test in tests if depends_on(test, axes)]
    return [cell for cell, _ in _cells(axes, open_, periods)]


def _cells(
    axes: Sequence[Axis], tests: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """The cells, each with where the conditions hold there."""
    settled = tuple(truth_table(t, sorted_axes(*t)).tobytes() for t in tests if not depends_on(t, axes))
    parts: list[list[tuple[Cell, Signs]]] = [[({}, settled)]]
    for group in group_axes(axes, tests):
        about = [test for test in tests if depends_on(test, group)]
        parts.append((_sides if len(group) == 1 else _slices)(group, about, periods))
    if prod(map(len, parts)) > BOXES:
        raise Undecided("too many boxes")
    joined = []
    for one in choices(*parts):
        cells, signs = zip(*one, strict=True)
        joined.append((dict(ChainMap(*cells)), sum(signs, start=())))
    return joined


def _slices(
    axes: Sequence[Axis], tests: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """Cells of axes that conditions join: slices along the shortest axis, equal ones put together."""
    extents = [a.extent for a in axes if isinstance(a.extent, int)]
    if len(extents) < len(axes):
        raise Undecided("conditions that join axes without numbers")
    if prod(sorted(extents)[:-1]) > SLICES:
        raise Undecided("too many slices")
    shortest = axes[extents.index(min(extents))]
    rest = [a for a in axes if a != shortest]
    places: dict[Any, list[int]] = {}
    for value in range(min(extents)):
        for cell, signs in _cells(
            rest, [substitute_place(test, {shortest: value}) for test in tests], periods
        ):
            places.setdefault((tuple(cell.items()), signs, value % periods[shortest]), []).append(value)
        if len(places) > BOXES:
            raise Undecided("too many boxes")
    return [
        ({shortest: side, **dict(cell)}, signs)
        for (cell, signs, _), values in places.items()
        for side in split_into_progressions(np.array(values))
    ]


def _sides(
    axes: Sequence[Axis], tests: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[tuple[Cell, Signs]]:
    """One axis cut into sides in which each condition holds for the same points of other axes."""
    (a,) = axes
    sizes = [size for test in tests for size in test if a in atoms(size)]
    if not sizes and periods[a] == 1:
        return [({a: Progression(0, a.extent)}, ())]
    if not isinstance(a.extent, int) or any(isinstance(atom, Symbol) for s in sizes for atom in atoms(s)):
        if periods[a] != 1:
            raise Undecided(f"{a.extent} in steps of {periods[a]}")
        return [({a: side}, ()) for side in _symbolic_sides(a, sizes)]
    alike: dict[tuple[int, Signs], list[Indices]] = {}
    for members in _classes(a, a.extent, sizes, periods[a]):
        here = [substitute_place(test, {a: int(members[0])}) for test in tests]
        signs = tuple(truth_table(test, sorted_axes(*test)).tobytes() for test in here)
        alike.setdefault((int(members[0]) % periods[a], signs), []).append(members)
    cells: list[tuple[Cell, Signs]] = []
    for (_, signs), groups in sorted(alike.items(), key=lambda item: min(int(g[0]) for g in item[1])):
        cells += [({a: side}, signs) for side in split_into_progressions(np.sort(np.concatenate(groups)))]
    return cells


def _classes(a: Axis, extent: int, sizes: Sequence[Size], period: int) -> list[Indices]:
    """The values of the axis in classes in each of which every size has its signs alike."""
    cuts = [_cuts(size, a) for size in sizes]
    if period == 1 and None not in cuts:
        inner = {cut for changes in cuts for cut in changes or () if 0 < cut < extent}
        return [np.arange(*stretch) for stretch in pairwise(sorted({0, *inner, extent}))]
    values = np.arange(extent)
    kinds = values % period
    for size, changes in zip(sizes, cuts, strict=True):
        if changes is None:
            rows = truth_table((size,), [a, *(b for b in sorted_axes(size) if b != a)]).reshape(extent, -1)
            labels = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        else:
            labels = np.searchsorted(np.unique(changes), values, side="right")
        kinds = np.unique(kinds * (extent + 1) + labels, return_inverse=True)[1].reshape(-1)
    order = np.argsort(kinds, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1) if extent else []


def _cuts(size: Size, a: Axis) -> list[Any] | None:
    """The values of the axis at which the size changes its sign for some point of the other axes.

    None where it is not affine, or has too many values.  With slope s and the values u of the rest:
    s*a + u >= 0 from a = ceil(-u / s) on, and for -s up to a = u // s.
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
    """As `_sides`, where symbols are ordered by their bounds."""
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
    ends: list[Size] = [0]
    while cuts:
        least = next((c for c in cuts if all(is_nonnegative(d - c) for d in cuts)), None)
        if least is None:
            raise Undecided(f"the order of {cuts}")
        cuts.remove(least)
        ends.append(smallest(largest(least, 0), a.extent))
    return [interval_progression(low, high) for low, high in zip(ends, [*ends[1:], a.extent], strict=True)]


# ------------------------------------------------------------------------------ within one box


def _summations(
    body: Body, places: Sequence[Mapping[Atom, Any]], around: tuple[Axis, ...]
) -> Iterator[Summation]:
    """Each reduction's points at one of the places, which are alike, in order of the text."""
    if isinstance(body, Reduce):
        around = (*around, *body.axes)
        guards = support(body.body, NEUTRAL[body.monoid])
        yield Summation(around, _product(around, [size_at_deciding_place(g, places) for g in guards]))
    for child in children(body):
        yield from _summations(child, places, around)


def _product(axes: Sequence[Axis], guards: Sequence[Size]) -> Box | None:
    """The points of the axes at which all sizes are at least 0, where they are a product of progressions."""
    sides = {a: Progression(0, a.extent) for a in axes}
    if not all(truth_table((g,), ()) for g in guards if not depends_on((g,), axes)):
        return full_box((0,) * len(axes))
    for group in group_axes(axes, [(g,) for g in guards]):
        about = tuple(g for g in guards if depends_on((g,), group))
        if not about:
            continue
        held = truth_table(about, group)
        for place, a in enumerate(group):
            spots = np.flatnonzero(held.any(axis=tuple(d for d in range(len(group)) if d != place)))
            runs = list(split_into_progressions(spots)) or [Progression(0, 0)]
            if len(runs) > 1:
                return None
            sides[a] = runs[0]
        if not is_same_size(product(sides[a].count for a in group), int(held.sum())):
            return None
    return Box(tuple(sides[a] for a in axes))


def _period(size: Size, a: Axis) -> int | None:
    """A step of the axis over which the size grows by the same from everywhere; None where none is known."""
    growth = _growth(size, a)
    return None if growth is None else growth[0]


def _growth(size: Size, a: Axis) -> tuple[int, Size] | None:
    """That step, and how much the size grows over it: (t // k) by g / k over as many as make g a multiple."""
    period, pieces = 1, []
    for factors, coefficient in terms_of(size):
        moving = [atom for atom in factors if atom == a or a in atoms(polynomial(atom))]
        others = [atom for atom in factors if atom not in moving]
        if not moving:
            continue
        step, growth = 1, 1
        if isinstance(atom := moving[0], Floor):
            inner = _growth(atom.top, a)
            if inner is None or not isinstance(inner[1], int) or not isinstance(atom.bottom, int):
                return None
            times = atom.bottom // gcd(atom.bottom, inner[1])
            step, growth = inner[0] * times, inner[1] * times // atom.bottom
        if len(moving) > 1 or not isinstance(atom, (Axis, Floor)):
            return None
        if not all(isinstance(other, Symbol) for other in others):
            return None
        pieces.append((step, growth * coefficient * product(others)))
        period = lcm(period, step)
    return period, sum((growth * (period // step) for step, growth in pieces), start=0)


def _is_affine(size: Size, cell: Mapping[Axis, Progression]) -> bool:
    """Whether the index is affine in the place within the cell."""
    return all(
        is_same_size(side.count, 1) or (period := _period(size, a)) is not None and side.step % period == 0
        for a, side in cell.items()
    )
