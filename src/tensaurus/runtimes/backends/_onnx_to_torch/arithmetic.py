"""Renders elementwise operators, contractions, windows, normalizations and reductions in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import ceil, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nn

from tensaurus.runtimes.backends._onnx_to_torch.rendering import (
    RENDERINGS,
    Refused,
    Rendered,
    Rendering,
    renders,
)

__all__ = ["CONVOLUTIONS", "pad_last_axes"]


def _plain(function: Callable[..., Any]) -> Rendering:
    """Return the rendering of an operator that is a function of torch."""
    return lambda node, *inputs: function(*inputs)


def _reduced(function: Callable[..., Any]) -> Rendering:
    """Return the rendering of an operator that combines any number of inputs by a function of two."""
    return lambda node, *inputs: reduce(function, inputs)


SAME_NAME_IN_TORCH = (
    "Abs Neg Sign Reciprocal Exp Log Sqrt Erf Tanh Sigmoid Relu Sin Cos Floor Ceil Round"
    " Add Sub Mul MatMul Where"
)
RENDERINGS |= {name: _plain(getattr(torch, name.lower())) for name in SAME_NAME_IN_TORCH.split()}
RENDERINGS |= {
    "Identity": _plain(lambda x: x),
    "Equal": _plain(torch.eq),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Not": _plain(torch.logical_not),
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "HardSwish": _plain(nn.hardswish),
    "Softplus": _plain(nn.softplus),
    "Softsign": _plain(nn.softsign),
    "Mish": _plain(nn.mish),
    "Cast": lambda node, x: x.to(node.attribute("to")),
    "LeakyRelu": lambda node, x: nn.leaky_relu(x, node.attribute("alpha")),
    "Elu": lambda node, x: nn.elu(x, node.attribute("alpha")),
    "Gelu": lambda node, x: nn.gelu(x, approximate=node.attribute("approximate")),
    "Einsum": lambda node, *inputs: torch.einsum(node.attribute("equation"), *inputs),
    "Sum": _reduced(torch.add),
    "Max": _reduced(torch.maximum),
    "Min": _reduced(torch.minimum),
}


# ------------------------------------------------------------------------------------- elementwise


@renders("Div")
def _div(node: Rendered, x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode=None if node.dtypes[0].is_floating_point else "trunc")


@renders("Pow")
def _pow(node: Rendered, x: Any, y: Any) -> Any:
    try:
        exponent = node.known(1)
    except Refused:
        exponent = None
    if exponent is not None and exponent.numel() == 1 and exponent.ndim <= len(node.shapes[0]):
        power = torch.pow(x, exponent.item())
    else:
        power = torch.pow(x, y)
    keeps_type = torch.promote_types(node.dtypes[0], node.dtypes[1]) == node.dtypes[0]
    return power if keeps_type else power.to(node.dtypes[0])


@renders("Clip")
def _clip(node: Rendered, x: Any, low: Any = None, high: Any = None) -> Any:
    old = (node.attribute("min"), node.attribute("max"))  # attributes before version 11
    dtype = node.dtypes[0]
    kind = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    ends: list[Any] = [kind.min, kind.max]  # the bounds where absent: infinities become numbers, as in ONNX
    try:
        parts = [known if known is None else known.item() for known in (node.known(1), node.known(2))]
        bounds = [part if given is None else given for part, given in zip(parts, old, strict=True)]
    except Refused:
        bounds, ends = [low, high], [node.constant(torch.tensor(end, dtype=dtype)) for end in ends]
    bounds = [end if bound is None else bound for bound, end in zip(bounds, ends, strict=True)]
    return torch.clamp(x, bounds[0], bounds[1])


@renders("HardSigmoid")
def _hard_sigmoid(node: Rendered, x: Any) -> Any:
    alpha, beta = node.attribute("alpha"), node.attribute("beta")
    if (alpha, beta) == (float(np.float32(1 / 6)), 0.5):
        return nn.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


@renders("PRelu")
def _prelu(node: Rendered, x: Any, slope: Any) -> Any:
    shape, slopes = node.shapes
    channels = (1,) * (len(shape) - len(slopes)) + slopes
    one_each = all(size == 1 or axis == 1 for axis, size in enumerate(channels))
    if node.dtypes[0].is_floating_point and one_each and len(shape) > 1:
        return nn.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


@renders("Dropout")
def _dropout(node: Rendered, x: Any, ratio: Any = None, training: Any = None) -> Any:
    mode = node.known(2) if len(node.shapes) > 2 else None
    if mode is not None and mode.item():
        raise Refused("training")
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.outputs > 1 else x


# ----------------------------------------------------------------------- contractions and windows


@renders("Gemm")
def _gemm(node: Rendered, a: Any, b: Any, c: Any = None) -> Any:
    alpha, beta = node.attribute("alpha"), node.attribute("beta")
    a = a.t() if node.attribute("transA") else a
    is_bias = c is None or (beta == 1 and len(node.shapes[2]) == 1 and node.shapes[2][0] != 1)
    if node.attribute("transB") and alpha == 1 and is_bias:
        return nn.linear(a, b, c)
    b = b.t() if node.attribute("transB") else b
    if c is None:
        return torch.mm(a, b) if alpha == 1 else torch.mm(a, b) * alpha
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


class _Window:
    """The windows of a convolution or pooling, with `auto_pad` resolved to paddings.

    Lists have an entry for each spatial axis: `sizes` of the input, `reach` of a window from its first to its
    last element with dilation, and the paddings `begin` and `end`.
    """

    def __init__(self, node: Rendered, kernel: Sequence[int]) -> None:
        self.kernel = list(kernel)
        self.rank = rank = len(self.kernel)
        self.sizes = node.shapes[0][2:]
        self.strides = node.attribute("strides") or [1] * rank
        self.dilations = node.attribute("dilations") or [1] * rank
        self.auto = node.attribute("auto_pad")
        self.reach = [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True)]
        pads = node.attribute("pads") or [0] * 2 * rank
        self.begin, self.end = list(pads[:rank]), list(pads[rank:])
        if self.auto in ("SAME_UPPER", "SAME_LOWER"):
            for axis, (size, stride, reach) in enumerate(
                zip(self.sizes, self.strides, self.reach, strict=True)
            ):
                self.split(axis, max(0, (ceil(size / stride) - 1) * stride + reach - size))

    def split(self, axis: int, total: int) -> None:
        """Pad an axis by `total`; an odd element goes to the end, or to the beginning for SAME_LOWER."""
        less, more = total // 2, total - total // 2
        self.begin[axis], self.end[axis] = (more, less) if self.auto == "SAME_LOWER" else (less, more)

    @property
    def is_symmetric(self) -> bool:
        return self.begin == self.end

    def pad(self, x: Any, value: float = 0.0, beyond: Sequence[int] | None = None) -> Any:
        """Return x padded explicitly, and by `beyond` more at the end."""
        ends = [e + b for e, b in zip(self.end, beyond or [0] * self.rank, strict=True)]
        return pad_last_axes(x, self.begin, ends, value)

    def beyond(self, ceil_mode: bool) -> list[int]:
        """Return for each axis how far the last window reaches beyond the padding."""
        found = []
        axes = zip(self.sizes, self.strides, self.reach, self.begin, self.end, strict=True)
        for size, stride, reach, begin, end in axes:
            span = size + begin + end - reach
            last = (ceil(span / stride) if ceil_mode else span // stride) * stride
            if last >= size + begin:  # a window may not start in the padding at the end
                last -= stride
            found.append(max(0, last - span))
        return found


def pad_last_axes(x: Any, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> Any:
    """Pad the last axes with a constant; negative paddings crop."""
    flat = [size for pair in zip(reversed(begin), reversed(end), strict=True) for size in pair]
    return nn.pad(x, flat, value=value) if any(flat) else x


_CONV = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}
_CONV_TRANSPOSE = {1: nn.conv_transpose1d, 2: nn.conv_transpose2d, 3: nn.conv_transpose3d}
CONVOLUTIONS = frozenset((*_CONV.values(), *_CONV_TRANSPOSE.values()))
_MAX_POOL = {1: nn.max_pool1d, 2: nn.max_pool2d, 3: nn.max_pool3d}
_AVERAGE_POOL = {1: nn.avg_pool1d, 2: nn.avg_pool2d, 3: nn.avg_pool3d}


def _of_rank(functions: dict[int, Callable[..., Any]], rank: int) -> Callable[..., Any]:
    if rank not in functions:
        raise Refused(f"{rank} spatial axes")
    return functions[rank]


@renders("Conv")
def _conv(node: Rendered, x: Any, w: Any, bias: Any = None) -> Any:
    window = _Window(node, node.shapes[1][2:])
    convolve = _of_rank(_CONV, window.rank)
    pads = window.begin if window.is_symmetric else 0
    x = x if window.is_symmetric else window.pad(x)
    return convolve(x, w, bias, window.strides, pads, window.dilations, node.attribute("group"))


@renders("ConvTranspose")
def _conv_transpose(node: Rendered, x: Any, w: Any, bias: Any = None) -> Any:
    window = _Window(node, node.shapes[1][2:])
    convolve = _of_rank(_CONV_TRANSPOSE, window.rank)
    more = list(node.attribute("output_padding") or [0] * window.rank)
    wanted = node.attribute("output_shape")
    if wanted is None and window.auto.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(window.sizes, window.strides, strict=True)]
    for axis, size in enumerate(wanted or ()):  # crop or extend what comes out without paddings
        whole = window.strides[axis] * (window.sizes[axis] - 1) + more[axis] + window.reach[axis]
        window.split(axis, max(0, whole - size))
        more[axis] += max(0, size - whole)
    pads = window.begin if window.is_symmetric else [0] * window.rank
    y = convolve(x, w, bias, window.strides, pads, more, node.attribute("group"), window.dilations)
    return (
        y
        if window.is_symmetric
        else pad_last_axes(y, [-size for size in window.begin], [-size for size in window.end])
    )


def _fits_native_padding(window: _Window) -> bool:
    """Return whether torch's own pooling takes these paddings."""
    pairs = zip(window.begin, window.kernel, strict=True)
    return window.is_symmetric and all(2 * pad <= k for pad, k in pairs)


