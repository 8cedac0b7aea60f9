"""Recognizes convolutions by the expressions of nodes, whatever their operators, in this form:

    sum[c, k...](x[n, f // F * C + c, y * stride + k * dilation - pad, ... | 0] * w[f, c, k, ...]) + b[f]

where a group has F filters and C channels, and "| 0" says that x is 0 outside its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

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
    """A convolution, and the node's arguments that are its data, weights and bias."""

    convolution: Convolution
    x: Node
    w: Node
    b: Node | None


def recognize_convolution(node: Node) -> RecognizedConvolution | None:
    """Returns the convolution that a node computes, of floats and with numeric sizes, or None."""
    if not isinstance(node.op, Op) or len(node.types) != 1 or not node.args:
        return None
    for value in (node, *(arg for arg in node.args if arg is not None)):
        kind = value.types[0]
        if not isinstance(kind, TensorType) or kind.dtype not in FLOAT_DTYPES:
            return None
        if not kind.static or 0 in kind.shape:
            return None
    kinds = node.arg_types()
    scope = node.op.scopes(kinds, node.attrs)[0]
    args: dict[Source | None, Any] = dict(zip(node.op.tensors(kinds), node.args, strict=False))
    for product, bias in _split_sum(scope.body):
        for data, weights in permutations(product):
            if convolution := _match_convolution(scope, data, weights, bias):
                b = None if bias is None else args[bias.source]
                return RecognizedConvolution(convolution, args[data.source], args[weights.source], b)
    return None


def _split_sum(body: Body) -> Iterator[tuple[tuple[Read, Read], Read | None]]:
    """Yields ((factor, factor), bias or None) if the body is a sum of products, plus perhaps one read."""
    parts = operands(body) if isinstance(body, Call) and body.fn == "add" else (body,)
    sums = [part for part in parts if isinstance(part, Reduce) and part.monoid == "sum"]
    added = [part for part in parts if isinstance(part, Read)]
    if len(sums) == 1 and len(sums) + len(added) == len(parts) <= 2:
        inner = sums[0].body
        factors = operands(inner) if isinstance(inner, Call) and inner.fn == "mul" else ()
        if len(factors) == 2 and all(isinstance(f, Read) and isinstance(f.source, Tensor) for f in factors):
            yield tuple(factors), added[0] if added else None  # type: ignore[misc]


def _match_convolution(scope: Scope, data: Read, weights: Read, bias: Read | None) -> Convolution | None:
    """Returns the convolution that adds up products of these factors, or None."""
    x_shape: tuple[Any, ...] = data.source.shape
    w_shape: tuple[Any, ...] = weights.source.shape
    if not 3 <= len(x_shape) == len(w_shape) == len(scope.axes):
        return None
    n, f, *places = map(polynomial, scope.axes)  # the output's axes: batch, filter, spatial positions
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
    # each spatial dimension: x is read at y * stride + k * dilation - pad, w at k
    windows: list[ConvolutionAxis] = []
    for index, size, tap, taps, place, outputs in zip(
        data.indices[2:], x_shape[2:], weights.indices[2:], w_shape[2:], places, scope.axes[2:], strict=True
    ):
        y, k = _as_axis(place), _as_axis(tap)
        if (
            y is None
            or k is None
            or k.extent != taps
            or (form := affine_coefficients(index, [y, k])) is None
        ):
            return None
        slopes, rest = form
        stride, dilation, pad = (slopes.get(y, 0), slopes.get(k, 0), -rest)
        if not (isinstance(stride, int) and isinstance(dilation, int) and isinstance(pad, int)):
            return None
        if stride < 1 or dilation < 1:
            return None
        windows.append(ConvolutionAxis(size, taps, outputs.extent, stride, dilation, pad))
    assert isinstance(data.source, Tensor)
    dtype = data.source.dtype
    return Convolution(x_shape[0], x_shape[1], w_shape[0], groups, tuple(windows), bias is not None, dtype)


def _as_axis(size: Size) -> Axis | None:
    """Returns the axis that a size is, or None for other sizes."""
    atom = next(iter(atoms(size)), None)
    return atom if isinstance(atom, Axis) and size == polynomial(atom) else None
