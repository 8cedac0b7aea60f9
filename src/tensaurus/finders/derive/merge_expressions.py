"""Expression merging: independent sums of products of one tensor become one expression (EINNET, section 4.2).

        L[f:4, h](sum[c](A[c, h] * W[f, c])),  L[g:2, h](sum[c](A[c, h] * V[g, c]))
     -> E[f, h],  E[4 + g, h],
        E = L[k:6, h](sum[c](A[c, h] * {L[k, c](W[k, c] if k < 4 else V[k - 4, c])}[k, c]))

A view is one of these sums, seen as data (A) times weights; the merged expression is E, and each view has
some of its rows.  Windows of different sizes are enlarged to one that contains them all (boundary relaxing):
the weights of an expression are zero beyond its own window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Tensor,
    axis,
    within,
)
from tensaurus.expr.ir.walk import replace_axes, scopes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.mixed_radix import ravel_index, unravel_index
from tensaurus.expr.sizes.size import Atom, Axis, Size, is_nonnegative, is_same_size, polynomial, substitute
from tensaurus.finders.derive.rewrite_step import (
    JointStep,
    Product,
    as_nested_read,
    axes_in,
    base_name,
    numeric_extent,
    product_of,
)

__all__ = ["JOINED", "joined"]

JOINED = "expression merging"  # the rule's name in steps


def joined(stages: Sequence[Scope]) -> Iterator[JointStep]:
    """Yield merges of stages that read one tensor: all with equal windows, and each pair with different ones.

    Stages of which one reads the other, directly or through others, are not merged.
    """
    views = [view for stage in stages for view in _find_views(stage)]
    merged_views = set[int]()
    for number, first in enumerate(views):
        others = [view for view in views[number + 1 :] if _can_merge(first, view)]
        same_windows, other_windows = [first], list[tuple[_View, _View]]()
        for view in others:
            alignment = _align((first, view))
            if alignment is None:
                continue
            if alignment.has_larger_window:
                other_windows.append((first, view))
            elif id(view) not in merged_views and all(_can_merge(view, one) for one in same_windows[1:]):
                same_windows.append(view)
        if len(same_windows) > 1 and id(first) not in merged_views:
            merged_views.update(map(id, same_windows))
            yield from _merge(tuple(same_windows))
        for pair in other_windows:
            yield from _merge(pair)


def _merge(views: tuple[_View, ...]) -> Iterator[JointStep]:
    alignment = _align(views)
    if alignment is not None and (merged := alignment.merged_scope()) is not None:
        name = ", ".join(" x ".join(str(n) for n in view.stage.shape) for view in views)
        yield JointStep(
            JOINED, name, tuple((view.stage, alignment.read_rows(k, merged)) for k, view in enumerate(views))
        )


@dataclass(frozen=True)
class _View:
    """A stage, a sum of products, seen as one of its reads, `data`, times the weights.

    data        a read whose indices depend on all summation iterators
    weights     the product of all other factors, with the guards
    dimensions  the data's indices, split: 2*h + r - 1 has places {h: 2}, taps {r: 1} and offset -1
    """

    stage: Scope
    data: Read
    weights: Body
    dimensions: tuple[_Dimension, ...]

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """The traversal iterators that the data do not depend on: their values number the weights' rows."""
        return tuple(a for a in self.stage.axes if a not in axes_in(self.data))


class _Dimension(NamedTuple):
    """An affine index: slopes of traversal iterators (places), of summation iterators (taps), and offset."""

    places: dict[Axis, int]
    taps: dict[Axis, int]
    offset: int


def _find_views(stage: Scope) -> Iterator[_View]:
    body = stage.body
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return
    guards, factors = product_of(body.body)
    for k, factor in enumerate(factors):
        if not isinstance(factor, Read) or not isinstance(factor.source, (Tensor, Scope)):
            continue
        if factor.outside not in (None, Const(0)) or not axes_in(factor) >= set(body.axes):
            continue
        dimensions = tuple(filter(None, (_split_index(i, stage.axes, body.axes) for i in factor.indices)))
        weights = Product(guards, (*factors[:k], *factors[k + 1 :])).body
        has_elements = all(isinstance(n, int) and n > 0 for n in stage.shape)
        is_affine = len(dimensions) == len(factor.indices)
        if has_elements and is_affine and literal_dtype(weights) == dtype_of(stage):
            yield _View(stage, factor, weights, dimensions)


def _split_index(index: Size, traversal: Sequence[Axis], reduced: Sequence[Axis]) -> _Dimension | None:
    form = affine_coefficients(index, (*traversal, *reduced))
    if form is None or not isinstance(form.rest, int):
        return None
    slopes = {a: slope for a, slope in form.slopes.items() if isinstance(slope, int) and slope}
    if len(slopes) < len(form.slopes) or not all(isinstance(a.extent, int) for a in slopes):
        return None
    places = {a: slope for a, slope in slopes.items() if a in traversal}
    taps = {a: slope for a, slope in slopes.items() if a not in traversal}
    return _Dimension(places, taps, form.rest)


