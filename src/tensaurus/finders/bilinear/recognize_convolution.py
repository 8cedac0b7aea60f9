"""Recognizes convolutions by the expressions of nodes, whatever their operators, in this form:

    sum[c, k...](x[n, f // F * C + c, y * stride + k * dilation - pad, ... | 0] * w[f, c, k, ...]) + b[f]

where a group has F filters and C channels, and "| 0" says that x is 0 outside its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Source, Tensor
from tensaurus.expr.ir.walk import operands
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Size, atoms, floordiv, polynomial
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.tiling import ConvolutionAxis
from tensaurus.graph.ir.node import Node
from tensaurus.ops import Op, TensorType

__all__ = ["RecognizedConvolution", "recognize_convolution"]

FLOAT_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class RecognizedConvolution:
    """A convolution, and which arguments of the node are its data, weights and bias."""

    convolution: Convolution
    data: Node
    weights: Node
    bias: Node | None


def recognize_convolution(node: Node) -> RecognizedConvolution | None:
    """Returns the convolution that a node computes, of floats and with numeric sizes, or None."""
    if not isinstance(node.op, Op) or len(node.types) != 1 or not node.args:
        return None
    if not all(_is_float_tensor(value.types[0]) for value in (node, *filter(None, node.args))):
        return None
    kinds = node.arg_types()
    scope = node.op.scopes(kinds, node.attrs)[0]
    parts = _split_sum(scope.body)
    if parts is None:
        return None
    args: dict[Source | None, Any] = dict(zip(node.op.tensors(kinds), node.args, strict=False))
    for data, weights in permutations(parts.factors):
        if convolution := _match_convolution(scope, data, weights, parts.bias):
            bias = None if parts.bias is None else args[parts.bias.source]
            return RecognizedConvolution(convolution, args[data.source], args[weights.source], bias)
    return None


def _is_float_tensor(kind: object) -> bool:
    """Whether the type is of a nonempty tensor of floats with numeric sizes."""
    if not isinstance(kind, TensorType) or kind.dtype not in FLOAT_DTYPES:
        return False
    return kind.static and 0 not in kind.shape


class _SumParts(NamedTuple):
    """The two factors whose products are added up, and a read that is added to the sum."""

    factors: Sequence[Read]
    bias: Read | None


def _split_sum(body: Body) -> _SumParts | None:
    """Returns the parts of a sum of products of two reads, plus perhaps one read; None for other bodies."""
    parts = operands(body) if isinstance(body, Call) and body.fn == "add" else (body,)
    sums = [part for part in parts if isinstance(part, Reduce) and part.monoid == "sum"]
    added = [part for part in parts if isinstance(part, Read)]
    if len(sums) != 1 or len(added) > 1 or len(sums) + len(added) != len(parts):
        return None
    inner = sums[0].body
    factors = operands(inner) if isinstance(inner, Call) and inner.fn == "mul" else ()
    read = [f for f in factors if isinstance(f, Read) and isinstance(f.source, Tensor)]
    return _SumParts(read, added[0] if added else None) if len(read) == len(factors) == 2 else None


def _match_convolution(scope: Scope, data: Read, weights: Read, bias: Read | None) -> Convolution | None:
    """Returns the convolution that adds up products of these factors, or None."""
    x_shape: tuple[Any, ...] = data.source.shape
    w_shape: tuple[Any, ...] = weights.source.shape
    if not 3 <= len(x_shape) == len(w_shape) == len(scope.axes):
        return None
    n, f = map(polynomial, scope.axes[:2])  # the output's axes: batch, filter, spatial positions
    if bias is not None and (bias.indices != (f,) or bias.source.shape != (w_shape[0],)):
        return None
    # batch, filters and channels: x[n, f // F * C + c, ...] * w[f, c, ...]
    if data.outside not in (None, Const(0)) or weights.outside is not None or x_shape[1] % w_shape[1] != 0:
        return None
    groups, c = x_shape[1] // w_shape[1], weights.indices[1]
    if w_shape[0] % groups != 0 or scope.shape[:2] != (x_shape[0], w_shape[0]):
        return None
    channel = floordiv(f, w_shape[0] // groups) * w_shape[1] + c
    if weights.indices[0] != f or data.indices[:2] != (n, channel):
        return None
    matched = [_match_spatial_axis(scope, data, weights, d) for d in range(2, len(x_shape))]
    axes = tuple(axis for axis in matched if axis is not None)
    if len(axes) < len(matched):
        return None
    assert isinstance(data.source, Tensor)
    dtype = data.source.dtype
    return Convolution(x_shape[0], x_shape[1], w_shape[0], groups, axes, bias is not None, dtype)


def _match_spatial_axis(scope: Scope, data: Read, weights: Read, d: int) -> ConvolutionAxis | None:
    """Returns dimension d, in which x is read at y * stride + k * dilation - pad and w at k, or None."""
    size: Any = data.source.shape[d]
    taps: Any = weights.source.shape[d]
    y, k = _as_axis(polynomial(scope.axes[d])), _as_axis(weights.indices[d])
    if y is None or k is None or k.extent != taps:
        return None
    form = affine_coefficients(data.indices[d], [y, k])
    if form is None:
        return None
    stride, dilation, pad = form.slopes.get(y, 0), form.slopes.get(k, 0), -form.rest
    if not (isinstance(stride, int) and isinstance(dilation, int) and isinstance(pad, int)):
        return None
    if stride < 1 or dilation < 1:
        return None
    return ConvolutionAxis(size, taps, y.extent, stride, dilation, pad)


def _as_axis(size: Size) -> Axis | None:
    """Returns the axis that a size is, or None for other sizes."""
    atom = next(iter(atoms(size)), None)
    return atom if isinstance(atom, Axis) and size == polynomial(atom) else None
