"""Declare normalisations: shift and scale by statistics that are given or computed.

`stash_type` is the type in which ONNX computes the statistics.  An expression does not state that, so the
attribute matters only where the statistics are outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute, lift, total
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.axes import axis_form, distinct_axes
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import broadcast, broadcast_read, broadcast_to, convert_dtype
from tensaurus.ops.reduction import collapse, mean, reduction, squared

EPSILON = 1e-5  # ONNX's default


def per_channel(x: Tensor, *parameters: Tensor) -> None:
    """Raise Untypable unless x is [N, C, ...] and each parameter [C]."""
    if x.rank < 2:
        raise Untypable(f"an input of rank {x.rank}")
    for p in parameters:
        if p.rank != 1 or not is_same_size(p.shape[0], x.shape[1]):
            raise Untypable(f"{p.name} has shape {p.shape} for {x.shape[1]} channels")


def as_type(p: Tensor, index: Any, x: Tensor) -> Body:
    """Return p[index] as the element type of x."""
    return convert_dtype(p[index], p.dtype, x.dtype)


def deviation(epsilon: Any) -> Callable[[Body], Body]:
    """Return the function that maps a variance v to sqrt(v + epsilon), a deviation that is not zero."""
    return lambda v: call("sqrt", v + lift(epsilon))


@op("BatchNormalization", since=7, examples=[
    "f32[2,3,2,2] f32[3] f32[3] f32[3] f32[3]>0",
    "f32[2,3] f32[3] f32[3] f32[3] f32[3]>0 epsilon=0.1 momentum=0.5",
    "f64[2,3,4] f64[3] f64[3] f64[3] f64[3]>0",
])  # fmt: skip
def batch_normalization(
    x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor,
    *, epsilon: float = EPSILON, momentum: float = 0.9, training_mode: int = 0,
) -> Scope:  # fmt: skip
    """(x - mean) / sqrt(var + epsilon) * scale + b for each channel of x [N, C, ...]."""
    if training_mode:
        raise Untypable("BatchNormalization in training mode")
    per_channel(x, scale, b, mean, var)

    def at(*i: Size) -> Body:
        c = i[1]
        centred = x[i] - as_type(mean, c, x)
        return centred / deviation(epsilon)(as_type(var, c, x)) * as_type(scale, c, x) + as_type(b, c, x)

    return compute(x.shape, at)


def subtract_mean(x: Tensor | Scope, axes: tuple[int, ...]) -> tuple[Scope, Scope]:
    """Return the mean of x over the axes, which keep length 1 in it, and x minus its mean."""
    average = mean(x, axes)
    return average, compute(x.shape, lambda *i: x[i] - average[collapse(i, axes)])


@op("LayerNormalization", since=17, canonicalize=axis_form, examples=[
    "f32[2,3,4] f32[4] f32[4]", "f32[2,3,4] f32[3,4] f32[3,4] axis=1",
    "f32[2,3,4] f32[4] axis=-1 epsilon=0.1",
])  # fmt: skip
def layer_normalization(
    x: Tensor, scale: Tensor, b: Tensor | None = None,
    *, axis: int = -1, epsilon: float = EPSILON, stash_type: str = "float32",
) -> tuple[Scope, Scope, Scope]:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * scale + b over the axes from `axis` on.

    The second output is the mean, and the third one 1 / sqrt(variance + epsilon).
    """
    broadcast_to(x, *(p for p in (scale, b) if p is not None))
    axes = tuple(range(axis, x.rank))
    average, centred = subtract_mean(x, axes)
    inverse = mean(centred, axes, squared, finish=lambda v: 1 / deviation(epsilon)(v))

    def at(*i: Size) -> Body:
        value = (
            centred[i]
            * inverse[collapse(i, axes)]
            * convert_dtype(broadcast_read(scale, i), scale.dtype, x.dtype)
        )
        return value if b is None else value + convert_dtype(broadcast_read(b, i), b.dtype, x.dtype)

    stashed = [broadcast(lambda v: convert_dtype(v, x.dtype, stash_type), s) for s in (average, inverse)]
    return compute(x.shape, at), stashed[0], stashed[1]


