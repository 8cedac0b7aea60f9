"""Contract labelled arrays, two at a time, by the strategy that is estimated to be fastest.

    matrix_product   the product of both as they lie in memory, or of copies that can be multiplied
    kn2row           for windows, as i and r in x[c, i + r] of a convolution: one axis u of all elements that
                     they read replaces both, so that each element is multiplied once
                         sum[c, r] x[c, i + r] * w[f, c, r]   by   y[f, r, u] = sum[c] x[c, u] * w[f, c, r]
                                                              and  sum[r] y[f, r, i + r]
    swapped_kn2row   the same with the operands exchanged: the windows are those of the second
    tap_products     for windows, too: a matrix product for each r, in place, added up in chunks that stay in
                     the cache; saves the copy of all windows
    elementwise      elementwise products for one point of the summed axes after another, added up

Copies and products are made in chunks along kept axes: beside operands and result a contraction holds a few
times `CHUNK_ELEMENTS`, or what one point of those axes needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field, integer_matmul
from tensaurus.expr.evaluate.labelled_arrays import ArrayOperations, LabelledArray, length, union_of_axes
from tensaurus.expr.evaluate.window_views import (
    axis_stride,
    find_windows,
    span_length,
    span_view,
    window_view,
)
from tensaurus.expr.ir.scope import axis
from tensaurus.expr.sizes.symbol import Axis

CHUNK_ELEMENTS = 1 << 20  # elements that are copied, or held beside the result, at a time
CACHED_ELEMENTS = 1 << 15  # chunk of an elementwise contraction: a quarter of a MB stays in the cache
ADDED_ELEMENTS = 1 << 17  # chunk of a result to which products are added: a MB stays in the cache
MIN_MATRIX_ROWS = 16  # smaller matrices are copied into larger ones: each call of BLAS has a fixed cost
MAX_ADDED_TERMS = 64  # most terms that are added one after another, instead of all at once

# estimated nanoseconds
COPY_NS = 1.5  # of an element
ELEMENTWISE_NS = 0.8  # of an elementwise multiplication and addition
ADD_NS = 0.4  # of an addition to an element in the cache
PRODUCT_NS = 0.05  # of a multiplication and addition in a matrix product
NARROW_PRODUCT_NS = 0.15  # the same where one matrix has few rows or columns
MATRIX_NS = 200.0  # of each matrix of a batch
CALL_NS = 4000.0  # of each call on arrays


def contract(field: Field, factors: Sequence[LabelledArray], summed_axes: Sequence[Axis]) -> LabelledArray:
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

    @property
    def result_elements(self) -> int:
        return _size([*self.batch, *self.rows, *self.columns])


@dataclass(frozen=True)
class _Strategy:
    """A way to contract a pair."""

    name: str  # as in the module's docstring
    run: Callable[[], LabelledArray]
    cost: float  # estimated nanoseconds
    held_elements: int  # beside the result
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
    def contract(self, factors: Sequence[LabelledArray], summed_axes: Sequence[Axis]) -> LabelledArray:
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

    def _has_matrix_product(self, item: LabelledArray) -> bool:
        """Return whether a factor holds elements or integers; bools have no matrix product."""
        return self.field.has_elements(item.data) or item.data.dtype.kind == "i"

    def _product(self, factors: Sequence[LabelledArray]) -> LabelledArray:
        result = factors[0]
        for factor in factors[1:]:
            result = self.call("mul", [result, factor])
        return result

    def contract_pair(self, a: LabelledArray, b: LabelledArray, summed_axes: Sequence[Axis]) -> LabelledArray:
        """Return the sum over `summed_axes` of a * b."""
        a = self.reduce_over("sum", a, [x for x in summed_axes if x in a.axes and x not in b.axes])
        b = self.reduce_over("sum", b, [x for x in summed_axes if x in b.axes and x not in a.axes])
        inner = [x for x in summed_axes if x in a.axes and x in b.axes]
        if not inner:
            return self.call("mul", [a, b])
        if self.field.has_elements(a.data) != self.field.has_elements(b.data):
            return self.reduce_over("sum", self.call("mul", [a, b]), inner)
        return self.sum_of_products(a, b, inner)

    def sum_of_products(self, a: LabelledArray, b: LabelledArray, inner: Sequence[Axis]) -> LabelledArray:
        """Return the sum of a * b over the inner axes, which both have, by the cheapest strategy."""
        roles = _Roles(
            [x for x in a.axes if x in b.axes and x not in inner],
            [x for x in a.axes if x not in b.axes],
            [x for x in b.axes if x not in a.axes],
            list(inner),
        )
        strategy = min(self._strategies(a, b, roles), key=lambda strategy: strategy.cost)
        cut = next((x for x in strategy.cuts if length(x) > 1), None)
        if strategy.held_elements <= CHUNK_ELEMENTS or cut is None:
            return strategy.run()
        step = max(1, length(cut) * CHUNK_ELEMENTS // strategy.held_elements)
        return _in_chunks(a, b, cut, step, lambda x, y: self.sum_of_products(x, y, inner))

    def _strategies(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> list[_Strategy]:
        """Return the strategies that can contract the pair."""
        strategies = [self._elementwise(a, b, roles), self._matrix_product(a, b, roles)]
        if self.field.kind == "f" and self.field.has_elements(a.data):
            strategies += self._tap_products(a, b, roles)
        if self.field.kind != "O":  # not for arrays of Python objects, such as fractions
            strategies += self._kn2row("kn2row", a, b, roles)
            strategies += self._kn2row("swapped_kn2row", b, a, roles.swapped)
        return strategies

    def _elementwise(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> _Strategy:
        depth, sums = _size(roles.inner), roles.result_elements
        calls = min(depth, MAX_ADDED_TERMS) * (1 + sums // CACHED_ELEMENTS)
        cost = sums * depth * ELEMENTWISE_NS + CALL_NS * calls
        return _Strategy("elementwise", partial(self.multiply_elementwise, a, b, roles.inner), cost, 0, ())

    def _matrix_product(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> _Strategy:
        """Estimate the product of batches of matrices m x depth and depth x n."""
        depth, sums = _size(roles.inner), roles.result_elements
        inner = _by_stride(a if a.data.size >= b.data.size else b, roles.inner)
        first, second = _matrix_view(a, roles.rows, inner), _matrix_view(b, roles.columns, inner)
        m, n, copied = first.size, second.size, first.copied + second.copied
        element_cost = NARROW_PRODUCT_NS if min(m, n) < 4 else PRODUCT_NS
        cost = sums * depth * element_cost + copied * COPY_NS + MATRIX_NS * (sums // (m * n)) + CALL_NS
        # a product over GF(p) (kind "u") copies its operands, elements in several windows several times
        repeated = (_repeated_elements(a), _repeated_elements(b)) if self.field.kind == "u" else (0, 0)
        held_by_operand = first.copied + repeated[0], second.copied + repeated[1]
        # the cuts divide the operand of which more is copied
        main, main_roles = (a, roles) if held_by_operand[0] >= held_by_operand[1] else (b, roles.swapped)
        cuts = _by_stride(main, main_roles.kept)
        run = partial(self.multiply_matrices, a, b, roles)
        return _Strategy("matrix_product", run, cost, sum(held_by_operand), cuts)

    def _kn2row(self, name: str, a: LabelledArray, b: LabelledArray, roles: _Roles) -> list[_Strategy]:
        """Return the strategy for windows of the first array; none where it has none that save products."""
        depth = _size(roles.inner)
        windows = find_windows(a, roles.rows, roles.inner)
        taps = prod(length(r) for _, r in windows)  # points of one window
        if not windows or depth <= taps:  # no axis is left over which an element of y is a sum
            return []
        # how many times as many elements the axes u have as the kept axes i that they replace
        growth = prod(span_length(a, i, r) / length(i) for i, r in windows)
        terms = int(roles.result_elements * taps * growth)  # elements of y
        cost = terms * (depth // taps * PRODUCT_NS + 2 * ELEMENTWISE_NS) + 2 * CALL_NS
        run = partial(self.multiply_windows, a, b, roles)
        return [_Strategy(name, run, cost, terms, _by_stride(a, roles.kept))]

    def _tap_products(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> list[_Strategy]:
        """Return the strategy for windows of one of the arrays; none where they leave no axis to sum over."""
        windows = find_windows(a, roles.rows, roles.inner) or find_windows(b, roles.columns, roles.inner)
        taps = [r for _, r in windows]
        roles = replace(roles, inner=[x for x in roles.inner if x not in taps])
        if not taps or not roles.inner:
            return []
        start = dict.fromkeys(taps, 0)
        product = self._matrix_product(a.at_point(start), b.at_point(start), roles)
        cost = _size(taps) * (product.cost + roles.result_elements * ADD_NS)
        held = product.held_elements + roles.result_elements * CHUNK_ELEMENTS // ADDED_ELEMENTS
        run = partial(self.add_tap_products, a, b, roles, taps)
        main, main_roles = (a, roles) if a.data.size >= b.data.size else (b, roles.swapped)
        return [_Strategy("tap_products", run, cost, held, _by_stride(main, main_roles.kept))]

    def add_tap_products(
        self, a: LabelledArray, b: LabelledArray, roles: _Roles, taps: Sequence[Axis]
    ) -> LabelledArray:
        """Contract by adding up a matrix product for each point of the taps, which `roles` lack."""
        result: LabelledArray | None = None
        for point in np.ndindex(*map(length, taps)):
            place = dict(zip(taps, point, strict=True))
            term = self.multiply_matrices(a.at_point(place), b.at_point(place), roles)
            result = term if result is None else replace(result, data=self._add(result.data, term.data))
        assert result is not None
        return result

    def _add(self, total: Array, term: Array) -> Array:
        """Return total + term, which may overwrite the total."""
        if not (self.field.kind == total.dtype.kind == term.dtype.kind == "f"):
            return np.asarray(self.field.call("add", [total, term]))
        with np.errstate(all="ignore"):  # infinities may meet
            return np.add(total, term, out=total)

    def multiply_matrices(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> LabelledArray:
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
        return LabelledArray(matmul(x, y).reshape([length(z) for z in axes]), axes)

    def multiply_windows(self, a: LabelledArray, b: LabelledArray, roles: _Roles) -> LabelledArray:
        """Contract by the products of each element that windows of a read, computed once (kn2row)."""
        windows = [
            (i, r, axis(span_length(a, i, r), "u")) for i, r in find_windows(a, roles.rows, roles.inner)
        ]
        tap_axes = [r for _, r, _ in windows]
        elements = a
        for i, r, u in windows:
            elements = span_view(elements, i, r, u)
        # the terms are y of the module's docstring, before and after they are read at u = i + r
        terms = self.sum_of_products(elements, b, [x for x in roles.inner if x not in tap_axes])
        for i, r, u in windows:
            terms = window_view(terms, a, i, r, u)
        return self.reduce_over("sum", terms, tap_axes)

    def multiply_elementwise(
        self, a: LabelledArray, b: LabelledArray, inner: Sequence[Axis]
    ) -> LabelledArray:
        """Multiply and add one point of the inner axes after another, in chunks that stay in the cache."""
        points = list(np.ndindex(*map(length, inner)))
        axes = [x for x in union_of_axes([a, b]) if x not in inner]
        size = _size(axes)
        if len(points) > MAX_ADDED_TERMS and size <= CACHED_ELEMENTS:  # too many calls for a small result
            return self.reduce_over("sum", self.call("mul", [a, b]), inner)
        cut = next((x for x in axes if length(x) >= 8), axes[0] if axes else None)
        if size <= CACHED_ELEMENTS or len(points) == 1 or cut is None:
            return self.add_products(a, b, inner, points)
        step = max(1, CACHED_ELEMENTS * length(cut) // size)
        order = [cut, *(x for x in axes if x != cut)]
        return _in_chunks(a, b, cut, step, lambda x, y: self.add_products(x, y, inner, points), order)

    def add_products(
        self, a: LabelledArray, b: LabelledArray, inner: Sequence[Axis], points: Sequence[tuple[int, ...]]
    ) -> LabelledArray:
        """Return the sum of a * b over these points of the inner axes."""
        axes = [x for x in union_of_axes([a, b]) if x not in inner]
        left, right = (f.align([*inner, *axes]) for f in (a, b))
        result: Array | None = None
        for point in points:
            # the ellipsis keeps an array of rank 0 an array
            selector: tuple[Any, ...] = (*point, ...)
            term = np.asarray(self.field.call("mul", [left[selector], right[selector]]))
            result = term if result is None else self._add(result, term)
        assert result is not None
        return LabelledArray(result, tuple(axes))


def _size(axes: Sequence[Axis]) -> int:
    return prod(map(length, axes))


def _repeated_elements(item: LabelledArray) -> int:
    """Return how many more elements the array has than memory behind it, where windows overlap."""
    data = item.data
    reach = sum((n - 1) * abs(step) for n, step in zip(data.shape, data.strides, strict=True))
    return max(0, data.size - 1 - reach // data.itemsize) if data.size else 0


def _by_stride(item: LabelledArray, axes: Sequence[Axis] | None = None) -> list[Axis]:
    """Return the given axes, by default all, in memory order, outermost first; those of length 1 first."""
    own_axes = [a for a in item.axes if axes is None or a in axes]
    return sorted(own_axes, key=lambda a: -abs(axis_stride(item, a)) if length(a) > 1 else -inf)


def _contiguous_count(item: LabelledArray, axes: Sequence[Axis]) -> int:
    """Return how many of the last axes can be one dimension without a copy, of any stride."""
    count, expected_stride = 0, 0
    for a in reversed(axes):
        if length(a) > 1:
            if expected_stride and axis_stride(item, a) != expected_stride:
                break
            expected_stride = axis_stride(item, a) * length(a)
        count += 1
    return count


def _matrix_view(item: LabelledArray, own_axes: Sequence[Axis], inner: Sequence[Axis]) -> _MatrixView:
    """Return the array as BLAS takes matrices: one side is dense, the other has a larger stride.

    Where the memory has no such matrices, or only small ones, all own axes become the core of a copy.
    """
    own_axes = _by_stride(item, own_axes)
    count = _contiguous_count(item, own_axes)
    outer, core = own_axes[: len(own_axes) - count], own_axes[len(own_axes) - count :]
    sides = [(_size(x), axis_stride(item, x[-1]) if x else 0) for x in (core, inner)]
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
    item: LabelledArray, outer: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis], copied: bool
) -> Array:
    """Return the data as [outer..., rows, columns]."""
    data = item.align([*outer, *rows, *columns])
    if copied:
        data = np.ascontiguousarray(data)
    return data.reshape([*data.shape[: len(outer)], _size(rows), _size(columns)])


def _in_chunks(
    a: LabelledArray,
    b: LabelledArray,
    cut: Axis,
    step: int,
    compute: Callable[[LabelledArray, LabelledArray], LabelledArray],
    order: Sequence[Axis] = (),
) -> LabelledArray:
    """Return compute(a, b), computed for `step` indices of the kept axis `cut` at a time.

    The dimensions are stored in this order, by default in that of the first chunk.
    """
    result: Array | None = None
    for start in range(0, length(cut), step):
        chunk_axis = axis(min(step, length(cut) - start))
        chunk = compute(a.in_range(cut, chunk_axis, start), b.in_range(cut, chunk_axis, start))
        if result is None:
            order = order or [cut if x == chunk_axis else x for x in chunk.axes]
            result = np.empty([length(x) for x in order], chunk.data.dtype)
        data = chunk.align([chunk_axis if x == cut else x for x in order])
        result[tuple(slice(start, start + step) if x == cut else slice(None) for x in order)] = data
    assert result is not None
    return LabelledArray(result, tuple(order))
