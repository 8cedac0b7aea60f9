"""Sums of products of two labelled arrays, by the way that moves and multiplies least.

    multiplied   a matrix product of the two as they lie; where no matrix lies there, of a copy
    unwound      the products of each element that windows read, once, then their sums along the windows:
                 sum[c, r] x[c, i + r] * w[f, c, r]   by   y[f, r, u] = sum[c] x[c, u] * w[f, c, r]
    folded       element by element, one term after another

(The unwound way is the kn2row method of convolutions.)  What a way copies goes piece by piece along kept
axes: beside its operands and its result a contraction holds a few `PIECE`s, or what one place of them needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensaurus.expr.evaluate.field_protocol import Array, Field, whole_product
from tensaurus.expr.evaluate.labelled_arrays import Arrays, Labelled, length, union
from tensaurus.expr.ir.scope import axis
from tensaurus.expr.sizes.symbol import Axis

PIECE = 1 << 20  # elements that are copied, or held beside the result, at a time
SMALL = 1 << 15  # elements of a product that is added term by term: what stays in the cache
FEW = 16  # rows below which matrices are copied into larger ones
SPOTS = 64  # terms that are added one after another where there is no matrix product
# nanoseconds: of an element copied; multiplied and added apart, in a matrix product, in one of few rows;
# and of each matrix of many, and each call for arrays
COPIED, ADDED, PRODUCT, NARROW, MATRIX, CALL = 1.5, 0.8, 0.05, 0.15, 200.0, 4000.0


def contract(field: Field, factors: Sequence[Labelled], gone: Sequence[Axis]) -> Labelled:
    """The sum over `gone` of the product of the factors, two at a time."""
    return _Contraction(field).contract(factors, gone)


@dataclass(frozen=True)
class _Roles:
    """The axes of a pair: kept and in both, kept and in one, and gone (in both)."""

    batch: list[Axis]
    rows: list[Axis]  # of the first
    columns: list[Axis]
    inner: list[Axis]

    @property
    def kept(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows)

    @property
    def turned(self) -> _Roles:
        return _Roles(self.batch, self.columns, self.rows, self.inner)


@dataclass(frozen=True)
class _Way:
    """How a pair is contracted: nanoseconds, elements held beside the result, and axes that may be cut."""

    name: str
    cost: float
    held: int
    cuts: Sequence[Axis]


@dataclass(frozen=True)
class _Matrices:
    """An array as matrices of its own axes in `core` by the inner ones, one for each place of `outer`."""

    outer: Sequence[Axis]
    core: Sequence[Axis]
    copied: int  # elements, 0 where the matrices lie in it

    @property
    def size(self) -> int:
        return _size(self.core)


class _Contraction(Arrays):
    def contract(self, factors: Sequence[Labelled], gone: Sequence[Axis]) -> Labelled:
        mixed = len({f.data.dtype.kind for f in factors if f.axes}) > 1
        if mixed or len(factors) == 1 or not all(self._numbers(f) for f in factors):
            return self.reduced("sum", self._multiplied(factors), gone)
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

    def _numbers(self, item: Labelled) -> bool:
        """Whether a factor is of elements or of integers, which both have a matrix product."""
        return self.field.elements(item.data) or item.data.dtype.kind == "i"

    def _multiplied(self, factors: Sequence[Labelled]) -> Labelled:
        result = factors[0]
        for factor in factors[1:]:
            result = self.call("mul", [result, factor])
        return result

    def pair(self, a: Labelled, b: Labelled, gone: Sequence[Axis]) -> Labelled:
        """The sum over `gone` of a * b."""
        a = self.reduced("sum", a, [x for x in gone if x in a.axes and x not in b.axes])
        b = self.reduced("sum", b, [x for x in gone if x in b.axes and x not in a.axes])
        inner = [x for x in gone if x in a.axes and x in b.axes]
        if not inner:
            return self.call("mul", [a, b])
        if self.field.elements(a.data) != self.field.elements(b.data):
            return self.reduced("sum", self.call("mul", [a, b]), inner)
        return self.summed(a, b, inner)

    def summed(self, a: Labelled, b: Labelled, inner: Sequence[Axis]) -> Labelled:
        """The sum of a * b over the inner axes, which both have, by the cheapest way."""
        roles = _Roles(
            [x for x in a.axes if x in b.axes and x not in inner],
            [x for x in a.axes if x not in b.axes],
            [x for x in b.axes if x not in a.axes],
            list(inner),
        )
        way = min(self._ways(a, b, roles), key=lambda way: way.cost)
        cut = next((x for x in way.cuts if length(x) > 1), None)
        if way.held > PIECE and cut is not None:
            return self.in_pieces(a, b, inner, cut, way.held)
        match way.name:
            case "multiplied":
                return self.multiplied(a, b, roles)
            case "unwound":
                return self.unwound(a, b, roles)
            case "turned":
                return self.unwound(b, a, roles.turned)
        return self.folded(a, b, inner)

    def _ways(self, a: Labelled, b: Labelled, roles: _Roles) -> list[_Way]:
        depth, kept = _size(roles.inner), _size([*roles.batch, *roles.rows, *roles.columns])
        folded = kept * depth * ADDED + CALL * min(depth, SPOTS) * (1 + kept // SMALL)
        ways = [_Way("folded", folded, 0, ())]
        inner = _by_stride(a if a.data.size >= b.data.size else b, roles.inner)
        first, second = _matrices(a, roles.rows, inner), _matrices(b, roles.columns, inner)
        m, n, held = first.size, second.size, first.copied + second.copied
        each = NARROW if min(m, n) < 4 else PRODUCT
        cost = kept * depth * each + held * COPIED + MATRIX * (kept // (m * n)) + CALL
        # a product over GF(p) copies what it multiplies, also where windows overlap
        repeated = (_repeated(a), _repeated(b)) if self.field.kind == "u" else (0, 0)
        apart = first.copied + repeated[0], second.copied + repeated[1]
        wide, of = (a, roles) if apart[0] >= apart[1] else (b, roles.turned)
        ways.append(_Way("multiplied", cost, sum(apart), _by_stride(wide, of.kept)))
        if self.field.kind != "O":
            for name, item, of in (("unwound", a, roles), ("turned", b, roles.turned)):
                windows = _windows(item, of)
                taps = prod(length(r) for _, r in windows)
                if windows and depth > taps:
                    more = prod(_span(item, i, r)[1] / length(i) for i, r in windows)
                    terms = int(kept * taps * more)
                    cost = terms * (depth // taps * PRODUCT + 2 * ADDED) + 2 * CALL
                    ways.append(_Way(name, cost, terms, _by_stride(item, of.kept)))
        return ways

    def multiplied(self, a: Labelled, b: Labelled, roles: _Roles) -> Labelled:
        """By the field's matrix product.  Where the larger one is copied, its rows in memory stay rows."""
        large = a if a.data.size >= b.data.size else b
        if (large is a) != (_by_stride(large)[-1] in roles.inner):
            a, b, roles = b, a, roles.turned
        inner = _by_stride(large, roles.inner)
        left, right = _matrices(a, roles.rows, inner), _matrices(b, roles.columns, inner)
        outer = [*roles.batch, *left.outer, *right.outer]
        x = _stacked(a, outer, left.core, inner, left.copied > 0)
        y = _stacked(b, outer, inner, right.core, right.copied > 0)
        run = self.field.matmul if self.field.elements(x) else whole_product
        axes = (*outer, *left.core, *right.core)
        return Labelled(run(x, y).reshape([length(z) for z in axes]), axes)

    def unwound(self, a: Labelled, b: Labelled, roles: _Roles) -> Labelled:
        """By the products of each element that windows of a read, once."""
        windows = [(i, r, axis(_span(a, i, r)[1], "u")) for i, r in _windows(a, roles)]
        taps = [r for _, r, _ in windows]
        base = a
        for i, r, u in windows:
            base = _unwound(base, i, r, u)
        terms = self.summed(base, b, [x for x in roles.inner if x not in taps])
        for i, r, u in windows:
            terms = _wound(terms, a, i, r, u)
        return self.reduced("sum", terms, taps)

    def in_pieces(
        self, a: Labelled, b: Labelled, inner: Sequence[Axis], cut: Axis, held: int
    ) -> Labelled:
        """Contract a part of one kept axis after another."""
        extent = length(cut)
        step = max(1, extent * PIECE // held)
        whole: Array | None = None
        order: list[Axis] = []
        for start in range(0, extent, step):
            piece = axis(min(step, extent - start))
            part = self.summed(_sliced(a, cut, piece, start), _sliced(b, cut, piece, start), inner)
            if whole is None:
                order = [cut if x == piece else x for x in part.axes]
                whole = np.empty([length(x) for x in order], part.data.dtype)
            data = part.aligned([piece if x == cut else x for x in order])
            whole[tuple(slice(start, start + step) if x == cut else slice(None) for x in order)] = data
        assert whole is not None
        return Labelled(whole, tuple(order))

    def folded(self, a: Labelled, b: Labelled, inner: Sequence[Axis]) -> Labelled:
        """Multiply and add along the inner axes, piece by piece, so that the pieces stay in the cache."""
        spots = list(np.ndindex(*map(length, inner)))
        axes = [x for x in union([a, b]) if x not in inner]
        size = _size(axes)
        if len(spots) > SPOTS and size <= SMALL:
            return self.reduced("sum", self.call("mul", [a, b]), inner)
        cut = next((x for x in axes if length(x) >= 8), axes[0] if axes else None)
        if size <= SMALL or len(spots) == 1 or cut is None:
            return self.added(a, b, inner, spots)
        whole: Array | None = None
        extent = length(cut)
        step = max(1, SMALL * extent // size)
        order = [cut, *(x for x in axes if x != cut)]
        for start in range(0, extent, step):
            piece = axis(min(step, extent - start))
            left, right = (_sliced(f, cut, piece, start) for f in (a, b))
            data = self.added(left, right, inner, spots).aligned([piece, *order[1:]])
            if whole is None:
                whole = np.empty([extent, *data.shape[1:]], data.dtype)
            whole[start : start + step] = data
        assert whole is not None
        return Labelled(whole, tuple(order))

    def added(
        self, a: Labelled, b: Labelled, inner: Sequence[Axis], spots: Sequence[tuple[int, ...]]
    ) -> Labelled:
        """The sum of a * b over the spots of the inner axes."""
        axes = [x for x in union([a, b]) if x not in inner]
        left, right = (f.aligned([*inner, *axes]) for f in (a, b))
        result: Array | None = None
        for spot in spots:
            # with the dots an array of rank 0 is one, too, and no object of its own
            at: tuple[Any, ...] = (*spot, ...)
            term = np.asarray(self.field.call("mul", [left[at], right[at]]))
            result = term if result is None else np.asarray(self.field.call("add", [result, term]))
        assert result is not None
        return Labelled(result, tuple(axes))


def _size(axes: Sequence[Axis]) -> int:
    return prod(map(length, axes))


def _stride(item: Labelled, a: Axis) -> int:
    """In bytes; 0 where there is but one place."""
    return item.data.strides[item.axes.index(a)] if length(a) > 1 else 0


def _repeated(item: Labelled) -> int:
    """How many more elements it has than memory behind it: those of windows that overlap."""
    data = item.data
    reach = sum((n - 1) * abs(step) for n, step in zip(data.shape, data.strides, strict=True))
    return max(0, data.size - 1 - reach // data.itemsize) if data.size else 0


def _by_stride(item: Labelled, axes: Sequence[Axis] | None = None) -> list[Axis]:
    """These axes, by default all, as they lie in memory, outermost first; those of length 1 before all."""
    held = [a for a in item.axes if axes is None or a in axes]
    return sorted(held, key=lambda a: -abs(_stride(item, a)) if length(a) > 1 else -inf)


def _merged(item: Labelled, axes: Sequence[Axis]) -> int:
    """How many of the last of the axes are one in memory."""
    count, after = 0, 0
    for a in reversed(axes):
        if length(a) > 1:
            if after and _stride(item, a) != after:
                break
            after = _stride(item, a) * length(a)
        count += 1
    return count


def _matrices(item: Labelled, own: Sequence[Axis], inner: Sequence[Axis]) -> _Matrices:
    """As BLAS takes them: of the axes of its own and of the inner ones, one is dense and the other is far."""
    own = _by_stride(item, own)
    count = _merged(item, own)
    outer, core = own[: len(own) - count], own[len(own) - count :]
    sides = [(_size(x), _stride(item, x[-1]) if x else 0) for x in (core, inner)]
    one = item.data.itemsize
    lies = _merged(item, inner) == len(inner) and any(
        (near == one or n == 1) and (far >= n * one or m == 1)
        for (n, near), (m, far) in (sides, sides[::-1])
    )
    few = _size(core) < FEW and _size(outer) > 1
    return _Matrices((), own, item.data.size) if few or not lies else _Matrices(outer, core, 0)


def _stacked(
    item: Labelled, outer: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis], copied: bool
) -> Array:
    """[outer..., rows, columns]."""
    data = item.aligned([*outer, *rows, *columns])
    if copied:
        data = np.ascontiguousarray(data)
    return data.reshape([*data.shape[: len(outer)], _size(rows), _size(columns)])


def _windows(item: Labelled, roles: _Roles) -> list[tuple[Axis, Axis]]:
    """(kept axis, inner axis) that read elements more than once, as i and r of x[i + r] do."""
    found: list[tuple[Axis, Axis]] = []
    left = [i for i in roles.rows if _stride(item, i)]
    for r in roles.inner:
        if not left or not _stride(item, r):
            continue
        i = min(left, key=lambda i: _span(item, i, r)[1] / length(i))
        if _span(item, i, r)[1] < length(i) * length(r):
            found.append((i, r))
            left.remove(i)
    return found


def _span(item: Labelled, i: Axis, r: Axis) -> tuple[int, int]:
    """The step, in bytes, and the number of the places that both reach together."""
    steps = _stride(item, i), _stride(item, r)
    one = gcd(*steps)
    return one, (abs(steps[0]) * (length(i) - 1) + abs(steps[1]) * (length(r) - 1)) // one + 1


def _unwound(item: Labelled, i: Axis, r: Axis, u: Axis) -> Labelled:
    """The array over the places u that i and r reach together, from the first in memory on."""
    steps = {x: _stride(item, x) for x in (i, r)}
    spot = tuple(slice(length(x) - 1 if steps.get(x, 0) < 0 else 0, None) for x in item.axes)
    axes = tuple(u if x == i else x for x in item.axes if x != r)
    strides = [_span(item, i, r)[0] if x == u else item.data.strides[item.axes.index(x)] for x in axes]
    data = as_strided(item.data[spot], [length(x) for x in axes], strides, writeable=False)
    return Labelled(data, axes)


def _wound(terms: Labelled, item: Labelled, i: Axis, r: Axis, u: Axis) -> Labelled:
    """terms[u, r] at the places u that i and r reach: over i and r again."""
    one = _span(item, i, r)[0]
    steps = {x: _stride(item, x) // one for x in (i, r)}
    start = sum(-step * (length(x) - 1) for x, step in steps.items() if step < 0)
    strides = dict(zip(terms.axes, terms.data.strides, strict=True))
    along = strides.pop(u)
    strides[r] += steps[r] * along
    axes = tuple(i if x == u else x for x in terms.axes)
    spot = tuple(slice(start if x == u else 0, None) for x in terms.axes)
    strides[i] = steps[i] * along
    shape = [length(x) for x in axes]
    return Labelled(
        as_strided(terms.data[spot], shape, [strides[x] for x in axes], writeable=False), axes
    )


def _sliced(item: Labelled, cut: Axis, piece: Axis, start: int) -> Labelled:
    if cut not in item.axes:
        return item
    spot = tuple(slice(start, start + length(piece)) if a == cut else slice(None) for a in item.axes)
    return Labelled(item.data[spot], tuple(piece if a == cut else a for a in item.axes))
