"""Maps from a box of iterators to index tuples by quasi-affine expressions, as those of reads and reshapes.

    (i:6, j:4)  ->  (i // 3, i % 3, 2*j + 1)        onto  0:2 * 0:3 * 1:8:2,  back by  (3*a + b, c)

An index is affine in the iterators, with floor-divisions (and so remainders) by constants.  Whether a map is
one to one, and which values it has, is decided on digits of the iterators (`index_digits`), in which every
index is affine (EINNET section 4.1: variable substitution by a bijection): above, i is 3*i1 + i0, and the
indices are i1, i0 and 2*j + 1.  What cannot be split, as (i + 1) // 2, is a variable of its own.  An answer
is True or False for all values of the symbols, or None where it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box, Progression, full_box, progression_between
from tensaurus.expr.analysis.index_digits import (
    LinearForms,
    Variable,
    digit_form,
    linear_forms,
    order_by_slope,
    sign_of,
)
from tensaurus.expr.ir.scope import axis
from tensaurus.expr.sizes.affine import LinearForm
from tensaurus.expr.sizes.mixed_radix import unravel_index
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Size,
    atoms,
    evaluate,
    interval,
    is_nonnegative,
    is_same_size,
    polynomial,
    product,
    substitute,
)

MAX_PROBED_POINTS = 4096  # points of a box at which indices are evaluated where no rule decides


@dataclass(frozen=True)
class IndexMap:
    """The map from the points of the axes' ranges to the values of the indices there."""

    axes: tuple[Axis, ...]
    indices: tuple[Size, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(map(polynomial, self.indices)))
        if len(set(self.axes)) != len(self.axes):
            raise ValueError("an axis stands twice")

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(a.extent for a in self.axes)

    def __call__(self, *place: Size) -> tuple[Size, ...]:
        """Return the indices at a place, without checking that it is in the box."""
        values: dict[Atom, Any] = {a: polynomial(i) for a, i in zip(self.axes, place, strict=True)}
        return tuple(substitute(index, values) for index in self.indices)

    def __str__(self) -> str:
        ranges = ", ".join(f"{a}:{a.extent}" for a in self.axes)
        return f"({ranges}) -> ({', '.join(map(str, self.indices))})"


def identity(shape: Sequence[Size]) -> IndexMap:
    """Return the map of every place to itself."""
    axes = tuple(axis(size) for size in shape)
    return IndexMap(axes, axes)  # type: ignore[arg-type]


def compose(outer: IndexMap, inner: IndexMap) -> IndexMap:
    """Return outer after inner.  Raises ValueError unless the inner indices provably lie in the outer box."""
    if len(inner.indices) != len(outer.axes):
        raise ValueError(f"{len(inner.indices)} indices for {len(outer.axes)} axes")
    if not _stays_inside(inner, outer.shape) and _stays_inside_by_points(inner, outer.shape) is not True:
        raise ValueError(f"{inner} may leave the box of {outer}")
    return IndexMap(inner.axes, outer(*inner.indices))


@dataclass(frozen=True)
class Image:
    """A box that contains all values of a map; if `exact`, each of its index tuples is a value."""

    box: Box
    exact: bool