def _can_merge(first: _View, second: _View) -> bool:
    """Return whether both views read one tensor, and neither stage reads the other."""
    if first.stage is second.stage or not _is_same_source(first.data.source, second.data.source):
        return False
    pairs = ((first.stage, second.stage), (second.stage, first.stage))
    return not any(inner is one for one, other in pairs for inner in scopes(other))


def _is_same_source(first: Source, second: Source) -> bool:
    return first is second or isinstance(first, Tensor) and first == second


@dataclass(frozen=True)
class _Alignment:
    """The common iterators of several views: the first view's places, and windows that contain all views'.

    places    for each view {its traversal iterator: the first view's}, for iterators in the data's indices
    windows   for each dimension of the data the common windows, one for each tap in its index
    """

    views: tuple[_View, ...]
    places: tuple[Mapping[Axis, Axis], ...]
    windows: tuple[tuple[_Window, ...], ...]

    @property
    def has_larger_window(self) -> bool:
        """Whether some view's window is smaller than the common window."""
        windows = [window for dimension in self.windows for window in dimension]
        return any(own.extent != window.extent for window in windows for own in window.ranges)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """For each view the number of elements of its row axes: its rows in the merged scope."""
        return tuple(prod(numeric_extent(a) for a in view.row_axes) for view in self.views)

    def merged_scope(self) -> Scope | None:
        """Return the merged expression, None where its data indices would differ from those of a view."""
        first = self.views[0]
        fresh = {a: axis(a.extent, base_name(a)) for a in first.stage.axes if a not in first.row_axes}
        # one iterator k numbers the rows of all views, in place of the first view's row axes
        k = axis(sum(self.row_counts), base_name(first.row_axes[0]) if first.row_axes else "k")
        taps = tuple(tuple(axis(w.extent, w.name) for w in dimension) for dimension in self.windows)
        # the data's indices over fresh places and fresh taps, which begin at the common window's begin
        indices = []
        for dimension, windows, window_taps in zip(first.dimensions, self.windows, taps, strict=True):
            index: Size = polynomial(dimension.offset)
            for a, slope in dimension.places.items():
                index = index + polynomial(fresh[a]) * slope
            for window, v in zip(windows, window_taps, strict=True):
                index = index + (polynomial(v) + window.low) * window.slope
            indices.append(index)
        rows = list[Body]()
        for view, view_weights in enumerate(self._view_weights(fresh, taps, indices)):
            if view_weights is None:
                return None
            rows.append(self._index_by_row(view, view_weights, k))
        # axes in the first view's order, k where its first row axis was, or first of all
        reduced = tuple(v for dimension in taps for v in dimension)
        order = tuple(fresh.get(a, k) for a in first.stage.axes if a in fresh or a == first.row_axes[0])
        order = order if first.row_axes else (k, *order)
        weights = as_nested_read((*order, *reduced), self._select_view(rows, k))
        data = Read(first.data.source, tuple(indices), Const(0))
        return Scope(order, Reduce("sum", reduced, Call("mul", (data, weights))))

    def _view_weights(
        self, fresh: Mapping[Axis, Axis], taps: Sequence[Sequence[Axis]], indices: Sequence[Size]
    ) -> Iterator[Body | None]:
        """Yield each view's weights over new iterators, 0 beyond its window.

        None for a view whose data would be read at other indices than `indices`, those of the merged scope.
        """
        for number, (view, places) in enumerate(zip(self.views, self.places, strict=True)):
            values: dict[Atom, Any] = {a: polynomial(fresh[b]) for a, b in places.items()}
            guards, offsets = list[Size](), [0] * len(indices)
            for d, (windows, window_taps) in enumerate(zip(self.windows, taps, strict=True)):
                for window, v in zip(windows, window_taps, strict=True):
                    # `place` counts from the begin of the view's own window: beyond it the weights are 0
                    own = window.ranges[number]
                    place = polynomial(v) + (window.low - own.begin)
                    guards += [g for g in within(place, 0, own.extent) if not is_nonnegative(g)]
                    if own.tap is None:  # place is 0 where its guard holds: this changes no index there
                        offsets[d] = offsets[d] + place * window.slope
                    else:
                        values[own.tap] = place
            pairs = zip(view.data.indices, offsets, strict=True)
            view_indices = [substitute(index, values) + offset for index, offset in pairs]
            if not all(is_same_size(a, b) for a, b in zip(view_indices, indices, strict=True)):
                yield None
                continue
            weights = replace_axes(view.weights, values)
            yield Select(tuple(guards), weights, Const(0)) if guards else weights

    def _index_by_row(self, view: int, weights: Body, k: Axis) -> Body:
        """Return the weights with the row axes written as digits of the merged scope's row k."""
        row_axes = self.views[view].row_axes
        number = polynomial(k) - sum(self.row_counts[:view])
        digits = unravel_index(number, [a.extent for a in row_axes])
        values: dict[Atom, Any] = dict(zip(row_axes, digits, strict=True))
        return replace_axes(weights, values)

    def _select_view(self, rows: Sequence[Body], k: Axis) -> Body:
        """Return the weights of the view to which the row k belongs."""
        body = rows[-1]
        for view in reversed(range(len(rows) - 1)):
            body = Select((sum(self.row_counts[: view + 1]) - 1 - polynomial(k),), rows[view], body)
        return body

    def read_rows(self, view: int, merged: Scope) -> Scope:
        """Return the view's stage as a read of the merged scope."""
        stage, row_axes = self.views[view].stage, self.views[view].row_axes
        first = self.views[0]
        own_places = {b: a for a, b in self.places[view].items()}
        row = ravel_index(row_axes, [a.extent for a in row_axes]) + sum(self.row_counts[:view])
        indices: list[Size] = []
        for a in first.stage.axes:
            if a in own_places:
                indices.append(polynomial(own_places[a]))
            elif a == first.row_axes[0]:
                indices.append(row)
        return Scope(stage.axes, Read(merged, tuple(indices if first.row_axes else [row, *indices])))


