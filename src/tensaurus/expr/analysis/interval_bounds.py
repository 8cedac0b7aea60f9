"""Between which numbers the values of an expression lie, whatever its tensors hold (interval arithmetic).

    1 / (1 + exp(-x))  from 0 to 1        max(0, min(1, x/6 + 1/2))  from 0 to 1        x + x  anything

Of real numbers: integers of so many bits wrap beyond theirs, which no bound of a sum or a product knows.
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
UNIT = frozenset({"tanh", "erf", "sin", "cos"})  # whose values lie from -1 to 1


def bounds(scope: Scope, given: Mapping[Source, Bounds] | None = None) -> Bounds:
    """The least and the greatest value that an element may have; `given` are those of tensors."""
    return bounds_of(scope.body, given or {})


def bounds_of(body: Body, given: Mapping[Source, Bounds]) -> Bounds:
    """The same of a body."""
    match body:
        case Const(value):
            try:
                number = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                return ANY
            return number, number
        case Read(source, _, outside):
            inner = bounds(source, given) if isinstance(source, Scope) else given.get(source, ANY)
            return inner if outside is None else _hull(inner, bounds_of(outside, given))
        case Select(_, then, other):
            return _hull(bounds_of(then, given), bounds_of(other, given))
        case Reduce(monoid, _, inner_body):
            low, high = bounds_of(inner_body, given)
            if monoid in ("max", "min"):
                return low, high
            return (0.0 if low >= 0 else -inf, inf)
        case Call("mul", (a, b)) if a == b:
            return _squared(bounds_of(a, given))
        case Call(fn, args):
            return _called(fn, [bounds_of(arg, given) for arg in args])
    return ANY


def _called(fn: str, args: list[Bounds]) -> Bounds:
    if cast_target(fn) in ("float32", "float64"):
        return args[0]
    if fn in UNIT:
        return -1.0, 1.0
    found = RULES.get(fn)
    made = ANY if found is None else found(*args)
    return ANY if any(map(isnan, made)) else made


def _hull(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _exp(x: Bounds) -> Bounds:
    low, high = (exp(end) if end < 700 else inf for end in x)
    return low, high


def _divided(x: Bounds, y: Bounds) -> Bounds:
    if not y[0] > 0:
        return ANY
    ends = [0.0 if b == inf else a / b for a in x for b in y]
    return min(ends), max(ends)


def _times(x: Bounds, y: Bounds) -> Bounds:
    ends = [0.0 if 0 in (a, b) else a * b for a in x for b in y]
    return min(ends), max(ends)


def _squared(x: Bounds) -> Bounds:
    low, high = _times(x, x)
    return max(low, 0.0), high


def _power(x: Bounds, y: Bounds) -> Bounds:
    return _squared(x) if y == (2.0, 2.0) else _root(x) if y == (0.5, 0.5) else ANY


def _root(x: Bounds) -> Bounds:
    return sqrt(max(x[0], 0.0)), sqrt(max(x[1], 0.0))


def _magnitude(x: Bounds) -> Bounds:
    return max(0.0, x[0], -x[1]), max(-x[0], x[1])


RULES: Mapping[str, Callable[..., Bounds]] = {
    "neg": lambda x: (-x[1], -x[0]),
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _times,
    "div": _divided,
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "exp": _exp,
    "pow": _power,
    "sqrt": _root,
    "abs": _magnitude,
}