def _rounds_up(node: Rendered, window: _Window) -> bool:
    """Return whether output sizes are rounded up: ceil_mode, which ONNX ignores where auto_pad is SAME."""
    return bool(node.attribute("ceil_mode")) and not window.auto.startswith("SAME")


@renders("MaxPool")
def _max_pool(node: Rendered, x: Any) -> Any:
    window = _Window(node, node.attribute("kernel_shape"))
    pool = _of_rank(_MAX_POOL, window.rank)
    rounds_up = _rounds_up(node, window)
    if _fits_native_padding(window):
        return pool(x, window.kernel, window.strides, window.begin, window.dilations, rounds_up)
    x = window.pad(x, -torch.inf, window.beyond(rounds_up))
    return pool(x, window.kernel, window.strides, 0, window.dilations)


@renders("AveragePool")
def _average_pool(node: Rendered, x: Any) -> Any:
    window = _Window(node, node.attribute("kernel_shape"))
    pool = _of_rank(_AVERAGE_POOL, window.rank)
    if any(dilation != 1 for dilation in window.dilations):
        raise Refused("dilations")
    rounds_up, counts = _rounds_up(node, window), bool(node.attribute("count_include_pad"))
    if _fits_native_padding(window):
        return pool(x, window.kernel, window.strides, window.begin, rounds_up, counts)
    beyond = window.beyond(rounds_up)
    # torch divides by the size of the kernel: `covered` is the share of each window that ONNX counts
    inside = torch.ones(1, 1, *window.sizes, dtype=node.dtypes[0])
    inside = pad_last_axes(window.pad(inside, float(counts)), [0] * window.rank, beyond)
    y = pool(window.pad(x, 0.0, beyond), window.kernel, window.strides)
    covered = pool(inside, window.kernel, window.strides)
    return y if bool((covered == 1).all()) else y / node.constant(covered)


