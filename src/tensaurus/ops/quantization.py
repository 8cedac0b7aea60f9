"""Numbers as small integers: an integer q with scale s and zero point z stands for (q - z) * s.

Rounding is to the nearest, ties to even; what the integers cannot hold becomes the nearest that they can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.axes import one_axis, replaced
from tensaurus.ops.contraction import matrix_product
from tensaurus.ops.convolution import conv_form, correlation
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import aligned, broadcast, broadcast_to, converted, demand
from tensaurus.ops.reduction import reduction

STORED = ("int8", "uint8", "int16", "uint16")
BYTES = ("int8", "uint8")


def saturated(value: Body, dtype: str) -> Body:
    """A whole float as an integer, the nearest that the type holds."""
    limits = np.iinfo(dtype)
    return call(f"to_{dtype}", call("min", call("max", value, int(limits.min)), int(limits.max)))


def _single(p: Tensor) -> bool:
    return p.rank == 0 or p.rank == 1 and is_same_size(p.shape[0], 1)


def _number(p: Tensor) -> Body:
    """The one element of a parameter."""
    return p[(0,) * p.rank]


def _at(p: Tensor, place: tuple[Size, ...], axis: int, block: int) -> Body:
    """The element of a parameter for this place: one for all, for a slice or for a block of the axis."""
    if _single(p) and not block:
        return _number(p)
    return p[replaced(place, axis, place[axis] // block)] if block else p[place[axis]]


def _fit(scale: Tensor, zero: Tensor | None, x: Tensor, axis: int, block: int) -> None:
    """Raise Untypable unless the scale is for every place of x, and the zero point for those of the scale."""
    whole = _single(scale) and not block
    if not whole:
        axis = one_axis(axis, x.rank)
        along: Size = x.shape[axis] if not block else -((0 - x.shape[axis]) // block)
        wanted = replaced(x.shape, axis, along) if block else (along,)
        if scale.rank != len(wanted) or not all(map(is_same_size, scale.shape, wanted)):
            raise Untypable(f"{scale.name} has shape {scale.shape} for {x.shape} along axis {axis}")
    if zero is None or whole and _single(zero):
        return
    if whole or zero.rank != scale.rank or not all(map(is_same_size, zero.shape, scale.shape)):
        raise Untypable(f"{zero.name} has shape {zero.shape}, {scale.name} {scale.shape}")


def _form(tensors: Sequence[Any], attrs: Mapping[str, Any], implied: str) -> dict[str, Any]:
    """The axis from the front where it matters; an element type only where it is not implied."""
    x, scale = tensors[0], tensors[1]
    whole = _single(scale) and not attrs["block_size"]
    stated = attrs["output_dtype"]
    return {
        "axis": 1 if whole else one_axis(attrs["axis"], x.rank),
        "output_dtype": "undefined" if stated == implied else stated,
    }


def _quantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    zero = tensors[2] if len(tensors) > 2 else None
    found = _form(tensors, attrs, "uint8" if zero is None else zero.dtype)
    if zero is not None and found["output_dtype"] != "undefined":
        raise Untypable(f"{found['output_dtype']} with a zero point of {zero.dtype}")
    return {**found, "saturate": 1}  # concerns 8-bit floats alone, which have no declaration


@op(
    "QuantizeLinear",
    since=10,
    normal=_quantize_form,
    examples=[
        "f32[2,3] f32[]={0.02} u8[]={128}",
        "f32[9]={-2.5,-1.5,-0.5,0,0.5,1.5,2.5,300,-300} f32[]={1} i8[]={3}",
        "f32[4]={1,2,inf,-inf} f32[1]={0.5} u8[1]={7}",
        "f32[2,3]<3 f32[3]>0 i8[3]",
        "f32[2,3,2]<3 f32[2]>0 u8[2] axis=-1",
        "f32[3,2]<3 f32[3]>0 axis=0",
        "f32[4]<300 f32[]={1}",
        "i32[5]={-7,-1,0,3,999} f32[]={2} u8[]={2}",
        "f32[5]={-9,-0.5,0,0.5,9} f32[]={0.0001} i16[]={5}",
        "f32[3] f32[]={0.0001} output_dtype=uint16",
        "f32[2,5]<3 f32[2,3]>0 u8[2,3] block_size=2",
        "f32[0,3] f32[]={1} u8[]",
    ],
)
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: str = "undefined",
    precision: str = "undefined",
    saturate: int = 1,
) -> Scope:
    """round(x / scale) + zero, as the integer type of `zero`."""
    target = zero.dtype if zero is not None else "uint8" if output_dtype == "undefined" else output_dtype
    if target not in STORED:
        raise Untypable(f"quantization to {target}")
    _fit(scale, zero, x, axis, block_size)

    def at(*place: Size) -> Body:
        ratio = converted(x[place], x.dtype, scale.dtype) / _at(scale, place, axis, block_size)
        found: Body = call("round", ratio)
        if zero is not None:
            found = found + converted(_at(zero, place, axis, block_size), zero.dtype, scale.dtype)
        return saturated(found, target)

    return compute(x.shape, at)


def _dequantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return _form(tensors, attrs, tensors[1].dtype)


@op(
    "DequantizeLinear",
    since=10,
    kept=True,
    normal=_dequantize_form,
    examples=[
        "u8[2,3] f32[]={0.02} u8[]={128}",
        "i8[4] f32[1]={0.5} i8[1]={-3}",
        "i8[2,3] f32[3]>0 i8[3]",
        "u8[2,3,2] f32[2]>0 u8[2] axis=-1",
        "i8[3,2] f32[3]>0 axis=0",
        "i32[5]={-70000,-1,0,3,999} f32[]={0.001}",
        "i32[3]={-2147483648,2147483647,16777217} f32[]={1} i32[]={100}",
        "i16[3] f32[]={0.1} i16[]={5}",
        "i8[2,5] f32[2,3]>0 i8[2,3] block_size=2",
        "i8[2,3] f16[]={0.5}",
        "i8[2,3] f16[]={0.5} output_dtype=float32",
        "u8[0,3] f32[]={1} u8[]",
    ],
)
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: str = "undefined",
) -> Scope:
    """(x - zero) * scale, as the element type of `scale`."""
    if zero is not None and zero.dtype != x.dtype:
        raise Untypable(f"{x.dtype} with a zero point of {zero.dtype}")
    target = scale.dtype if output_dtype == "undefined" else output_dtype
    _fit(scale, zero, x, axis, block_size)

    def at(*place: Size) -> Body:
        found = converted(x[place], x.dtype, "int32")  # the difference is one of int32, and wraps as they do
        if zero is not None:
            found = found - converted(_at(zero, place, axis, block_size), zero.dtype, "int32")
        whole = converted(found, "int32", scale.dtype)
        return converted(whole * _at(scale, place, axis, block_size), scale.dtype, target)

    return compute(x.shape, at)


@op(
    "DynamicQuantizeLinear",
    since=11,
    examples=[
        "f32[2,3]",
        "f32[4]>0",
        "f32[6]={-1,-0.5,0,0.5,1,1.55}",
        "f32[3]={-3,-2,-1}",
        "f32[3]={0,0,0}",
        "f32[]={2}",
    ],
)
def dynamic_quantize_linear(x: Tensor) -> tuple[Scope, Scope, Scope]:
    """x as uint8 over its own range, widened to hold 0; the scale and the zero point."""
    demand(x, "float32")
    axes = tuple(range(x.rank))
    low = reduction("min", x, axes, finish=lambda v: call("min", v, 0), keep=False)
    high = reduction("max", x, axes, finish=lambda v: call("max", v, 0), keep=False)
    # the scale of nothing but zeros is 1, as onnxruntime has it; ONNX's formula divides by zero there
    scale = broadcast(lambda a, b: call("where", call("eq", a, b), 1, (b - a) / Const(255)), low, high)
    zero = broadcast(lambda a, s: call("round", call("min", call("max", -a / s, 0), 255)), low, scale)
    stored = compute(x.shape, lambda *i: saturated(call("round", x[i] / scale[()]) + zero[()], "uint8"))
    return stored, scale, broadcast(lambda v: saturated(v, "uint8"), zero)


def _wide(x: Tensor, i: tuple[Size, ...], zero: Body | None) -> Body:
    """x less its zero point, both as int32."""
    value = converted(x[i], x.dtype, "int32")
    return value if zero is None else value - call("to_int32", zero)


def _matrix_parameter(p: Tensor, x: Tensor, axis: int, place: tuple[Size, ...]) -> Body:
    """The element of a matrix's parameter: one for all, for a row or column, or broadcast to it."""
    if _single(p):
        return _number(p)
    return p[place[axis]] if p.rank == 1 else aligned(p, place)


