"""Activation functions, and those that normalize along axes: Softmax, LogSoftmax, Hardmax."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.float_conversions import is_float, largest_finite
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute, lift
from tensaurus.expr.sizes.size import is_same_size
from tensaurus.ops.axes import one_axis
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import (
    broadcast,
    broadcast_read,
    broadcast_to,
    convert_dtype,
    has_one_element,
    unary,
)
from tensaurus.ops.reduction import collapse, first_extreme, reduction


def positive(v: Any) -> Body:
    """Return max(v, 0)."""
    return call("max", v, 0)


def negative(v: Any) -> Body:
    """Return min(v, 0)."""
    return call("min", v, 0)


def clamped(v: Any) -> Body:
    """Return v within 0..1."""
    return positive(call("min", v, 1))


def sigmoid(v: Any) -> Body:
    return 1 / (1 + call("exp", -v))


def softplus(v: Any) -> Body:
    """Return log(1 + exp(v)) as max(v, 0) + log(1 + e), e = exp(-|v|), which never overflows.

    log(1 + e) is computed as 2 atanh(e / (2 + e)): the sum 1 + e would round off the digits of a small e.
    """
    small = call("exp", -call("abs", v))
    return positive(v) + 2 * call("atanh", small / (2 + small))


_LARGE = "f32[4]={-1000,-1,1,1000}"
for _name, _element, _since, _more in [
    ("Relu", positive, 6, ["f64[3]", "i32[4]"]),
    ("Sigmoid", sigmoid, 6, []),
    ("HardSwish", lambda v: v * clamped(v / 6 + Const(Fraction(1, 2))), 14, []),
    ("Softplus", softplus, 1, []),
    ("Softsign", lambda v: v / (1 + call("abs", v)), 1, []),
    ("Mish", lambda v: v * call("tanh", softplus(v)), 18, []),
]:
    unary(_name, _element, _since, "f32[2,3]", _LARGE, *_more)


@op("LeakyRelu", since=6, examples=["f32[2,3]", "f32[4] alpha=0.3", "f64[3] alpha=2.0"])
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Scope:
    """max(x, 0) + alpha * min(x, 0)."""
    return broadcast(lambda v: positive(v) + lift(alpha) * negative(v), x)


@op("PRelu", since=9, examples=["f32[2,3,2] f32[3,1]", "f32[2,3] f32[]", "i32[4] i32[4]"])
def prelu(x: Tensor, slope: Tensor) -> Scope:
    """max(x, 0) + slope * min(x, 0)."""
    broadcast_to(x, slope)
    return broadcast(lambda v, s: positive(v) + s * negative(v), x, slope)


@op("Elu", since=6, examples=["f32[2,3]", f"{_LARGE} alpha=0.5"])
def elu(x: Tensor, *, alpha: float = 1.0) -> Scope:
    """x, or alpha * (exp(x) - 1) where x < 0."""
    return broadcast(lambda v: positive(v) + lift(alpha) * (call("exp", negative(v)) - 1), x)


@op("Selu", since=6, examples=["f32[2,3]", f"{_LARGE} alpha=1.5 gamma=2.0"])
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Scope:
    """gamma * elu(x)."""
    return broadcast(
        lambda v: lift(gamma) * (positive(v) + lift(alpha) * (call("exp", negative(v)) - 1)), x
    )


@op("Celu", since=12, examples=["f32[2,3]", f"{_LARGE} alpha=0.5"])
def celu(x: Tensor, *, alpha: float = 1.0) -> Scope:
    """x, or alpha * (exp(x / alpha) - 1) where x < 0."""
    if alpha <= 0:
        raise Untypable(f"Celu with alpha {alpha}")
    scale = lift(alpha)
    return broadcast(lambda v: positive(v) + scale * (call("exp", negative(v) / scale) - 1), x)


@op("ThresholdedRelu", since=10, examples=["f32[2,3]", "f32[4] alpha=0.1"])
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Scope:
    """x where x > alpha, else 0."""
    return broadcast(lambda v: call("where", call("lt", lift(alpha), v), v, 0), x)


@op("Shrink", since=9, examples=["f32[2,3]", "f32[5] lambd=0.3 bias=0.1"])
def shrink(x: Tensor, *, lambd: float = 0.5, bias: float = 0.0) -> Scope:
    """x moved by `bias` towards zero, and zero where |x| <= lambd."""
    bound, shift = lift(lambd), lift(bias)
    return broadcast(
        lambda v: call(
            "where",
            call("lt", v, -Fraction(lambd)),
            v + shift,
            call("where", call("lt", bound, v), v - shift, 0),
        ),
        x,
    )


@op("HardSigmoid", since=6, examples=["f32[2,3]", "f32[4]={-9,-1,1,9} alpha=0.5 beta=0.1"])
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Scope:
    """alpha * x + beta within 0..1."""
    return broadcast(lambda v: clamped(lift(alpha) * v + lift(beta)), x)


@op("Swish", since=24, examples=["f32[2,3]", f"{_LARGE} alpha=1.5"])
def swish(x: Tensor, *, alpha: float = 1.0) -> Scope:
    """x * sigmoid(alpha * x)."""
    return broadcast(lambda v: v * sigmoid(lift(alpha) * v), x)


@op("Gelu", since=20, examples=["f32[2,3]", "f32[5] approximate=tanh", "f64[3]", "f64[3] approximate=tanh"])
def gelu(x: Tensor, *, approximate: str = "none") -> Scope:
    """x times the probability that a normal variable is below x, exactly or by tanh."""
    half = Const(Fraction(1, 2))
    if approximate == "none":
        return broadcast(lambda v: half * v * (1 + call("erf", v / call("sqrt", 2))), x)
    if approximate != "tanh":
        raise Untypable(f"approximate {approximate}")
    scale = call("sqrt", 2 / (4 * call("atan", 1)))  # sqrt(2 / pi)
    cubic = Const(Fraction(44715, 1_000_000))
    return broadcast(lambda v: half * v * (1 + call("tanh", scale * (v + cubic * (v * v * v)))), x)


@op("Clip", since=6, moved={"min": 11, "max": 11}, examples=[
    "f32[2,3] f32[]={-0.5} f32[]={0.5}", "f32[2,3] - f32[]={0.5}", "f32[2,3] f32[]={0}",
    "f32[4]={1,nan,inf,-inf}", "f32[4]={1,nan,inf,-inf} f32[]={0}", "f32[4]={1,nan,inf,-inf} - f32[]={0}",
    "i32[4] i32[]={-2} i32[]={3}", "f64[4] f64[]={-0.5} f64[]={0.5}",
])  # fmt: skip
def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Scope:
    """min(max(x, min), max); a bound of floats that is absent is the least or largest finite number."""
    for bound in (min, max):
        if bound is not None and not has_one_element(bound):
            raise Untypable(f"a bound of shape {bound.shape}")

    def at(v: Body) -> Body:
        for fn, bound, sign in (("max", min, -1), ("min", max, 1)):
            if bound is not None:
                v = call(fn, v, broadcast_read(bound, (0,)))
            elif is_float(x.dtype):
                v = call(fn, v, sign * largest_finite(x.dtype))
        return v

    return broadcast(at, x)


def _softmax_form(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the axis from the front, and `flatten` only where two axes from there on are longer than 1."""
    (x,) = tensors
    if attrs["flatten"] and attrs["axis"] == x.rank:
        raise Untypable("softmax over no axis")
    axis = one_axis(attrs["axis"], x.rank)
    if not attrs["flatten"]:
        return {"axis": axis}
    long_axes = [a for a in range(axis, x.rank) if not is_same_size(x.shape[a], 1)]
    if len(long_axes) > 1:
        return {"axis": axis, "flatten": 1}
    return {"axis": long_axes[0] if long_axes else axis, "flatten": 0}


def _softmax(name: str, build: Callable[[Tensor, tuple[int, ...]], Scope], *examples: str) -> None:
    """Declare a function over one axis, before version 13 over all axes from `axis` on (`flatten`)."""

    def declare(x: Tensor, *, axis: int = -1, flatten: int = 0) -> Scope:
        return build(x, tuple(range(axis, x.rank)) if flatten else (axis,))

    op(name, canonicalize=_softmax_form, before={13: {"axis": 1, "flatten": 1}}, examples=(
        "f32[2,3,4]", "f32[2,3,4] axis=1", "f32[2,3,1,1] axis=1", "f32[2,3,4] axis=1 flatten=1",
        "f32[2,3]={1000,999,0,-1000,-1001,-1002}", "f64[5] axis=0", *examples,
    ))(declare)  # fmt: skip


def minus_maximum(x: Tensor, axes: tuple[int, ...]) -> Scope:
    """Return x minus its maximum over the axes."""
    top = reduction("max", x, axes)
    return compute(x.shape, lambda *i: x[i] - top[collapse(i, axes)])


def softmax(x: Tensor, axes: tuple[int, ...]) -> Scope:
    """Return exp(x - m) / sum(exp(x - m)), m the maximum."""
    inner = minus_maximum(x, axes)
    exps = compute(x.shape, lambda *i: call("exp", inner[i]))
    total = reduction("sum", exps, axes)
    return compute(x.shape, lambda *i: exps[i] / total[collapse(i, axes)])


def log_softmax(x: Tensor, axes: tuple[int, ...]) -> Scope:
    """Return (x - m) - log(sum(exp(x - m))), m the maximum."""
    inner = minus_maximum(x, axes)
    logs = reduction("sum", inner, axes, lambda v: call("exp", v), finish=lambda v: call("log", v))
    return compute(x.shape, lambda *i: inner[i] - logs[collapse(i, axes)])


def hardmax(x: Tensor, axes: tuple[int, ...]) -> Scope:
    """Return 1 at the first maximum, else 0."""
    first = first_extreme("max", x, axes)

    def at(*i: Any) -> Body:
        number: Any = 0
        for a in axes:
            number = number * x.shape[a] + i[a]
        hit = call("eq", first[collapse(i, axes)], Const(number))
        return convert_dtype(call("where", hit, 1, 0), "int64", x.dtype)

    return compute(x.shape, at)


_softmax("Softmax", softmax)
_softmax("LogSoftmax", log_softmax)
_softmax("Hardmax", hardmax, "f32[2,4]={1,3,3,0,2,2,2,2}")