def image(f: IndexMap) -> Image | None:
    """Return a box that holds all values of the map; None where an index has no bounds."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return Image(full_box((0,) * len(f.indices)), bool(f.indices))  # the box of rank 0 is never empty
    form = digit_form(f.axes, f.indices)
    forms = linear_forms(form)
    if forms is None:
        sides = [_bounding_interval(index) for index in f.indices]
        bounded_sides = [side for side in sides if side is not None]
        return Image(Box(tuple(bounded_sides)), False) if len(bounded_sides) == len(sides) else None
    rows, variables = forms
    # exact if every choice of digits is a point, only digits are variables, no two indices share one, and no
    # side has gaps (below)
    is_exact = form.is_exact and set(variables) <= set(form.axes) and _have_own_variables(rows)
    is_exact = is_exact and all(is_nonnegative(a.extent - 1) for a in f.axes)  # an empty map has no values
    extents = {a: a.extent for a in form.axes}
    boxes = []
    for index, row in zip(f.indices, rows, strict=True):
        side = _value_progression(row, variables) or _bounding_interval(index)
        if side is None:
            return None
        is_exact = is_exact and order_by_slope(row, extents, dense=True) is not None
        boxes.append(side)
    return Image(Box(tuple(boxes)), is_exact)


def _have_own_variables(rows: Sequence[LinearForm]) -> bool:
    """Return whether no variable is in two rows: then the rows take their values independently."""
    used = [a for row in rows for a in row.slopes]
    return len(used) == len(set(used))


def _bounding_interval(index: Size) -> Progression | None:
    low, high = interval(index)
    return None if low is None or high is None else progression_between(low, high)


def _value_progression(row: LinearForm, variables: Mapping[Axis, Variable]) -> Progression | None:
    """Return a progression that holds the row's values, of their greatest common step; None if not known."""
    low: Size = row.rest
    high: Size = row.rest
    for a, slope in row.slopes.items():
        bounds = variables[a].low, variables[a].high
        sign = sign_of(slope)
        least, greatest = bounds if sign == 1 else reversed(bounds)
        if sign is None or least is None or greatest is None:
            return None
        low, high = low + slope * least, high + slope * greatest
    numbers = [s for s in row.slopes.values() if isinstance(s, int)]
    step = gcd(*numbers) if len(numbers) == len(row.slopes) else 1
    return progression_between(low, high, step or 1)


def is_injective(f: IndexMap) -> bool | None:
    """Return whether no two points of the box have the same value; None where that is not known."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return True
    forms = linear_forms(digit_form(f.axes, f.indices))
    if forms is not None and _determine_axes(forms):
        return True
    enclosed = image(f)
    if enclosed is not None and is_nonnegative(product(f.shape) - enclosed.box.points - 1):
        return False  # more points than values
    return _probed_injective(f)


def _determine_axes(forms: LinearForms) -> bool:
    """Return whether the values of all rows leave only one value for every axis.

    A row whose unknown variables are the digits of a number (`order_by_slope`) determines them; where no row
    does, the rest are determined if the rows' rank is the number of unknown variables.
    """
    rows, variables = forms
    counts = {a: v.count for a, v in variables.items() if v.count is not None}
    unknown = set(variables)
    while unknown:
        open_rows = [LinearForm({a: s for a, s in row.slopes.items() if a in unknown}, 0) for row in rows]
        determined: set[Axis] = set()
        for row in open_rows:
            if set(row.slopes) <= set(counts) and order_by_slope(row, counts, dense=False):
                determined.update(row.slopes)
        if not determined:
            order = sorted(unknown, key=str)
            matrix = [[row.slopes.get(a, 0) for a in order] for row in open_rows]
            return all(isinstance(s, int) for line in matrix for s in line) and _rank(matrix) == len(unknown)
        unknown -= determined
        # an atom such as (i + 1) // 2 is known once its axes are; a digit, whose axis it is, stays unknown
        unknown -= {a for a in unknown if variables[a].axes.isdisjoint(unknown | {a})}
    return True


def _rank(matrix: Sequence[Sequence[Any]]) -> int:
    """Return the rank of a matrix of integers, exactly."""
    rows, rank = [list(row) for row in matrix], 0
    for column in range(len(matrix[0]) if matrix else 0):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        head = rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column]
            rows[r] = [x * head[column] - y * factor for x, y in zip(rows[r], head, strict=True)]
        rank += 1
    return rank


def is_bijective(f: IndexMap, codomain: Sequence[Size]) -> bool | None:
    """Return whether each index tuple of a tensor of this shape is the value of exactly one point."""
    if len(codomain) != len(f.indices):
        return False
    injective = is_injective(f)
    if injective is False:
        return False
    points, places = product(f.shape), product(codomain)
    if is_nonnegative(points - places - 1) or is_nonnegative(places - points - 1):
        return False
    is_within = _stays_inside(f, codomain) or _stays_inside_by_points(f, codomain)
    if is_within is False:
        return False
    return True if injective and is_within and is_same_size(points, places) else None


def _stays_inside(f: IndexMap, shape: Sequence[Size]) -> bool:
    """Return whether bounds alone keep every index within the shape."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return True
    bounds = [interval(index) for index in f.indices]
    return all(
        low is not None and high is not None and is_nonnegative(low) and is_nonnegative(size - 1 - high)
        for (low, high), size in zip(bounds, shape, strict=True)
    )


