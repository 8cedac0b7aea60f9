"""Find the boxes where an expression is constant, whatever its tensors hold.

    L[i:5](x[i - 1] | 0)          x of 3 elements          0 for i in 0:1 and for i in 4:5

Such boxes are the borders of a Pad, and the zeros that a transposed convolution puts between elements.
`finders/derive/tighten_boundary` leaves out the boxes where the constant is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from operator import add, neg, sub
from typing import Any

import numpy as np

from tensaurus.expr.analysis.box import Box
from tensaurus.expr.analysis.condition import (
    MAX_POINTS,
    Undecided,
    collect_conditions,
    size_at_deciding_place,
    truth_table,
)
from tensaurus.expr.analysis.summation_regions import (
    literal_sizes,
    representative_places,
    summation_regions,
)
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scalar_functions import NEUTRAL_ELEMENTS, cast_target
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
WRAPPING_FUNCTIONS: dict[str, Callable[..., Any]] = {"add": add, "sub": sub, "neg": neg}
CLOSED_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min}  # the result is an argument
SMALL_INTEGERS = range(128)  # exist in every integer type; a larger result may wrap in some type


def constant_boxes(scope: Scope) -> tuple[tuple[Box, Value], ...]:
    """Return disjoint boxes of the output where it is constant, each with the constant.

    The result holds over the reals.  Not every constant is found: functions other than +, -, *, max and min
    are not computed, and integers only up to 127, which wrap in no type.
    """
    constants = []
    dtypes = dtype_of(scope), *(t.dtype for t in tensors(scope))
    has_floats_only = all(dtype.startswith(("float", "bfloat")) for dtype in dtypes)
    for region in summation_regions(scope):
        if region.summations is None:  # nothing is known about the region
            continue
        end_places_of_box = representative_places(scope, region.box)
        varying_axes = {
            a for a, side in zip(scope.axes, region.box.sides, strict=True) if not is_same_size(side.count, 1)
        }
        value = _ConstantEvaluator(flatten(scope), end_places_of_box, varying_axes, has_floats_only).value
        if value is not None:
            constants.append((region.box, value))
    return tuple(constants)


class _ConstantEvaluator:
    """Evaluates a body in one box of its output; `value` is None where the body is not constant there.

    Each guard holds at all places of the box or at none, so that it is decided at `places` alone.  Arrays
    have a dimension for each reduced axis around the current body that some condition or size depends on, the
    inner ones first (`axes`, `shape`); their elements are None where the value is not known.

    places           the first place of the box, and the last where the box may be empty
    varying_axes     the axes of the output with several indices in the box
    has_floats_only  whether only float types occur, so that no result wraps
    relevant_atoms   what the conditions of the body, and the sizes in it that are used as numbers, depend on
    points           the index of each axis in `axes`, as an array that broadcasts to `shape`
    """

    def __init__(
        self, body: Body, places: Sequence[Mapping[Atom, Any]], varying_axes: set[Axis], has_floats_only: bool
    ):
        self.places, self.varying_axes, self.has_floats_only = places, varying_axes, has_floats_only
        self.relevant_atoms = set().union(
            *map(atoms, (*chain(*collect_conditions(body)), *literal_sizes(body)))
        )
        self.points: dict[Atom, Any] = {}
        self.shape: tuple[int, ...] = ()
        self.axes: tuple[Axis, ...] = ()
        try:
            self.value: Value | None = self.body(body).item()
        except Undecided:
            self.value = None

    def body(self, body: Body) -> Objects:
        match body:
            case Const(value):
                return self.number(value) if isinstance(value, Poly) else _array(value)
            case Select(guard, then, other):
                holds = truth_table(tuple(size_at_deciding_place(g, self.places) for g in guard), self.axes)
                return np.where(holds, self.body(then), self.body(other))
            case Call(fn, args):
                return self.call(fn, [self.body(arg) for arg in args])
            case Reduce(monoid, axes, inner):
                return self.reduce(monoid, axes, inner)
        return _array(None)

    def number(self, size: Size) -> Objects:
        """Return a size as a number, None where it is not constant in the box."""
        # constant means: without axes that vary, and without atoms such as lookups that no index is known of
        own_atoms = {a for a in atoms(size) if not isinstance(a, (Floor, Largest))}
        if not self.varying_axes.isdisjoint(own_atoms) or not own_atoms <= {*self.points, *self.places[0]}:
            return _array(None)
        size_here = substitute(size, self.places[0])  # an index of a place may be a size with symbols
        if not {a for a in atoms(size_here) if not isinstance(a, (Floor, Largest))} <= set(self.points):
            return _array(None)
        return np.asarray(evaluate(size_here, self.points.__getitem__)).astype(object)

    def call(self, fn: str, args: list[Objects]) -> Objects:
        target = cast_target(fn)
        if target is not None:
            exact_values = (0, 1) if target != "bool" else ()  # no conversion changes these numbers
            return _each(lambda a: a if _are_numbers(a) and a in exact_values else None, *args)
        if fn == "mul":
            return _each(self.multiply, *args)
        if fn in CLOSED_FUNCTIONS:
            run = CLOSED_FUNCTIONS[fn]
            return _each(lambda a, b: run(a, b) if _are_numbers(a, b) else None, *args)
        if fn in WRAPPING_FUNCTIONS:
            run = WRAPPING_FUNCTIONS[fn]
            return _each(
                lambda *values: self.if_exact(run(*values)) if _are_numbers(*values) else None, *args
            )
        return _array(None)

    def if_exact(self, value: Any) -> Any:
        """Return the value if every element type that the scope uses holds it, else None."""
        return value if value == value and (self.has_floats_only or value in SMALL_INTEGERS) else None

    def multiply(self, a: Any, b: Any) -> Any:
        """Return a * b; 0 times an unknown real is 0."""
        if _are_numbers(a, b):
            return self.if_exact(a * b)
        return 0 if any(_are_numbers(x) and x == 0 and y is None for x, y in ((a, b), (b, a))) else None

    def reduce(self, monoid: str, axes: tuple[Axis, ...], inner: Body) -> Objects:
        neutral = NEUTRAL_ELEMENTS[monoid]
        if any(is_same_size(a.extent, 0) for a in axes):
            return _array(neutral)
        # no condition or size depends on the other axes: along these each value occurs `count` times
        count = product(a.extent for a in axes if a not in self.relevant_atoms)
        extents = [a.extent for a in axes if a in self.relevant_atoms]
        lengths = tuple(n for n in extents if isinstance(n, int))
        if len(lengths) < len(extents) or prod(lengths) * prod(self.shape) > MAX_POINTS:
            raise Undecided(f"a reduction over {axes}")
        # evaluate the operand with a dimension more for each relevant axis, then restore the outer ones
        outer = self.shape, self.axes, dict(self.points)
        self.axes = (*(a for a in axes if a in self.relevant_atoms), *self.axes)
        self.shape = (*lengths, *self.shape)
        for d, a in enumerate(self.axes):
            self.points[a] = np.arange(self.shape[d]).reshape(-1, *[1] * (len(self.shape) - d - 1))
        values = np.broadcast_to(self.body(inner), self.shape)
        self.shape, self.axes, self.points = outer
        rows = values.reshape(-1, *self.shape)  # the new dimensions as one, which is reduced
        totals = np.apply_along_axis(
            lambda row: _array(self.reduce_values(monoid, list(row), count)), 0, rows
        )
        return np.asarray(totals, dtype=object)

    def reduce_values(self, monoid: str, values: list[Any], count: Size) -> Any:
        """Return the reduction of these values, each of them `count` times.

        None where a value is unknown, a count that matters is a symbol, or the result is not exact.
        """
        neutral = NEUTRAL_ELEMENTS[monoid]
        if not _are_numbers(*values):
            return None
        if all(value == neutral for value in values):
            return values[0] if values else neutral
        if monoid in ("max", "min"):
            return (max if monoid == "max" else min)(values) if is_nonnegative(count - 1) else None
        if not isinstance(count, int) or monoid == "prod" and count * len(values) > len(SMALL_INTEGERS):
            return None  # the count is a symbol, or there are more than 128 factors
        return self.if_exact(sum(values) * count if monoid == "sum" else prod(values) ** count)


def _array(value: Any) -> Objects:
    return np.array(value, dtype=object)


def _each(function: Any, *arrays: Objects) -> Objects:
    """Apply a function to elements, some of which may be None."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), dtype=object)


def _are_numbers(*values: Any) -> bool:
    """Return whether all values are known numbers, infinities included, NaN and bools excluded."""
    return all(isinstance(v, (int, float, Fraction)) and not isinstance(v, bool) and v == v for v in values)
