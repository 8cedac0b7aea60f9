"""What scalar functions and reductions make of changes: the cases of `expr/analysis/perturbation_bounds`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, prod
from typing import Any, Self, TypeAlias

import numpy as np

from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.expr.sizes.symbol import Axis

__all__ = [
    *("SMOOTH", "UNKNOWN", "Influence", "Part", "Sensitive", "added", "aligned", "clean", "collapsed"),
    *("either", "negated", "power", "product", "reduced", "root", "together"),
]

Array: TypeAlias = np.ndarray[Any, Any]

UNKNOWN = 2.0**24  # terms, at most, that a sum over an axis of unknown size has
STEEPEST_ERF = 1.1284  # 2 / sqrt(pi)
ROOM = 1 << 24  # elements that arrays may have: a dozen of them are alive at once
LEAST_KEPT = 0.75  # erf and tanh keep so much of a number that is small


class Sensitive(Exception):
    """The reason why an expression may make a large difference of a tiny one."""


@dataclass(frozen=True, eq=False)
class Influence:
    """What is known of the elements of a tensor; arrays of its rank, of length 1 where all are alike.

    low, high  bounds of an element, before and after it is moved
    change     how far it is moved at most; NaN where nobody knows
    scale      how large it is, were its inputs as large as they may be: what its change is small beside
    least      how far from zero it is at least; None where the bounds say all that is known
    """

    low: Array
    high: Array
    change: Array
    scale: Array
    least: Array | None = None

    @classmethod
    def within(cls, low: float, high: float, rank: int = 0) -> Influence:
        """Any numbers of these bounds, which nothing moves."""
        least, most = np.full([1] * rank, low), np.full([1] * rank, high)
        bound = max(abs(low), abs(high))
        return cls(least, most, np.zeros_like(least), np.full_like(least, bound if bound < inf else 0.0))

    @classmethod
    def known(cls, value: Array, moved: Array | None = None) -> Influence:
        """Known numbers, and where these are moved to."""
        value = np.asarray(value, np.float64)
        if moved is None:
            return cls(value, value, np.zeros([1] * value.ndim), np.abs(value))
        same = (moved == value) | (np.isnan(moved) & np.isnan(value))
        with np.errstate(invalid="ignore"):
            change = np.where(same, 0.0, np.abs(moved - value))
        return cls(np.minimum(value, moved), np.maximum(value, moved), change, np.abs(value))

    @property
    def moves(self) -> bool:
        """Whether any element is moved."""
        return bool(self.change.any())

    @property
    def may_vanish(self) -> bool:
        """Whether any element that is moved may be 0 then."""
        return bool(((self.change != 0) & ~(self.low > 0) & ~(self.high < 0)).any())

    @property
    def size(self) -> Array:
        """How large an element is at most."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def floor(self) -> Array:
        """How far an element is from zero at least."""
        bound = np.maximum(0.0, np.maximum(self.low, -self.high))
        return bound if self.least is None else np.maximum(bound, self.least)

    def or_zero(self, floor: Array, flushed: float, times: float = 1.0) -> Self:
        """The same where numbers below `flushed` become 0, so many times: none with a floor above it."""
        lost = ~(floor >= flushed)
        return replace(
            self,
            low=np.where(lost, np.minimum(self.low, 0.0), self.low),
            high=np.where(lost, np.maximum(self.high, 0.0), self.high),
            change=self.change + np.where(lost, times * flushed, 0.0),
            least=np.where(lost, 0.0, self.floor),
        )

    def arrays(self) -> tuple[Array, ...]:
        """All of them, in the order in which they are given."""
        return self.low, self.high, self.change, self.scale, self.floor


@dataclass(frozen=True, eq=False)
class Part(Influence):
    """The influence of a body: dimensions of its arrays are the axes of these."""

    axes: tuple[Axis, ...] = ()

    @classmethod
    def of(cls, arrays: Iterable[Array], axes: tuple[Axis, ...] = ()) -> Part:
        """Of arrays in the order of `Influence.arrays`."""
        low, high, change, scale, least = arrays
        return cls(low, high, change, scale, least, axes)


def added(a: Part, b: Part, unit: float) -> Part:
    """The sum, in which what is smaller than `unit` of a term that is there anyway is rounded away."""
    moved = np.where(a.change <= unit * _still(b), 0.0, a.change)
    beside = np.where(b.change <= unit * _still(a), 0.0, b.change)
    return Part(
        _number(a.low + b.low, -inf),
        _number(a.high + b.high, inf),
        moved + beside,
        a.scale + b.scale,
        axes=a.axes,
    )


def _still(part: Part) -> Array:
    """How large it is at least, where nothing moves it."""
    return np.where(part.change == 0, part.floor, 0.0)


