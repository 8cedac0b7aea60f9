"""Contract labelled arrays, two at a time, by the strategy that is estimated to be fastest.

    multiplied   a matrix product of the two as they lie in memory, or of copies that can be multiplied
    unwound      for windows, as i and r in x[c, i + r]: one axis u of all elements that they read replaces
                 both, so that each element is multiplied once (kn2row, for convolutions)
                 sum[c, r] x[c, i + r] * w[f, c, r]   by   y[f, r, u] = sum[c] x[c, u] * w[f, c, r]
                                                      and  sum[r] y[f, r, i + r]
    turned       the same with the operands exchanged: the windows are those of the second
    folded       elementwise products for one point of the summed axes after another, added up

Copies and products are made in chunks along kept axes: beside operands and result a contraction holds a few
times `CHUNK_ELEMENTS`, or what one point of those axes needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensaurus.expr.evaluate.field_protocol import Array, Field, integer_matmul
from tensaurus.expr.evaluate.labelled_arrays import ArrayOperations, Labelled, length, union_of_axes
from tensaurus.expr.ir.scope import axis
from tensaurus.expr.sizes.symbol import Axis

CHUNK_ELEMENTS = 1 << 20  # elements that are copied, or held beside the result, at a time
CACHED_ELEMENTS = 1 << 15  # chunk of a folded contraction: a quarter of a MB stays in the cache
MIN_MATRIX_ROWS = 16  # smaller matrices are copied into larger ones: each call of BLAS has a fixed cost
MAX_ADDED_TERMS = 64  # most terms that a folded contraction adds one after another, instead of all at once
# estimated nanoseconds: to copy an element; to multiply and add one elementwise (ADDED), in a matrix product,
# and in one of few rows or columns (NARROW); for each matrix of a batch; for each call on arrays
COPIED, ADDED, PRODUCT, NARROW, MATRIX, CALL = 1.5, 0.8, 0.05, 0.15, 200.0, 4000.0


def contract(field: Field, factors: Sequence[Labelled], summed_axes: Sequence[Axis]) -> Labelled:
    """Return the sum over `summed_axes` of the product of the factors."""
    return _Contraction(field).contract(factors, summed_axes)


@dataclass(frozen=True)
class _Roles:
    """The axes of a pair of arrays by what becomes of them, named as in a batch of matrix products."""

    batch: list[Axis]  # kept, in both arrays
    rows: list[Axis]  # kept, only in the first
    columns: list[Axis]  # kept, only in the second
    inner: list[Axis]  # summed, in both

    @property
    def kept(self) -> tuple[Axis, ...]:
        """The axes of the first array that the result has."""
        return (*self.batch, *self.rows)

    @property
    def swapped(self) -> _Roles:
        return _Roles(self.batch, self.columns, self.rows, self.inner)


@dataclass(frozen=True)
class _Strategy:
    """A way to contract a pair."""

    name: str  # as in the module's docstring
    cost: float  # estimated nanoseconds
    held: int  # elements held beside the result
    cuts: Sequence[Axis]  # kept axes along which the pair may be cut, outermost in memory first


@dataclass(frozen=True)
class _MatrixView:
    """An array as matrices of `core` axes by the inner (summed) axes, one for each point of `outer`."""

    outer: Sequence[Axis]
    core: Sequence[Axis]  # `outer` and `core` are the axes that only this array of the pair has
    copied: int  # elements to copy, 0 where the array's memory has this form already

    @property
    def size(self) -> int:
        return _size(self.core)


class _Contraction(ArrayOperations):
    def contract(self, factors: Sequence[Labelled], summed_axes: Sequence[Axis]) -> Labelled:
        """Contract the factors, the smallest rank first, each with one that shares an axis if there is one.

        An axis is summed as soon as no later factor has it.  Integers together with elements of the field,
        and bools, are multiplied first and summed afterwards.
        """
        has_mixed_types = len({f.data.dtype.kind for f in factors if f.axes}) > 1
        if has_mixed_types or len(factors) == 1 or not all(self._has_matrix_product(f) for f in factors):
            return self.reduce_over("sum", self._product(factors), summed_axes)
        queue = sorted(factors, key=lambda f: len(f.axes))
        open_axes = set(summed_axes)
        result = queue.pop(0)
        while queue:
            sharing = [i for i, f in enumerate(queue) if not set(f.axes).isdisjoint(result.axes)] or [0]
            other = queue.pop(sharing[0])
            later_axes = {a for f in queue for a in f.axes}
            closed_axes = [
                a for a in open_axes if a not in later_axes and (a in result.axes or a in other.axes)
            ]
            result = self.contract_pair(result, other, closed_axes)
            open_axes.difference_update(closed_axes)
        return self.reduce_over("sum", result, [a for a in summed_axes if a in open_axes])

    def _has_matrix_product(self, item: Labelled) -> bool:
        """Return whether a factor holds elements or integers; bools have no matrix product."""
        return self.field.has_elements(item.data) or item.data.dtype.kind == "i"

    def _product(self, factors: Sequence[Labelled]) -> Labelled:
        result = factors[0]
        for factor in factors[1:]:
            result = self.call("mul", [result, factor])
        return result

    def contract_pair(self, a: Labelled, b: Labelled, summed_axes: Sequence[Axis]) -> Labelled:
        """Return the sum over `summed_axes` of a * b."""
        a = self.reduce_over("sum", a, [x for x in summed_axes if x in a.axes and x not in b.axes])
        b = self.reduce_over("sum", b, [x for x in summed_axes if x in b.axes and x not in a.axes])
        inner = [x for x in summed_axes if x in a.axes and x in b.axes]
        if not inner:
            return self.call("mul", [a, b])
        if self.field.has_elements(a.data) != self.field.has_elements(b.data):
            return self.reduce_over("sum", self.call("mul", [a, b]), inner)
        return self.sum_of_products(a, b, inner)

    def sum_of_products(self, a: Labelled, b: Labelled, inner: Sequence[Axis]) -> Labelled:
        """Return the sum of a * b over the inner axes, which both have, by the cheapest strategy."""
        roles = _Roles(
            [x for x in a.axes if x in b.axes and x not in inner],
            [x for x in a.axes if x not in b.axes],
            [x for x in b.axes if x not in a.axes],
            list(inner),
        )
        strategy = min(self._strategies(a, b, roles), key=lambda strategy: strategy.cost)
        cut = next((x for x in strategy.cuts if length(x) > 1), None)
        if strategy.held > CHUNK_ELEMENTS and cut is not None:
            return self.in_chunks(a, b, inner, cut, strategy.held)
        match strategy.name:
            case "multiplied":
                return self.multiplied(a, b, roles)
            case "unwound":
                return self.unwound(a, b, roles)
            case "turned":
                return self.unwound(b, a, roles.swapped)
        return self.folded(a, b, inner)

    def _strategies(self, a: Labelled, b: Labelled, roles: _Roles) -> list[_Strategy]:
        """Return the strategies that can contract the pair, with estimates of their cost and memory."""
        # `depth`: the number of terms in each sum; `sums`: the number of sums, elements of the result
        depth, sums = _size(roles.inner), _size([*roles.batch, *roles.rows, *roles.columns])
        folded = sums * depth * ADDED + CALL * min(depth, MAX_ADDED_TERMS) * (1 + sums // CACHED_ELEMENTS)
        strategies = [_Strategy("folded", folded, 0, ())]
        # the operands as batches of matrices m x depth and depth x n
        inner = _by_stride(a if a.data.size >= b.data.size else b, roles.inner)
        first, second = _matrix_view(a, roles.rows, inner), _matrix_view(b, roles.columns, inner)
        m, n, copied = first.size, second.size, first.copied + second.copied
        element_cost = NARROW if min(m, n) < 4 else PRODUCT
        cost = sums * depth * element_cost + copied * COPIED + MATRIX * (sums // (m * n)) + CALL
        # a product over GF(p) (kind "u") copies its operands, elements in several windows several times
        repeated = (_repeated_elements(a), _repeated_elements(b)) if self.field.kind == "u" else (0, 0)
        held_by_operand = first.copied + repeated[0], second.copied + repeated[1]
        # the cuts divide the operand of which more is copied
        main, main_roles = (a, roles) if held_by_operand[0] >= held_by_operand[1] else (b, roles.swapped)
        strategies.append(
            _Strategy("multiplied", cost, sum(held_by_operand), _by_stride(main, main_roles.kept))
        )
        if self.field.kind != "O":  # not for arrays of Python objects, such as fractions
            for name, item, own_roles in (("unwound", a, roles), ("turned", b, roles.swapped)):
                windows = _windows(item, own_roles)
                taps = prod(length(r) for _, r in windows)  # points of one window
                if windows and depth > taps:  # so that each element of y is a sum, too
                    # how many times as many elements the axes u have as the kept axes i that they replace
                    growth = prod(_span(item, i, r)[1] / length(i) for i, r in windows)
                    terms = int(sums * taps * growth)  # elements of y
                    cost = terms * (depth // taps * PRODUCT + 2 * ADDED) + 2 * CALL
                    strategies.append(_Strategy(name, cost, terms, _by_stride(item, own_roles.kept)))
        return strategies

    def multiplied(self, a: Labelled, b: Labelled, roles: _Roles) -> Labelled:
        """Contract by the field's matrix product.

        The larger operand is the left one if its innermost axis in memory is summed, else the right one: a
        copy of it as matrices then keeps its memory order.
        """
        larger = a if a.data.size >= b.data.size else b
        if (larger is a) != (_by_stride(larger)[-1] in roles.inner):
            a, b, roles = b, a, roles.swapped
        inner = _by_stride(larger, roles.inner)
        left, right = _matrix_view(a, roles.rows, inner), _matrix_view(b, roles.columns, inner)
        outer = [*roles.batch, *left.outer, *right.outer]
        x = _as_matrices(a, outer, left.core, inner, left.copied > 0)
        y = _as_matrices(b, outer, inner, right.core, right.copied > 0)
        matmul = self.field.matmul if self.field.has_elements(x) else integer_matmul
        axes = (*outer, *left.core, *right.core)
        return Labelled(matmul(x, y).reshape([length(z) for z in axes]), axes)

    def unwound(self, a: Labelled, b: Labelled, roles: _Roles) -> Labelled:
        """Contract by the products of each element that windows of a read, computed once."""
        windows = [(i, r, axis(_span(a, i, r)[1], "u")) for i, r in _windows(a, roles)]
        tap_axes = [r for _, r, _ in windows]
        unwound_array = a
        for i, r, u in windows:
            unwound_array = _unwound(unwound_array, i, r, u)
        # the terms are y of the module's docstring, before and after they are read at u = i + r
        terms = self.sum_of_products(unwound_array, b, [x for x in roles.inner if x not in tap_axes])
        for i, r, u in windows:
            terms = _rewound(terms, a, i, r, u)
        return self.reduce_over("sum", terms, tap_axes)

    def in_chunks(
        self, a: Labelled, b: Labelled, inner: Sequence[Axis], cut: Axis, held: int
    ) -> Labelled:
        """Contract one range of the kept axis `cut` after another; the whole would hold `held` elements."""
        extent = length(cut)
        step = max(1, extent * CHUNK_ELEMENTS // held)
        result: Array | None = None
        order: list[Axis] = []
        for start in range(0, extent, step):
            chunk_axis = axis(min(step, extent - start))
            chunk = self.sum_of_products(
                _sliced(a, cut, chunk_axis, start), _sliced(b, cut, chunk_axis, start), inner
            )
            if result is None:  # all chunks are stored in the order of dimensions that the first one has
                order = [cut if x == chunk_axis else x for x in chunk.axes]
                result = np.empty([length(x) for x in order], chunk.data.dtype)
            data = chunk.align([chunk_axis if x == cut else x for x in order])
            result[tuple(slice(start, start + step) if x == cut else slice(None) for x in order)] = data
        assert result is not None
        return Labelled(result, tuple(order))

    def folded(self, a: Labelled, b: Labelled, inner: Sequence[Axis]) -> Labelled:
        """Multiply and add one point of the inner axes after another, in chunks that stay in the cache."""
        points = list(np.ndindex(*map(length, inner)))
        axes = [x for x in union_of_axes([a, b]) if x not in inner]
        size = _size(axes)
        if len(points) > MAX_ADDED_TERMS and size <= CACHED_ELEMENTS:  # too many calls for a small result
            return self.reduce_over("sum", self.call("mul", [a, b]), inner)
        cut = next((x for x in axes if length(x) >= 8), axes[0] if axes else None)
        if size <= CACHED_ELEMENTS or len(points) == 1 or cut is None:
            return self.added(a, b, inner, points)
        result: Array | None = None
        extent = length(cut)
        step = max(1, CACHED_ELEMENTS * extent // size)
        order = [cut, *(x for x in axes if x != cut)]
        for start in range(0, extent, step):
            chunk_axis = axis(min(step, extent - start))
            left, right = (_sliced(f, cut, chunk_axis, start) for f in (a, b))
            data = self.added(left, right, inner, points).align([chunk_axis, *order[1:]])
            if result is None:
                result = np.empty([extent, *data.shape[1:]], data.dtype)
            result[start : start + step] = data
        assert result is not None
        return Labelled(result, tuple(order))

    def added(
        self, a: Labelled, b: Labelled, inner: Sequence[Axis], points: Sequence[tuple[int, ...]]
    ) -> Labelled:
        """Return the sum of a * b over these points of the inner axes."""
        axes = [x for x in union_of_axes([a, b]) if x not in inner]
        left, right = (f.align([*inner, *axes]) for f in (a, b))
        result: Array | None = None
        for point in points:
            # the ellipsis keeps an array of rank 0 an array
            selector: tuple[Any, ...] = (*point, ...)
            term = np.asarray(self.field.call("mul", [left[selector], right[selector]]))
            result = term if result is None else np.asarray(self.field.call("add", [result, term]))
        assert result is not None
        return Labelled(result, tuple(axes))


def _size(axes: Sequence[Axis]) -> int:
    return prod(map(length, axes))


def _stride(item: Labelled, a: Axis) -> int:
    """Return the stride in bytes; 0 for an axis of length 1."""
    return item.data.strides[item.axes.index(a)] if length(a) > 1 else 0


def _repeated_elements(item: Labelled) -> int:
    """Return how many more elements the array has than memory behind it, where windows overlap."""
    data = item.data
    reach = sum((n - 1) * abs(step) for n, step in zip(data.shape, data.strides, strict=True))
    return max(0, data.size - 1 - reach // data.itemsize) if data.size else 0


def _by_stride(item: Labelled, axes: Sequence[Axis] | None = None) -> list[Axis]:
    """Return the given axes, by default all, in memory order, outermost first; those of length 1 first."""
    own_axes = [a for a in item.axes if axes is None or a in axes]
    return sorted(own_axes, key=lambda a: -abs(_stride(item, a)) if length(a) > 1 else -inf)


def _contiguous_count(item: Labelled, axes: Sequence[Axis]) -> int:
    """Return how many of the last axes can be one dimension without a copy, of any stride."""
    count, expected_stride = 0, 0
    for a in reversed(axes):
        if length(a) > 1:
            if expected_stride and _stride(item, a) != expected_stride:
                break
            expected_stride = _stride(item, a) * length(a)
        count += 1
    return count


def _matrix_view(item: Labelled, own_axes: Sequence[Axis], inner: Sequence[Axis]) -> _MatrixView:
    """Return the array as BLAS takes matrices: one side is dense, the other has a larger stride.

    Where the memory has no such matrices, or only small ones, all own axes become the core of a copy.
    """
    own_axes = _by_stride(item, own_axes)
    count = _contiguous_count(item, own_axes)
    outer, core = own_axes[: len(own_axes) - count], own_axes[len(own_axes) - count :]
    sides = [(_size(x), _stride(item, x[-1]) if x else 0) for x in (core, inner)]
    item_bytes = item.data.itemsize
    is_in_place = _contiguous_count(item, inner) == len(inner) and any(
        (near == item_bytes or n == 1) and (far >= n * item_bytes or m == 1)
        for (n, near), (m, far) in (sides, sides[::-1])
    )
    is_small = _size(core) < MIN_MATRIX_ROWS and _size(outer) > 1
    return (
        _MatrixView((), own_axes, item.data.size)
        if is_small or not is_in_place
        else _MatrixView(outer, core, 0)
    )


def _as_matrices(
    item: Labelled, outer: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis], copied: bool
) -> Array:
    """Return the data as [outer..., rows, columns]."""
    data = item.align([*outer, *rows, *columns])
    if copied:
        data = np.ascontiguousarray(data)
    return data.reshape([*data.shape[: len(outer)], _size(rows), _size(columns)])


def _windows(item: Labelled, roles: _Roles) -> list[tuple[Axis, Axis]]:
    """Return pairs (kept axis, inner axis) that read elements more than once, as i and r of x[i + r] do."""
    pairs: list[tuple[Axis, Axis]] = []
    free_axes = [i for i in roles.rows if _stride(item, i)]
    for r in roles.inner:
        if not free_axes or not _stride(item, r):
            continue
        i = min(free_axes, key=lambda i: _span(item, i, r)[1] / length(i))
        if _span(item, i, r)[1] < length(i) * length(r):
            pairs.append((i, r))
            free_axes.remove(i)
    return pairs


def _span(item: Labelled, i: Axis, r: Axis) -> tuple[int, int]:
    """Return the common step in bytes, and the number of elements, that both axes reach together."""
    steps = _stride(item, i), _stride(item, r)
    common_step = gcd(*steps)
    return common_step, (abs(steps[0]) * (length(i) - 1) + abs(steps[1]) * (length(r) - 1)) // common_step + 1


def _unwound(item: Labelled, i: Axis, r: Axis, u: Axis) -> Labelled:
    """Return a view of the array in which u, all that i and r reach, replaces both, in memory order."""
    steps = {x: _stride(item, x) for x in (i, r)}
    # the first element in memory is the last one of an axis with a negative stride
    selector = tuple(slice(length(x) - 1 if steps.get(x, 0) < 0 else 0, None) for x in item.axes)
    axes = tuple(u if x == i else x for x in item.axes if x != r)
    strides = [_span(item, i, r)[0] if x == u else item.data.strides[item.axes.index(x)] for x in axes]
    data = as_strided(item.data[selector], [length(x) for x in axes], strides, writeable=False)
    return Labelled(data, axes)


def _rewound(terms: Labelled, item: Labelled, i: Axis, r: Axis, u: Axis) -> Labelled:
    """Return a view over i and r of terms[u, r]: the point (i, r) has the u that both reach together.

    That is u = start + steps[i] * i + steps[r] * r, with the strides of `item`, from which u was unwound.
    """
    common_step = _span(item, i, r)[0]
    steps = {x: _stride(item, x) // common_step for x in (i, r)}
    start = sum(-step * (length(x) - 1) for x, step in steps.items() if step < 0)
    strides = dict(zip(terms.axes, terms.data.strides, strict=True))
    u_stride = strides.pop(u)
    strides[r] += steps[r] * u_stride
    axes = tuple(i if x == u else x for x in terms.axes)
    selector = tuple(slice(start if x == u else 0, None) for x in terms.axes)
    strides[i] = steps[i] * u_stride
    shape = [length(x) for x in axes]
    return Labelled(
        as_strided(terms.data[selector], shape, [strides[x] for x in axes], writeable=False), axes
    )


def _sliced(item: Labelled, cut: Axis, chunk_axis: Axis, start: int) -> Labelled:
    """Return the range of the axis `cut` from `start` on, named `chunk_axis`; all of an array without it."""
    if cut not in item.axes:
        return item
    selector = tuple(slice(start, start + length(chunk_axis)) if a == cut else slice(None) for a in item.axes)
    return Labelled(item.data[selector], tuple(chunk_axis if a == cut else a for a in item.axes))
