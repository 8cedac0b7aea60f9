"""Narrow the ranges of bound axes by guards, split axes into digits, merge digits, and join ranges.

    sum[k:8](k - 3 >= 0: f(k))               ->  sum[k:5](f(k + 3))         narrow_by_guards
    sum[r:12](f(r // 4, r % 4))              ->  sum[h:3, d:4](f(h, d))     split_digits
    sum[h:3, d:4](f(4*h + d))                ->  sum[r:12](f(r))            merge_digits
    sum[k:3](f(k)) + sum[m:5](f(m + 3))      ->  sum[r:8](f(r))             join_ranges

`smart_constructors` applies them to each term that it makes, so that equal sums get equal ranges.  A guard is
a size g that stands for the condition g >= 0; as sizes are integers, its negation is -1 - g >= 0.  The first
three functions change no body: they return {axis that is gone: its size over the new axes}, for the caller to
substitute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

from tensaurus.expr.ir.scope import axis
from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.normal.canonical_record import Record
from tensaurus.expr.normal.normal_form import Core, Sum
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    floordiv,
    interval,
    is_nonnegative,
    is_same_size,
    polynomial,
    single_atom,
    substitute,
)

Values = Mapping[Atom, Any]
AnyRecord = TypeVar("AnyRecord", bound=Record)


class NarrowedRanges(NamedTuple):
    """The axes with narrowed ranges, the guards that are still undecided, and the axes that are gone.

    `values` maps each axis that is gone to a size over `axes`.  It is substituted in `guards` already; in the
    body the caller must substitute it.
    """

    axes: tuple[Axis, ...]
    guards: tuple[Size, ...]
    values: dict[Atom, Any]


def narrow_by_guards(axes: Sequence[Axis], guards: Sequence[Size]) -> NarrowedRanges | None:
    """Return the axes with ranges in which the guards hold, as far as guards on single axes are ranges.

    None where no point is left: a range is empty, or the guards cannot all hold.
    """
    values: dict[Atom, Any] = {}
    open_axes, open_guards = list(axes), list(guards)
    while True:  # each round replaces one axis
        value: Size = 0
        if (trivial := _axis_without_choice(open_axes)) is not None:
            changed_axis, point_count = trivial
            if point_count == 0:
                return None
            open_axes.remove(changed_axis)
        else:
            undecided = _drop_decided_guards(open_guards)
            if undecided is None:
                return None
            open_guards = undecided
            if (fixed := _fixed_axis(open_guards, open_axes)) is not None:
                changed_axis, value = fixed
                open_axes.remove(changed_axis)
                # the axis' only value must lie in its range
                open_guards += [value, changed_axis.extent - 1 - value]
            elif (narrowing := _first_narrowing(open_guards, open_axes)) is not None:
                changed_axis, value = narrowing.axis, narrowing.value
                open_guards.remove(narrowing.guard)
                open_axes[open_axes.index(changed_axis)] = narrowing.narrow_axis
            else:
                return NarrowedRanges(tuple(open_axes), tuple(open_guards), values)
        change: dict[Atom, Any] = {changed_axis: value}
        open_guards = [substitute(g, change) for g in open_guards]
        values = {**{a: substitute(v, change) for a, v in values.items()}, **change}


def _axis_without_choice(axes: Iterable[Axis]) -> tuple[Axis, int] | None:
    """Return the first axis of 0 points or of 1 point, and this number."""
    for a in axes:
        for point_count in (0, 1):
            if is_same_size(a.extent, point_count):
                return a, point_count
    return None


def _fixed_axis(guards: Sequence[Size], axes: Sequence[Axis]) -> tuple[Axis, Size] | None:
    """Return (axis, value) where the guards g and -g are both there, so that g = 0 gives the axis this value.

    The axis has slope 1 or -1 in g.
    """
    known = set(guards)
    for guard in guards:
        if 0 - guard not in known:
            continue
        for a in axes:
            linear = affine_coefficients(guard, [a]) if a in axes_in(guard) else None
            if linear is not None and linear.slopes.get(a) in (1, -1):
                return a, -linear.rest * linear.slopes[a]
    return None


def _drop_decided_guards(guards: Iterable[Size]) -> list[Size] | None:
    """Return the guards that ranges and other guards leave open; None where they cannot all hold.

    First each guard is decided by the ranges of its axes alone, if they do; then each beside each other one:
    where h >= 0, the guard g >= 0 is implied if g - h >= 0, and impossible if g + h < 0.
    """
    kept: list[Size] = []
    for guard in dict.fromkeys(polynomial(g) for g in guards):
        holds = _truth_value(guard)
        if holds is False:
            return None
        if holds is None:
            kept.append(guard)
    for guard in list(kept):
        for other in kept:
            if other is guard:
                continue
            if _have_common_axis(guard, other) and _truth_value(-1 - (guard + other)):
                return None
            restricted = _restrict_to_range(guard, other)
            holds = None if restricted is None else _truth_value(restricted)
            if holds is False:
                return None
            if holds or _have_common_axis(guard, other) and _truth_value(guard - other):
                kept.remove(guard)
                break
    return kept


def _restrict_to_range(guard: Size, other: Size) -> Size | None:
    """Return the guard with its axis narrowed to the range that `other` allows; None where that is no range.

        i:12,  i // 4 - 2,  with other = 7 - i     ->     j // 4 - 2 with j:8, which is always negative

    None also for a guard without a quotient of the axis: there the sum or difference of both decides as well.
    """
    other_axes = axes_in(other)
    quotients = (x for x in atoms(guard) if isinstance(x, Floor))
    if len(other_axes) != 1 or all(other_axes.isdisjoint(atoms(x)) for x in quotients):
        return None
    narrowing = _narrow_by_guard(other, tuple(other_axes))
    if narrowing is None:
        return None
    restricted: Size = substitute(guard, {narrowing.axis: narrowing.value})
    return restricted


def _have_common_axis(a: Size, b: Size) -> bool:
    return not axes_in(a).isdisjoint(axes_in(b))


def _truth_value(guard: Size) -> bool | None:
    """Return whether bounds show that a guard holds everywhere (True) or nowhere (False), else None."""
    low, high = interval(guard)
    if low is not None and is_nonnegative(low):
        return True
    return False if high is not None and is_nonnegative(-1 - high) else None


class _Narrowing(NamedTuple):
    """A guard that holds for a range of one axis alone: for axis = narrow_axis + offset."""

    guard: Size
    axis: Axis
    narrow_axis: Axis
    offset: Size

    @property
    def value(self) -> Any:
        """The axis as a size over the narrow one."""
        return polynomial(self.narrow_axis) + self.offset


def _first_narrowing(guards: Iterable[Size], axes: Sequence[Axis]) -> _Narrowing | None:
    return next((n for guard in guards if (n := _narrow_by_guard(guard, axes)) is not None), None)


def _narrow_by_guard(guard: Size, axes: Sequence[Axis]) -> _Narrowing | None:
    """Return the range of one of these axes to which a guard restricts it.

    None where the guard has several axes, where its slope is no number, or where the new range is not known
    to lie within the old one.
    """
    guard_axes = axes_in(guard)
    if len(guard_axes) != 1:
        return None
    (a,) = guard_axes
    linear = affine_coefficients(guard, [a]) if a in axes else None
    if linear is None or not isinstance(linear.slopes.get(a), int):
        return None
    slope, rest = linear.slopes[a], linear.rest  # the guard is slope*a + rest >= 0
    assert isinstance(slope, int)
    if slope > 0:  # a >= ceil(-rest / slope)
        start = 0 - floordiv(rest, slope)
        if not is_nonnegative(start):
            return None
        extent = a.extent - start
        return _Narrowing(guard, a, axis(extent, "r"), start) if is_nonnegative(extent) else None
    extent = floordiv(rest, -slope) + 1  # a <= rest // -slope
    if is_nonnegative(extent) and is_nonnegative(a.extent - extent):
        return _Narrowing(guard, a, axis(extent, "r"), 0)
    return None


def split_digits(record: Record, axes: Sequence[Axis]) -> tuple[list[Axis], dict[Atom, Any]] | None:
    """Return (axes, values) with one axis split into its quotient and remainder by a divisor of its extent.

    An axis is split if some size of the record divides it: r // 4 occurs, and 4 divides the extent of r.  Of
    several axes the first is split, by the divisor whose text sorts first.  None where there is no such axis.
    """
    candidates = list(_divided_axes(record, frozenset(axes)))
    if not candidates:
        return None
    split_axis, step = min(candidates, key=lambda pair: (axes.index(pair[0]), str(pair[1])))
    high, low = axis(floordiv(split_axis.extent, step), "r"), axis(step, "r")
    new_axes = [d for a in axes for d in ((high, low) if a == split_axis else (a,))]
    return new_axes, {split_axis: polynomial(high) * step + polynomial(low)}


def _all_sizes(record: Record) -> Iterator[Size]:
    return (size for inner in record.walk() for size in inner.sizes())


def _divided_axes(record: Record, axes: Set[Axis]) -> Iterator[tuple[Axis, Size]]:
    """Yield (axis, k) for each quotient axis // k in the record where k divides the axis' extent."""
    for size in _all_sizes(record):
        for atom in atoms(size):
            if isinstance(atom, Floor):
                divided_axis = single_atom(atom.top)
                if not isinstance(divided_axis, Axis) or divided_axis not in axes:
                    continue
                if _divides(atom.bottom, divided_axis.extent):
                    yield divided_axis, atom.bottom


