"""What the evaluator needs of a field (`Field`), and the simplest field: float64 (`Reals`).

The evaluator (`interpret`) holds tensors as numpy arrays of three sorts: elements of the field, told by its
dtype `kind`, integers as int64, and bools.  `Field.call` applies a scalar function to any mixture of them;
subclasses define functions of elements alone (`apply`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.ir.float_conversions import is_float, is_rounding_conversion, round_to_dtype
from tensaurus.expr.ir.integer_types import (
    RING_FUNCTIONS,
    apply_to_integers,
    is_integer,
    to_native,
    truncate_floats,
    wrap_to_dtype,
)
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target

Array: TypeAlias = np.ndarray[Any, Any]

MAX_EXACT_INTEGER = 2**53  # all integers up to here are float64 numbers

# Reductions of at most so many points, with at least so many results, take one call for each point.
MAX_LISTED_POINTS, MIN_LISTED_RESULTS = 64, 1 << 10

REDUCTION_UFUNCS = {"max": np.maximum, "min": np.minimum, "sum": np.add, "prod": np.multiply}


def integer_matmul(a: Array, b: Array) -> Array:
    """Return the batched product of int64 matrices: by BLAS in float64 where no sum can be rounded."""
    bound = max(a.shape[-1], 1)
    for x in (a, b):
        bound *= max(abs(int(x.min())), abs(int(x.max()))) if x.size else 0
    if bound > MAX_EXACT_INTEGER:
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)


class Field:
    """Arithmetic on arrays of elements.  Subclasses define what an element is."""

    name: str
    kind: str  # the dtype kind of arrays of elements
    strict = False  # whether integer results that no specification defines raise Overflow
    flipped_bits = 0  # where not strict, bits of such results to flip, see `integer_types.truncate_floats`

    def has_elements(self, data: Array) -> bool:
        """Return whether an array holds elements, not integers or bools."""
        return bool(data.dtype.kind == self.kind)

    def constant(self, value: Any) -> Array:
        """Return a rational, an infinity or a number as a 0-d array of elements."""
        raise NotImplementedError

    def lift(self, data: Array) -> Array:
        """Return tensor data as elements: floats exactly, ints and bools as int64 and bool."""
        raise NotImplementedError

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        """Return elements drawn uniformly, or from a small exact set."""
        raise NotImplementedError

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        """Apply a scalar function to arrays of elements alone."""
        raise NotImplementedError

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        """Return the sum, prod, max or min of elements over these dimensions."""
        raise NotImplementedError

    def matmul(self, a: Array, b: Array) -> Array:
        """Return the batched matrix product [..., m, k] x [..., k, n]."""
        raise NotImplementedError

    def equal(self, a: Array, b: Array) -> bool:
        return bool(np.array_equal(a, b))

    def call(self, fn: str, args: Sequence[Array], dtype: str = "int64") -> Array:
        """Apply a function to any mixture of arrays of elements, ints (as `integer_types` says) and bools.

        `dtype` is the type of the integers among the arguments; for a conversion, the type that is converted.
        """
        if (to := cast_target(fn)) is not None:
            return self._cast(to, args[0], dtype)
        if fn == "where":
            condition, then, other = args
            then, other = self._unify(then, other, dtype)
            return np.asarray(np.where(condition.astype(bool), then, other))
        # functions of elements; integers beside them become elements, and for exp or sqrt integers alone, too
        if any(self.has_elements(a) for a in args) or FUNCTIONS[fn].result == "float":
            return self.apply(
                fn, [a if self.has_elements(a) else self._lift_integers(a, dtype) for a in args]
            )
        if fn in RING_FUNCTIONS:  # +, -, * of integers, right modulo 2^64 whatever their type
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[fn].run(*args))
        return apply_to_integers(fn, FUNCTIONS[fn].run, args, dtype, self.strict, self.flipped_bits)

    def _lift_integers(self, data: Array, dtype: str) -> Array:
        return self.from_int(to_native(data, dtype) if data.dtype.kind == "i" else data)

    def _unify(self, a: Array, b: Array, dtype: str) -> tuple[Array, Array]:
        """Return both arrays as elements where one of them holds elements."""
        if self.has_elements(a) != self.has_elements(b):
            return (
                (a, self._lift_integers(b, dtype))
                if self.has_elements(a)
                else (self._lift_integers(a, dtype), b)
            )
        return a, b

    def from_int(self, data: Array) -> Array:
        """Return integers as elements."""
        raise NotImplementedError

    def _cast(self, target: str, data: Array, dtype: str) -> Array:
        """Return data of the type `dtype` converted to `target`."""
        if data.dtype.kind == "i" and is_integer(dtype):
            data = wrap_to_dtype(data, dtype)  # a sum of int32 wraps before another type is made of it
        if is_float(target):
            if not self.has_elements(data):  # integers or bools to floats, rounded if the target is narrow
                elements = self._lift_integers(data, dtype)
                return (
                    self.lift(round_to_dtype(to_native(data, dtype), target))
                    if is_rounding_conversion(dtype, target)
                    else elements
                )
            return self._round_to(data, target) if is_rounding_conversion(dtype, target) else data
        if target == "bool":
            return np.asarray(~(data == 0)).astype(bool)
        return self._to_int(data, target) if self.has_elements(data) else wrap_to_dtype(data, target)

    def _to_int(self, data: Array, target: str) -> Array:
        """Round elements towards zero, where the field has an order; elsewhere apply an unknown function."""
        raise NotImplementedError

    def _round_to(self, data: Array, target: str) -> Array:
        """Round elements to a narrower type; elsewhere apply an unknown function f with f(0) = 0."""
        raise NotImplementedError


def reduce_floats(ufunc: np.ufunc, data: Array, axes: tuple[int, ...]) -> Array:
    """Reduce over axes; few points one after another, 16 times as fast for the windows of pooling."""
    points = prod(data.shape[k] for k in axes)
    if not 1 < points <= MAX_LISTED_POINTS or data.size < points * MIN_LISTED_RESULTS:
        return np.asarray(ufunc.reduce(data, axis=axes))
    by_point = np.moveaxis(data, axes, range(len(axes)))
    first, *others = np.ndindex(by_point.shape[: len(axes)])
    result = by_point[first].copy()
    for point in others:
        ufunc(result, by_point[point], out=result)
    return result


class Reals(Field):
    """The field of float64 numbers."""

    name = "reals"
    kind = "f"

    def __init__(self, strict: bool = False):
        """With `strict`, results that no specification defines (300 as a uint8) raise Overflow."""
        self.strict = strict

    def constant(self, value: Any) -> Array:
        return np.asarray(float(value))

    def lift(self, data: Array) -> Array:
        if data.dtype.kind == "b":
            return data
        return data.astype(np.int64) if data.dtype.kind in "iu" else data.astype(np.float64)

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        return rng.standard_normal(tuple(shape))

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[fn].run(*args))

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        return reduce_floats(REDUCTION_UFUNCS[monoid], data, axes)

    def matmul(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))

    def from_int(self, data: Array) -> Array:
        return data.astype(np.float64)

    def _to_int(self, data: Array, target: str) -> Array:
        return truncate_floats(data, target, self.strict, self.flipped_bits)

    def _round_to(self, data: Array, target: str) -> Array:
        return round_to_dtype(data, target)
