"""Maps from a box of iterators to index tuples by quasi-affine expressions: reads, reshapes, substitutions.

    (i:6, j:4)  ->  (i // 3, i % 3, 2*j + 1)        onto  0:2 * 0:3 * 1:8:2,  back by  (3*a + b, c)

An index is affine in the iterators, with floor-divisions (and so remainders) by constants.  What is decided
is decided on digits: iterators that occur only as D*h + d become one, one that is divided becomes its
mixed-radix digits, and then every index is affine (EINNET section 4.1: variable substitution by a bijection).
An answer is True or False for all values of the symbols, or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box, Progression, enclosing, whole
from tensaurus.expr.analysis.index_digits import Linear, Variable, digits, linear, ordered, sign_of
from tensaurus.expr.ir.scope import Read, Scope, axis
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

PROBED = 4096  # points of a box that are looked at one by one


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
        """The indices at a place of the box; whether it is one is not checked."""
        values: dict[Atom, Any] = {a: polynomial(i) for a, i in zip(self.axes, place, strict=True)}
        return tuple(substitute(index, values) for index in self.indices)

    def __str__(self) -> str:
        ranges = ", ".join(f"{a}:{a.extent}" for a in self.axes)
        return f"({ranges}) -> ({', '.join(map(str, self.indices))})"


def identity(shape: Sequence[Size]) -> IndexMap:
    """Every place to itself."""
    axes = tuple(axis(size) for size in shape)
    return IndexMap(axes, axes)  # type: ignore[arg-type]


def compose(outer: IndexMap, inner: IndexMap) -> IndexMap:
    """outer after inner.  Raises ValueError unless the inner indices provably lie in the outer box."""
    if len(inner.indices) != len(outer.axes):
        raise ValueError(f"{len(inner.indices)} indices for {len(outer.axes)} axes")
    if not _inside(inner, outer.shape) and _enumerated(inner, outer.shape) is not True:
        raise ValueError(f"{inner} may leave the box of {outer}")
    return IndexMap(inner.axes, outer(*inner.indices))


# ------------------------------------------------------------------------------ split, fused, reshaped


def reshaped(old: Sequence[Size], new: Sequence[Size]) -> IndexMap | None:
    """From places of the shape `new` to the places of `old` with the same row-major number.

    Only dimensions that really mix are mixed.  None where the factors of symbolic sizes do not line up.
    """
    axes = tuple(axis(size) for size in new)
    indices: list[Size] = [0] * len(old)
    kept = [d for d in range(len(old)) if not is_same_size(old[d], 1)]
    open_ = [d for d in range(len(new)) if not is_same_size(new[d], 1)]
    if any(is_same_size(n, 0) for n in new):
        return IndexMap(axes, tuple(indices)) if any(is_same_size(n, 0) for n in old) else None
    for mine, theirs in _runs([old[d] for d in kept], [new[d] for d in open_]):
        sizes = [old[kept[d]] for d in mine]
        if not is_same_size(product(sizes), product(new[open_[d]] for d in theirs)):
            return None
        number = fused([axes[open_[d]] for d in theirs], [new[open_[d]] for d in theirs])
        for d, index in zip(mine, split(number, sizes), strict=True):
            indices[kept[d]] = index
    return IndexMap(axes, tuple(indices))


def renumbers(scope: Scope) -> bool:
    """Whether every element is that of one tensor with the same row-major number: a reshape, or a copy.

        L[i:2, j:3](x[3*i + j])    of x[6]
    """
    read = scope.body
    if not isinstance(read, Read) or read.outside is not None:
        return False
    if any(isinstance(index, Read) for index in read.indices):
        return False
    if not is_same_size(product(scope.shape), product(read.source.shape)):
        return False
    one: dict[Atom, Any] = {a: 0 for a in scope.axes if is_same_size(a.extent, 1)}
    before = substitute(polynomial(fused(read.indices, read.source.shape)), one)
    return is_same_size(before, substitute(polynomial(fused(scope.axes, scope.shape)), one))


def fused(digits: Iterable[Any], radices: Iterable[Size]) -> Size:
    """The row-major number of a place in a shape."""
    number: Size = 0
    for digit, radix in zip(digits, radices, strict=True):
        number = number * radix + polynomial(digit)
    return number


def split(number: Size, radices: Sequence[Size]) -> tuple[Size, ...]:
    """The place in a shape with this row-major number."""
    digits: list[Size] = []
    for place, radix in reversed(list(enumerate(radices))):
        digits.append(number % radix if place else number)
        number = number // radix if place else number
    return tuple(reversed(digits))


def _runs(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of equal product, as short as possible."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        mine, theirs = ([i], [j]) if i < len(old) and j < len(new) else ([], [])
        left: Size = old[i] if mine else 1
        right: Size = new[j] if theirs else 1
        i, j = i + len(mine), j + len(theirs)
        while not is_same_size(left, right) or not mine:
            if i < len(old) and (j >= len(new) or _smaller(left, right)):
                left, i = left * old[i], i + 1
                mine.append(i - 1)
            elif j < len(new):
                right, j = right * new[j], j + 1
                theirs.append(j - 1)
            else:
                break
        runs.append((mine, theirs))
    return runs


def _smaller(a: Size, b: Size) -> bool:
    """Whether to grow a rather than b: it is less, or divides it."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int)
    return is_same_size(b % a, 0) or not is_same_size(a % b, 0)