def _probe(f: IndexMap) -> tuple[np.ndarray[Any, Any], bool] | None:
    """Return the values at some points, one a row, and whether these are all points; None with symbols."""
    all_atoms = set().union(*(atoms(index) for index in f.indices))
    if not {atom for atom in all_atoms if not isinstance(atom, (Floor, Largest))} <= set(f.axes):
        return None
    extents = [_certain_extent(a.extent) for a in f.axes]
    is_complete = all(a.extent == n for a, n in zip(f.axes, extents, strict=True))
    while prod(extents) > MAX_PROBED_POINTS:
        extents[extents.index(max(extents))] //= 2
        is_complete = False
    count = prod(extents)
    grid: dict[Atom, Any] = dict(zip(f.axes, np.indices(extents).reshape(-1, count), strict=True))
    columns = [np.broadcast_to(evaluate(index, grid.__getitem__), (count,)) for index in f.indices]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.int64), is_complete


def _certain_extent(extent: Size) -> int:
    """Return a number that the extent is never below: itself, or at most 3 where it has symbols."""
    return (
        extent if isinstance(extent, int) else next((n for n in (3, 2, 1) if is_nonnegative(extent - n)), 0)
    )


def _probed_injective(f: IndexMap) -> bool | None:
    probed = _probe(f)
    if probed is None:
        return None
    values, is_complete = probed
    if len(np.unique(values, axis=0)) < len(values) if values.shape[1] else len(values) > 1:
        return False
    return True if is_complete else None


def _stays_inside_by_points(f: IndexMap, shape: Sequence[Size]) -> bool | None:
    """Return whether every value is an index tuple of the shape, by evaluating it at all points."""
    probed = _probe(f)
    if probed is None:
        return None
    values, is_complete = probed
    is_inside = all(
        isinstance(size, int) and bool(((column >= 0) & (column < size)).all())
        for column, size in zip(values.T, shape, strict=True)
    )
    if is_inside:
        return True if is_complete else None
    return False if all(isinstance(size, int) for size in shape) else None


def inverse(f: IndexMap) -> IndexMap | None:
    """Return the map from places of the image, which must be a box, to points of f's box; None if not known.

    Its axes count the image's sides: f(*g.indices) at a place (a, b, ...) of g's box is the index tuple
    (start + step*a, ...) of `image(f).box`, so where the image is the box of a shape, g is the inverse.
    """
    form = digit_form(f.axes, f.indices)
    forms, image_of_f = linear_forms(form), image(f)
    if (
        forms is None  # some index has a product of axes
        or image_of_f is None
        or not image_of_f.exact  # the image is no box
        or any(is_same_size(a.extent, 0) for a in f.axes)
    ):
        return None
    axes = tuple(axis(side.count) for side in image_of_f.box.sides)
    values: dict[Atom, Any] = {}
    for image_axis, row in zip(axes, forms.rows, strict=True):
        order = order_by_slope(row, {a: a.extent for a in form.axes}, dense=False)
        if order is None:
            return None
        # dense and injective: the slopes are those of a mixed radix
        digits_of_axis = unravel_index(polynomial(image_axis), [a.extent for a in reversed(order)])
        for a, digit in zip(reversed(order), digits_of_axis, strict=True):
            values[a] = digit if sign_of(row.slopes[a]) == 1 else a.extent - 1 - digit
    if set(values) != set(form.axes):
        return None  # some digit is in no index: its points have one value
    return IndexMap(axes, tuple(substitute(value, values) for value in form.axis_values))
