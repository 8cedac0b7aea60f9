"""Integer arithmetic of each element type: results wrap to the type's width, as on every runtime.

The evaluator stores integers of every type as int64: sums and products wrap at 64 bits, and a number that is
right modulo 2^64 is right modulo every smaller power of two.  Only functions other than +, -, * therefore
need the exact numbers (`to_native`), and only results must be reduced to the type's range (`wrap_to_dtype`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

RING_FUNCTIONS = frozenset({"add", "sub", "mul", "neg"})
DIVISIONS = frozenset({"div", "mod", "fmod"})


class Overflow(OverflowError):
    """Raised for a number that the type cannot represent: each runtime returns another integer for it."""


def is_integer(dtype: str) -> bool:
    """Return whether this is an integer element type."""
    return dtype.startswith(("int", "uint"))


def integer_limits(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of the type."""
    if dtype == "bool":
        return 0, 1
    bits = int(dtype.removeprefix("u").removeprefix("int") or 64)
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def integer_literal(value: Any, dtype: str) -> Array:
    """Return a literal as an integer; infinities become the least and the largest of the type."""
    low, high = integer_limits(dtype)
    return np.asarray(low if value == -inf else high if value == inf else int(value), _storage_type(dtype))


def _storage_type(dtype: str) -> type[Any]:
    return np.uint64 if dtype == "uint64" else np.int64


def wrap_to_dtype(data: Array, dtype: str) -> Array:
    """Reduce stored integers modulo 2^bits into the range of the type."""
    low, high = integer_limits(dtype)
    stored = to_int64(data)
    is_unchanged = high - low == 2**64 - 1 or data.dtype.kind == "b" or not data.size
    if is_unchanged or (stored.min() >= low and stored.max() <= high):
        return stored
    with np.errstate(all="ignore"):
        return np.asarray(((stored - low) & (high - low)) + low)


def to_native(data: Array, dtype: str) -> Array:
    """Return the exact numbers: uint64 as numpy's uint64, all others as int64."""
    numbers = wrap_to_dtype(data, dtype) if is_integer(dtype) else data
    return numbers.view(np.uint64) if dtype == "uint64" and numbers.dtype.kind == "i" else numbers


def to_int64(data: Array) -> Array:
    """Return integers of any type as int64, keeping their bits."""
    return data.astype(np.int64, copy=False)


def apply_to_integers(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Array],
    dtype: str,
    strict: bool,
    flipped_bits: int = 0,
) -> Array:
    """Apply a function to integers of one type.  For `strict` and `flipped_bits` see `truncate_floats`."""
    if not is_integer(dtype):
        return np.asarray(function(*args))
    numbers = [to_native(a, dtype) for a in args]
    undefined = np.asarray(False)  # division by zero, and the least integer divided by -1
    if name in DIVISIONS and (strict or flipped_bits):
        a, b = numbers
        undefined = np.asarray((b == 0) | ((a == integer_limits(dtype)[0]) & (a < 0) & (b == -1)))
        if strict and undefined.any():
            raise Overflow(f"a quotient that is no {dtype}")
    with np.errstate(all="ignore"):
        result = np.asarray(function(*numbers))
    if result.dtype.kind == "f":
        return truncate_floats(result, dtype, strict, flipped_bits)
    if result.dtype.kind == "b":
        return result
    result = to_int64(result)
    if undefined.any():
        result = np.where(undefined, result ^ flipped_bits, result)
    return wrap_to_dtype(result, dtype)


def truncate_floats(data: Array, dtype: str, strict: bool, flipped_bits: int = 0) -> Array:
    """Round floats towards zero to integers of a type.

    Numbers outside the type (too large, NaN, infinite) are converted as numpy does on this machine, then
    `flipped_bits` are flipped: a result that changes with them depends on unspecified behaviour.  Raises
    Overflow for such numbers if `strict`.
    """
    low, high = integer_limits(dtype)
    with np.errstate(all="ignore"):
        truncated = np.trunc(data)
        # 2^63 - 1 is no float64: the next power of two is the first number that is too large
        fits = (truncated >= low) & (truncated < float(high + 1))
        if fits.all():
            return to_int64(truncated.astype(_storage_type(dtype)))
        if strict:
            worst = truncated[~fits].flat[0]
            raise Overflow(f"{worst} is no {dtype}")
        numpy_dtype = np.dtype(dtype if integer_limits(dtype)[1] >= 127 else "int8")
        unspecified = to_int64(data.astype(np.float32).astype(numpy_dtype))
        return wrap_to_dtype(np.where(fits, unspecified, unspecified ^ flipped_bits), dtype)