# ------------------------------------------------------------------------------- images, one to one


@dataclass(frozen=True)
class Image:
    """The values of a map: those of the box if `exact`, else some of them."""

    box: Box
    exact: bool


def image(f: IndexMap) -> Image | None:
    """A box that holds all values of the map, and whether it is them; None where an index has no bounds."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return Image(whole((0,) * len(f.indices)), bool(f.indices))
    form = digits(f.axes, f.indices)
    forms = linear(form)
    if forms is None:
        sides = [_hull(index) for index in f.indices]
        known = [side for side in sides if side is not None]
        return Image(Box(tuple(known)), False) if len(known) == len(sides) else None
    rows, variables = forms
    exact = form.exact and set(variables) <= set(form.axes) and _disjoint(rows)
    exact = exact and all(is_nonnegative(a.extent - 1) for a in f.axes)
    extents = {a: a.extent for a in form.axes}
    boxes = []
    for index, row in zip(f.indices, rows, strict=True):
        side = _side(row, variables) or _hull(index)
        if side is None:
            return None
        exact = exact and ordered(row, extents, dense=True) is not None
        boxes.append(side)
    return Image(Box(tuple(boxes)), exact)


def _disjoint(rows: Sequence[Linear]) -> bool:
    used = [a for row in rows for a in row.slopes]
    return len(used) == len(set(used))


def _hull(index: Size) -> Progression | None:
    low, high = interval(index)
    return None if low is None or high is None else enclosing(low, high)


def _side(row: Linear, variables: Mapping[Axis, Variable]) -> Progression | None:
    """From the least to the greatest value by the greatest common step; None where that is not known."""
    low: Size = row.rest
    high: Size = row.rest
    for a, slope in row.slopes.items():
        ends = variables[a].low, variables[a].high
        sign = sign_of(slope)
        least, greatest = ends if sign == 1 else reversed(ends)
        if sign is None or least is None or greatest is None:
            return None
        low, high = low + slope * least, high + slope * greatest
    numbers = [s for s in row.slopes.values() if isinstance(s, int)]
    step = gcd(*numbers) if len(numbers) == len(row.slopes) else 1
    return enclosing(low, high, step or 1)


def is_injective(f: IndexMap) -> bool | None:
    """Whether no two points of the box have one value; None where it is not known."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return True
    forms = linear(digits(f.axes, f.indices))
    if forms is not None and _determined(*forms):
        return True
    enclosed = image(f)
    if enclosed is not None and is_nonnegative(product(f.shape) - enclosed.box.points - 1):
        return False  # more points than values
    return _probed_injective(f)


def _determined(rows: Sequence[Linear], variables: Mapping[Axis, Variable]) -> bool:
    """Whether the values of all rows leave one value for every axis.

    A row of which all unknown variables are digits gives them; rows that are independent give the rest.
    """
    counts = {a: v.count for a, v in variables.items() if v.count is not None}
    left = set(variables)
    while left:
        rests = [Linear({a: s for a, s in row.slopes.items() if a in left}, 0) for row in rows]
        gained: set[Axis] = set()
        for row in rests:
            if set(row.slopes) <= set(counts) and ordered(row, counts, dense=False):
                gained.update(row.slopes)
        if not gained:
            order = sorted(left, key=str)
            matrix = [[row.slopes.get(a, 0) for a in order] for row in rests]
            return all(isinstance(s, int) for line in matrix for s in line) and _rank(matrix) == len(left)
        left -= gained
        left -= {a for a in left if variables[a].axes.isdisjoint(left | {a})}
    return True


