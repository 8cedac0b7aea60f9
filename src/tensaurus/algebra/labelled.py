"""Arrays whose dimensions are axes: functions, reductions and contractions of them, in any field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from tensaurus.algebra.arithmetic import Array, Field, whole_product
from tensaurus.algebra.expr import axis
from tensaurus.algebra.symbol import Axis

CHUNK = 1 << 25  # elements that one operand of a contraction may have once its windows are copied
PIECE = 1 << 15  # elements of a product that is added term by term


@dataclass(frozen=True)
class Labelled:
    """An array whose dimensions are named by axes."""

    data: Array
    axes: tuple[Axis, ...]

    def aligned(self, axes: Sequence[Axis]) -> Array:
        """The data with its dimensions in this order, of length 1 for axes it lacks."""
        order = [self.axes.index(a) for a in axes if a in self.axes]
        data = self.data.transpose(order) if order != list(range(len(order))) else self.data
        return data.reshape([1 if a not in self.axes else length(a) for a in axes])


def length(a: Axis) -> int:
    if not isinstance(a.extent, int):
        raise ValueError(f"the size {a.extent} is not known")
    return a.extent


class Arrays:
    """Operations on labelled arrays of one field."""

    def __init__(self, field: Field):
        self.field = field

    def call(self, fn: str, args: Sequence[Labelled], dtype: str = "int64") -> Labelled:
        """`dtype` is that of the integers among the arguments; ring operations do without."""
        axes = union(args)
        data = self.field.call(fn, [a.aligned(axes) for a in args], dtype)
        return Labelled(np.broadcast_to(data, [length(a) for a in axes]), axes)

    def reduced(self, monoid: str, item: Labelled, axes: Sequence[Axis]) -> Labelled:
        """Reduce over axes; those the array lacks repeat its value."""
        present = tuple(item.axes.index(a) for a in axes if a in item.axes)
        data, left = item.data, tuple(a for a in item.axes if a not in axes)
        if present:
            if self.field.elements(data):
                data = self.field.reduce(monoid, data, present)
            else:
                steps = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
                data = np.asarray(steps[monoid].reduce(data, axis=present))
        result = Labelled(data, left)
        repeats = prod(length(a) for a in axes if a not in item.axes)
        if repeats == 1 or monoid in ("max", "min"):
            return result
        if monoid == "sum":
            return self.call("mul", [result, Labelled(np.asarray(repeats), ())])
        return reduce(lambda a, b: self.call("mul", [a, b]), [result] * repeats)

    def contract(self, factors: Sequence[Labelled], gone: Sequence[Axis]) -> Labelled:
        """The sum over `gone` of the product of the factors, two at a time."""
        mixed = len({f.data.dtype.kind for f in factors if f.axes}) > 1
        if mixed or len(factors) == 1 or not all(_numbers(self.field, f) for f in factors):
            return self.reduced("sum", reduce(lambda a, b: self.call("mul", [a, b]), factors), gone)
        queue = sorted(factors, key=lambda f: len(f.axes))
        left = set(gone)
        result = queue.pop(0)
        while queue:
            mates = [i for i, f in enumerate(queue) if not set(f.axes).isdisjoint(result.axes)] or [0]
            other = queue.pop(mates[0])
            elsewhere = {a for f in queue for a in f.axes}
            now = [a for a in left if a not in elsewhere and (a in result.axes or a in other.axes)]
            result = self.pair(result, other, now)
            left.difference_update(now)
        return self.reduced("sum", result, [a for a in gone if a in left])

    def pair(self, a: Labelled, b: Labelled, gone: Sequence[Axis]) -> Labelled:
        """The sum over `gone` of a * b."""
        a = self.reduced("sum", a, [x for x in gone if x in a.axes and x not in b.axes])
        b = self.reduced("sum", b, [x for x in gone if x in b.axes and x not in a.axes])
        inner = [x for x in gone if x in a.axes and x in b.axes]
        if not inner:
            return self.call("mul", [a, b])
        if self.field.elements(a.data) != self.field.elements(b.data):
            return self.reduced("sum", self.call("mul", [a, b]), inner)
        batch = [x for x in a.axes if x in b.axes and x not in inner]
        rows = [x for x in a.axes if x not in b.axes]
        columns = [x for x in b.axes if x not in a.axes]
        m, n = (prod(map(length, xs)) for xs in (rows, columns))
        if min(m, n) < 4:
            return self.folded(a, b, inner)
        size = prod(map(length, a.axes)), prod(map(length, b.axes))
        if max(size) > CHUNK:
            wide, group = (a, rows) if size[0] >= size[1] else (b, columns)
            cut = max(group, key=length, default=None)
            if cut is not None and length(cut) > 1:
                half = length(cut) // 2
                return self.halves(a, b, gone, cut, half)
        depth = prod(map(length, inner))
        left = a.aligned([*batch, *rows, *inner]).reshape(*map(length, batch), m, depth)
        right = b.aligned([*batch, *inner, *columns]).reshape(*map(length, batch), depth, n)
        axes = (*batch, *rows, *columns)
        product = self.field.matmul if self.field.elements(left) else whole_product
        return Labelled(product(left, right).reshape([length(x) for x in axes]), axes)

    def halves(self, a: Labelled, b: Labelled, gone: Sequence[Axis], cut: Axis, half: int) -> Labelled:
        """Contract the two halves of one kept axis after another: windows are copied a piece at a time."""
        results = []
        for start, stop in ((0, half), (half, length(cut))):
            piece = axis(stop - start)
            part = [_sliced(f, cut, piece, start) for f in (a, b)]
            results.append((piece, self.pair(part[0], part[1], gone)))
        first = results[0][1].axes
        order = [cut if x == results[0][0] else x for x in first]
        arrays = [
            r.aligned([piece if x == cut else x for x in order]) for piece, r in results
        ]
        return Labelled(np.concatenate(arrays, axis=order.index(cut)), tuple(order))

    def folded(self, a: Labelled, b: Labelled, inner: Sequence[Axis]) -> Labelled:
        """A contraction with too few rows for a matrix product: multiply and add along the inner axes.

        A large one goes piece by piece along an outer axis, so that the pieces stay in the cache.
        """
        spots = list(np.ndindex(*map(length, inner)))
        axes = [x for x in union([a, b]) if x not in inner]
        size = prod(map(length, axes))
        if len(spots) > 64 and size <= PIECE:
            return self.reduced("sum", self.call("mul", [a, b]), inner)
        if size <= PIECE or len(spots) == 1:
            return self.added(a, b, inner, spots)
        cut = next((x for x in axes if length(x) >= 8), axes[0])
        whole: Array | None = None
        extent = length(cut)
        step = max(1, PIECE * extent // size)
        for start in range(0, extent, step):
            piece = axis(min(step, extent - start))
            left, right = (_sliced(f, cut, piece, start) for f in (a, b))
            part = self.added(left, right, inner, spots)
            order = [piece, *(x for x in axes if x != cut)]
            data = part.aligned(order)
            if whole is None:
                whole = np.empty([extent, *data.shape[1:]], data.dtype)
            whole[start : start + step] = data
        assert whole is not None
        return Labelled(whole, (cut, *(x for x in axes if x != cut)))

    def added(
        self, a: Labelled, b: Labelled, inner: Sequence[Axis], spots: Sequence[tuple[int, ...]]
    ) -> Labelled:
        """The sum of a * b over the spots of the inner axes."""
        result: Labelled | None = None
        for spot in spots:
            at = dict(zip(inner, spot, strict=True))
            term = self.call("mul", [_picked(a, at), _picked(b, at)])
            result = term if result is None else self.call("add", [result, term])
        assert result is not None
        return result


def _numbers(field: Field, item: Labelled) -> bool:
    """Whether a factor is of elements or of integers, which both have a matrix product."""
    return field.elements(item.data) or item.data.dtype.kind == "i"


def _picked(item: Labelled, at: Mapping[Axis, int]) -> Labelled:
    spot = tuple(at.get(a, slice(None)) for a in item.axes)
    return Labelled(item.data[(*spot, ...)], tuple(a for a in item.axes if a not in at))


def _sliced(item: Labelled, cut: Axis, piece: Axis, start: int) -> Labelled:
    if cut not in item.axes:
        return item
    spot = tuple(slice(start, start + length(piece)) if a == cut else slice(None) for a in item.axes)
    return Labelled(item.data[spot], tuple(piece if a == cut else a for a in item.axes))


def union(items: Sequence[Labelled]) -> tuple[Axis, ...]:
    axes: dict[Axis, None] = {}
    for item in sorted(items, key=lambda x: -len(x.axes)):
        axes.update(dict.fromkeys(item.axes))
    return tuple(axes)
