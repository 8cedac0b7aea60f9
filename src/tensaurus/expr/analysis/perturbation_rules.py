"""The rules of `perturbation_bounds`: how scalar functions and reductions propagate bounds and changes.

Each rule takes the influences of its operands, whose arrays broadcast over the same axes, and returns that of
the result; it raises Sensitive where a moved operand may move the result far.  For x in 2..3 moved by at most
1e-9, and y in 4..5 not moved, x * y is in 8..15 and moved by at most 5e-9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, prod
from typing import Any, Self, TypeAlias

import numpy as np

from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.sizes.symbol import Axis

Array: TypeAlias = np.ndarray[Any, Any]

UNKNOWN_EXTENT = 2.0**24  # assumed largest number of terms of a sum over an axis of unknown size
STEEPEST_ERF = 1.1284  # largest slope of erf: 2 / sqrt(pi)
MAX_ARRAY_ELEMENTS = 1 << 24  # 128 MB of float64: a dozen such arrays are alive at once
LEAST_KEPT = 0.75  # |erf(x)|, |tanh(x)| and |atan(x)| are at least this fraction of |x| where |x| <= 1


class Sensitive(Exception):
    """Raised with the reason why an expression may turn a tiny difference into a large one."""


@dataclass(frozen=True, eq=False)
class Influence:
    """Bounds of the elements of a tensor, as arrays of its rank, of length 1 where all elements are alike.

    low, high  bounds of an element, before and after it is moved
    change     largest distance that an element is moved; NaN where that is unknown
    scale      magnitude of an element where all inputs have their largest, 0 where it is unknown; a change of
               an output must be tiny beside its scale
    least      least distance of an element from zero; None where that follows from low and high
    """

    low: Array
    high: Array
    change: Array
    scale: Array
    least: Array | None = None

    @classmethod
    def within(cls, low: float, high: float, rank: int = 0) -> Influence:
        """Return the influence of any numbers within these bounds, which are not moved."""
        least, most = np.full([1] * rank, low), np.full([1] * rank, high)
        bound = max(abs(low), abs(high))
        return cls(least, most, np.zeros_like(least), np.full_like(least, bound if bound < inf else 0.0))

    @classmethod
    def known(cls, value: Array, moved: Array | None = None) -> Influence:
        """Return the influence of known numbers, and of the numbers that they are moved to."""
        value = np.asarray(value, np.float64)
        if moved is None:
            return cls(value, value, np.zeros([1] * value.ndim), np.abs(value))
        is_unmoved = (moved == value) | (np.isnan(moved) & np.isnan(value))
        with np.errstate(invalid="ignore"):
            change = np.where(is_unmoved, 0.0, np.abs(moved - value))
        return cls(np.minimum(value, moved), np.maximum(value, moved), change, np.abs(value))

    @property
    def is_moved(self) -> bool:
        """Whether any element is moved."""
        return bool(self.change.any())

    @property
    def may_vanish(self) -> bool:
        """Whether any moved element may become 0."""
        return bool(((self.change != 0) & ~(self.low > 0) & ~(self.high < 0)).any())

    @property
    def size(self) -> Array:
        """The largest magnitude of each element."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def floor(self) -> Array:
        """The least distance of each element from zero."""
        bound = np.maximum(0.0, np.maximum(self.low, -self.high))
        return bound if self.least is None else np.maximum(bound, self.least)

    def or_zero(self, floor: Array, flushed: float, times: float = 1.0) -> Self:
        """Return the influence after `times` operations that flush numbers below `flushed` to 0.

        `floor` is the least magnitude that the flushed numbers may have had.
        """
        may_be_flushed = ~(floor >= flushed)
        return replace(
            self,
            low=np.where(may_be_flushed, np.minimum(self.low, 0.0), self.low),
            high=np.where(may_be_flushed, np.maximum(self.high, 0.0), self.high),
            change=self.change + np.where(may_be_flushed, times * flushed, 0.0),
            least=np.where(may_be_flushed, 0.0, self.floor),
        )

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays in the order of the constructor."""
        return self.low, self.high, self.change, self.scale, self.floor


@dataclass(frozen=True, eq=False)
class BodyInfluence(Influence):
    """The influence of a body: the dimensions of its arrays are `axes`."""

    axes: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, arrays: Iterable[Array], axes: tuple[Axis, ...] = ()) -> BodyInfluence:
        """Return the influence with arrays in the order of `Influence.arrays`."""
        low, high, change, scale, least = arrays
        return cls(low, high, change, scale, least, axes)


def add(a: BodyInfluence, b: BodyInfluence, unit: float) -> BodyInfluence:
    """Return the sum; a change below `unit` times the other term, if that is not moved, is rounded away."""
    own_change = np.where(a.change <= unit * _unmoved_floor(b), 0.0, a.change)
    other_change = np.where(b.change <= unit * _unmoved_floor(a), 0.0, b.change)
    return BodyInfluence(
        _replace_nan(a.low + b.low, -inf),
        _replace_nan(a.high + b.high, inf),
        own_change + other_change,
        a.scale + b.scale,
        axes=a.axes,
    )


def _unmoved_floor(part: BodyInfluence) -> Array:
    """Return the least magnitude of elements that are not moved, else 0."""
    return np.where(part.change == 0, part.floor, 0.0)


def align_array(array: Array, axes: Sequence[Axis], target_axes: Sequence[Axis]) -> Array:
    """Return the array with its dimensions in the order of these axes, of length 1 for missing ones."""
    order = [axes.index(a) for a in target_axes if a in axes]
    return array.transpose(order).reshape(
        [array.shape[axes.index(a)] if a in axes else 1 for a in target_axes]
    )


def collapse_dimension(arrays: Sequence[Array], d: int) -> list[Array]:
    """Return low, high, change, scale and least that hold for all elements along dimension d."""
    low, high, change, scale, least = arrays
    low, scale, least = (np.asarray(a.min(axis=d, initial=inf)) for a in (low, scale, least))
    high, change = (np.asarray(a.max(axis=d, initial=i)) for a, i in ((high, -inf), (change, 0.0)))
    return [low, high, change, scale, least]


def _limit_sizes(influences: Sequence[BodyInfluence]) -> Sequence[BodyInfluence]:
    """Return the influences with some axes collapsed where all together have too many elements."""
    while True:
        shapes = [np.broadcast_shapes(*(a.shape for a in part.arrays())) for part in influences]
        lengths: dict[Axis, int] = {}
        for part, shape in zip(influences, shapes, strict=True):
            for a, n in zip(part.axes, shape, strict=True):
                lengths[a] = max(lengths.get(a, 1), n)
        if prod(lengths.values()) <= MAX_ARRAY_ELEMENTS:
            return influences
        # collapse the longest axis that the largest operand lacks (else any): that operand keeps its detail
        largest = influences[max(range(len(influences)), key=lambda k: prod(shapes[k]))]
        others = {a: n for a, n in lengths.items() if a not in largest.axes and n > 1} or lengths
        longest = max(others, key=others.__getitem__)
        influences = [_collapse_axis(part, longest) for part in influences]


def _collapse_axis(part: BodyInfluence, axis: Axis) -> BodyInfluence:
    if axis not in part.axes:
        return part
    d = part.axes.index(axis)
    arrays = collapse_dimension(np.broadcast_arrays(*part.arrays()), d)
    return BodyInfluence.of(arrays, part.axes[:d] + part.axes[d + 1 :])


def broadcast_influences(influences: Sequence[BodyInfluence]) -> list[BodyInfluence]:
    """Return the influences over the same axes."""
    influences = _limit_sizes(influences)
    axes = tuple(dict.fromkeys(a for part in influences for a in part.axes))
    return [
        BodyInfluence.of((align_array(x, part.axes, axes) for x in part.arrays()), axes)
        for part in influences
    ]


def _replace_nan(value: Array, otherwise: float) -> Array:
    """Return the array without NaN, which infinite bounds leave where nothing is known."""
    return np.where(np.isnan(value), otherwise, value)


def _scaled_change(change: Array, size: Array) -> Array:
    """Return change * size, and 0 where nothing is moved, though infinity times 0 is NaN."""
    return np.where(change == 0, 0.0, change * size)


def negate(a: BodyInfluence) -> BodyInfluence:
    return BodyInfluence(-a.high, -a.low, a.change, a.scale, a.floor, a.axes)


def either_of(a: BodyInfluence, b: BodyInfluence) -> BodyInfluence:
    """Return the influence of elements that are those of one or of the other."""
    a, b = broadcast_influences([a, b])
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    floor = np.minimum(a.floor, b.floor)
    return BodyInfluence(low, high, np.maximum(a.change, b.change), _moving_scale(a, b), floor, a.axes)


def _moving_scale(a: BodyInfluence, b: BodyInfluence) -> Array:
    """Return the smaller of the two scales; where only one operand is moved, its own."""
    first = np.where((a.change == 0) & (b.change != 0), inf, a.scale)
    return np.minimum(first, np.where((b.change == 0) & (a.change != 0), inf, b.scale))


def multiply(a: BodyInfluence, b: BodyInfluence, *, is_square: bool = False) -> BodyInfluence:
    """Return the product: |(x + d)(y + e) - x*y| <= |d|*|e| + |d|*|y| + |e|*|x|."""
    corners = [_replace_nan(x * y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    if is_square:
        low = np.maximum(low, 0.0)
    change = (
        _scaled_change(a.change, b.change)
        + _scaled_change(a.change, b.size)
        + _scaled_change(b.change, a.size)
    )
    return BodyInfluence(
        low, high, change, _replace_nan(a.scale * b.scale, 0.0), _replace_nan(a.floor * b.floor, 0.0), a.axes
    )


def constant_exponent(other: BodyInfluence) -> float | None:
    """Return the exponent, where it is one half or a small whole number, else None."""
    values = np.unique(np.concatenate([other.low.ravel(), other.high.ravel()]))
    if other.is_moved or len(values) != 1 or values[0] not in (0.5, 1, 2, 3, 4, 5, 6, 7, 8):
        return None
    return float(values[0])


def reduce_influence(monoid: str, part: BodyInfluence, axes: Sequence[Axis]) -> BodyInfluence:
    """Return the sum, mean, max, min or product over the axes; those that the part lacks repeat its value."""
    present = tuple(part.axes.index(a) for a in axes if a in part.axes)  # dimensions to reduce
    kept_axes = tuple(a for a in part.axes if a not in axes)
    low, high, change, scale, _ = np.broadcast_arrays(*part.arrays())
    if monoid == "mean":
        low, high, change, scale = (x.mean(axis=present) for x in (low, high, change, scale))
        return BodyInfluence(low, high, change, scale, axes=kept_axes)
    if monoid in ("max", "min"):
        extremum = np.max if monoid == "max" else np.min
        low, high = (np.asarray(extremum(x, axis=present)) for x in (low, high))
        # the scale is the least one of the terms, or of the moved terms where some are moved
        moved_scale = np.where(np.any(change != 0, axis=present, keepdims=True) & (change == 0), inf, scale)
        return BodyInfluence(
            low, high, change.max(axis=present), moved_scale.min(axis=present), axes=kept_axes
        )
    if monoid == "prod":
        if part.is_moved:
            raise Sensitive("a product of many of it")
        low, high, change, scale = _anything(low.min(axis=present))
        return BodyInfluence(low, high, change, scale, axes=kept_axes)
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
    return BodyInfluence(
        low, high, change.sum(axis=present) * repeats, scale.sum(axis=present), axes=kept_axes
    )


def _anything(like: Array) -> tuple[Array, Array, Array, Array]:
    return tuple(np.full_like(like, x, float) for x in (-inf, inf, 0.0, 0.0))  # type: ignore[return-value]


def unmoved_call(fn: str, parts: Sequence[BodyInfluence]) -> BodyInfluence:
    """Return the influence of a function whose arguments are not moved."""
    low, high, change, scale = _anything(reduce(np.add, [part.scale for part in parts]))
    if fn in FUNCTIONS and FUNCTIONS[fn].result == "bool":
        low, high = np.zeros_like(low), np.ones_like(high)
    elif fn == "exp":
        low, high = np.exp(parts[0].low), np.exp(parts[0].high)
    return BodyInfluence(low, high, change, scale, axes=parts[0].axes)


def _largest(a: BodyInfluence, b: BodyInfluence) -> BodyInfluence:
    return BodyInfluence(
        np.maximum(a.low, b.low),
        np.maximum(a.high, b.high),
        np.maximum(a.change, b.change),
        _moving_scale(a, b),
        axes=a.axes,
    )


def _lesser(a: BodyInfluence, b: BodyInfluence) -> BodyInfluence:
    return negate(_largest(negate(a), negate(b)))


def _magnitude(a: BodyInfluence) -> BodyInfluence:
    return BodyInfluence(a.floor, a.size, a.change, a.scale, axes=a.axes)


def _quotient(a: BodyInfluence, b: BodyInfluence) -> BodyInfluence:
    """Return the quotient x / y: with f the least |y|, it moves by at most |d| / f + |e| * |x| / f^2."""
    floor = b.floor - b.change
    if (a.is_moved or b.is_moved) and not floor.min() > 0:
        raise Sensitive("a quotient of it by what may be zero" if a.is_moved else "a quotient by it")
    inverse = np.where(floor > 0, 1 / floor, inf)
    positive = (b.low > 0) & (floor > 0)  # the quotient is bounded where the divisor has one sign
    corners = [_replace_nan(x / y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    least = np.where(positive | ((b.high < 0) & (floor > 0)), low, -inf)
    most = np.where(positive | ((b.high < 0) & (floor > 0)), high, inf)
    change = _scaled_change(a.change, inverse) + _scaled_change(b.change, a.size * inverse * inverse)
    return BodyInfluence(
        least, most, change, _replace_nan(a.scale / np.maximum(b.scale, b.size), 0.0), axes=a.axes
    )


def square_root(a: BodyInfluence) -> BodyInfluence:
    """Return the influence of a root: |sqrt(x + d) - sqrt(x)| is at most sqrt(d), and at most d / sqrt(x)."""
    if ((a.change != 0) & ~(a.low >= 0)).any():
        raise Sensitive("a root of what may be negative")
    low, high = np.sqrt(np.maximum(a.low, 0.0)), np.sqrt(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, np.minimum(np.sqrt(a.change), a.change / low))
    return BodyInfluence(low, high, change, np.sqrt(a.scale), axes=a.axes)


def _logarithm(a: BodyInfluence) -> BodyInfluence:
    least = a.low - a.change
    if a.is_moved and not least.min() > 0:
        raise Sensitive("a logarithm of it")
    low, high = np.log(np.maximum(a.low, 0.0)), np.log(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, a.change / least)
    return BodyInfluence(low, high, change, np.zeros_like(low), axes=a.axes)


def _bounded_slope(
    steepest: float, kept: float = 0.0, end: float = inf
) -> Callable[[BodyInfluence], BodyInfluence]:
    """Return the rule of a function with this largest slope, and values between -end and end.

    `kept`: |f(x)| is at least this fraction of |x| where |x| <= 1.
    """

    def of(a: BodyInfluence) -> BodyInfluence:
        bound = np.full_like(a.scale, end)
        return BodyInfluence(-bound, bound, steepest * a.change, kept * np.minimum(a.scale, 1.0), axes=a.axes)

    return of


def _chosen(condition: BodyInfluence, a: BodyInfluence, b: BodyInfluence) -> BodyInfluence:
    if condition.is_moved:
        raise Sensitive("a choice by it")
    return either_of(a, b)


SMOOTH_RULES: Mapping[str, Callable[..., BodyInfluence]] = {
    "neg": negate,
    "abs": _magnitude,
    "max": _largest,
    "min": _lesser,
    "div": _quotient,
    "sqrt": square_root,
    "log": _logarithm,
    "where": _chosen,
    "erf": _bounded_slope(STEEPEST_ERF, LEAST_KEPT, 1.0),
    "tanh": _bounded_slope(1.0, LEAST_KEPT, 1.0),
    "sin": _bounded_slope(1.0, 0.0, 1.0),
    "cos": _bounded_slope(1.0, 0.0, 1.0),
    "atan": _bounded_slope(1.0, LEAST_KEPT, 2.0),
    "asinh": _bounded_slope(1.0, 0.0),
}