@op("RMSNormalization", since=23, canonicalize=axis_form, examples=[
    "f32[2,3,4] f32[4]", "f32[2,3,4] f32[3,4] axis=1 epsilon=0.1", "f32[2,4] f32[1]",
])  # fmt: skip
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = EPSILON, stash_type: str = "float32"
) -> Scope:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on."""
    broadcast_to(x, scale)
    axes = tuple(range(axis, x.rank))
    spread = mean(x, axes, squared, finish=deviation(epsilon))
    return compute(
        x.shape,
        lambda *i: (
            x[i] / spread[collapse(i, axes)] * convert_dtype(broadcast_read(scale, i), scale.dtype, x.dtype)
        ),
    )


@op("InstanceNormalization", since=6, examples=[
    "f32[2,3,4,5] f32[3] f32[3]", "f32[1,2,6] f32[2] f32[2] epsilon=0.1",
])  # fmt: skip
def instance_normalization(x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = EPSILON) -> Scope:
    """Each channel of each instance minus its mean, divided by its deviation; then scale and b by channel."""
    per_channel(x, scale, b)
    if x.rank < 3:
        raise Untypable(f"an input of rank {x.rank}: there is nothing to normalize over")
    axes = tuple(range(2, x.rank))
    _, centred = subtract_mean(x, axes)
    spread = mean(centred, axes, squared, finish=deviation(epsilon))
    return compute(x.shape, lambda *i: centred[i] / spread[collapse(i, axes)] * scale[i[1]] + b[i[1]])


@op("GroupNormalization", since=21, examples=[
    "f32[2,4,3,3] f32[4] f32[4] num_groups=2", "f32[2,6,5] f32[6] f32[6] num_groups=3 epsilon=0.1",
    "f32[2,3] f32[3] f32[3] num_groups=3",
])  # fmt: skip
def group_normalization(
    x: Tensor, scale: Tensor, b: Tensor,
    *, num_groups: int, epsilon: float = EPSILON, stash_type: str = "float32",
) -> Scope:  # fmt: skip
    """The same as InstanceNormalization, with mean and deviation over each group of channels."""
    per_channel(x, scale, b)
    batch, channels, *spatial = x.shape
    if num_groups < 1 or not is_same_size(channels % num_groups, 0):
        raise Untypable(f"{channels} channels in {num_groups} groups")
    per_group = channels // num_groups
    grouped = compute(
        (batch, num_groups, per_group, *spatial),
        lambda n, g, c, *i: x[(n, g * per_group + c, *i)],
    )
    axes = tuple(range(2, grouped.rank))
    average = mean(grouped, axes, keep=False)
    centred = compute(grouped.shape, lambda n, g, *i: grouped[(n, g, *i)] - average[n, g])
    spread = mean(centred, axes, squared, finish=deviation(epsilon), keep=False)
    return compute(
        x.shape,
        lambda n, c, *i: (x[(n, c, *i)] - average[n, c // per_group]) / spread[n, c // per_group]
        * as_type(scale, c, x) + as_type(b, c, x),
    )  # fmt: skip


@op("LpNormalization", since=1, canonicalize=axis_form, examples=[
    "f32[2,3,4]", "f32[2,3,4] axis=1 p=1", "f32[2,2]={0,0,1,2}", "f64[3]",
])  # fmt: skip
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Scope:
    """x over its norm along the axis; 0 where the norm is 0."""
    if p == 1:
        norm = reduction("sum", x, (axis,), lambda v: call("abs", v))
    elif p == 2:
        norm = reduction("sum", x, (axis,), squared, finish=lambda v: call("sqrt", v))
    else:
        raise Untypable(f"a norm of order {p}")

    def at(*i: Size) -> Body:
        length = norm[collapse(i, (axis,))]
        return call("where", call("eq", length, 0), 0, x[i] / length)

    return compute(x.shape, at)


def _axes_form(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return `axes` counted from the front, in ascending order."""
    return {"axes": tuple(sorted(distinct_axes(attrs["axes"], tensors[0].rank)))}


@op("MeanVarianceNormalization", since=9, canonicalize=_axes_form, examples=[
    "f32[2,3,4,4]", "f32[2,3,4] axes=(0,2)",
])  # fmt: skip
def mean_variance_normalization(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Scope:
    """(x - mean) / (deviation + 1e-9) over the axes."""
    _, centred = subtract_mean(x, axes)
    tiny = Const(Fraction(1, 10**9))
    spread = mean(centred, axes, squared, finish=lambda v: call("sqrt", v) + tiny)
    return compute(x.shape, lambda *i: centred[i] / spread[collapse(i, axes)])


@op("LRN", since=1, examples=["f32[2,5,3,3] size=3", "f32[6,6,2,2] size=4 alpha=0.3 beta=0.5 bias=2.0"])
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0
) -> Scope:
    """x / (bias + alpha / size * s) ** beta, where s is the sum of x * x over the `size` channels around.

    Channels beyond the edges count as 0; of an even `size`, there is one more after than before.
    """
    if x.rank < 2 or size < 1:
        raise Untypable(f"LRN of size {size} over rank {x.rank}")
    before = (size - 1) // 2

    def sum_of_squares(n: Size, c: Size, *i: Size) -> Body:
        return total((size,), lambda r: squared(x.padded(0)[(n, c + r - before, *i)]))

    scale = Const(Fraction(alpha) / size)
    return compute(
        x.shape, lambda *i: x[i] / call("pow", Const(bias) + scale * sum_of_squares(*i), Const(beta))
    )
