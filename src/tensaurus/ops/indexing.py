"""Operators that compute with indices and sizes: Gather, OneHot, Trilu, Shape, Range and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute, lift, look, where
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, largest, product
from tensaurus.ops.axes import axis_form, one_axis, only_number, replace_index
from tensaurus.ops.declare import NUMBERS, op


def _read_index(indices: Tensor, position: tuple[Size, ...], size: Size) -> Size:
    """Return the index that is stored at a position; a negative one counts from the end of the dimension."""
    if not indices.dtype.startswith(("int", "uint")):
        raise Untypable(f"indices of {indices.dtype}")
    return look(indices[position], 0 - size, size - 1) % size  # analyses know only these bounds


@op("Gather", canonicalize=axis_form, examples=[
    "f32[4,3] i64[2]<4", "f32[2,5,3] i64[2,3]<5 axis=1", "f32[2,5] i64[]<5 axis=-1", "i64[4] i32[1]<4",
    "f32[4,3] i64[3]={-1,0,-4}",
])  # fmt: skip
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Scope:
    """The slices of x at these indices along an axis."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def element(*position: Size) -> Body:
        end = axis + indices.rank
        index = _read_index(indices, position[axis:end], x.shape[axis])
        return x[(*position[:axis], index, *position[end:])]

    return compute(shape, element)


@op("GatherElements", since=11, canonicalize=axis_form, examples=[
    "f32[4,3] i64[2,3]<4", "f32[2,5,3] i64[2,2,3]<5 axis=1", "f32[2,5] i32[2,7]<5 axis=-1",
    "f32[3,2] i64[2,2]={-1,0,-3,2}",
])  # fmt: skip
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Scope:
    """At each position of `indices`, the element of x there, moved along an axis to the index."""
    if indices.rank != x.rank:
        raise Untypable(f"indices of rank {indices.rank} into rank {x.rank}")
    for n, m in zip(replace_index(x.shape, axis, 1), replace_index(indices.shape, axis, 1), strict=True):
        if not is_nonnegative(n - m):
            raise Untypable(f"indices of shape {indices.shape} into {x.shape}")

    def element(*position: Size) -> Body:
        return x[replace_index(position, axis, _read_index(indices, position, x.shape[axis]))]

    return compute(indices.shape, element)


@op("GatherND", since=11, examples=[
    "f32[2,3,4] i64[3,2]<2", "f32[4,3] i64[2,2,1]<4", "f32[2,3,4] i64[2,1]<3 batch_dims=1",
    "f32[2,3] i64[2]<2",
])  # fmt: skip
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Scope:
    """The slices of x at index vectors, which are the last dimension of `indices`."""
    depth = indices.shape[-1] if indices.rank else 0
    if not isinstance(depth, int):
        raise Untypable(f"index vectors of length {depth}")
    if not 0 < depth <= x.rank - batch_dims or not 0 <= batch_dims < indices.rank:
        raise Untypable(f"index vectors of length {depth} into rank {x.rank} after {batch_dims}")
    if not all(map(is_same_size, x.shape[:batch_dims], indices.shape[:batch_dims])):
        raise Untypable(f"batches of {x.shape} and {indices.shape}")
    front = indices.shape[:-1]
    indexed_dims = range(batch_dims, batch_dims + depth)

    def element(*position: Size) -> Body:
        front_position = position[: len(front)]
        found_indices = [
            _read_index(indices, (*front_position, d - batch_dims), x.shape[d]) for d in indexed_dims
        ]
        return x[(*position[:batch_dims], *found_indices, *position[len(front) :])]

    return compute((*front, *x.shape[batch_dims + depth :]), element)