def _centred_matrix(x: Tensor, zero: Tensor | None, axis: int) -> Scope:
    """A matrix less its zero points, as int32; `axis` is that of its rows (-2) or columns (-1)."""
    demand(x, *BYTES)
    if zero is None:
        return compute(x.shape, lambda *i: _wide(x, i, None))
    _fit_matrix(zero, x, axis)
    return compute(x.shape, lambda *i: _wide(x, i, _matrix_parameter(zero, x, axis, i)))


def _fit_matrix(p: Tensor, x: Tensor, axis: int) -> None:
    if _single(p):
        return
    if p.rank == 1:
        if x.rank < -axis or not is_same_size(p.shape[0], x.shape[axis]):
            raise Untypable(f"{p.name} has shape {p.shape} for {x.shape}")
        return
    broadcast_to(x, p)
    if not is_same_size(p.shape[-1 if axis == -2 else -2], 1):
        raise Untypable(f"{p.name} of shape {p.shape} differs within what is added up")


@op(
    "MatMulInteger",
    since=10,
    examples=[
        "u8[2,3] i8[3,4]",
        "u8[2,3] u8[3,4] u8[]={12} u8[]={3}",
        "i8[2,3,4] i8[4,2] i8[1]={-7} i8[2]",
        "u8[2,1,3,4] i8[2,4,2] - i8[]={5}",
        "u8[2,3]={255,255,255,0,0,0} i8[3,1]={-64,-64,-64} u8[]={255}",
        "i8[3] i8[3,2]",
        "u8[0,3] i8[3,2]",
    ],
)
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Scope:
    """(a - a_zero) times (b - b_zero) in int32."""
    return matrix_product(_centred_matrix(a, a_zero, -2), _centred_matrix(b, b_zero, -1))