def _divides(step: Size, extent: Size) -> bool:
    return not is_same_size(step, 1) and is_same_size(floordiv(extent, step) * step, extent)


def merge_digits(record: AnyRecord, axes: Sequence[Axis]) -> tuple[list[Axis], dict[Atom, Any]] | None:
    """Return (axes, values) with two axes, which occur only as D*h + d with d < D, merged into one.

    None where there are no such axes.
    """
    if len(axes) < 2:
        return None
    sizes = [s for s in _all_sizes(record) if not isinstance(s, int)]
    for low in axes:
        for high in axes:
            if high == low or not any(high in axes_in(size) for size in sizes):
                continue
            merged = merge_axis_pair(high, low, sizes, "r")
            if merged is not None:
                merged_axis, values = merged
                return [merged_axis if a == high else a for a in axes if a != low], values
    return None


def merge_axis_pair(
    high: Axis, low: Axis, sizes: Collection[Size], hint: str = "i"
) -> tuple[Axis, dict[Atom, Any]] | None:
    """Return a new axis t for two axes h and d that occur only as D*h + d with d < D; None if they do not.

    The second result, {h: 0, d: t}, replaces D*h + d by t in the sizes.
    """
    if not _may_be_digits(high, low, sizes):
        return None
    merged_axis = axis(high.extent * low.extent, hint)
    values: dict[Atom, Any] = {high: 0, low: polynomial(merged_axis)}
    # Test: write t for d and drop h, then put D*h + d back for t.  If every size is as before, h and d occur
    # only as D*h + d.
    back: dict[Atom, Any] = {merged_axis: polynomial(high) * low.extent + polynomial(low)}
    if not all(is_same_size(substitute(substitute(s, values), back), s) for s in sizes):
        return None
    return merged_axis, values


