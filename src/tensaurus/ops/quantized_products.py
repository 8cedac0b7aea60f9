"""Declare products and convolutions of quantized tensors (`quantization`), which are added up in int32.

MatMulInteger and ConvInteger return the int32 sums; QLinearMatMul and QLinearConv quantize them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, call, compute
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.contraction import matrix_product
from tensaurus.ops.convolution import conv_form, correlation
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import (
    broadcast_read,
    broadcast_to,
    convert_dtype,
    has_one_element,
    require_dtype,
)
from tensaurus.ops.quantization import only_element, saturate_to

BYTE_TYPES = ("int8", "uint8")


def _subtract_zero_points(x: Tensor, zero_at: Callable[[tuple[Size, ...]], Body] | None) -> Scope:
    """Return x minus the zero point at each index, both as int32."""

    def at(*i: Size) -> Body:
        value = convert_dtype(x[i], x.dtype, "int32")
        return value if zero_at is None else value - call("to_int32", zero_at(i))

    return compute(x.shape, at)


def _check_matrix_parameter(p: Tensor, x: Tensor, axis: int) -> None:
    """Raise Untypable unless p has one element, one for each row (axis -2) or column (-1), or broadcasts."""
    if has_one_element(p):
        return
    if p.rank == 1:
        if x.rank < -axis or not is_same_size(p.shape[0], x.shape[axis]):
            raise Untypable(f"{p.name} has shape {p.shape} for {x.shape}")
        return
    broadcast_to(x, p)
    if not is_same_size(p.shape[-1 if axis == -2 else -2], 1):
        raise Untypable(f"{p.name} of shape {p.shape} differs within what is added up")


def _matrix_without_zero_points(x: Tensor, zero: Tensor | None, axis: int) -> Scope:
    """Return a matrix minus its zero points, as int32; `axis` is that of its rows (-2) or columns (-1)."""
    require_dtype(x, *BYTE_TYPES)
    if zero is None:
        return _subtract_zero_points(x, None)
    _check_matrix_parameter(zero, x, axis)

    def zero_at(indices: tuple[Size, ...]) -> Body:
        if has_one_element(zero):
            return only_element(zero)
        return zero[indices[axis]] if zero.rank == 1 else broadcast_read(zero, indices)

    return _subtract_zero_points(x, zero_at)


@op("MatMulInteger", since=10, examples=[
    "u8[2,3] i8[3,4]", "u8[2,3] u8[3,4] u8[]={12} u8[]={3}", "i8[2,3,4] i8[4,2] i8[1]={-7} i8[2]",
    "u8[2,1,3,4] i8[2,4,2] - i8[]={5}",
    "u8[2,3]={255,255,255,0,0,0} i8[3,1]={-64,-64,-64} u8[]={255}",
    "i8[3] i8[3,2]", "u8[0,3] i8[3,2]",
])  # fmt: skip
def matmul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Scope:
    """(a - a_zero) times (b - b_zero) in int32."""
    return matrix_product(
        _matrix_without_zero_points(a, a_zero, -2), _matrix_without_zero_points(b, b_zero, -1)
    )


def _channel_element(p: Tensor, channel: Size) -> Body:
    """Return the scale or zero point of an output channel."""
    return only_element(p) if has_one_element(p) else p[channel]


def _check_channel_parameter(p: Tensor | None, w: Tensor) -> None:
    """Raise Untypable unless p is absent, or has one element, or one for each output channel of w."""
    if p is None or has_one_element(p):
        return
    if p.rank != 1 or not is_same_size(p.shape[0], w.shape[0]):
        raise Untypable(f"{p.name} has shape {p.shape} for {w.shape[0]} channels")


def _integer_convolution(
    x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None, b: Tensor | None, *geometry: Any
) -> Scope:
    """Return conv(x - x_zero, w - w_zero) + b in int32; `geometry` is strides, dilations, pads, group."""
    require_dtype(x, *BYTE_TYPES)
    require_dtype(w, *BYTE_TYPES)
    if x_zero is not None and not has_one_element(x_zero):
        raise Untypable(f"{x_zero.name} has shape {x_zero.shape}")
    _check_channel_parameter(w_zero, w)
    centred_x = _subtract_zero_points(x, None if x_zero is None else lambda i: only_element(x_zero))
    centred_w = _subtract_zero_points(w, None if w_zero is None else lambda i: _channel_element(w_zero, i[0]))
    return correlation(centred_x, centred_w, b, *geometry)


@op("ConvInteger", since=10, canonicalize=conv_form, examples=[
    "u8[1,2,5,4] i8[3,2,3,3] u8[]={12} pads=(1,1,1,1)",
    "u8[2,2,5,4] u8[3,2,3,2] u8[]={200} u8[]={99} strides=(2,1)",
    "u8[1,4,5,5] i8[4,1,3,3] u8[1]={3} i8[4] group=4 dilations=(2,1)",
    "i8[1,2,6] i8[2,2,3] kernel_shape=(3,)",
    "u8[1,2,5,4] i8[3,2,3,3] auto_pad='SAME_UPPER' strides=(2,2)",
])  # fmt: skip
def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """The convolution of x - x_zero with w - w_zero in int32; beyond the edges x is x_zero."""
    return _integer_convolution(x, x_zero, w, w_zero, None, strides, dilations, pads, group)


def _requantize(total: Body, factor: Body, scale: Tensor, zero: Tensor) -> Body:
    """Return an int32 total times a real factor, as the integer type of `zero`."""
    rounded = call("round", call(f"to_{scale.dtype}", total) * factor)
    return saturate_to(rounded + convert_dtype(only_element(zero), zero.dtype, scale.dtype), zero.dtype)


def _check_result_parameters(scale: Tensor, zero: Tensor) -> None:
    """Raise Untypable unless a result is quantized by one scale and one zero point."""
    require_dtype(zero, *BYTE_TYPES)
    if not (has_one_element(scale) and has_one_element(zero)):
        raise Untypable(f"a result quantized by {scale.shape} and {zero.shape}")


@op("QLinearMatMul", since=10, examples=[
    "u8[2,3] f32[]={0.1} u8[]={12} i8[3,4] f32[]={0.2} i8[]={3} f32[]={0.3} u8[]={100}",
    "i8[2,3,4] f32[1]={0.1} i8[1] i8[4,2] f32[2]>0 i8[2] f32[1]={0.3} i8[1]={-9}",
    "u8[2,3] f32[]={9} u8[] u8[3,4] f32[]={9} u8[] f32[]={0.1} u8[]",
])  # fmt: skip
def qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor,
    b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Scope:  # fmt: skip
    """The product of what a and b stand for, quantized by y_scale and y_zero."""
    _check_result_parameters(y_scale, y_zero)
    _check_matrix_parameter(a_scale, a, -2)
    _check_matrix_parameter(b_scale, b, -1)
    if (a_scale.rank > 1 or b_scale.rank > 1) or a.rank < 2 or b.rank < 2:
        raise Untypable(f"scales of shapes {a_scale.shape} and {b_scale.shape}")
    product = matrix_product(
        _matrix_without_zero_points(a, a_zero, -2), _matrix_without_zero_points(b, b_zero, -1)
    )

    def at(*i: Size) -> Body:
        row = only_element(a_scale) if has_one_element(a_scale) else a_scale[i[-2]]
        column = only_element(b_scale) if has_one_element(b_scale) else b_scale[i[-1]]
        return _requantize(product[i], row * column / only_element(y_scale), y_scale, y_zero)

    return compute(product.shape, at)


def _qlinear_conv_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return conv_form((tensors[0], tensors[3]), attrs)  # x and w


@op("QLinearConv", since=10, canonicalize=_qlinear_conv_form, examples=[
    "u8[1,2,5,4] f32[]={0.1} u8[]={12} i8[3,2,3,3] f32[3]>0 i8[3]={0,0,0} f32[]={0.3} u8[]={100}"
    " i32[3] pads=(1,1,1,1)",
    "u8[1,2,5,4] f32[]={0.1} u8[]={9} u8[3,2,3,3] f32[]={0.1} u8[]={4} f32[]={0.3} u8[]={100}"
    " strides=(2,1)",
    "i8[1,4,5,5] f32[]={0.1} i8[]={-2} i8[4,1,3,3] f32[4]>0 i8[4]={0,0,0,0} f32[]={0.3} i8[]={5} group=4",
])  # fmt: skip
def qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor,
    w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
    b: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: tuple[int, ...] | None = None, group: int = 1,
    kernel_shape: tuple[int, ...] | None = None, pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Scope:  # fmt: skip
    """The convolution of what x, w stand for, quantized by y_scale, y_zero; b has scale x_scale * w_scale."""
    _check_result_parameters(y_scale, y_zero)
    _check_channel_parameter(w_scale, w)
    if not has_one_element(x_scale):
        raise Untypable(f"{x_scale.name} has shape {x_scale.shape}")
    totals = _integer_convolution(x, x_zero, w, w_zero, b, strides, dilations, pads, group)

    def at(*i: Size) -> Body:
        factor = only_element(x_scale) * _channel_element(w_scale, i[1]) / only_element(y_scale)
        return _requantize(totals[i], factor, y_scale, y_zero)

    return compute(totals.shape, at)