def _channel(p: Tensor, channel: Size) -> Body:
    return _number(p) if _single(p) else p[channel]


def _fit_channels(p: Tensor | None, w: Tensor) -> None:
    if p is not None and not _single(p) and not (p.rank == 1 and is_same_size(p.shape[0], w.shape[0])):
        raise Untypable(f"{p.name} has shape {p.shape} for {w.shape[0]} channels")


def _integer_convolution(
    x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None, b: Tensor | None, attrs: Any
) -> Scope:
    """The convolution of what x and w stand for, scales apart, in int32."""
    demand(x, *BYTES)
    demand(w, *BYTES)
    if x_zero is not None and not _single(x_zero):
        raise Untypable(f"{x_zero.name} has shape {x_zero.shape}")
    _fit_channels(w_zero, w)
    whole = compute(x.shape, lambda *i: _wide(x, i, None if x_zero is None else _number(x_zero)))
    kernel = compute(w.shape, lambda *i: _wide(w, i, None if w_zero is None else _channel(w_zero, i[0])))
    return correlation(whole, kernel, b, *attrs)


@op(
    "ConvInteger",
    since=10,
    normal=conv_form,
    examples=[
        "u8[1,2,5,4] i8[3,2,3,3] u8[]={12} pads=(1,1,1,1)",
        "u8[2,2,5,4] u8[3,2,3,2] u8[]={200} u8[]={99} strides=(2,1)",
        "u8[1,4,5,5] i8[4,1,3,3] u8[1]={3} i8[4] group=4 dilations=(2,1)",
        "i8[1,2,6] i8[2,2,3] kernel_shape=(3,)",
        "u8[1,2,5,4] i8[3,2,3,3] auto_pad='SAME_UPPER' strides=(2,2)",
    ],
)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:
    """The convolution of x - x_zero with w - w_zero in int32; beyond the edges x is x_zero."""
    return _integer_convolution(x, x_zero, w, w_zero, None, (strides, dilations, pads, group))


