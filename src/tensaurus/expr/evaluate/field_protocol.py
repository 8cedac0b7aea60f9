"""What a field is to the evaluator, and the simplest one: float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.ir.float_conversions import is_float, is_rounding_conversion, round_to_dtype
from tensaurus.expr.ir.integer_types import (
    RING_FUNCTIONS,
    apply_to_integers,
    to_native,
    truncate_floats,
    wrap_to_dtype,
)
from tensaurus.expr.ir.scalar_functions import FUNCTIONS, cast_target

Array: TypeAlias = np.ndarray[Any, Any]

EXACT = 2**53  # integers up to here are exact in float64

_UFUNCS = {"max": np.maximum, "min": np.minimum, "sum": np.add, "prod": np.multiply}


def whole_product(a: Array, b: Array) -> Array:
    """The batched matrix product of int64 arrays: by BLAS, in float64, where no sum can be rounded there."""
    bound = max(a.shape[-1], 1)
    for x in (a, b):
        bound *= max(abs(int(x.min())), abs(int(x.max()))) if x.size else 0
    if bound > EXACT:
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)


class Field:
    """Arithmetic on arrays of elements.  Subclasses say what an element is."""

    name: str
    kind: str  # the dtype kind of arrays of elements
    strict = False  # whether what no specification gives a value raises Overflow
    shift = 0  # else which of its bits are turned, see `integers.converted`

    def elements(self, data: Array) -> bool:
        return bool(data.dtype.kind == self.kind)

    def constant(self, value: Any) -> Array:
        """A rational, an infinity or a number as a 0-d array of elements."""
        raise NotImplementedError

    def lift(self, data: Array) -> Array:
        """Tensor data as elements: floats exactly, ints and bools as int64 and bool."""
        raise NotImplementedError

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Array:
        """Elements drawn uniformly (or from a small exact set)."""
        raise NotImplementedError

    def apply(self, fn: str, args: Sequence[Array]) -> Array:
        """A scalar function on arrays of elements (all of them)."""
        raise NotImplementedError

    def reduce(self, monoid: str, data: Array, axes: tuple[int, ...]) -> Array:
        raise NotImplementedError

    def matmul(self, a: Array, b: Array) -> Array:
        """Batched matrix product [..., m, k] x [..., k, n]."""
        raise NotImplementedError

    def equal(self, a: Array, b: Array) -> bool:
        return bool(np.array_equal(a, b))

    def call(self, fn: str, args: Sequence[Array], dtype: str = "int64") -> Array:
        """A function on any mixture of element, int and bool arrays; ints are carried, see `integers`.

        `dtype` is that of the integers among the arguments; of a conversion, the type of what is converted.
        """
        if (to := cast_target(fn)) is not None:
            return self._cast(to, args[0], dtype)
        if fn == "where":
            condition, then, other = args
            then, other = self._alike(then, other, dtype)
            return np.asarray(np.where(condition.astype(bool), then, other))
        if any(self.elements(a) for a in args) or FUNCTIONS[fn].result == "float":
            return self.apply(fn, [a if self.elements(a) else self._lifted(a, dtype) for a in args])
        if fn in RING_FUNCTIONS:
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[fn].run(*args))
        return apply_to_integers(fn, FUNCTIONS[fn].run, args, dtype, self.strict, self.shift)

    def _lifted(self, data: Array, dtype: str) -> Array:
        return self.from_int(to_native(data, dtype) if data.dtype.kind == "i" else data)

    def _alike(self, a: Array, b: Array, dtype: str) -> tuple[Array, Array]:
        if self.elements(a) != self.elements(b):
            return (a, self._lifted(b, dtype)) if self.elements(a) else (self._lifted(a, dtype), b)
        return a, b

    def from_int(self, data: Array) -> Array:
        """Integers as elements."""
        raise NotImplementedError

    def _cast(self, target: str, data: Array, dtype: str) -> Array:
        if is_float(target):
            if not self.elements(data):
                known = self._lifted(data, dtype)
                return (
                    self.lift(round_to_dtype(to_native(data, dtype), target))
                    if is_rounding_conversion(dtype, target)
                    else known
                )
            return self._rounded(data, target) if is_rounding_conversion(dtype, target) else data
        if target == "bool":
            return np.asarray(~(data == 0)).astype(bool)
        return self._to_int(data, target) if self.elements(data) else wrap_to_dtype(data, target)

    def _to_int(self, data: Array, target: str) -> Array:
        """Elements rounded towards zero, where the field has an order; a function of them elsewhere."""
        raise NotImplementedError

    def _rounded(self, data: Array, target: str) -> Array:
        """Elements rounded to a narrower type; where nothing can be rounded, a function of them, 0 of 0."""
        raise NotImplementedError


class Reals(Field):
    """float64."""

    name = "reals"
    kind = "f"

    def __init__(self, strict: bool = False):
        """Where it is strict, what no specification gives a value (300 as a uint8) raises Overflow."""
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
        return np.asarray(_UFUNCS[monoid].reduce(data, axis=axes))

    def matmul(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))

    def from_int(self, data: Array) -> Array:
        return data.astype(np.float64)

    def _to_int(self, data: Array, target: str) -> Array:
        return truncate_floats(data, target, self.strict, self.shift)

    def _rounded(self, data: Array, target: str) -> Array:
        return round_to_dtype(data, target)
