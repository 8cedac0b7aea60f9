"""Evaluate a scope in any field by array operations: `interpret(scope, {tensor: array}, field)` is an array.

Arrays carry the axes of their dimensions (`Labelled`).  An affine read is a strided view of its source, so
that the windows of a convolution are not copied before they are contracted by the field's matmul.  A guard on
one axis cuts that axis in two and joins the halves; nothing is evaluated out of bounds.  Terms that must be
computed before they are reduced are computed for some of the results at a time.
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
from tensaurus.expr.evaluate.labelled_arrays import ArrayOperations, Labelled, length, union_of_axes
from tensaurus.expr.evaluate.strided_sums import inline_guarded_read, merge_phases, pad_reads, split_phases
from tensaurus.expr.evaluate.strided_views import strided_view
from tensaurus.expr.ir.axis_binding import bind_symbols, split_axes, unnested_atoms
from tensaurus.expr.ir.element_types import dtype_of, literal_dtype, narrowest_dtype, strip_exact_casts
from tensaurus.expr.ir.integer_types import integer_literal, is_integer, to_int64, to_native, wrap_to_dtype
from tensaurus.expr.ir.scalar_functions import cast_target
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
    """One evaluation: a field, the tensors' values, and the inner scopes evaluated so far."""

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

    def body(self, body: Body) -> Labelled:
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
                    values = [Labelled(self.field.from_int(a.data), a.axes) for a in values]
                return self.arrays.call(fn, values, _integer_dtype(args, values))
            case Select():
                return self.select(body)
            case Reduce(monoid, axes, inner):
                return self.reduce(monoid, axes, inner)
        raise TypeError(type(body))

    def const(self, value: Any) -> Labelled:
        if isinstance(value, Poly):
            return self.index(value)
        if isinstance(value, (bool, int)) and abs(value) < 2**63:
            return Labelled(np.asarray(value), ())
        return Labelled(self.field.constant(value), ())

    def index(self, size: Size) -> Labelled:
        """Return an integer expression as an int64 array over the axes in it."""
        axes: list[Axis] = []
        arrays: dict[Atom, Any] = {}
        lookups: dict[Atom, Labelled] = {}
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
        return Labelled(np.broadcast_to(data, shape), tuple(axes))

    def _bound(self, size: Size) -> int:
        assert isinstance(size, int)
        return size

    def read(self, read: Read) -> Labelled:
        data = self.source(read.source)
        lows, highs = [], []
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
            lows.append(missing_before)
            highs.append(missing_after)
            indices[place] = size + missing_before  # the index into the padded source
        if read.outside is not None and (any(lows) or any(highs)):
            data = self.pad(data, read.source, read.outside.value, lows, highs)
        return self.gather(data, indices)

    def pad(
        self, data: Array, source: Source, value: Any, lows: Sequence[int], highs: Sequence[int]
    ) -> Array:
        """Return the data of a source with this value before and after it, as many elements as given."""
        fill = self.field.call("add", [self.const(value).data, np.asarray(0)])  # a bool as 0 or 1
        if self.field.has_elements(data) and not self.field.has_elements(fill):  # an integer literal
            fill = self.field.constant(value)
        elif isinstance(source, Table) and self.field.has_elements(fill):  # 1/2 beyond a table of integers
            data = data if self.field.has_elements(data) else self.field.from_int(data)
        elif not self.field.has_elements(data) and self.field.has_elements(fill):  # -inf: the least integer
            fill = to_int64(integer_literal(value, dtype_of(source)))
        result = np.empty([n + b + a for n, b, a in zip(data.shape, lows, highs, strict=True)], data.dtype)
        inside: list[slice] = []
        for n, before in zip(data.shape, lows, strict=True):  # fill only the edges: the inside may be large
            result[(*inside, slice(before))] = fill
            result[(*inside, slice(before + n, None))] = fill
            inside.append(slice(before, before + n))
        result[tuple(inside)] = data
        return result

    def gather(self, data: Array, indices: Sequence[Size]) -> Labelled:
        """Return data[indices]: strided views for affine indices, integer indexing for others."""
        affine: dict[int, tuple[dict[Axis, Size], Size]] = {}  # (slopes, rest) by dimension of the data
        others: list[int] = []  # the dimensions with other indices
        for place, size in enumerate(indices):
            linear = affine_coefficients(size, [a for a in unnested_atoms(size) if isinstance(a, Axis)])
            if linear is not None and all(isinstance(c, int) for c in (linear[1], *linear[0].values())):
                affine[place] = linear
            else:
                others.append(place)
        if others and (reshaped := strided_view(data, indices)) is not None:
            return reshaped
        computed = {place: self.index(indices[place]) for place in others}
        computed_axes = {a for item in computed.values() for a in item.axes}
        # an affine index that shares an axis with a computed one is computed, too
        while dependent := [p for p, (slopes, _) in affine.items() if not computed_axes.isdisjoint(slopes)]:
            for place in dependent:
                computed[place] = self.index(indices[place])
                computed_axes.update(computed[place].axes)
                del affine[place]
        # a view of the data: the dimensions with computed indices, whole, then the axes of affine indices
        axes: list[Axis] = []
        offset: list[Any] = [slice(None)] * data.ndim
        steps: dict[Axis, int] = {}
        for place, (slopes, rest) in affine.items():
            assert isinstance(rest, int)
            offset[place] = slice(rest, None)
            for a, slope in slopes.items():
                assert isinstance(slope, int)
                steps[a] = steps.get(a, 0) + slope * data.strides[place]
                if a not in axes:
                    axes.append(a)
        computed_places = sorted(computed)
        # only the base's first element, where all axes are 0, counts: a negative slope goes back from there
        base = data[(*offset, ...)] if all(o == slice(None) or o.start >= 0 for o in offset) else data
        shape = [data.shape[p] for p in computed_places] + [length(a) for a in axes]
        strides = [data.strides[p] for p in computed_places] + [steps[a] for a in axes]
        if base.size == 0:
            return Labelled(np.empty([length(a) for a in axes], data.dtype), tuple(axes))
        view = np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)
        if not computed_places:
            return Labelled(view, tuple(axes))
        front = union_of_axes([computed[p] for p in computed_places])
        positions: tuple[Any, ...] = tuple(computed[p].align(front) for p in computed_places)
        selected = view[(*positions, ...)]  # numpy's integer indexing: the axes of `front` come first
        front_shape = [length(a) for a in front]
        return Labelled(
            np.broadcast_to(selected, front_shape + list(selected.shape[len(front_shape) :])), (*front, *axes)
        )

    def select(self, select: Select) -> Labelled:
        guard = list(select.guard)
        while guard:
            size = guard.pop(0)
            low, high = interval(size)
            if isinstance(low, int) and low >= 0:
                continue
            if isinstance(high, int) and high < 0:
                return self.body(select.other)
            return self.branch(size, Select(tuple(guard), select.then, select.other), select.other)
        return self.body(select.then)

    def branch(self, size: Size, then: Body, other: Body) -> Labelled:
        """Return `then` where size >= 0, else `other`: by cutting the size's only axis, or by a mask."""
        axes = [a for a in unnested_atoms(size) if isinstance(a, Axis)]
        linear = affine_coefficients(size, axes)
        reads_tensor = any(isinstance(a, Lookup) for a in unnested_atoms(size))
        if linear is not None and len(linear[0]) == 1 and not reads_tensor:
            ((a, slope),) = linear[0].items()
            assert isinstance(slope, int) and isinstance(linear[1], int)
            extent = length(a)
            if slope > 0:
                cut = min(max(ceil(-linear[1] / slope), 0), extent)
                ranges = [(0, cut, other), (cut, extent, then)]
            else:
                cut = min(max(linear[1] // -slope + 1, 0), extent)
                ranges = [(0, cut, then), (cut, extent, other)]
            return self.concatenate(a, [p for p in ranges if p[0] < p[1]])
        condition = self.index(size)
        mask = Labelled(condition.data >= 0, condition.axes)
        return self.arrays.call("where", [mask, self.body(pad_reads(then)), self.body(pad_reads(other))])

    def concatenate(self, cut: Axis, parts: Sequence[tuple[int, int, Body]]) -> Labelled:
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
        return Labelled(np.concatenate(arrays), (cut, *others))

    def lift_to_elements(self, item: Labelled) -> Labelled:
        return (
            item
            if self.field.has_elements(item.data)
            else Labelled(self.field.from_int(item.data), item.axes)
        )

    def reduce(self, monoid: str, axes: tuple[Axis, ...], body: Body) -> Labelled:
        if any(length(a) == 0 for a in axes):
            neutral = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}[monoid]
            dtype = literal_dtype(body)
            if is_integer(dtype):
                return Labelled(to_int64(integer_literal(neutral, dtype)), ())
            return Labelled(self.field.constant(neutral), ())
        if monoid == "sum":
            parts = operands(body, "mul")
            return self.in_phases(parts, axes) or self.contract(parts, axes)
        if (chunked := self.in_chunks(Reduce(monoid, axes, body), [body])) is not None:
            return chunked
        item = self.body(body)
        if item.data.dtype.kind != "i" or monoid == "prod":
            return self.arrays.reduce_over(monoid, item, axes)
        numbers = Labelled(to_native(item.data, literal_dtype(body)), item.axes)
        result = self.arrays.reduce_over(monoid, numbers, axes)
        return Labelled(to_int64(result.data), result.axes)

    def contract(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> Labelled:
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

    def in_chunks(self, reduction: Reduce, parts: Sequence[Body]) -> Labelled | None:
        """Return a reduction computed for ranges of its results, None where all terms fit into memory."""
        if (split := split_reduction(parts, reduction.axes)) is None:
            return None
        cut, ranges = split
        return self.concatenate(cut, [(start, stop, reduction) for start, stop in ranges])

    def in_phases(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> Labelled | None:
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
        return self.field.kind != "f" or bool(np.isfinite(self.source(part.source)).all())


def _integer_dtype(args: Sequence[Body], values: Sequence[Labelled]) -> str:
    """Return the type of the integers among the values of these arguments; literals adapt to the others."""
    dtypes = [literal_dtype(a) for a, item in zip(args, values, strict=True) if item.data.dtype.kind == "i"]
    return next((kind for kind in dtypes if kind != "int" and is_integer(kind)), "int64")
