"""Integer quantization: an integer q with scale s and zero point z represents the number (q - z) * s.

Rounding is to the nearest, ties to even; numbers beyond the range of the integer type become its nearest end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.axes import one_axis, replace_index
from tensaurus.ops.contraction import matrix_product
from tensaurus.ops.convolution import conv_form, correlation
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import broadcast, broadcast_read, broadcast_to, convert_dtype, require_dtype
from tensaurus.ops.reduction import reduction

QUANTIZED_TYPES = ("int8", "uint8", "int16", "uint16")
BYTE_TYPES = ("int8", "uint8")


def saturate_to(value: Body, dtype: str) -> Body:
    """Return a whole float as the nearest integer of the type."""
    limits = np.iinfo(dtype)
    return call(f"to_{dtype}", call("min", call("max", value, int(limits.min)), int(limits.max)))


def _has_one_element(p: Tensor) -> bool:
    return p.rank == 0 or p.rank == 1 and is_same_size(p.shape[0], 1)


def _only_element(p: Tensor) -> Body:
    """Return the one element of a parameter."""
    return p[(0,) * p.rank]


def _element_at(p: Tensor, indices: tuple[Size, ...], axis: int, block: int) -> Body:
    """Return the scale or zero point of x[indices]: the only one, or that of its slice or block."""
    if _has_one_element(p) and not block:
        return _only_element(p)
    return p[replace_index(indices, axis, indices[axis] // block)] if block else p[indices[axis]]


def _check_parameter_shapes(scale: Tensor, zero: Tensor | None, x: Tensor, axis: int, block: int) -> None:
    """Raise Untypable unless the scale covers every element of x, and the zero point those of the scale."""
    is_per_tensor = _has_one_element(scale) and not block
    if not is_per_tensor:
        axis = one_axis(axis, x.rank)
        extent: Size = x.shape[axis] if not block else -((0 - x.shape[axis]) // block)
        expected_shape = replace_index(x.shape, axis, extent) if block else (extent,)
        if scale.rank != len(expected_shape) or not all(map(is_same_size, scale.shape, expected_shape)):
            raise Untypable(f"{scale.name} has shape {scale.shape} for {x.shape} along axis {axis}")
    if zero is None or is_per_tensor and _has_one_element(zero):
        return
    if is_per_tensor or zero.rank != scale.rank or not all(map(is_same_size, zero.shape, scale.shape)):
        raise Untypable(f"{zero.name} has shape {zero.shape}, {scale.name} {scale.shape}")


def _canonical_form(tensors: Sequence[Any], attrs: Mapping[str, Any], implied: str) -> dict[str, Any]:
    """Return the axis from the front where it matters, and the element type where it is not implied."""
    x, scale = tensors[0], tensors[1]
    is_per_tensor = _has_one_element(scale) and not attrs["block_size"]
    dtype = attrs["output_dtype"]
    return {
        "axis": 1 if is_per_tensor else one_axis(attrs["axis"], x.rank),
        "output_dtype": "undefined" if dtype == implied else dtype,
    }


def _quantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    zero = tensors[2] if len(tensors) > 2 else None
    form = _canonical_form(tensors, attrs, "uint8" if zero is None else zero.dtype)
    if zero is not None and form["output_dtype"] != "undefined":
        raise Untypable(f"{form['output_dtype']} with a zero point of {zero.dtype}")
    return {**form, "saturate": 1}  # concerns 8-bit floats alone, which have no declaration


@op(
    "QuantizeLinear",
    since=10,
    canonicalize=_quantize_form,
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
    if target not in QUANTIZED_TYPES:
        raise Untypable(f"quantization to {target}")
    _check_parameter_shapes(scale, zero, x, axis, block_size)

    def at(*i: Size) -> Body:
        ratio = convert_dtype(x[i], x.dtype, scale.dtype) / _element_at(scale, i, axis, block_size)
        value: Body = call("round", ratio)
        if zero is not None:
            offset = _element_at(zero, i, axis, block_size)
            value = value + convert_dtype(offset, zero.dtype, scale.dtype)
        return saturate_to(value, target)

    return compute(x.shape, at)


def _dequantize_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return _canonical_form(tensors, attrs, tensors[1].dtype)


@op(
    "DequantizeLinear",
    since=10,
    is_never_folded=True,
    canonicalize=_dequantize_form,
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
    _check_parameter_shapes(scale, zero, x, axis, block_size)

    def at(*indices: Size) -> Body:
        difference = convert_dtype(x[indices], x.dtype, "int32")  # the difference wraps as an int32
        if zero is not None:
            offset = _element_at(zero, indices, axis, block_size)
            difference = difference - convert_dtype(offset, zero.dtype, "int32")
        product = convert_dtype(difference, "int32", scale.dtype)
        return convert_dtype(product * _element_at(scale, indices, axis, block_size), scale.dtype, target)

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
    require_dtype(x, "float32")
    axes = tuple(range(x.rank))
    low = reduction("min", x, axes, finish=lambda v: call("min", v, 0), keep=False)
    high = reduction("max", x, axes, finish=lambda v: call("max", v, 0), keep=False)
    # the scale of nothing but zeros is 1, as onnxruntime has it; ONNX's formula divides by zero there
    scale = broadcast(lambda a, b: call("where", call("eq", a, b), 1, (b - a) / Const(255)), low, high)
    zero = broadcast(lambda a, s: call("round", call("min", call("max", -a / s, 0), 255)), low, scale)
    stored = compute(x.shape, lambda *i: saturate_to(call("round", x[i] / scale[()]) + zero[()], "uint8"))
    return stored, scale, broadcast(lambda v: saturate_to(v, "uint8"), zero)


def _minus_zero_point(x: Tensor, i: tuple[Size, ...], zero: Body | None) -> Body:
    """Return x minus its zero point, both as int32."""
    value = convert_dtype(x[i], x.dtype, "int32")
    return value if zero is None else value - call("to_int32", zero)


def _matrix_parameter(p: Tensor, x: Tensor, axis: int, indices: tuple[Size, ...]) -> Body:
    """Return the element of a matrix's parameter: one for all, for a row or column, or broadcast."""
    if _has_one_element(p):
        return _only_element(p)
    return p[indices[axis]] if p.rank == 1 else broadcast_read(p, indices)