def _may_be_digits(high: Axis, low: Axis, sizes: Iterable[Size]) -> bool:
    """Return False where `merge_axis_pair` would fail; a quick test before the substitutions.

    That is where one axis occurs without the other, or the slope of `high` is not D times that of `low`.
    """
    for size in sizes:
        size_axes = axes_in(size)
        if (high in size_axes) != (low in size_axes):
            return False
        if high not in size_axes:
            continue
        linear = affine_coefficients(size, [high, low])
        if linear is not None and not is_same_size(
            linear.slopes.get(high, 0), linear.slopes.get(low, 0) * low.extent
        ):
            return False
    return True


def join_ranges(
    a: Core, k: Axis, b: Core, m: Axis, change: Callable[[Core, Values, Sequence[Axis]], Core | None]
) -> Sum | None:
    """Return the sum of two cores that continue one another: `a` over k, then `b` over m.

    Over one axis t for both ranges, k is t and m is t - (extent of k).  If both cores then are equal, either
    of them over the whole range of t is their sum; else None.  `change(core, values, axes)` substitutes.
    """
    joined_axis = axis(k.extent + m.extent, "r")
    first = change(a, {k: polynomial(joined_axis)}, [joined_axis if x == k else x for x in a.axes])
    second = change(
        b, {m: polynomial(joined_axis) - k.extent}, [joined_axis if x == m else x for x in b.axes]
    )
    if first is None or second is None or first.key != second.key:
        return None
    return Sum(((1, first),))
