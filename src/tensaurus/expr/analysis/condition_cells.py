"""Cut the axes of an output into cells in which each condition holds for the same points of all other axes.

    i + r - 1 >= 0 and 9 - i - r >= 0,  i:9, r:3     cut along i      ->      0:1,  1:8,  8:9

Axes that no condition joins are cut apart, each where a condition changes its sign.  `summation_regions`
makes regions of the cells.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from itertools import product as choices
from math import gcd, lcm, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.analysis.box import Progression, interval_progression, split_into_progressions
from tensaurus.expr.analysis.condition import (
    MAX_POINTS,
    Condition,
    Undecided,
    depends_on,
    group_axes,
    sorted_axes,
    substitute_place,
    truth_table,
)
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Axis,
    Floor,
    Largest,
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

MAX_BOXES = 4096  # where there would be more cells, nothing is decided
MAX_SLICES = 4096  # the same for slices of a box whose axes share conditions

Cell: TypeAlias = dict[Axis, Progression]  # a box, by axes
Signs: TypeAlias = tuple[bytes, ...]  # for each condition, the bytes of its truth table over the other axes
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class SignedCell(NamedTuple):
    """A cell with the truth tables of the conditions there."""

    cell: Cell
    signs: Signs


def partition_into_cells(
    axes: Sequence[Axis], conditions: Sequence[Condition], indices: Sequence[Size]
) -> list[Cell]:
    """Return the cells of the axes' box in which each condition holds for the same points of other axes.

    The indices are affine in each cell.  Raises Undecided.
    """
    for size in chain.from_iterable(conditions):
        if any(not isinstance(atom, (Axis, Symbol, Floor, Largest)) for atom in atoms(size)):
            raise Undecided(f"the sign of {size}")
    # over steps of this length along an axis, all indices are affine
    periods = {a: reduce(lcm, (affine_period(i, a) or 1 for i in indices), 1) for a in axes}
    dependent = [test for test in conditions if depends_on(test, axes)]
    return [cell for cell, _ in _signed_cells(axes, dependent, periods)]


def _signed_cells(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[SignedCell]:
    """Return the cells: those of axes that no condition joins are combined, each with each."""
    decided_signs = tuple(
        truth_table(t, sorted_axes(*t)).tobytes() for t in conditions if not depends_on(t, axes)
    )
    cells_by_group = [[SignedCell({}, decided_signs)]]
    for group in group_axes(axes, conditions):
        own_conditions = [test for test in conditions if depends_on(test, group)]
        cut = _cut_axis if len(group) == 1 else _cut_joined_axes
        cells_by_group.append(cut(group, own_conditions, periods))
    if prod(map(len, cells_by_group)) > MAX_BOXES:
        raise Undecided("too many boxes")
    result = []  # no condition has axes of two groups: each cell of one meets each cell of the other
    for combination in choices(*cells_by_group):
        cells, signs = zip(*combination, strict=True)
        result.append(SignedCell(dict(ChainMap(*cells)), sum(signs, start=())))
    return result


def _cut_joined_axes(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[SignedCell]:
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
        for cell, signs in _signed_cells(
            rest, [substitute_place(test, {shortest: value}) for test in conditions], periods
        ):
            key = tuple(cell.items()), signs, value % periods[shortest]
            values_by_cell.setdefault(key, []).append(value)
        if len(values_by_cell) > MAX_BOXES:
            raise Undecided("too many boxes")
    return [
        SignedCell({shortest: side, **dict(cell)}, signs)
        for (cell, signs, _), values in values_by_cell.items()
        for side in split_into_progressions(np.array(values))
    ]


def _cut_axis(
    axes: Sequence[Axis], conditions: Sequence[Condition], periods: Mapping[Axis, int]
) -> list[SignedCell]:
    """Cut the only axis into sides in which each condition holds for the same points of other axes."""
    (a,) = axes
    sizes = [size for test in conditions for size in test if a in atoms(size)]
    if not sizes and periods[a] == 1:  # nothing changes along the axis
        return [SignedCell({a: Progression(0, a.extent)}, ())]
    if not isinstance(a.extent, int) or any(isinstance(atom, Symbol) for s in sizes for atom in atoms(s)):
        if periods[a] != 1:
            raise Undecided(f"{a.extent} in steps of {periods[a]}")
        return [SignedCell({a: side}, ()) for side in _cut_symbolic_axis(a, sizes)]
    values_by_signs: dict[tuple[int, Signs], list[Indices]] = {}  # by (remainder, signs)
    for members in _values_by_signs(a, a.extent, sizes, periods[a]):  # the first of a class decides for it
        conditions_here = [substitute_place(test, {a: int(members[0])}) for test in conditions]
        signs = tuple(truth_table(test, sorted_axes(*test)).tobytes() for test in conditions_here)
        values_by_signs.setdefault((int(members[0]) % periods[a], signs), []).append(members)
    classes = sorted(values_by_signs.items(), key=lambda item: min(int(g[0]) for g in item[1]))
    return [
        SignedCell({a: side}, signs)
        for (_, signs), groups in classes
        for side in split_into_progressions(np.sort(np.concatenate(groups)))
    ]


def _values_by_signs(a: Axis, extent: int, sizes: Sequence[Size], period: int) -> list[Indices]:
    """Return classes of the axis' values that are alike by `period` and in the signs of every size."""
    cuts = [_sign_changes(size, a) for size in sizes]
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