def aligned(array: Array, axes: Sequence[Axis], wanted: Sequence[Axis]) -> Array:
    """Its dimensions in the order of these axes, of length 1 for those that it lacks."""
    order = [axes.index(a) for a in wanted if a in axes]
    return array.transpose(order).reshape([array.shape[axes.index(a)] if a in axes else 1 for a in wanted])


def collapsed(arrays: Sequence[Array], place: int) -> list[Array]:
    """Of low, high, change, scale and least: what holds for all elements along a dimension."""
    low, high, change, scale, least = arrays
    low, scale, least = (np.asarray(a.min(axis=place, initial=inf)) for a in (low, scale, least))
    high, change = (np.asarray(a.max(axis=place, initial=i)) for a, i in ((high, -inf), (change, 0.0)))
    return [low, high, change, scale, least]


def _narrowed(parts: Sequence[Part]) -> Sequence[Part]:
    """The same parts, with one value along some axes where all together have too many elements."""
    while True:
        shapes = [np.broadcast_shapes(*(a.shape for a in part.arrays())) for part in parts]
        lengths: dict[Axis, int] = {}
        for part, shape in zip(parts, shapes, strict=True):
            for a, n in zip(part.axes, shape, strict=True):
                lengths[a] = max(lengths.get(a, 1), n)
        if prod(lengths.values()) <= ROOM:
            return parts
        largest = parts[max(range(len(parts)), key=lambda k: prod(shapes[k]))]
        others = {a: n for a, n in lengths.items() if a not in largest.axes and n > 1} or lengths
        longest = max(others, key=others.__getitem__)
        parts = [_without(part, longest) for part in parts]


def _without(part: Part, axis: Axis) -> Part:
    if axis not in part.axes:
        return part
    place = part.axes.index(axis)
    arrays = collapsed(np.broadcast_arrays(*part.arrays()), place)
    return Part.of(arrays, part.axes[:place] + part.axes[place + 1 :])


def together(parts: Sequence[Part]) -> list[Part]:
    """The same parts over the same axes."""
    parts = _narrowed(parts)
    axes = tuple(dict.fromkeys(a for part in parts for a in part.axes))
    return [Part.of((aligned(x, part.axes, axes) for x in part.arrays()), axes) for part in parts]


def _number(value: Array, otherwise: float) -> Array:
    """The same without NaN: what infinite bounds leave open."""
    return np.where(np.isnan(value), otherwise, value)


def _moved(change: Array, size: Array) -> Array:
    """A change times what is as large: none where nothing changes, and infinity times 0 is unknown."""
    return np.where(change == 0, 0.0, change * size)


def negated(a: Part) -> Part:
    return Part(-a.high, -a.low, a.change, a.scale, a.floor, a.axes)


def either(a: Part, b: Part) -> Part:
    """One of them, elsewhere the other."""
    a, b = together([a, b])
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    floor = np.minimum(a.floor, b.floor)
    return Part(low, high, np.maximum(a.change, b.change), _smaller(a, b), floor, a.axes)


def _smaller(a: Part, b: Part) -> Array:
    """The scale of that one of them that moves."""
    left = np.where((a.change == 0) & (b.change != 0), inf, a.scale)
    return np.minimum(left, np.where((b.change == 0) & (a.change != 0), inf, b.scale))