@renders("GlobalAveragePool")
def _global_average_pool(node: Rendered, x: Any) -> Any:
    rank = len(node.shapes[0]) - 2
    pools = {1: nn.adaptive_avg_pool1d, 2: nn.adaptive_avg_pool2d, 3: nn.adaptive_avg_pool3d}
    return _of_rank(pools, rank)(x, (1,) * rank)


@renders("GlobalMaxPool")
def _global_max_pool(node: Rendered, x: Any) -> Any:
    return torch.amax(x, list(range(2, len(node.shapes[0]))), keepdim=True)


# ----------------------------------------------------------------------- normalizations, reductions


@renders("BatchNormalization")
def _batch_norm(node: Rendered, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    if node.attribute("training_mode"):
        raise Refused("training")
    return nn.batch_norm(x, mean, variance, scale, bias, eps=node.attribute("epsilon"))


@renders("InstanceNormalization")
def _instance_norm(node: Rendered, x: Any, scale: Any, bias: Any) -> Any:
    return nn.instance_norm(x, weight=scale, bias=bias, eps=node.attribute("epsilon"))


@renders("LayerNormalization")
def _layer_norm(node: Rendered, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = node.attribute("axis") % len(node.shapes[0])
    sizes = list(node.shapes[0][axis:])
    if any(list(shape) != sizes for shape in node.shapes[1:]):
        raise Refused("weights of another shape")
    if node.outputs > 1:
        return torch.native_layer_norm(x, sizes, scale, bias, node.attribute("epsilon"))
    return nn.layer_norm(x, sizes, scale, bias, node.attribute("epsilon"))


@renders("LRN")
def _lrn(node: Rendered, x: Any) -> Any:
    size = node.attribute("size")
    if size % 2 == 0:
        raise Refused("an even size")
    return nn.local_response_norm(
        x, size, node.attribute("alpha"), node.attribute("beta"), node.attribute("bias")
    )


@renders("Softmax", "LogSoftmax")
def _softmax(node: Rendered, x: Any) -> Any:
    function = nn.log_softmax if node.attribute("operator") == "LogSoftmax" else nn.softmax
    shape = node.shapes[0]
    axis = node.attribute("axis")
    if node.opset >= 13:
        return function(x, axis)
    axis %= len(shape)  # all axes from this one on are one
    return function(x.reshape(prod(shape[:axis]), prod(shape[axis:])), 1).reshape(shape)


def _reduction(function: Callable[..., Any]) -> Rendering:
    def render(node: Rendered, x: Any, axes: Any = None) -> Any:
        chosen = node.ints("axes", 1)
        if not chosen and node.attribute("noop_with_empty_axes"):
            return x
        return function(x, chosen or list(range(len(node.shapes[0]))), bool(node.attribute("keepdims")))

    return render


RENDERINGS |= {
    "ReduceMean": _reduction(torch.mean),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceSum": _reduction(lambda x, axes, keep: torch.sum(x, axes, keep)),
}