def _sign_changes(size: Size, a: Axis) -> list[Any] | None:
    """Return the values of the axis at which the size changes its sign for some point of the other axes.

    None where the size is not affine, or has too many values.  With slope s and the values u of the rest,
    s*a + u >= 0 from a = ceil(-u / s) on; with slope -s, up to a = u // s.
    """
    others = [b for b in atoms(size) if isinstance(b, Axis) and b != a]
    form = affine_coefficients(size, [a, *others])
    if form is None or not isinstance(slope := form.slopes.get(a, 0), int):
        return None
    values = np.zeros(1, np.int64)
    for b in others:
        step = form.slopes.get(b, 0)
        if not isinstance(step, int) or not isinstance(b.extent, int) or len(values) * b.extent > MAX_POINTS:
            return None
        values = np.unique(values[:, None] + step * np.arange(b.extent))
    if slope == 0:
        return []
    rests = [form.rest + u for u in values.tolist()]
    return [0 - u // slope if slope > 0 else u // -slope + 1 for u in rests]


def _cut_symbolic_axis(a: Axis, sizes: Sequence[Size]) -> list[Progression]:
    """Cut one axis like `_cut_axis` where sizes have symbols: their bounds must decide the order of cuts."""
    cuts: list[Size] = []
    for size in sizes:
        changes = _sign_changes(size, a)
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


def affine_period(size: Size, a: Axis) -> int | None:
    """Return a step of the axis over which the size grows by a constant; None where none is known."""
    growth = _growth(size, a)
    return None if growth is None else growth.step


class _Growth(NamedTuple):
    """A size grows by `amount` over each `step` of an axis."""

    step: int
    amount: Size


def _growth(size: Size, a: Axis) -> _Growth | None:
    """Return a step of the axis over which the size grows by a constant, and this constant; None if unknown.

    Where t grows by g over a step, t // k grows by n * g / k over n steps, with the least n such that k
    divides n * g.
    """
    period, terms = 1, list[_Growth]()
    for factors, coefficient in terms_of(size):
        dependent = [atom for atom in factors if atom == a or a in atoms(polynomial(atom))]
        others = [atom for atom in factors if atom not in dependent]
        if not dependent:
            continue
        step, amount = 1, 1  # of the axis itself; for a quotient see the docstring
        if isinstance(atom := dependent[0], Floor):
            inner = _growth(atom.top, a)
            if inner is None or not isinstance(inner.amount, int) or not isinstance(atom.bottom, int):
                return None
            repetitions = atom.bottom // gcd(atom.bottom, inner.amount)
            step, amount = inner.step * repetitions, inner.amount * repetitions // atom.bottom
        if len(dependent) > 1 or not isinstance(atom, (Axis, Floor)):
            return None  # a product of two that vary, or a max or lookup
        if not all(isinstance(other, Symbol) for other in others):
            return None
        terms.append(_Growth(step, amount * coefficient * product(others)))
        period = lcm(period, step)
    return _Growth(period, sum((term.amount * (period // term.step) for term in terms), start=0))
