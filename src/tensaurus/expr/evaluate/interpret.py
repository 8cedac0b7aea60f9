"""The only evaluator of a scope, in any field, by array operations.

Arrays carry the axes of their dimensions (`Labelled`).  An affine read is a strided view of its source, so
a convolution's windows cost nothing until they meet a contraction, which runs on the field's matmul.
A guard on one axis cuts that axis in two and joins the halves; nothing is evaluated out of bounds.  What is
computed for every term of a reduction, before it is reduced, is computed for a part of the results at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import ceil, inf, prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.chunked_reductions import pieces
from tensaurus.expr.evaluate.contract import contract
from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.evaluate.labelled_arrays import Arrays, Labelled, length, union
from tensaurus.expr.evaluate.strided_sums import edged, opened, phases, placed
from tensaurus.expr.evaluate.strided_views import addressed
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

SPARSE = 1 << 16  # terms of a sum from which on it is worth to ask which of them are zero


def interpret(scope: Scope, values: Values, field: Field, sizes: Mapping[Symbol, int] | None = None) -> Array:
    """The tensor that the scope stands for: elements of the field (or ints, bools), of the scope's shape."""
    return Evaluation(values, field, sizes or {}).scope(scope)


class Evaluation:
    """One evaluation: a field, the tensors' values, and the inner scopes met so far."""

    def __init__(self, values: Values, field: Field, sizes: Mapping[Symbol, int]):
        self.values = values
        self.field = field
        self.arrays = Arrays(field)
        self.sizes: dict[Atom, Any] = dict(sizes.items())
        self.inner: dict[int, tuple[Scope, Array]] = {}

    def scope(self, scope: Scope) -> Array:
        known = bind_symbols(scope, self.sizes)
        shape = [length(a) for a in known.axes]
        if 0 in shape:
            # nothing is read; only the kind of the elements matters
            unit = replace_axes(known.body, dict.fromkeys(known.axes, 0))
            return np.zeros(shape, self._empty_kind(unit))
        flat = split_axes(known)
        result = self.body(flat.body)
        if result.data.dtype.kind == "i" and dtype_of(scope).startswith(("float", "bfloat")):
            # only literals were read: where(i >= 0, 1, x[i]) over a range that never reads x
            result = self.lifted(result)
        data = np.broadcast_to(result.aligned(flat.axes), [length(a) for a in flat.axes])
        if data.dtype.kind == "i" and is_integer(dtype_of(scope)):
            data = wrap_to_dtype(data, dtype_of(scope))
        return np.ascontiguousarray(data).reshape(shape)

    def _empty_kind(self, body: Body) -> Any:
        match body:
            case Read(source, _, _):
                data = self.source(source)
                return data.dtype
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
        """Whole numbers alone stay integers, as literals do."""
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
                    known = narrowest_dtype(args[0])
                    return self.arrays.call(fn, [self.body(strip_exact_casts(args[0]))], known)
                found = [self.body(a) for a in args]
                whole = fn == "div" and not any(self.field.elements(a.data) for a in found)
                if whole and not literal_dtype(body).startswith(("int", "uint")):
                    # a quotient of integer literals (of axes, say) is a rational, not a truncated integer
                    found = [Labelled(self.field.from_int(a.data), a.axes) for a in found]
                return self.arrays.call(fn, found, _integers(args, found))
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
        """An integer expression as an int64 array over the axes in it."""
        axes: list[Axis] = []
        arrays: dict[Atom, Any] = {}
        looked: dict[Atom, Labelled] = {}
        for atom in unnested_atoms(size):
            if isinstance(atom, Lookup):
                looked[atom] = self.body(atom.read)
                axes.extend(a for a in looked[atom].axes if a not in axes)
            elif isinstance(atom, Axis) and atom not in axes:
                axes.append(atom)
        for place, a in enumerate(axes):
            arrays[a] = np.arange(length(a)).reshape([-1 if i == place else 1 for i in range(len(axes))])
        for atom, found in looked.items():
            data = found.aligned(axes)
            assert isinstance(atom, Lookup)
            low, high = self._bound(atom.low), self._bound(atom.high)
            if data.size and not self.field.elements(data) and (data.min() < low or data.max() > high):
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
            below, above = max(0, -low), max(0, high - data.shape[place] + 1)
            if (below or above) and read.outside is None:
                # bounds forget that an axis occurs twice: its points decide
                points = self.index(size).data
                if points.size and (points.min() < 0 or points.max() >= data.shape[place]):
                    raise IndexError(f"the index {size} leaves 0..{data.shape[place] - 1}")
                below = above = 0
            lows.append(below)
            highs.append(above)
            indices[place] = size + below
        if read.outside is not None and (any(lows) or any(highs)):
            data = self.padded(data, read.source, read.outside.value, lows, highs)
        return self.gathered(data, indices)

    def padded(
        self, data: Array, source: Source, value: Any, lows: Sequence[int], highs: Sequence[int]
    ) -> Array:
        """The data of a source with so many elements of this value before and after."""
        fill = self.field.call("add", [self.const(value).data, np.asarray(0)])
        if self.field.elements(data) and not self.field.elements(fill):
            fill = self.field.constant(value)
        elif isinstance(source, Table) and self.field.elements(fill):
            data = data if self.field.elements(data) else self.field.from_int(data)
        elif not self.field.elements(data) and self.field.elements(fill):
            fill = to_int64(integer_literal(value, dtype_of(source)))
        wide = np.empty([n + b + a for n, b, a in zip(data.shape, lows, highs, strict=True)], data.dtype)
        inside: list[slice] = []
        for n, below in zip(data.shape, lows, strict=True):  # the edges alone: it may be large
            wide[(*inside, slice(below))] = fill
            wide[(*inside, slice(below + n, None))] = fill
            inside.append(slice(below, below + n))
        wide[tuple(inside)] = data
        return wide

    def gathered(self, data: Array, indices: Sequence[Size]) -> Labelled:
        """data[indices]: strided views where an index is affine, integer indexing where it is not."""
        affine: dict[int, tuple[dict[Axis, Size], Size]] = {}
        others: list[int] = []
        for place, size in enumerate(indices):
            found = affine_coefficients(size, [a for a in unnested_atoms(size) if isinstance(a, Axis)])
            if found is not None and all(isinstance(c, int) for c in (found[1], *found[0].values())):
                affine[place] = found
            else:
                others.append(place)
        if others and (stepped := addressed(data, indices)) is not None:
            return stepped
        free = {place: self.index(indices[place]) for place in others}
        bound = {a for item in free.values() for a in item.axes}
        for place in [p for p, (slopes, _) in affine.items() if not bound.isdisjoint(slopes)]:
            free[place] = self.index(indices[place])
            bound.update(free[place].axes)
            del affine[place]
        while True:
            more = [p for p, (slopes, _) in affine.items() if free and not bound.isdisjoint(slopes)]
            if not more:
                break
            for place in more:
                free[place] = self.index(indices[place])
                bound.update(free[place].axes)
                del affine[place]
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
        rows = sorted(free)
        # a negative slope starts at the far end, so the base is addressed by its first element alone
        base = data[(*offset, ...)] if all(o == slice(None) or o.start >= 0 for o in offset) else data
        shape = [data.shape[p] for p in rows] + [length(a) for a in axes]
        strides = [data.strides[p] for p in rows] + [steps[a] for a in axes]
        if base.size == 0:
            return Labelled(np.empty([length(a) for a in axes], data.dtype), tuple(axes))
        view = np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)
        if not rows:
            return Labelled(view, tuple(axes))
        front = union([free[p] for p in rows])
        spots: tuple[Any, ...] = tuple(free[p].aligned(front) for p in rows)
        picked = view[(*spots, ...)]
        full = [length(a) for a in front]
        return Labelled(np.broadcast_to(picked, full + list(picked.shape[len(full) :])), (*front, *axes))

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
        inside = [a for a in unnested_atoms(size) if isinstance(a, Axis)]
        found = affine_coefficients(size, inside)
        read = any(isinstance(a, Lookup) for a in unnested_atoms(size))
        if found is not None and len(found[0]) == 1 and not read:
            ((a, slope),) = found[0].items()
            assert isinstance(slope, int) and isinstance(found[1], int)
            extent = length(a)
            if slope > 0:
                cut = min(max(ceil(-found[1] / slope), 0), extent)
                parts = [(0, cut, other), (cut, extent, then)]
            else:
                cut = min(max(found[1] // -slope + 1, 0), extent)
                parts = [(0, cut, then), (cut, extent, other)]
            return self.joined(a, [p for p in parts if p[0] < p[1]])
        condition = self.index(size)
        chosen = Labelled(condition.data >= 0, condition.axes)
        return self.arrays.call("where", [chosen, self.body(edged(then)), self.body(edged(other))])

    def joined(self, cut: Axis, parts: Sequence[tuple[int, int, Body]]) -> Labelled:
        """The bodies evaluated on their ranges of one axis, joined along it."""
        pieces = [axis(stop - start) for start, stop, _ in parts]
        results = [
            self.body(replace_axes(body, {cut: piece + start}))
            for (start, _, body), piece in zip(parts, pieces, strict=True)
        ]
        others = [a for a in union(results) if a not in pieces]
        elements = any(self.field.elements(r.data) for r in results)
        arrays = []
        for piece, result in zip(pieces, results, strict=True):
            data = result.aligned([piece, *others])
            if elements and not self.field.elements(data):
                data = self.field.call("add", [data, self.field.constant(0)])
            arrays.append(np.broadcast_to(data, [length(piece), *map(length, others)]))
        return Labelled(np.concatenate(arrays), (cut, *others))

    def lifted(self, item: Labelled) -> Labelled:
        return item if self.field.elements(item.data) else Labelled(self.field.from_int(item.data), item.axes)

    def reduce(self, monoid: str, axes: tuple[Axis, ...], body: Body) -> Labelled:
        if any(length(a) == 0 for a in axes):
            neutral = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}[monoid]
            dtype = literal_dtype(body)
            if is_integer(dtype):
                return Labelled(to_int64(integer_literal(neutral, dtype)), ())
            return Labelled(self.field.constant(neutral), ())
        if monoid == "sum":
            parts = operands(body, "mul")
            return self.in_phases(parts, axes) or self.contracted(parts, axes)
        if (found := self.in_pieces(Reduce(monoid, axes, body), [body])) is not None:
            return found
        item = self.body(body)
        if item.data.dtype.kind != "i" or monoid == "prod":
            return self.arrays.reduced(monoid, item, axes)
        found = self.arrays.reduced(
            monoid, Labelled(to_native(item.data, literal_dtype(body)), item.axes), axes
        )
        return Labelled(to_int64(found.data), found.axes)

    def contracted(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> Labelled:
        """The sum of the product of the parts."""
        parts = [factor for part in parts for factor in self.unguarded(part)]
        product = reduce(lambda a, b: Call("mul", (a, b)), parts)
        if (found := self.in_pieces(Reduce("sum", axes, product), parts)) is not None:
            return found
        factors = [self.body(f) for f in parts]
        if any(self.field.elements(f.data) for f in factors):
            # whole literals, those of a table, say, as elements: their products have a matrix product
            whole = [literal_dtype(part) == "int" for part in parts]
            factors = [self.lifted(f) if w else f for w, f in zip(whole, factors, strict=True)]
        return contract(self.field, factors, axes)

    def in_pieces(self, whole: Reduce, parts: Sequence[Body]) -> Labelled | None:
        """A reduction of the parts' product for some results after others; None where all have room."""
        if (found := pieces(parts, whole.axes)) is None:
            return None
        cut, ranges = found
        return self.joined(cut, [(start, stop, whole) for start, stop in ranges])

    def in_phases(self, parts: Sequence[Body], axes: tuple[Axis, ...]) -> Labelled | None:
        """The same without the terms that guards make zero; None where there are few, or any might be NaN."""
        inside = {a for part in parts for size in sizes(part) for a in unnested_atoms(size)}
        if self.field.kind == "O" or prod(length(a) for a in inside if isinstance(a, Axis)) < SPARSE:
            return None
        factors = [opened(part) for part in parts]
        beside = [part for part in factors if not isinstance(part, Select)]
        if len(beside) < len(parts) - 1 or not all(map(self.finite, beside)):
            return None
        found = [p for p in phases(factors, axes) if p.factors is not factors]
        return placed(self.field, [(p, self.contracted(p.factors, p.axes)) for p in found]) if found else None

    def unguarded(self, part: Body) -> Sequence[Body]:
        """What is zero but where a guard holds, as factors: 1 where it holds, and what is guarded.

        The part alone where zero times what is guarded might be no zero, and where an index that is read may
        be beyond the edge but where the guard holds.
        """
        if self.field.kind != "O" and isinstance(part, Select) and part.other == Const(0):
            factors = [edged(factor) for factor in operands(part.then, "mul")]
            indices = [index for factor in factors for index in sizes(factor)]
            if not any(map(lookups_in, indices)) and all(map(self.finite, factors)):
                return (Select(part.guard, Const(1), part.other), *factors)
        return (part,)

    def finite(self, part: Body) -> bool:
        """Whether zero times what is read is zero."""
        if not isinstance(part, Read) or part.outside is not None and part.outside.value in (inf, -inf):
            return False
        return self.field.kind != "f" or bool(np.isfinite(self.source(part.source)).all())


def _integers(args: Sequence[Body], found: Sequence[Labelled]) -> str:
    """The type of the integers among the values of these arguments; literals adapt to what they meet."""
    kinds = [literal_dtype(a) for a, item in zip(args, found, strict=True) if item.data.dtype.kind == "i"]
    return next((kind for kind in kinds if kind != "int" and is_integer(kind)), "int64")
