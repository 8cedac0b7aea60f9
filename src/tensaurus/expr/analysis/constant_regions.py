"""Where an expression is a constant, whatever its tensors hold: borders of a Pad, zeros between elements.

    L[i:5](x[i - 1] | 0)          x of 3 elements          0:1 is 0, 4:5 is 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box
from tensaurus.expr.analysis.condition import POINTS, Unknown, conditions, decided, holds
from tensaurus.expr.analysis.summation_regions import NEUTRAL, boxes, ends, literals
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Reduce, Scope, Select
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.normal.flatten import flatten
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Size,
    atoms,
    evaluate,
    is_nonnegative,
    is_same_size,
    product,
    substitute,
)

Value = bool | int | float | Fraction
Objects = np.ndarray[Any, np.dtype[np.object_]]
SMALL = range(128)  # numbers that every type of integers holds


def known_constant(scope: Scope) -> tuple[tuple[Box, Value], ...]:
    """Disjoint boxes of the output where it is a constant, each with that constant.

    What is found is so over the reals; not every constant is found: functions but +, -, *, max and min are
    not computed, and of integers only small ones, which wrap in no type.
    """
    constants = []
    dtypes = dtype_of(scope), *(t.dtype for t in tensors(scope))
    floats = all(dtype.startswith(("float", "bfloat")) for dtype in dtypes)
    for region in boxes(scope):
        if region.summations is None:
            continue
        places = ends(scope, region.box)
        moving = {
            a for a, side in zip(scope.axes, region.box.sides, strict=True) if not is_same_size(side.count, 1)
        }
        value = _Place(flatten(scope), places, moving, floats).value
        if value is not None:
            constants.append((region.box, value))
    return tuple(constants)


class _Place:
    """What the body is at a place of its output, or at either of two alike.

    Arrays have a dimension for each reduced axis that some condition or size depends on, the inner ones
    first; None stands for what is not known.
    """

    def __init__(self, body: Body, places: Sequence[Mapping[Atom, Any]], moving: set[Axis], floats: bool):
        self.places, self.moving, self.floats = places, moving, floats
        self.seen = set().union(*map(atoms, (*chain(*conditions(body)), *literals(body))))
        self.points: dict[Atom, Any] = {}
        self.shape: tuple[int, ...] = ()
        self.axes: tuple[Axis, ...] = ()
        try:
            self.value: Value | None = self.body(body).item()
        except Unknown:
            self.value = None

    def body(self, body: Body) -> Objects:
        match body:
            case Const(value):
                return self.number(value) if isinstance(value, Poly) else _array(value)
            case Select(guard, then, other):
                held = holds(tuple(decided(g, self.places) for g in guard), self.axes)
                return np.where(held, self.body(then), self.body(other))
            case Call(fn, args):
                return self.call(fn, [self.body(arg) for arg in args])
            case Reduce(monoid, axes, inner):
                return self.reduce(monoid, axes, inner)
        return _array(None)

    def number(self, size: Size) -> Objects:
        """A size as an element."""
        inside = {a for a in atoms(size) if not isinstance(a, (Floor, Largest))}
        if not self.moving.isdisjoint(inside) or not inside <= {*self.points, *self.places[0]}:
            return _array(None)
        here = substitute(size, self.places[0])
        if not {a for a in atoms(here) if not isinstance(a, (Floor, Largest))} <= set(self.points):
            return _array(None)
        return np.asarray(evaluate(here, self.points.__getitem__)).astype(object)

    def call(self, fn: str, args: list[Objects]) -> Objects:
        target = cast_target(fn)
        if target is not None:
            held = (0, 1) if target != "bool" else ()
            return _each(lambda a: a if _numbers(a) and a in held else None, *args)
        match fn:
            case "add":
                return _each(lambda a, b: self.exact(a + b) if _numbers(a, b) else None, *args)
            case "sub":
                return _each(lambda a, b: self.exact(a - b) if _numbers(a, b) else None, *args)
            case "neg":
                return _each(lambda a: self.exact(-a) if _numbers(a) else None, *args)
            case "mul":
                return _each(self.multiplied, *args)
            case "max":
                return _each(lambda a, b: max(a, b) if _numbers(a, b) else None, *args)
            case "min":
                return _each(lambda a, b: min(a, b) if _numbers(a, b) else None, *args)
        return _array(None)

    def exact(self, value: Any) -> Any:
        """The value, if the element type holds it."""
        return value if value == value and (self.floats or value in SMALL) else None

    def multiplied(self, a: Any, b: Any) -> Any:
        if _numbers(a, b):
            return self.exact(a * b)
        return 0 if any(_numbers(x) and x == 0 and y is None for x, y in ((a, b), (b, a))) else None

    def reduce(self, monoid: str, axes: tuple[Axis, ...], inner: Body) -> Objects:
        neutral = NEUTRAL[monoid]
        if any(is_same_size(a.extent, 0) for a in axes):
            return _array(neutral)
        count = product(a.extent for a in axes if a not in self.seen)
        extents = [a.extent for a in axes if a in self.seen]
        sizes = tuple(n for n in extents if isinstance(n, int))
        if len(sizes) < len(extents) or prod(sizes) * prod(self.shape) > POINTS:
            raise Unknown(f"a reduction over {axes}")
        outer = self.shape, self.axes, dict(self.points)
        self.axes = (*(a for a in axes if a in self.seen), *self.axes)
        self.shape = (*sizes, *self.shape)
        for place, a in enumerate(self.axes):
            self.points[a] = np.arange(self.shape[place]).reshape(-1, *[1] * (len(self.shape) - place - 1))
        values = np.broadcast_to(self.body(inner), self.shape)
        self.shape, self.axes, self.points = outer
        rows = values.reshape(-1, *self.shape)
        totals = np.apply_along_axis(lambda row: _array(self.total(monoid, list(row), count)), 0, rows)
        return np.asarray(totals, dtype=object)

    def total(self, monoid: str, values: list[Any], count: Size) -> Any:
        """The reduction of known values, each of them `count` times."""
        neutral = NEUTRAL[monoid]
        if not _numbers(*values):
            return None
        if all(value == neutral for value in values):
            return values[0] if values else neutral
        if monoid in ("max", "min"):
            return (max if monoid == "max" else min)(values) if is_nonnegative(count - 1) else None
        if not isinstance(count, int) or monoid == "prod" and count * len(values) > len(SMALL):
            return None
        return self.exact(sum(values) * count if monoid == "sum" else prod(values) ** count)


def _array(value: Any) -> Objects:
    return np.array(value, dtype=object)


def _each(function: Any, *arrays: Objects) -> Objects:
    """A function of elements, of which some may be None."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), dtype=object)


def _numbers(*values: Any) -> bool:
    """Whether all are known and numbers, infinities too but not NaN."""
    return all(isinstance(v, (int, float, Fraction)) and not isinstance(v, bool) and v == v for v in values)
