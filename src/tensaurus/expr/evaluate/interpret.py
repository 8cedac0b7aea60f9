"""Evaluate a scope in any field by array operations: `interpret(scope, {tensor: array}, field)` is an array.

Arrays carry the axes of their dimensions (`LabelledArray`).  An affine read is a strided view of its
source, so that the windows of a convolution are not copied before they are contracted by the matmul of the
field.  A guard on one axis cuts that axis in two and joins the halves; nothing is evaluated out of bounds.
Terms that must be computed before they are reduced are computed for some of the results at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import ceil, inf, prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.chunked_reductions import split_reduction
from tensaurus.expr.evaluate.contract import contract
from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.evaluate.labelled_arrays import ArrayOperations, LabelledArray, length, union_of_axes
from tensaurus.expr.evaluate.strided_sums import inline_guarded_read, merge_phases, pad_reads, split_phases
from tensaurus.expr.evaluate.strided_views import affine_indices, affine_view, strided_view
from tensaurus.expr.ir.axis_binding import bind_symbols, split_axes, unnested_atoms
from tensaurus.expr.ir.element_types import dtype_of, literal_dtype, narrowest_dtype, strip_exact_casts
from tensaurus.expr.ir.integer_types import integer_literal, is_integer, to_int64, to_native, wrap_to_dtype
from tensaurus.expr.ir.scalar_functions import NEUTRAL_ELEMENTS, cast_target
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Lookup,
    Read,
    Reduce,
    Scope,
    Select,
    Source,
    Table,
    Tensor,
    axis,
)
from tensaurus.expr.ir.walk import lookups_in, operands, replace_axes, sizes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Axis, Poly, Size, Symbol, evaluate, interval

Values: TypeAlias = Mapping[Tensor, Array]

MIN_SPARSE_TERMS = 1 << 16  # in sums of fewer terms, finding those that are zero costs more than it saves


def interpret(scope: Scope, values: Values, field: Field, sizes: Mapping[Symbol, int] | None = None) -> Array:
    """Return the tensor that the scope defines: elements of the field, or ints or bools."""
    return Evaluation(values, field, sizes or {}).scope(scope)


class Evaluation:
    """One evaluation: a field, the tensors' values, and the inner scopes evaluated so far.

    A method evaluates the part of an expression that it is named after.
    """

    def __init__(self, values: Values, field: Field, sizes: Mapping[Symbol, int]):
        self.values = values
        self.field = field
        self.arrays = ArrayOperations(field)
        self.sizes: dict[Atom, Any] = dict(sizes.items())
        self.inner: dict[int, tuple[Scope, Array]] = {}  # by id; holds the scope so that no other gets its id

    def scope(self, scope: Scope) -> Array:
        bound_scope = bind_symbols(scope, self.sizes)
        shape = [length(a) for a in bound_scope.axes]
        if 0 in shape:
            # no element is read; only the numpy type of the result matters
            unit = replace_axes(bound_scope.body, dict.fromkeys(bound_scope.axes, 0))
            return np.zeros(shape, self._empty_kind(unit))
        split = split_axes(bound_scope)  # i // 4 and i % 4 become axes, of which strided views are made
        result = self.body(split.body)
        if result.data.dtype.kind == "i" and dtype_of(scope).startswith(("float", "bfloat")):
            # only literals were read: where(i >= 0, 1, x[i]) over a range that never reads x
            result = self.lift_to_elements(result)
        data = np.broadcast_to(result.align(split.axes), [length(a) for a in split.axes])
        if data.dtype.kind == "i" and is_integer(dtype_of(scope)):
            data = wrap_to_dtype(data, dtype_of(scope))
        return np.ascontiguousarray(data).reshape(shape)

    def _empty_kind(self, body: Body) -> Any:
        """Return the numpy type that the body's elements would have."""
        match body:
            case Read(source, _, _):
                return self.source(source).dtype
            case Call(fn, args) if fn not in ("eq", "lt", "le"):
                return self._empty_kind(args[-1])
            case Reduce(_, _, inner):
                return self._empty_kind(inner)
            case Select(_, then, _):
                return self._empty_kind(then)
            case Call():
                return np.dtype(bool)
        return self.field.constant(0).dtype

    def source(self, source: Source) -> Array:
        if isinstance(source, Tensor):
            return self.values[source]
        if isinstance(source, Table):
            return self.table(source)
        if id(source) not in self.inner:
            self.inner[id(source)] = (source, self.scope(source))
        return self.inner[id(source)][1]

    def table(self, table: Table) -> Array:
        """Return the numbers of a table; integers alone stay integers, as other literals do."""
        if dtype_of(table) == "int64":
            return np.array(table.values, np.int64).reshape(table.shape)
        return np.stack([self.field.constant(value) for value in table.values]).reshape(table.shape)

    def body(self, body: Body) -> LabelledArray:
        match body:
            case Const(value):
                return self.const(value)
            case Read():
                return self.read(body)
            case Call(fn, args):
                if cast_target(fn) is not None:
                    argument_dtype = narrowest_dtype(args[0])
                    return self.arrays.call(fn, [self.body(strip_exact_casts(args[0]))], argument_dtype)
                values = [self.body(a) for a in args]
                has_integers_only = fn == "div" and not any(self.field.has_elements(a.data) for a in values)
                if has_integers_only and not literal_dtype(body).startswith(("int", "uint")):
                    # a quotient of integer literals (of axes, say) is a rational, not a truncated integer
                    values = [LabelledArray(self.field.from_int(a.data), a.axes) for a in values]
                return self.arrays.call(fn, values, _integer_dtype(args, values))
            case Select():
                return self.select(body)
            case Reduce(monoid, axes, inner):
                return self.reduce(monoid, axes, inner)
        raise TypeError(type(body))

    def const(self, value: Any) -> LabelledArray:
        if isinstance(value, Poly):
            return self.index(value)
        if isinstance(value, (bool, int)) and abs(value) < 2**63:
            return LabelledArray(np.asarray(value), ())
        return LabelledArray(self.field.constant(value), ())

    def index(self, size: Size) -> LabelledArray:
        """Return an integer expression as an int64 array over the axes in it."""
        axes: list[Axis] = []
        arrays: dict[Atom, Any] = {}
        lookups: dict[Atom, LabelledArray] = {}
        for atom in unnested_atoms(size):
            if isinstance(atom, Lookup):
                lookups[atom] = self.body(atom.read)
                axes.extend(a for a in lookups[atom].axes if a not in axes)
            elif isinstance(atom, Axis) and atom not in axes:
                axes.append(atom)
        for place, a in enumerate(axes):
            arrays[a] = np.arange(length(a)).reshape([-1 if i == place else 1 for i in range(len(axes))])
        for atom, lookup_values in lookups.items():
            data = lookup_values.align(axes)
            assert isinstance(atom, Lookup)
            low, high = self._bound(atom.low), self._bound(atom.high)
            if data.size and not self.field.has_elements(data) and (data.min() < low or data.max() > high):
                raise IndexError(f"an index outside {low}..{high}")
            arrays[atom] = data
        data = np.asarray(evaluate(size, arrays.__getitem__))
        shape = [length(a) for a in axes]
        return LabelledArray(np.broadcast_to(data, shape), tuple(axes))

    def _bound(self, size: Size) -> int:
        assert isinstance(size, int)
        return size

    def read(self, read: Read) -> LabelledArray:
        data = self.source(read.source)
        pads_before, pads_after = [], []
        indices = list(read.indices)
        for place, size in enumerate(indices):
            low, high = interval(size)
            if not isinstance(low, int) or not isinstance(high, int):
                raise ValueError(f"the index {size} has no bounds")
            # elements that the read needs beyond each edge
            missing_before, missing_after = max(0, -low), max(0, high - data.shape[place] + 1)
            if (missing_before or missing_after) and read.outside is None:
                # bounds are not tight where an axis occurs twice: check every point
                points = self.index(size).data
                if points.size and (points.min() < 0 or points.max() >= data.shape[place]):
                    raise IndexError(f"the index {size} leaves 0..{data.shape[place] - 1}")
                missing_before = missing_after = 0
            pads_before.append(missing_before)
            pads_after.append(missing_after)
            indices[place] = size + missing_before  # the index into the padded source
        if read.outside is not None and (any(pads_before) or any(pads_after)):
            data = self.pad(data, read.source, read.outside.value, pads_before, pads_after)
        return self.gather(data, indices)

    def pad(
        self, data: Array, source: Source, value: Any, before: Sequence[int], after: Sequence[int]
    ) -> Array:
        """Return the data of a source with this value before and after it, as many elements as given."""
        fill = self.field.call("add", [self.const(value).data, np.asarray(0)])  # a bool as 0 or 1
        if self.field.has_elements(data) and not self.field.has_elements(fill):  # an integer literal
            fill = self.field.constant(value)
        elif isinstance(source, Table) and self.field.has_elements(fill):  # 1/2 beyond a table of integers
            data = data if self.field.has_elements(data) else self.field.from_int(data)
        elif not self.field.has_elements(data) and self.field.has_elements(fill):  # -inf: the least integer
            fill = to_int64(integer_literal(value, dtype_of(source)))
        result = np.empty([n + b + a for n, b, a in zip(data.shape, before, after, strict=True)], data.dtype)
        inside: list[slice] = []
        for n, start in zip(data.shape, before, strict=True):  # fill only the edges: the inside may be large
            result[(*inside, slice(start))] = fill
            result[(*inside, slice(start + n, None))] = fill
            inside.append(slice(start, start + n))
        result[tuple(inside)] = data
        return result

    def gather(self, data: Array, indices: Sequence[Size]) -> LabelledArray:
        """Return data[indices]: strided views for affine indices, integer indexing for others."""
        affine = affine_indices(indices)
        if len(affine) < len(indices) and (reshaped := strided_view(data, indices)) is not None:
            return reshaped
        # the other indices are computed as arrays of integers, by dimension of the data
        computed = {place: self.index(i) for place, i in enumerate(indices) if place not in affine}
        computed_axes = {a for item in computed.values() for a in item.axes}
        # an affine index that shares an axis with a computed one is computed, too
        while dependent := [p for p, form in affine.items() if not computed_axes.isdisjoint(form.slopes)]:
            for place in dependent:
                computed[place] = self.index(indices[place])
                computed_axes.update(computed[place].axes)
                del affine[place]
        view, axes = affine_view(data, affine)
        if view is None:
            return LabelledArray(np.empty([length(a) for a in axes], data.dtype), axes)
        if not computed:
            return LabelledArray(view, axes)
        front = union_of_axes([computed[p] for p in sorted(computed)])
        positions: tuple[Any, ...] = tuple(computed[p].align(front) for p in sorted(computed))
        selected = view[(*positions, ...)]  # numpy's integer indexing: the axes of `front` come first
        front_shape = [length(a) for a in front]
        return LabelledArray(
            np.broadcast_to(selected, front_shape + list(selected.shape[len(front_shape) :])), (*front, *axes)
        )

    def select(self, select: Select) -> LabelledArray:
        guard = list(select.guard)
        while guard:
            size = guard.pop(0)
            low, high = interval(size)
            if isinstance(low, int) and low >= 0:
                continue
            if isinstance(high, int) and high < 0:
                return self.body(select.other)
            return self.select_by_sign(size, Select(tuple(guard), select.then, select.other), select.other)
        return self.body(select.then)

    def select_by_sign(self, size: Size, then: Body, other: Body) -> LabelledArray:
        """Return `then` where size >= 0, else `other`: by cutting the size's only axis, or by a mask."""
        axes = [a for a in unnested_atoms(size) if isinstance(a, Axis)]
        linear = affine_coefficients(size, axes)
        reads_tensor = any(isinstance(a, Lookup) for a in unnested_atoms(size))
        if linear is not None and len(linear.slopes) == 1 and not reads_tensor:
            ((a, slope),) = linear.slopes.items()
            assert isinstance(slope, int) and isinstance(linear.rest, int)
            extent = length(a)
            if slope > 0:
                cut = min(max(ceil(-linear.rest / slope), 0), extent)
                ranges = [(0, cut, other), (cut, extent, then)]
            else:
                cut = min(max(linear.rest // -slope + 1, 0), extent)
                ranges = [(0, cut, then), (cut, extent, other)]
            return self.concatenate(a, [p for p in ranges if p[0] < p[1]])
        condition = self.index(size)
        mask = LabelledArray(condition.data >= 0, condition.axes)
        return self.arrays.call("where", [mask, self.body(pad_reads(then)), self.body(pad_reads(other))])

    def concatenate(self, cut: Axis, parts: Sequence[tuple[int, int, Body]]) -> LabelledArray:
        """Return the bodies evaluated on their ranges of one axis, joined along it."""
        range_axes = [axis(stop - start) for start, stop, _ in parts]
        results = [
            self.body(replace_axes(body, {cut: range_axis + start}))
            for (start, _, body), range_axis in zip(parts, range_axes, strict=True)
        ]
        others = [a for a in union_of_axes(results) if a not in range_axes]
        has_elements = any(self.field.has_elements(r.data) for r in results)
        arrays = []
        for range_axis, result in zip(range_axes, results, strict=True):
            data = result.align([range_axis, *others])
            if has_elements and not self.field.has_elements(data):
                data = self.field.call("add", [data, self.field.constant(0)])
            arrays.append(np.broadcast_to(data, [length(range_axis), *map(length, others)]))
        return LabelledArray(np.concatenate(arrays), (cut, *others))

    def lift_to_elements(self, item: LabelledArray) -> LabelledArray:
        return (
            item
            if self.field.has_elements(item.data)
            else LabelledArray(self.field.from_int(item.data), item.axes)
        )

    def reduce(self, monoid: str, axes: tuple[Axis, ...], body: Body) -> LabelledArray:
        if any(length(a) == 0 for a in axes):
            neutral = NEUTRAL_ELEMENTS[monoid]
            dtype = literal_dtype(body)
            if is_integer(dtype):
                return LabelledArray(to_int64(integer_literal(neutral, dtype)), ())
            return LabelledArray(self.field.constant(neutral), ())
        if monoid == "sum":
            parts = operands(body, "mul")
            return self.in_phases(parts, axes) or self.contract(parts, axes)
        if (chunked := self.in_chunks(Reduce(monoid, axes, body), [body])) is not None:
            return chunked
        item = self.body(body)
        if item.data.dtype.kind != "i" or monoid == "prod":
            return self.arrays.reduce_over(monoid, item, axes)
        numbers = LabelledArray(to_native(item.data, literal_dtype(body)), item.axes)
        result = self.arrays.reduce_over(monoid, numbers, axes)
        return LabelledArray(to_int64(result.data), result.axes)

    def contract(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> LabelledArray:
        """Return the sum of the product of the parts."""
        parts = [factor for part in parts for factor in self.split_guard(part)]
        product = reduce(lambda a, b: Call("mul", (a, b)), parts)
        if (chunked := self.in_chunks(Reduce("sum", axes, product), parts)) is not None:
            return chunked
        factors = [self.body(f) for f in parts]
        if any(self.field.has_elements(f.data) for f in factors):
            # integer literals, as those of a table, become elements: then there is a matrix product
            are_literals = [literal_dtype(part) == "int" for part in parts]
            pairs = zip(are_literals, factors, strict=True)
            factors = [self.lift_to_elements(f) if is_literal else f for is_literal, f in pairs]
        return contract(self.field, factors, axes)

    def in_chunks(self, reduction: Reduce, parts: Sequence[Body]) -> LabelledArray | None:
        """Return a reduction computed for ranges of its results, None where all terms fit into memory."""
        if (split := split_reduction(parts, reduction.axes)) is None:
            return None
        cut, ranges = split
        return self.concatenate(cut, [(start, stop, reduction) for start, stop in ranges])

    def in_phases(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> LabelledArray | None:
        """Return the sum without the terms that guards make zero (`strided_sums`).

        None where there are few terms, or a factor may be infinite or NaN: 0 times infinity is not 0.
        """
        atoms = {a for part in parts for size in sizes(part) for a in unnested_atoms(size)}
        if self.field.kind == "O" or prod(length(a) for a in atoms if isinstance(a, Axis)) < MIN_SPARSE_TERMS:
            return None
        factors = [inline_guarded_read(part) for part in parts]
        unguarded = [part for part in factors if not isinstance(part, Select)]
        if len(unguarded) < len(parts) - 1 or not all(map(self.is_finite, unguarded)):
            return None
        nonzero = [p for p in split_phases(factors, axes) if p.factors is not factors]
        return (
            merge_phases(self.field, [(p, self.contract(p.factors, p.axes)) for p in nonzero])
            if nonzero
            else None
        )

    def split_guard(self, part: Body) -> Sequence[Body]:
        """Return a part that is zero outside a guard as factors: (1 if guard else 0), and what it guards.

        Returns (part,) where a factor may be infinite, or reads an index that may be wrong outside the guard.
        """
        if self.field.kind != "O" and isinstance(part, Select) and part.other == Const(0):
            factors = [pad_reads(factor) for factor in operands(part.then, "mul")]
            indices = [index for factor in factors for index in sizes(factor)]
            if not any(map(lookups_in, indices)) and all(map(self.is_finite, factors)):
                return (Select(part.guard, Const(1), part.other), *factors)
        return (part,)

    def is_finite(self, part: Body) -> bool:
        """Return whether the part is a read of finite numbers, so that zero times it is zero."""
        if not isinstance(part, Read) or part.outside is not None and part.outside.value in (inf, -inf):
            return False
        return self.field.kind != "f" or _are_finite(self.source(part.source))


def _are_finite(numbers: Array) -> bool:
    """Return whether all numbers are finite: surely if their sum is, which takes a fourth of the time."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(numbers.sum())) or bool(np.isfinite(numbers).all())


def _integer_dtype(args: Sequence[Body], values: Sequence[LabelledArray]) -> str:
    """Return the type of the integers among the values of these arguments; literals adapt to the others."""
    dtypes = [literal_dtype(a) for a, item in zip(args, values, strict=True) if item.data.dtype.kind == "i"]
    return next((kind for kind in dtypes if kind != "int" and is_integer(kind)), "int64")