def product(a: Part, b: Part, *, square: bool = False) -> Part:
    corners = [_number(x * y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    if square:
        low = np.maximum(low, 0.0)
    change = _moved(a.change, b.change) + _moved(a.change, b.size) + _moved(b.change, a.size)
    return Part(low, high, change, _number(a.scale * b.scale, 0.0), _number(a.floor * b.floor, 0.0), a.axes)


def power(other: Part) -> float | None:
    """The exponent, where it is one half or a small whole number."""
    values = np.unique(np.concatenate([other.low.ravel(), other.high.ravel()]))
    if other.moves or len(values) != 1 or values[0] not in (0.5, 1, 2, 3, 4, 5, 6, 7, 8):
        return None
    return float(values[0])


def reduced(monoid: str, part: Part, axes: Sequence[Axis]) -> Part:
    """The sum, mean, greatest, least or product over the axes; those that the part lacks repeat its value."""
    present = tuple(part.axes.index(a) for a in axes if a in part.axes)
    left = tuple(a for a in part.axes if a not in axes)
    low, high, change, scale, _ = np.broadcast_arrays(*part.arrays())
    if monoid == "mean":
        low, high, change, scale = (x.mean(axis=present) for x in (low, high, change, scale))
        return Part(low, high, change, scale, axes=left)
    if monoid in ("max", "min"):
        best = np.max if monoid == "max" else np.min
        low, high = (np.asarray(best(x, axis=present)) for x in (low, high))
        moved = np.where(np.any(change != 0, axis=present, keepdims=True) & (change == 0), inf, scale)
        return Part(low, high, change.max(axis=present), moved.min(axis=present), axes=left)
    if monoid == "prod":
        if part.moves:
            raise Sensitive("a product of many of it")
        low, high, change, scale = _anything(low.min(axis=present))
        return Part(low, high, change, scale, axes=left)
    lengths = {a: low.shape[part.axes.index(a)] for a in part.axes}
    absent = [a.extent for a in axes if lengths.get(a, 1) == 1]
    repeats = prod(float(n) if isinstance(n, int) else UNKNOWN for n in absent)
    low, high = (_number(np.asarray(x.sum(axis=present)), end) for x, end in ((low, -inf), (high, inf)))
    low, high = np.minimum(low, _number(low * repeats, 0.0)), np.maximum(high, _number(high * repeats, 0.0))
    return Part(low, high, change.sum(axis=present) * repeats, scale.sum(axis=present), axes=left)


def _anything(like: Array) -> tuple[Array, Array, Array, Array]:
    return tuple(np.full_like(like, x, float) for x in (-inf, inf, 0.0, 0.0))  # type: ignore[return-value]


def clean(fn: str, parts: Sequence[Part]) -> Part:
    """A function of what nothing moves."""
    low, high, change, scale = _anything(reduce(np.add, [part.scale for part in parts]))
    if fn in FUNCTIONS and FUNCTIONS[fn].result == "bool":
        low, high = np.zeros_like(low), np.ones_like(high)
    elif fn == "exp":
        low, high = np.exp(parts[0].low), np.exp(parts[0].high)
    return Part(low, high, change, scale, axes=parts[0].axes)


def _largest(a: Part, b: Part) -> Part:
    return Part(
        np.maximum(a.low, b.low),
        np.maximum(a.high, b.high),
        np.maximum(a.change, b.change),
        _smaller(a, b),
        axes=a.axes,
    )


def _lesser(a: Part, b: Part) -> Part:
    return negated(_largest(negated(a), negated(b)))


def _magnitude(a: Part) -> Part:
    return Part(a.floor, a.size, a.change, a.scale, axes=a.axes)


def _quotient(a: Part, b: Part) -> Part:
    floor = b.floor - b.change
    if (a.moves or b.moves) and not floor.min() > 0:
        raise Sensitive("a quotient of it by what may be zero" if a.moves else "a quotient by it")
    inverse = np.where(floor > 0, 1 / floor, inf)
    positive = (b.low > 0) & (floor > 0)
    corners = [_number(x / y, 0.0) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
    least = np.where(positive | ((b.high < 0) & (floor > 0)), low, -inf)
    most = np.where(positive | ((b.high < 0) & (floor > 0)), high, inf)
    change = _moved(a.change, inverse) + _moved(b.change, a.size * inverse * inverse)
    return Part(least, most, change, _number(a.scale / np.maximum(b.scale, b.size), 0.0), axes=a.axes)


def root(a: Part) -> Part:
    """|sqrt(x + d) - sqrt(x)| is at most sqrt(d), and d / sqrt(x)."""
    if ((a.change != 0) & ~(a.low >= 0)).any():
        raise Sensitive("a root of what may be negative")
    low, high = np.sqrt(np.maximum(a.low, 0.0)), np.sqrt(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, np.minimum(np.sqrt(a.change), a.change / low))
    return Part(low, high, change, np.sqrt(a.scale), axes=a.axes)


def _logarithm(a: Part) -> Part:
    least = a.low - a.change
    if a.moves and not least.min() > 0:
        raise Sensitive("a logarithm of it")
    low, high = np.log(np.maximum(a.low, 0.0)), np.log(np.maximum(a.high, 0.0))
    change = np.where(a.change == 0, 0.0, a.change / least)
    return Part(low, high, change, np.zeros_like(low), axes=a.axes)


def _bent(steepest: float, kept: float = 0.0, end: float = inf) -> Callable[[Part], Part]:
    """A function of so large a slope at most, whose values lie between -end and end; it keeps so much of
    what is small."""

    def of(a: Part) -> Part:
        bound = np.full_like(a.scale, end)
        return Part(-bound, bound, steepest * a.change, kept * np.minimum(a.scale, 1.0), axes=a.axes)

    return of


def _chosen(condition: Part, a: Part, b: Part) -> Part:
    if condition.moves:
        raise Sensitive("a choice by it")
    return either(a, b)


SMOOTH: Mapping[str, Callable[..., Part]] = {
    "neg": negated,
    "abs": _magnitude,
    "max": _largest,
    "min": _lesser,
    "div": _quotient,
    "sqrt": root,
    "log": _logarithm,
    "where": _chosen,
    "erf": _bent(STEEPEST_ERF, LEAST_KEPT, 1.0),
    "tanh": _bent(1.0, LEAST_KEPT, 1.0),
    "sin": _bent(1.0, 0.0, 1.0),
    "cos": _bent(1.0, 0.0, 1.0),
    "atan": _bent(1.0, LEAST_KEPT, 2.0),
    "asinh": _bent(1.0, 0.0),
}