def _requantized(total: Body, factor: Body, scale: Tensor, zero: Tensor) -> Body:
    """An int32 total times a real factor, as the integer type of `zero`."""
    found = call("round", call(f"to_{scale.dtype}", total) * factor)
    return saturated(found + converted(_number(zero), zero.dtype, scale.dtype), zero.dtype)


def _single_result(scale: Tensor, zero: Tensor) -> None:
    demand(zero, *BYTES)
    if not (_single(scale) and _single(zero)):
        raise Untypable(f"a result quantized by {scale.shape} and {zero.shape}")


@op(
    "QLinearMatMul",
    since=10,
    examples=[
        "u8[2,3] f32[]={0.1} u8[]={12} i8[3,4] f32[]={0.2} i8[]={3} f32[]={0.3} u8[]={100}",
        "i8[2,3,4] f32[1]={0.1} i8[1] i8[4,2] f32[2]>0 i8[2] f32[1]={0.3} i8[1]={-9}",
        "u8[2,3] f32[]={9} u8[] u8[3,4] f32[]={9} u8[] f32[]={0.1} u8[]",
    ],
)
def qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor,
    b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Scope:  # fmt: skip
    """The product of what a and b stand for, quantized by y_scale and y_zero."""
    _single_result(y_scale, y_zero)
    _fit_matrix(a_scale, a, -2)
    _fit_matrix(b_scale, b, -1)
    if (a_scale.rank > 1 or b_scale.rank > 1) or a.rank < 2 or b.rank < 2:
        raise Untypable(f"scales of shapes {a_scale.shape} and {b_scale.shape}")
    product = matrix_product(_centred_matrix(a, a_zero, -2), _centred_matrix(b, b_zero, -1))

    def at(*i: Size) -> Body:
        row = _number(a_scale) if _single(a_scale) else a_scale[i[-2]]
        column = _number(b_scale) if _single(b_scale) else b_scale[i[-1]]
        return _requantized(product[i], row * column / _number(y_scale), y_scale, y_zero)

    return compute(product.shape, at)


def _qlinear_conv_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return conv_form((tensors[0], tensors[3]), attrs)


@op(
    "QLinearConv",
    since=10,
    normal=_qlinear_conv_form,
    examples=[
        "u8[1,2,5,4] f32[]={0.1} u8[]={12} i8[3,2,3,3] f32[3]>0 i8[3]={0,0,0} f32[]={0.3} u8[]={100}"
        " i32[3] pads=(1,1,1,1)",
        "u8[1,2,5,4] f32[]={0.1} u8[]={9} u8[3,2,3,3] f32[]={0.1} u8[]={4} f32[]={0.3} u8[]={100}"
        " strides=(2,1)",
        "i8[1,4,5,5] f32[]={0.1} i8[]={-2} i8[4,1,3,3] f32[4]>0 i8[4]={0,0,0,0} f32[]={0.3} i8[]={5} group=4",
    ],
)
def qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor,
    w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """The convolution of what x and w stand for, b in units of their scales, quantized by y_scale, y_zero."""
    _single_result(y_scale, y_zero)
    _fit_channels(w_scale, w)
    if not _single(x_scale):
        raise Untypable(f"{x_scale.name} has shape {x_scale.shape}")
    found = _integer_convolution(x, x_zero, w, w_zero, b, (strides, dilations, pads, group))

    def at(*i: Size) -> Body:
        factor = _number(x_scale) * _channel(w_scale, i[1]) / _number(y_scale)
        return _requantized(found[i], factor, y_scale, y_zero)

    return compute(found.shape, at)