def _matrix_minus_zero_points(x: Tensor, zero: Tensor | None, axis: int) -> Scope:
    """Return a matrix minus its zero points, as int32; `axis` is that of its rows (-2) or columns (-1)."""
    require_dtype(x, *BYTE_TYPES)
    if zero is None:
        return compute(x.shape, lambda *i: _minus_zero_point(x, i, None))
    _check_matrix_parameter(zero, x, axis)
    return compute(x.shape, lambda *i: _minus_zero_point(x, i, _matrix_parameter(zero, x, axis, i)))


def _check_matrix_parameter(p: Tensor, x: Tensor, axis: int) -> None:
    if _has_one_element(p):
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
    return matrix_product(_matrix_minus_zero_points(a, a_zero, -2), _matrix_minus_zero_points(b, b_zero, -1))


def _channel_element(p: Tensor, channel: Size) -> Body:
    return _only_element(p) if _has_one_element(p) else p[channel]


def _check_channel_parameter(p: Tensor | None, w: Tensor) -> None:
    if p is None or _has_one_element(p):
        return
    if p.rank != 1 or not is_same_size(p.shape[0], w.shape[0]):
        raise Untypable(f"{p.name} has shape {p.shape} for {w.shape[0]} channels")


def _integer_convolution(
    x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None, b: Tensor | None, attrs: Any
) -> Scope:
    """Return conv(x - x_zero, w - w_zero) + b in int32; attrs is (strides, dilations, pads, group)."""
    require_dtype(x, *BYTE_TYPES)
    require_dtype(w, *BYTE_TYPES)
    if x_zero is not None and not _has_one_element(x_zero):
        raise Untypable(f"{x_zero.name} has shape {x_zero.shape}")
    _check_channel_parameter(w_zero, w)
    centred_x = compute(
        x.shape, lambda *i: _minus_zero_point(x, i, None if x_zero is None else _only_element(x_zero))
    )
    centred_w = compute(
        w.shape,
        lambda *i: _minus_zero_point(w, i, None if w_zero is None else _channel_element(w_zero, i[0])),
    )
    return correlation(centred_x, centred_w, b, *attrs)


@op(
    "ConvInteger",
    since=10,
    canonicalize=conv_form,
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


def _requantize(total: Body, factor: Body, scale: Tensor, zero: Tensor) -> Body:
    """Return an int32 total times a real factor, as the integer type of `zero`."""
    rounded = call("round", call(f"to_{scale.dtype}", total) * factor)
    return saturate_to(rounded + convert_dtype(_only_element(zero), zero.dtype, scale.dtype), zero.dtype)


def _check_result_parameters(scale: Tensor, zero: Tensor) -> None:
    require_dtype(zero, *BYTE_TYPES)
    if not (_has_one_element(scale) and _has_one_element(zero)):
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
    _check_result_parameters(y_scale, y_zero)
    _check_matrix_parameter(a_scale, a, -2)
    _check_matrix_parameter(b_scale, b, -1)
    if (a_scale.rank > 1 or b_scale.rank > 1) or a.rank < 2 or b.rank < 2:
        raise Untypable(f"scales of shapes {a_scale.shape} and {b_scale.shape}")
    product = matrix_product(
        _matrix_minus_zero_points(a, a_zero, -2), _matrix_minus_zero_points(b, b_zero, -1)
    )

    def at(*i: Size) -> Body:
        row = _only_element(a_scale) if _has_one_element(a_scale) else a_scale[i[-2]]
        column = _only_element(b_scale) if _has_one_element(b_scale) else b_scale[i[-1]]
        return _requantize(product[i], row * column / _only_element(y_scale), y_scale, y_zero)

    return compute(product.shape, at)


def _qlinear_conv_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return conv_form((tensors[0], tensors[3]), attrs)  # x and w


@op(
    "QLinearConv",
    since=10,
    canonicalize=_qlinear_conv_form,
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
    """The convolution of what x, w stand for, quantized by y_scale, y_zero; b has scale x_scale * w_scale."""
    _check_result_parameters(y_scale, y_zero)
    _check_channel_parameter(w_scale, w)
    if not _has_one_element(x_scale):
        raise Untypable(f"{x_scale.name} has shape {x_scale.shape}")
    totals = _integer_convolution(x, x_zero, w, w_zero, b, (strides, dilations, pads, group))

    def at(*i: Size) -> Body:
        factor = _only_element(x_scale) * _channel_element(w_scale, i[1]) / _only_element(y_scale)
        return _requantize(totals[i], factor, y_scale, y_zero)

    return compute(totals.shape, at)
