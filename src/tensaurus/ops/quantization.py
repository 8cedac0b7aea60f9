"""Declare quantization: an integer q with scale s and zero point z represents the number (q - z) * s.

Scales and zero points are one for the tensor, one for each index of an axis, or (`block_size`) one for each
block of elements along the axis.  Rounding is to the nearest, ties to even; numbers beyond the range of the
integer type become its nearest end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.axes import one_axis, replace_index
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import broadcast, convert_dtype, has_one_element, require_dtype
from tensaurus.ops.reduction import reduction

QUANTIZED_TYPES = ("int8", "uint8", "int16", "uint16")


def saturate_to(value: Body, dtype: str) -> Body:
    """Return a whole float as the nearest integer of the type."""
    limits = np.iinfo(dtype)
    return call(f"to_{dtype}", call("min", call("max", value, int(limits.min)), int(limits.max)))


def only_element(p: Tensor) -> Body:
    """Return the one element of a scale or zero point."""
    return p[(0,) * p.rank]


def _parameter_at(p: Tensor, indices: tuple[Size, ...], axis: int, block: int) -> Body:
    """Return the scale or zero point of x[indices]: the only one, or that of its slice or block."""
    if has_one_element(p) and not block:
        return only_element(p)
    return p[replace_index(indices, axis, indices[axis] // block)] if block else p[indices[axis]]


def _check_parameter_shapes(scale: Tensor, zero: Tensor | None, x: Tensor, axis: int, block: int) -> None:
    """Raise Untypable unless the scale covers every element of x, and the zero point those of the scale."""
    is_per_tensor = has_one_element(scale) and not block
    if not is_per_tensor:
        axis = one_axis(axis, x.rank)
        extent: Size = x.shape[axis] if not block else -((0 - x.shape[axis]) // block)
        expected_shape = replace_index(x.shape, axis, extent) if block else (extent,)
        if scale.rank != len(expected_shape) or not all(map(is_same_size, scale.shape, expected_shape)):
            raise Untypable(f"{scale.name} has shape {scale.shape} for {x.shape} along axis {axis}")
    if zero is None or is_per_tensor and has_one_element(zero):
        return
    if is_per_tensor or zero.rank != scale.rank or not all(map(is_same_size, zero.shape, scale.shape)):
        raise Untypable(f"{zero.name} has shape {zero.shape}, {scale.name} {scale.shape}")


def _common_form(tensors: Sequence[Any], attrs: Mapping[str, Any], implied: str) -> dict[str, Any]:
    """Return the axis from the front where it matters, and the element type where it is not implied."""
    x, scale = tensors[0], tensors[1]
    is_per_tensor = has_one_element(scale) and not attrs["block_size"]
    dtype = attrs["output_dtype"]
    return {
        "axis": 1 if is_per_tensor else one_axis(attrs["axis"], x.rank),
        "output_dtype": "undefined" if dtype == implied else dtype,
    }


def _quantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    zero = tensors[2] if len(tensors) > 2 else None
    form = _common_form(tensors, attrs, "uint8" if zero is None else zero.dtype)
    if zero is not None and form["output_dtype"] != "undefined":
        raise Untypable(f"{form['output_dtype']} with a zero point of {zero.dtype}")
    return {**form, "saturate": 1}  # concerns 8-bit floats alone, which have no declaration


@op("QuantizeLinear", since=10, canonicalize=_quantize_form, examples=[
    "f32[2,3] f32[]={0.02} u8[]={128}",
    "f32[9]={-2.5,-1.5,-0.5,0,0.5,1.5,2.5,300,-300} f32[]={1} i8[]={3}",
    "f32[4]={1,2,inf,-inf} f32[1]={0.5} u8[1]={7}", "f32[2,3]<3 f32[3]>0 i8[3]",
    "f32[2,3,2]<3 f32[2]>0 u8[2] axis=-1", "f32[3,2]<3 f32[3]>0 axis=0", "f32[4]<300 f32[]={1}",
    "i32[5]={-7,-1,0,3,999} f32[]={2} u8[]={2}", "f32[5]={-9,-0.5,0,0.5,9} f32[]={0.0001} i16[]={5}",
    "f32[3] f32[]={0.0001} output_dtype=uint16", "f32[2,5]<3 f32[2,3]>0 u8[2,3] block_size=2",
    "f32[0,3] f32[]={1} u8[]",
])  # fmt: skip
def quantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None,
    *, axis: int = 1, block_size: int = 0, output_dtype: str = "undefined", precision: str = "undefined",
    saturate: int = 1,
) -> Scope:  # fmt: skip
    """round(x / scale) + zero, as the integer type of `zero`."""
    target = zero.dtype if zero is not None else "uint8" if output_dtype == "undefined" else output_dtype
    if target not in QUANTIZED_TYPES:
        raise Untypable(f"quantization to {target}")
    _check_parameter_shapes(scale, zero, x, axis, block_size)

    def at(*i: Size) -> Body:
        ratio = convert_dtype(x[i], x.dtype, scale.dtype) / _parameter_at(scale, i, axis, block_size)
        value: Body = call("round", ratio)
        if zero is not None:
            offset = _parameter_at(zero, i, axis, block_size)
            value = value + convert_dtype(offset, zero.dtype, scale.dtype)
        return saturate_to(value, target)

    return compute(x.shape, at)


def _dequantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return _common_form(tensors, attrs, tensors[1].dtype)


@op("DequantizeLinear", since=10, is_never_folded=True, canonicalize=_dequantize_form, examples=[
    "u8[2,3] f32[]={0.02} u8[]={128}", "i8[4] f32[1]={0.5} i8[1]={-3}", "i8[2,3] f32[3]>0 i8[3]",
    "u8[2,3,2] f32[2]>0 u8[2] axis=-1", "i8[3,2] f32[3]>0 axis=0", "i32[5]={-70000,-1,0,3,999} f32[]={0.001}",
    "i32[3]={-2147483648,2147483647,16777217} f32[]={1} i32[]={100}",
    "i16[3] f32[]={0.1} i16[]={5}", "i8[2,5] f32[2,3]>0 i8[2,3] block_size=2", "i8[2,3] f16[]={0.5}",
    "i8[2,3] f16[]={0.5} output_dtype=float32", "u8[0,3] f32[]={1} u8[]",
])  # fmt: skip
def dequantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None,
    *, axis: int = 1, block_size: int = 0, output_dtype: str = "undefined",
) -> Scope:  # fmt: skip
    """(x - zero) * scale, as the element type of `scale`."""
    if zero is not None and zero.dtype != x.dtype:
        raise Untypable(f"{x.dtype} with a zero point of {zero.dtype}")
    target = scale.dtype if output_dtype == "undefined" else output_dtype
    _check_parameter_shapes(scale, zero, x, axis, block_size)

    def at(*indices: Size) -> Body:
        difference = convert_dtype(x[indices], x.dtype, "int32")  # the difference wraps as an int32
        if zero is not None:
            offset = _parameter_at(zero, indices, axis, block_size)
            difference = difference - convert_dtype(offset, zero.dtype, "int32")
        product = convert_dtype(difference, "int32", scale.dtype)
        return convert_dtype(product * _parameter_at(scale, indices, axis, block_size), scale.dtype, target)

    return compute(x.shape, at)


@op("DynamicQuantizeLinear", since=11, examples=[
    "f32[2,3]", "f32[4]>0", "f32[6]={-1,-0.5,0,0.5,1,1.55}", "f32[3]={-3,-2,-1}", "f32[3]={0,0,0}",
    "f32[]={2}",
])  # fmt: skip
def dynamic_quantize_linear(x: Tensor) -> tuple[Scope, Scope, Scope]:
    """x as uint8 over its own range, widened to hold 0; the scale and the zero point."""
    require_dtype(x, "float32")
    axes = tuple(range(x.rank))
    low = reduction("min", x, axes, finish=lambda v: call("min", v, 0), keep=False)
    high = reduction("max", x, axes, finish=lambda v: call("max", v, 0), keep=False)
    # the scale of nothing but zeros is 1, as onnxruntime has it; ONNX's formula divides by zero there
    scale = broadcast(lambda a, b: call("where", call("eq", a, b), 1, (b - a) / Const(255)), low, high)
    zero = broadcast(lambda a, s: call("round", call("min", call("max", -a / s, 0), 255)), low, scale)
    stored = compute(x.shape, lambda *i: saturate_to(call("round", x[i] / scale[()]) + zero[()], "uint8"))
    return stored, scale, broadcast(lambda v: saturate_to(v, "uint8"), zero)