def _one_hot_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axis from the front, and the depth as a number, also from a vector of one."""
    depth = only_number(attrs["depth"], "depth")
    return {"axis": one_axis(attrs["axis"], tensors[0].rank + 1), "depth": depth}


@op("OneHot", since=9, moved={"depth": 9}, order=("indices", "depth", "values"), canonicalize=_one_hot_form,
    examples=[
    "i64[3]<4 f32[2] depth=4", "i64[2,3]<5 f32[2] depth=3 axis=1", "i64[3]={-1,0,7} i64[2] depth=4",
])  # fmt: skip
def one_hot(indices: Tensor, values: Tensor, *, depth: Size, axis: int = -1) -> Scope:
    """values[1] where the index along a new axis is the element of `indices`, else values[0]."""
    if values.shape != (2,):
        raise Untypable(f"values of shape {values.shape}")

    def element(*position: Size) -> Body:
        index = indices[(*position[:axis], *position[axis + 1 :])]
        wrapped = call("where", call("lt", index, 0), index + lift(depth), index)
        return call("where", call("eq", wrapped, position[axis]), values[1], values[0])

    return compute((*indices.shape[:axis], depth, *indices.shape[axis:]), element)


def _diagonal_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of the diagonal, 0 where it is absent, and the flag as 0 or 1."""
    return {"k": only_number(attrs["k"], "diagonal") or 0, "upper": int(bool(attrs["upper"]))}


@op("Trilu", since=14, moved={"k": 14}, canonicalize=_diagonal_form, examples=[
    "f32[3,4]", "f32[2,4,3] upper=0", "f32[4,4] k=1", "f32[4,3] k=-2 upper=0", "i64[3,3] k=-1",
])  # fmt: skip
def trilu(x: Tensor, *, k: int = 0, upper: int = 1) -> Scope:
    """The part of each matrix on and above (else below) its k-th diagonal, zero elsewhere."""
    if x.rank < 2:
        raise Untypable(f"a triangle of rank {x.rank}")
    zero = Const(False) if x.dtype == "bool" else Const(0)

    def element(*position: Size) -> Body:
        above = position[-1] - position[-2] - k
        return where(above if upper else 0 - above, x[position], zero)

    return compute(x.shape, element)


@op("EyeLike", since=9, examples=[
    "f32[3,4]", "f32[3,3] k=1", "i64[4,2] k=-1 dtype=float32", "f32[2,3] dtype=int64",
])  # fmt: skip
def eye_like(x: Tensor, *, dtype: str | None = None, k: int = 0) -> Scope:
    """A matrix of the shape of x with ones on its k-th diagonal."""
    if x.rank != 2:
        raise Untypable(f"a diagonal of rank {x.rank}")
    one, zero = (call(f"to_{dtype or x.dtype}", value) for value in (1, 0))

    def element(i: Size, j: Size) -> Body:
        above = j - i - k
        return where((above, 0 - above), one, zero)  # where above == 0

    return compute(x.shape, element)


def _filled_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value as (element type, (1,), (number,)): a float32 zero where it is absent."""
    if attrs["value"] is None:
        return {"value": ("float32", (1,), (0,))}
    dtype, _, numbers = attrs["value"]
    if len(numbers) != 1:
        raise Untypable(f"a value of {len(numbers)} elements")
    return {"value": (dtype, (1,), numbers)}


@op("ConstantOfShape", since=9, moved={"shape": 9}, canonicalize=_filled_form, examples=[
    "shape=(2,3)", "shape=(4,) value=('int64',(1,),(7,))", "shape=() value=('float32',(1,),(1.5,))",
])  # fmt: skip
def constant_of_shape(*, shape: tuple[Size, ...], value: Any = None) -> Scope:
    """A tensor of this shape whose elements are all the same."""
    dtype, _, (number,) = value
    fill = Const(bool(number)) if dtype == "bool" else call(f"to_{dtype}", number)
    return compute(shape, lambda *position: fill)


def _span(rank: int, start: int, end: int | None) -> tuple[int, int]:
    """Return the clamped range of dimensions that Shape reads."""
    begin, stop = (min(max(d + rank if d < 0 else d, 0), rank) for d in (start, rank if end is None else end))
    return begin, max(begin, stop)


def _shape_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    begin, stop = _span(tensors[0].rank, attrs["start"] or 0, attrs["end"])
    return {"start": begin, "end": None if stop == tensors[0].rank else stop}


@op("Shape", canonicalize=_shape_form, examples=[
    "f32[2,3,4]", "f32[2,3,4] start=1", "f32[2,3,4,5] start=-3 end=-1", "f32[2] start=5", "i64[4]",
])  # fmt: skip
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Scope:
    """The sizes of x."""
    begin, stop = _span(x.rank, start, end)

    def element(position: Size) -> Body:
        # element k is the size of dimension begin + k: a chain of selects that ends with the last size
        result: Body = Const(x.shape[stop - 1] if stop > begin else 0)
        for d in reversed(range(begin, stop - 1)):
            result = where(d - begin - position, Const(x.shape[d]), result)  # where position <= d - begin
        return result

    return compute((stop - begin,), element)


def _range_length(start: Any, limit: Any, delta: Any, dtype: str) -> Any:
    """Return how many numbers there are from start in steps of delta before the limit."""
    if delta == 0:
        raise Untypable("a range in steps of 0")
    if dtype.startswith(("int", "uint")):
        if dtype != "int64" and not all(isinstance(n, int) for n in (start, limit)):
            raise Untypable(f"a range of {dtype} from {start} to {limit}")
        if not isinstance(delta, int):
            raise Untypable(f"a range in steps of {delta}")
        count = -((start - limit) // delta)  # (limit - start) / delta, rounded up
        return count if is_nonnegative(count) else largest(count, 0)
    if not all(isinstance(n, (int, Fraction)) for n in (start, limit, delta)):
        raise Untypable(f"a range of {dtype} from {start} to {limit}")
    # count with the exact difference, and with the difference rounded to the type: both must give one length
    exact = Fraction(limit - start)
    in_dtype = Fraction(float(np.dtype(dtype).type(float(limit)) - np.dtype(dtype).type(float(start))))
    counts = {max(ceil(r / delta), 0) for r in (exact, in_dtype)}
    if len(counts) > 1:
        raise Untypable(f"a range whose length depends on the rounding of {limit} - {start}")
    return counts.pop()


def _range_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return single elements as numbers."""
    result = {}
    for name in ("start", "limit", "delta"):
        value = attrs[name]
        if isinstance(value, tuple):
            if len(value) != 1:
                raise Untypable(f"{name} has {len(value)} elements")
            value = value[0]
        result[name] = value
    return result


@op("Range", since=11, moved={"start": 11, "limit": 11, "delta": 11}, dtype_inputs={"dtype": "start"},
    order=("start", "limit", "delta"), canonicalize=_range_form, examples=[
    "start=0 limit=5 delta=1 dtype=int64", "start=10 limit=0 delta=-3 dtype=int32",
    "start=3 limit=3 delta=2 dtype=int64", "start=5 limit=2 delta=1 dtype=int16",
    "start=0.5 limit=3.0 delta=0.75 dtype=float32", "start=1.0 limit=-1.0 delta=-0.5 dtype=float64",
    "start=0 limit=4 delta=1 dtype=float32",
])  # fmt: skip
def range_(*, start: Any, limit: Any, delta: Any, dtype: str, stash_type: str = "float32") -> Scope:
    """start, start + delta, ... before the limit."""
    if dtype not in NUMBERS or dtype == "bool":
        raise Untypable(f"a range of {dtype}")
    count = _range_length(start, limit, delta, dtype)
    if dtype.startswith(("int", "uint")):
        return compute((count,), lambda i: call(f"to_{dtype}", Const(start + i * delta)))
    return compute(
        (count,), lambda i: call(f"to_{dtype}", Const(start)) + call(f"to_{dtype}", i) * Const(delta)
    )


@op("Size", examples=["f32[2,3,4]", "f32[]"])
def size(x: Tensor) -> Scope:
    """How many elements x has."""
    return compute((), lambda: Const(product(x.shape)))