class _TapRange(NamedTuple):
    """A view's own part of a window, begin <= u < begin + extent, where the view's iterator tap is u - begin.

    The tap is None, and the extent 1, for a view that reads a single value.
    """

    tap: Axis | None
    begin: int
    extent: int


class _Window(NamedTuple):
    """A range low <= u < low + extent of a summation iterator u with this slope in the index.

    ranges  the part of each view
    """

    slope: int
    low: int
    extent: int
    ranges: tuple[_TapRange, ...]

    @property
    def name(self) -> str:
        return next((base_name(own.tap) for own in self.ranges if own.tap is not None), "r")


def _align(views: tuple[_View, ...]) -> _Alignment | None:
    """Return the alignment of views of one tensor, None where their places or slopes differ."""
    places = [pairs for view in views if (pairs := _pair_places(views[0], view)) is not None]
    if len(places) < len(views):
        return None
    windows = list[tuple[_Window, ...]]()
    for dimensions in zip(*(view.dimensions for view in views), strict=True):
        dimension_windows = _common_windows(dimensions)
        if dimension_windows is None:
            return None
        windows.append(dimension_windows)
    return _Alignment(views, tuple(places), tuple(windows))


def _pair_places(first: _View, view: _View) -> Mapping[Axis, Axis] | None:
    """Return {traversal iterator of the view: the first view's}, for iterators that the data depend on."""
    pairs: dict[Axis, Axis] = {}
    for one, other in zip(first.dimensions, view.dimensions, strict=True):
        if len(one.places) != len(other.places):
            return None
        for a, slope in other.places.items():
            equal = [b for b, s in one.places.items() if s == slope and b.extent == a.extent]
            free = [b for b in equal if pairs.get(a, b) == b and (a in pairs or b not in pairs.values())]
            if not free:
                return None
            pairs[a] = free[0]
    return pairs if len(set(pairs.values())) == len(pairs) else None


def _common_windows(dimensions: tuple[_Dimension, ...]) -> tuple[_Window, ...] | None:
    """Return the windows of one dimension that contain those of all views, None where slopes differ."""
    max_taps = max(len(d.taps) for d in dimensions)
    offsets = [d.offset - dimensions[0].offset for d in dimensions]
    if max_taps > 1:  # such as c and r in the index 3*c + r: all views must have equal windows
        ranked = [
            sorted(d.taps.items(), key=lambda item: (item[1], numeric_extent(item[0]))) for d in dimensions
        ]
        shapes = {tuple((slope, numeric_extent(a)) for a, slope in taps) for taps in ranked}
        if len(shapes) > 1 or any(offsets):
            return None
        return tuple(
            _Window(
                column[0][1], 0, numeric_extent(column[0][0]),
                tuple(_TapRange(a, 0, numeric_extent(a)) for a, _ in column),
            )
            for column in zip(*ranked, strict=True)
        )  # fmt: skip
    # no tap and no offset: no window; else one window, from the first to the last value that a view reads
    if not max_taps and not any(offsets):
        return ()
    slopes = {slope for d in dimensions for slope in d.taps.values()} or {1}
    if len(slopes) > 1:
        return None
    (slope,) = slopes
    if any(offset % slope for offset in offsets):
        return None
    taps = [next(iter(d.taps), None) for d in dimensions]
    ranges = tuple(
        _TapRange(tap, offset // slope, 1 if tap is None else numeric_extent(tap))
        for tap, offset in zip(taps, offsets, strict=True)
    )
    low = min(own.begin for own in ranges)
    high = max(own.begin + own.extent for own in ranges)
    return (_Window(slope, low, high - low, ranges),)
