"""Expression merging: independent sums of products of one tensor become one expression (EINNET, section 4.2).

        L[f:4, h](sum[c](A[c, h] * W[f, c])),  L[g:2, h](sum[c](A[c, h] * V[g, c]))
     -> E[f, h],  E[4 + g, h],
        E = L[k:6, h](sum[c](A[c, h] * {L[k, c](W[k, c] if k < 4 else V[k - 4, c])}[k, c]))

Windows of different sizes are enlarged to one that holds them all (boundary relaxing): beyond its own, what
an expression multiplies with is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tensaurus.expr.analysis.index_map import place_of_number as digits_of
from tensaurus.expr.analysis.index_map import row_major_number
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
from tensaurus.expr.sizes.size import Atom, Axis, Size, is_nonnegative, is_same_size, polynomial, substitute
from tensaurus.finders.derive.rewrite_step import JointStep, Product, axes_in, hint, nested, product_of

__all__ = ["JOINED", "joined"]

JOINED = "expression merging"  # the rule's name


def joined(stages: Sequence[Scope]) -> Iterator[JointStep]:
    """Those that read one tensor as one: all whose windows are alike, and every two whose windows are not.

    Of scopes that read each other, directly or not, none are merged.
    """
    views = [view for stage in stages for view in _views(stage)]
    done = set[int]()
    for place, first in enumerate(views):
        others = [view for view in views[place + 1 :] if _apart(first, view)]
        alike, unlike = [first], list[tuple[_View, _View]]()
        for view in others:
            frame = _framed((first, view))
            if frame is None:
                continue
            if frame.grown:
                unlike.append((first, view))
            elif id(view) not in done and all(_apart(view, one) for one in alike[1:]):
                alike.append(view)
        if len(alike) > 1 and id(first) not in done:
            done.update(map(id, alike))
            yield from _merged(tuple(alike))
        for pair in unlike:
            yield from _merged(pair)


def _merged(views: tuple[_View, ...]) -> Iterator[JointStep]:
    frame = _framed(views)
    if frame is not None and (whole := frame.whole()) is not None:
        name = ", ".join(" x ".join(str(n) for n in view.stage.shape) for view in views)
        made = tuple((view.stage, frame.part(k, whole)) for k, view in enumerate(views))
        yield JointStep(JOINED, name, made)


@dataclass(frozen=True)
class _View:
    """A sum of products as one of its reads, `data`, times the rest; `dimensions` of what is read."""

    stage: Scope
    data: Read
    rest: Body
    dimensions: tuple[_Dimension, ...]

    @property
    def private(self) -> tuple[Axis, ...]:
        """Traversal iterators that the data do not depend on."""
        return tuple(a for a in self.stage.axes if a not in axes_in(self.data))


class _Dimension(NamedTuple):
    """An index: slopes of traversal iterators, those of a summation, and what is left."""

    places: dict[Axis, int]
    taps: dict[Axis, int]
    offset: int


def _views(stage: Scope) -> Iterator[_View]:
    body = stage.body
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return
    guards, factors = product_of(body.body)
    for k, factor in enumerate(factors):
        if not isinstance(factor, Read) or not isinstance(factor.source, (Tensor, Scope)):
            continue
        if factor.outside not in (None, Const(0)) or not axes_in(factor) >= set(body.axes):
            continue
        dimensions = tuple(filter(None, (_dimension(i, stage.axes, body.axes) for i in factor.indices)))
        rest = Product(guards, (*factors[:k], *factors[k + 1 :])).body
        sized = all(isinstance(n, int) and n > 0 for n in stage.shape)
        if sized and len(dimensions) == len(factor.indices) and literal_dtype(rest) == dtype_of(stage):
            yield _View(stage, factor, rest, dimensions)


def _dimension(index: Size, traversal: Sequence[Axis], reduced: Sequence[Axis]) -> _Dimension | None:
    form = affine_coefficients(index, (*traversal, *reduced))
    if form is None or not isinstance(form[1], int):
        return None
    slopes = {a: slope for a, slope in form[0].items() if isinstance(slope, int) and slope}
    if len(slopes) < len(form[0]) or not all(isinstance(a.extent, int) for a in slopes):
        return None
    places, taps = ({a: s for a, s in slopes.items() if (a in traversal) is side} for side in (True, False))
    return _Dimension(places, taps, form[1])


def _apart(first: _View, second: _View) -> bool:
    """Whether they read one tensor, and are of stages of which none reads the other."""
    if first.stage is second.stage or not _one(first.data.source, second.data.source):
        return False
    pairs = ((first.stage, second.stage), (second.stage, first.stage))
    return not any(inner is one for one, other in pairs for inner in scopes(other))


def _one(first: Source, second: Source) -> bool:
    return first is second or isinstance(first, Tensor) and first == second


@dataclass(frozen=True)
class _Frame:
    """The iterators of what several views become: for each dimension the first view's places, and windows.

    places    what each view's traversal iterators are of the first one's, as far as the data have them
    windows   of each dimension: the slope, the ends of the range, and where each view's begins and its tap
    """

    views: tuple[_View, ...]
    places: tuple[Mapping[Axis, Axis], ...]
    windows: tuple[tuple[_Window, ...], ...]

    @property
    def grown(self) -> bool:
        """Whether a view's window is smaller than what it becomes a part of."""
        return any(
            extent != window.extent
            for dimension in self.windows
            for window in dimension
            for _, extent in window.taps
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Of the private elements of each view."""
        return tuple(prod(_number(a) for a in view.private) for view in self.views)

    def whole(self) -> Scope | None:
        """The one expression; None where its indices would not be those of each view."""
        first = self.views[0]
        fresh = {a: axis(a.extent, hint(a)) for a in first.stage.axes if a not in first.private}
        k = axis(sum(self.counts), hint(first.private[0]) if first.private else "k")
        taps = tuple(tuple(axis(w.extent, w.hint) for w in dimension) for dimension in self.windows)
        indices = []
        for dimension, windows, own in zip(first.dimensions, self.windows, taps, strict=True):
            index: Size = polynomial(dimension.offset)
            for a, slope in dimension.places.items():
                index = index + polynomial(fresh[a]) * slope
            for window, v in zip(windows, own, strict=True):
                index = index + (polynomial(v) + window.low) * window.slope
            indices.append(index)
        rests = list[Body]()
        for view, rest in enumerate(self._rests(fresh, taps, indices)):
            if rest is None:
                return None
            rests.append(self._numbered(view, rest, k))
        reduced = tuple(v for dimension in taps for v in dimension)
        order = tuple(fresh.get(a, k) for a in first.stage.axes if a in fresh or a == first.private[0])
        order = order if first.private else (k, *order)
        weights = nested((*order, *reduced), self._chosen(rests, k))
        data = Read(first.data.source, tuple(indices), Const(0))
        return Scope(order, Reduce("sum", reduced, Call("mul", (data, weights))))

    def _rests(
        self, fresh: Mapping[Axis, Axis], taps: Sequence[Sequence[Axis]], indices: Sequence[Size]
    ) -> Iterator[Body | None]:
        """What each view multiplies with, over the new iterators, zero beyond its own window."""
        for view, places in enumerate(self.places):
            values: dict[Atom, Any] = {a: polynomial(fresh[b]) for a, b in places.items()}
            guards, beside = list[Size](), [0] * len(indices)
            for d, (windows, own) in enumerate(zip(self.windows, taps, strict=True)):
                for window, v in zip(windows, own, strict=True):
                    tap, extent = window.taps[view]
                    place = polynomial(v) + (window.low - window.begins[view])
                    guards += [g for g in within(place, 0, extent) if not is_nonnegative(g)]
                    if tap is None:
                        beside[d] = beside[d] + place * window.slope
                    else:
                        values[tap] = place
            one = self.views[view]
            pairs = zip(one.data.indices, beside, strict=True)
            moved = [substitute(index, values) + rest for index, rest in pairs]
            if not all(is_same_size(a, b) for a, b in zip(moved, indices, strict=True)):
                yield None
                continue
            rest = replace_axes(one.rest, values)
            yield Select(tuple(guards), rest, Const(0)) if guards else rest

    def _numbered(self, view: int, rest: Body, k: Axis) -> Body:
        """It at the digits that private iterators are of the number of an element."""
        private = self.views[view].private
        number = polynomial(k) - sum(self.counts[:view])
        digits = digits_of(number, [a.extent for a in private])
        values: dict[Atom, Any] = dict(zip(private, digits, strict=True))
        return replace_axes(rest, values)

    def _chosen(self, rests: Sequence[Body], k: Axis) -> Body:
        made = rests[-1]
        for view in reversed(range(len(rests) - 1)):
            made = Select((sum(self.counts[: view + 1]) - 1 - polynomial(k),), rests[view], made)
        return made

    def part(self, view: int, whole: Scope) -> Scope:
        """What a view is of the whole."""
        stage, private = self.views[view].stage, self.views[view].private
        first = self.views[0]
        mine = {b: a for a, b in self.places[view].items()}
        number = row_major_number(private, [a.extent for a in private]) + sum(self.counts[:view])
        spots: list[Size] = []
        for a in first.stage.axes:
            if a in mine:
                spots.append(polynomial(mine[a]))
            elif a == first.private[0]:
                spots.append(number)
        return Scope(stage.axes, Read(whole, tuple(spots if first.private else [number, *spots])))


class _Window(NamedTuple):
    """A range low <= u < low + extent of a summation's iterator, slope * u in the index.

    begins  where each view's own range begins
    taps    each view's iterator, None for one of a single value, and its extent
    """

    slope: int
    low: int
    extent: int
    begins: tuple[int, ...]
    taps: tuple[tuple[Axis | None, int], ...]

    @property
    def hint(self) -> str:
        return next((hint(tap) for tap, _ in self.taps if tap is not None), "r")


def _framed(views: tuple[_View, ...]) -> _Frame | None:
    """The frame of views of one tensor; None where they do not read it in one way."""
    places = [own for view in views if (own := _places(views[0], view)) is not None]
    if len(places) < len(views):
        return None
    windows = list[tuple[_Window, ...]]()
    for dimensions in zip(*(view.dimensions for view in views), strict=True):
        found = _windows(dimensions)
        if found is None:
            return None
        windows.append(found)
    return _Frame(views, tuple(places), tuple(windows))


def _places(first: _View, view: _View) -> Mapping[Axis, Axis] | None:
    """The first view's traversal iterator for each of another's that its data depend on."""
    found: dict[Axis, Axis] = {}
    for one, other in zip(first.dimensions, view.dimensions, strict=True):
        if len(one.places) != len(other.places):
            return None
        for a, slope in other.places.items():
            able = [b for b, s in one.places.items() if s == slope and b.extent == a.extent]
            kept = [b for b in able if found.get(a, b) == b and (a in found or b not in found.values())]
            if not kept:
                return None
            found[a] = kept[0]
    return found if len(set(found.values())) == len(found) else None


def _windows(dimensions: tuple[_Dimension, ...]) -> tuple[_Window, ...] | None:
    """The windows of one dimension of all views."""
    most = max(len(d.taps) for d in dimensions)
    offsets = [d.offset - dimensions[0].offset for d in dimensions]
    if most > 1:  # one for each other
        ranked = [sorted(d.taps.items(), key=lambda tap: (tap[1], _number(tap[0]))) for d in dimensions]
        shapes = {tuple((slope, _number(a)) for a, slope in taps) for taps in ranked}
        if len(shapes) > 1 or any(offsets):
            return None
        begins = (0,) * len(dimensions)
        return tuple(
            _Window(column[0][1], 0, _number(column[0][0]), begins, tuple((a, _number(a)) for a, _ in column))
            for column in zip(*ranked, strict=True)
        )
    if not most and not any(offsets):
        return ()
    slopes = {slope for d in dimensions for slope in d.taps.values()} or {1}
    if len(slopes) > 1:
        return None
    (slope,) = slopes
    if any(offset % slope for offset in offsets):
        return None
    begins = tuple(offset // slope for offset in offsets)
    taps = tuple(next(((a, _number(a)) for a in d.taps), (None, 1)) for d in dimensions)
    low = min(begins)
    high = max(begin + extent for begin, (_, extent) in zip(begins, taps, strict=True))
    return (_Window(slope, low, high - low, begins, taps),)


def _number(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent
