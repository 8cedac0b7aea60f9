"""Bound the values of an expression, whatever its tensors hold, by interval arithmetic.

    1 / (1 + exp(-x))  from 0 to 1        max(0, min(1, x/6 + 1/2))  from 0 to 1        x + x  anything

The bounds hold for real numbers: they do not account for integers that wrap.  `Bounds` are pairs (least,
greatest), both included, -inf and inf where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, inf, isnan, sqrt
from typing import TypeAlias

from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source

__all__ = ["Bounds", "bounds", "bounds_of"]

Bounds: TypeAlias = tuple[float, float]
ANY: Bounds = (-inf, inf)
UNIT_RANGE_FUNCTIONS = frozenset({"tanh", "erf", "sin", "cos"})  # values from -1 to 1


def bounds(scope: Scope, tensor_bounds: Mapping[Source, Bounds] | None = None) -> Bounds:
    """Return the least and greatest value of an element; tensors without bounds may hold anything."""
    return bounds_of(scope.body, tensor_bounds or {})


def bounds_of(body: Body, tensor_bounds: Mapping[Source, Bounds]) -> Bounds:
    """Return the least and the greatest value of a body."""
    match body:
        case Const(value):
            try:
                number = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                return ANY
            return number, number
        case Read(source, _, outside):
            inner = (
                bounds(source, tensor_bounds) if isinstance(source, Scope) else tensor_bounds.get(source, ANY)
            )
            return inner if outside is None else _hull(inner, bounds_of(outside, tensor_bounds))
        case Select(_, then, other):
            return _hull(bounds_of(then, tensor_bounds), bounds_of(other, tensor_bounds))
        case Reduce(monoid, _, inner_body):
            low, high = bounds_of(inner_body, tensor_bounds)
            if monoid in ("max", "min"):
                return low, high
            return (0.0 if low >= 0 else -inf, inf)  # the length may be open: only the sign is kept
        case Call("mul", (a, b)) if a == b:
            return _square_bounds(bounds_of(a, tensor_bounds))
        case Call(fn, args):
            return _call_bounds(fn, [bounds_of(arg, tensor_bounds) for arg in args])
    return ANY


def _call_bounds(fn: str, args: list[Bounds]) -> Bounds:
    if cast_target(fn) in ("float32", "float64"):
        return args[0]
    if fn in UNIT_RANGE_FUNCTIONS:
        return -1.0, 1.0
    rule = INTERVAL_RULES.get(fn)
    result = ANY if rule is None else rule(*args)
    return ANY if any(map(isnan, result)) else result  # inf - inf, say, bounds nothing


def _hull(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _exp_bounds(x: Bounds) -> Bounds:
    low, high = (exp(end) if end < 700 else inf for end in x)  # exp(710) overflows
    return low, high


def _quotient_bounds(x: Bounds, y: Bounds) -> Bounds:
    if not y[0] > 0:
        return ANY  # the divisor may be zero or negative: no bounds are derived
    ends = [0.0 if b == inf else a / b for a in x for b in y]
    return min(ends), max(ends)


def _product_bounds(x: Bounds, y: Bounds) -> Bounds:
    ends = [0.0 if 0 in (a, b) else a * b for a in x for b in y]
    return min(ends), max(ends)


def _square_bounds(x: Bounds) -> Bounds:
    low, high = _product_bounds(x, x)
    return max(low, 0.0), high


def _power_bounds(x: Bounds, y: Bounds) -> Bounds:
    """Return the bounds of a square or a square root; those of any other power are not derived."""
    return _square_bounds(x) if y == (2.0, 2.0) else _root_bounds(x) if y == (0.5, 0.5) else ANY


def _root_bounds(x: Bounds) -> Bounds:
    return sqrt(max(x[0], 0.0)), sqrt(max(x[1], 0.0))


def _abs_bounds(x: Bounds) -> Bounds:
    return max(0.0, x[0], -x[1]), max(-x[0], x[1])


INTERVAL_RULES: Mapping[str, Callable[..., Bounds]] = {
    "neg": lambda x: (-x[1], -x[0]),
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product_bounds,
    "div": _quotient_bounds,
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "exp": _exp_bounds,
    "pow": _power_bounds,
    "sqrt": _root_bounds,
    "abs": _abs_bounds,
}