def _rank(matrix: Sequence[Sequence[Any]]) -> int:
    """The rank of a matrix of integers, exactly."""
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
    """Whether each index tuple of a tensor of this shape is the value of exactly one point of the box."""
    if len(codomain) != len(f.indices):
        return False
    one_to_one = is_injective(f)
    if one_to_one is False:
        return False
    points, places = product(f.shape), product(codomain)
    if is_nonnegative(points - places - 1) or is_nonnegative(places - points - 1):
        return False
    into = _inside(f, codomain) or _enumerated(f, codomain)
    if into is False:
        return False
    return True if one_to_one and into and is_same_size(points, places) else None


def _inside(f: IndexMap, shape: Sequence[Size]) -> bool:
    """Whether bounds alone keep every index within the shape."""
    if any(is_same_size(a.extent, 0) for a in f.axes):
        return True
    bounds = [interval(index) for index in f.indices]
    return all(
        low is not None and high is not None and is_nonnegative(low) and is_nonnegative(size - 1 - high)
        for (low, high), size in zip(bounds, shape, strict=True)
    )


def _probe(f: IndexMap) -> tuple[np.ndarray[Any, Any], bool] | None:
    """The values at the points of a part of the box, one a row, and whether it is the whole box."""
    inside = set().union(*(atoms(index) for index in f.indices))
    if not {atom for atom in inside if not isinstance(atom, (Floor, Largest))} <= set(f.axes):
        return None
    extents = [_at_least(a.extent) for a in f.axes]
    complete = all(a.extent == n for a, n in zip(f.axes, extents, strict=True))
    while prod(extents) > PROBED:
        extents[extents.index(max(extents))] //= 2
        complete = False
    count = prod(extents)
    grid: dict[Atom, Any] = dict(zip(f.axes, np.indices(extents).reshape(-1, count), strict=True))
    columns = [np.broadcast_to(evaluate(index, grid.__getitem__), (count,)) for index in f.indices]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.int64), complete


def _at_least(extent: Size) -> int:
    """An extent that a range has for all values of its symbols."""
    return (
        extent if isinstance(extent, int) else next((n for n in (3, 2, 1) if is_nonnegative(extent - n)), 0)
    )


def _probed_injective(f: IndexMap) -> bool | None:
    probed = _probe(f)
    if probed is None:
        return None
    values, complete = probed
    if len(np.unique(values, axis=0)) < len(values) if values.shape[1] else len(values) > 1:
        return False
    return True if complete else None


def _enumerated(f: IndexMap, shape: Sequence[Size]) -> bool | None:
    """Whether every value is an index tuple of the shape, point by point."""
    probed = _probe(f)
    if probed is None:
        return None
    values, complete = probed
    inside = all(
        isinstance(size, int) and bool(((column >= 0) & (column < size)).all())
        for column, size in zip(values.T, shape, strict=True)
    )
    if inside:
        return True if complete else None
    return False if all(isinstance(size, int) for size in shape) else None


def inverse(f: IndexMap) -> IndexMap | None:
    """The point of the box for each place of the image, which must be a box; None where that is not known.

    The axes count the image's sides: f(*g.indices) at a place (a, b, ...) of g's box is the index tuple
    (start + step*a, ...) of `image(f).box`, so where the image is the box of a shape, g is the inverse.
    """
    form = digits(f.axes, f.indices)
    forms, onto = linear(form), image(f)
    if forms is None or onto is None or not onto.exact or any(is_same_size(a.extent, 0) for a in f.axes):
        return None
    axes = tuple(axis(side.count) for side in onto.box.sides)
    values: dict[Atom, Any] = {}
    for one, row in zip(axes, forms[0], strict=True):
        order = ordered(row, {a: a.extent for a in form.axes}, dense=False)
        if order is None:
            return None
        # without gaps and never twice: the slopes are those of a mixed radix
        places = split(polynomial(one), [a.extent for a in reversed(order)])
        for a, digit in zip(reversed(order), places, strict=True):
            values[a] = digit if sign_of(row.slopes[a]) == 1 else a.extent - 1 - digit
    if set(values) != set(form.axes):
        return None
    return IndexMap(axes, tuple(substitute(place, values) for place in form.places))
