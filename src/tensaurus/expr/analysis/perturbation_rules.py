"""The rules of `perturbation_bounds`: how scalar functions and reductions propagate bounds and changes.

Each rule takes the perturbations of its operands, whose arrays broadcast over the same axes, and returns that
of the result; it raises Sensitive where a moved operand may move the result far.  For x in 2..3 moved by at
most 1e-9, and y in 4..5 not moved, x * y is in 8..15 and moved by at most 5e-9.

A perturbation has bounds of the values (`low`, `high`), the largest distance that one is moved (`change`),
the least magnitude, and a `scale`: the magnitude where all inputs have their largest, beside which a change
of an output must be tiny.  The scale is 0 where a rule does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import inf, prod

import numpy as np

from tensaurus.expr.analysis.perturbation import Array, BodyPerturbation, Sensitive, broadcast_perturbations
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.sizes.symbol import Axis

UNKNOWN_EXTENT = 2.0**24  # assumed largest number of terms of a sum over an axis of unknown size
STEEPEST_ERF = 1.1284  # largest slope of erf: 2 / sqrt(pi)
LEAST_KEPT = 0.75  # |erf(x)|, |tanh(x)| and |atan(x)| are at least this fraction of |x| where |x| <= 1


def add(a: BodyPerturbation, b: BodyPerturbation, unit: float) -> BodyPerturbation:
    """Return the sum; a change below `unit` times the other term, if that is not moved, is rounded away."""
    own_change = np.where(a.change <= unit * _unmoved_magnitude(b), 0.0, a.change)
    other_change = np.where(b.change <= unit * _unmoved_magnitude(a), 0.0, b.change)
    return BodyPerturbation(
        _replace_nan(a.low + b.low, -inf),
        _replace_nan(a.high + b.high, inf),
        own_change + other_change,
        a.scale + b.scale,
        axes=a.axes,
    )


def _unmoved_magnitude(part: BodyPerturbation) -> Array:
    """Return the least magnitude of elements that are not moved, else 0."""
    return np.where(part.change == 0, part.min_magnitude, 0.0)


def _replace_nan(value: Array, otherwise: float) -> Array:
    """Return the array without NaN, which infinite bounds leave where nothing is known."""
    return np.where(np.isnan(value), otherwise, value)


def _scaled_change(change: Array, size: Array) -> Array:
    """Return change * size, and 0 where nothing is moved, though infinity times 0 is NaN."""
    return np.where(change == 0, 0.0, change * size)


def negate(a: BodyPerturbation) -> BodyPerturbation:
    return BodyPerturbation(-a.high, -a.low, a.change, a.scale, a.min_magnitude, a.axes)


def either_of(a: BodyPerturbation, b: BodyPerturbation) -> BodyPerturbation:
    """Return the perturbation of elements that are those of one or of the other."""
    a, b = broadcast_perturbations([a, b])
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    floor = np.minimum(a.min_magnitude, b.min_magnitude)
    return BodyPerturbation(low, high, np.maximum(a.change, b.change), _moving_scale(a, b), floor, a.axes)


def _moving_scale(a: BodyPerturbation, b: BodyPerturbation) -> Array:
    """Return the smaller of the two scales; where only one operand is moved, its own."""
    first = np.where((a.change == 0) & (b.change != 0), inf, a.scale)
    return np.minimum(first, np.where((b.change == 0) & (a.change != 0), inf, b.scale))


def multiply(a: BodyPerturbation, b: BodyPerturbation, *, is_square: bool = False) -> BodyPerturbation:
    """Return the product: |(x + d)(y + e) - x*y| <= |d|*|e| + |d|*|y| + |e|*|x|."""
    corners = [_replace_nan(x * y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    if is_square:
        low = np.maximum(low, 0.0)
    change = (
        _scaled_change(a.change, b.change)
        + _scaled_change(a.change, b.max_magnitude)
        + _scaled_change(b.change, a.max_magnitude)
    )
    return BodyPerturbation(
        low,
        high,
        change,
        _replace_nan(a.scale * b.scale, 0.0),
        _replace_nan(a.min_magnitude * b.min_magnitude, 0.0),
        a.axes,
    )


def constant_exponent(other: BodyPerturbation) -> float | None:
    """Return the exponent, where it is one half or a small whole number, else None."""
    values = np.unique(np.concatenate([other.low.ravel(), other.high.ravel()]))
    if other.is_moved or len(values) != 1 or values[0] not in (0.5, 1, 2, 3, 4, 5, 6, 7, 8):
        return None
    return float(values[0])


def reduce_perturbation(monoid: str, part: BodyPerturbation, axes: Sequence[Axis]) -> BodyPerturbation:
    """Return the sum, mean, max, min or product over the axes; those that the part lacks repeat its value."""
    present = tuple(part.axes.index(a) for a in axes if a in part.axes)  # dimensions to reduce
    kept_axes = tuple(a for a in part.axes if a not in axes)
    low, high, change, scale, _ = np.broadcast_arrays(*part.arrays())
    if monoid == "mean":
        low, high, change, scale = (x.mean(axis=present) for x in (low, high, change, scale))
        return BodyPerturbation(low, high, change, scale, axes=kept_axes)
    if monoid in ("max", "min"):
        extremum = np.max if monoid == "max" else np.min
        low, high = (np.asarray(extremum(x, axis=present)) for x in (low, high))
        # the scale is the least one of the terms, or of the moved terms where some are moved
        moved_scale = np.where(np.any(change != 0, axis=present, keepdims=True) & (change == 0), inf, scale)
        return BodyPerturbation(
            low, high, change.max(axis=present), moved_scale.min(axis=present), axes=kept_axes
        )
    if monoid == "prod":
        if part.is_moved:
            raise Sensitive("a product of many of it")
        low, high, change, scale = _unbounded(low.min(axis=present))
        return BodyPerturbation(low, high, change, scale, axes=kept_axes)
    # a sum: dimensions of length 1 and missing axes stand for as many equal terms as the axis has points
    lengths = {a: low.shape[part.axes.index(a)] for a in part.axes}
    alike = [a.extent for a in axes if lengths.get(a, 1) == 1]  # extents along which all terms are alike
    repeats = prod(float(n) if isinstance(n, int) else UNKNOWN_EXTENT for n in alike)
    low, high = (_replace_nan(np.asarray(x.sum(axis=present)), end) for x, end in ((low, -inf), (high, inf)))
    # an axis of unknown size may also have one point only
    low, high = (
        np.minimum(low, _replace_nan(low * repeats, 0.0)),
        np.maximum(high, _replace_nan(high * repeats, 0.0)),
    )
    return BodyPerturbation(
        low, high, change.sum(axis=present) * repeats, scale.sum(axis=present), axes=kept_axes
    )


def _unbounded(like: Array) -> tuple[Array, Array, Array, Array]:
    return tuple(np.full_like(like, x, float) for x in (-inf, inf, 0.0, 0.0))  # type: ignore[return-value]


def unmoved_call(fn: str, parts: Sequence[BodyPerturbation]) -> BodyPerturbation:
    """Return the perturbation of a function whose arguments are not moved."""
    low, high, change, scale = _unbounded(reduce(np.add, [part.scale for part in parts]))
    if fn in FUNCTIONS and FUNCTIONS[fn].result == "bool":
        low, high = np.zeros_like(low), np.ones_like(high)
    elif fn == "exp":
        low, high = np.exp(parts[0].low), np.exp(parts[0].high)
    return BodyPerturbation(low, high, change, scale, axes=parts[0].axes)


def _maximum(a: BodyPerturbation, b: BodyPerturbation) -> BodyPerturbation:
    return BodyPerturbation(
        np.maximum(a.low, b.low),
        np.maximum(a.high, b.high),
        np.maximum(a.change, b.change),
        _moving_scale(a, b),
        axes=a.axes,
    )


def _minimum(a: BodyPerturbation, b: BodyPerturbation) -> BodyPerturbation:
    return negate(_maximum(negate(a), negate(b)))


def _magnitude(a: BodyPerturbation) -> BodyPerturbation:
    return BodyPerturbation(a.min_magnitude, a.max_magnitude, a.change, a.scale, axes=a.axes)


def _quotient(a: BodyPerturbation, b: BodyPerturbation) -> BodyPerturbation:
    """Return the quotient x / y: with f the least |y|, it moves by at most |d| / f + |e| * |x| / f^2."""
    floor = b.min_magnitude - b.change
    if (a.is_moved or b.is_moved) and not floor.min() > 0:
        raise Sensitive("a quotient of it by what may be zero" if a.is_moved else "a quotient by it")
    inverse = np.where(floor > 0, 1 / floor, inf)
    positive = (b.low > 0) & (floor > 0)  # the quotient is bounded where the divisor has one sign
    corners = [_replace_nan(x / y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    least = np.where(positive | ((b.high < 0) & (floor > 0)), low, -inf)
    most = np.where(positive | ((b.high < 0) & (floor > 0)), high, inf)
    change = _scaled_change(a.change, inverse) + _scaled_change(b.change, a.max_magnitude * inverse * inverse)
    return BodyPerturbation(
        least, most, change, _replace_nan(a.scale / np.maximum(b.scale, b.max_magnitude), 0.0), axes=a.axes
    )


def square_root(a: BodyPerturbation) -> BodyPerturbation:
    """Return that of a root: |sqrt(x + d) - sqrt(x)| is at most sqrt(d), and at most d / sqrt(x)."""
    if ((a.change != 0) & ~(a.low >= 0)).any():
        raise Sensitive("a root of what may be negative")
    low, high = np.sqrt(np.maximum(a.low, 0.0)), np.sqrt(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, np.minimum(np.sqrt(a.change), a.change / low))
    return BodyPerturbation(low, high, change, np.sqrt(a.scale), axes=a.axes)


def _logarithm(a: BodyPerturbation) -> BodyPerturbation:
    least = a.low - a.change
    if a.is_moved and not least.min() > 0:
        raise Sensitive("a logarithm of it")
    low, high = np.log(np.maximum(a.low, 0.0)), np.log(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, a.change / least)
    return BodyPerturbation(low, high, change, np.zeros_like(low), axes=a.axes)


def _bounded_slope(
    steepest: float, kept: float = 0.0, end: float = inf
) -> Callable[[BodyPerturbation], BodyPerturbation]:
    """Return the rule of a function with this largest slope, and values between -end and end.

    `kept`: |f(x)| is at least this fraction of |x| where |x| <= 1.
    """

    def of(a: BodyPerturbation) -> BodyPerturbation:
        bound = np.full_like(a.scale, end)
        return BodyPerturbation(
            -bound, bound, steepest * a.change, kept * np.minimum(a.scale, 1.0), axes=a.axes
        )

    return of


def _where(condition: BodyPerturbation, a: BodyPerturbation, b: BodyPerturbation) -> BodyPerturbation:
    if condition.is_moved:
        raise Sensitive("a choice by it")
    return either_of(a, b)


FUNCTION_RULES: Mapping[str, Callable[..., BodyPerturbation]] = {
    "neg": negate,
    "abs": _magnitude,
    "max": _maximum,
    "min": _minimum,
    "div": _quotient,
    "sqrt": square_root,
    "log": _logarithm,
    "where": _where,
    "erf": _bounded_slope(STEEPEST_ERF, LEAST_KEPT, 1.0),
    "tanh": _bounded_slope(1.0, LEAST_KEPT, 1.0),
    "sin": _bounded_slope(1.0, 0.0, 1.0),
    "cos": _bounded_slope(1.0, 0.0, 1.0),
    "atan": _bounded_slope(1.0, LEAST_KEPT, 2.0),
    "asinh": _bounded_slope(1.0, 0.0),
}
