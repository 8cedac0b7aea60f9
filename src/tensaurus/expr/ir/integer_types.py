"""The integers of each element type: what does not fit wraps to the type's width, as on every runtime.

They are carried as int64 in the evaluator, whatever their type: sums and products of such numbers wrap at 64
bits, and what is right modulo 2^64 is right modulo every smaller power of two.  So only functions that are
no ring operations need the numbers themselves (`native`), and only results must be `wrapped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

RING = frozenset({"add", "sub", "mul", "neg"})
DIVIDE = frozenset({"div", "mod", "fmod"})


class Overflow(OverflowError):
    """A number that no element of the type stands for: what a runtime makes of it is not specified."""


def is_integer(dtype: str) -> bool:
    """Whether it is an element type of integers."""
    return dtype.startswith(("int", "uint"))


def limits(dtype: str) -> tuple[int, int]:
    """The least and the largest integer of the type."""
    if dtype == "bool":
        return 0, 1
    bits = int(dtype.removeprefix("u").removeprefix("int") or 64)
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def extreme(value: Any, dtype: str) -> Array:
    """A literal that stands in for an integer: infinities are the type's own least and largest."""
    low, high = limits(dtype)
    return np.asarray(low if value == -inf else high if value == inf else int(value), _numpy(dtype))


def _numpy(dtype: str) -> type[Any]:
    return np.uint64 if dtype == "uint64" else np.int64


def wrapped(data: Array, dtype: str) -> Array:
    """Carried integers as the type's own: modulo 2^bits, between its limits."""
    low, high = limits(dtype)
    found = carried(data)
    whole = high - low == 2**64 - 1 or data.dtype.kind == "b" or not data.size
    if whole or (found.min() >= low and found.max() <= high):
        return found
    with np.errstate(all="ignore"):
        return np.asarray(((found - low) & (high - low)) + low)


def native(data: Array, dtype: str) -> Array:
    """The numbers that are carried: of uint64 as numpy's uint64, of all others as int64."""
    found = wrapped(data, dtype) if is_integer(dtype) else data
    return found.view(np.uint64) if dtype == "uint64" and found.dtype.kind == "i" else found


def carried(data: Array) -> Array:
    """Integers of any type as int64, bits kept."""
    return data.astype(np.int64, copy=False)


def run(
    name: str, function: Callable[..., Any], args: Sequence[Array], dtype: str, strict: bool, shift: int = 0
) -> Array:
    """A function of integers of one type; bools stay bools.  For `strict` and `shift` see `converted`."""
    if not is_integer(dtype):
        return np.asarray(function(*args))
    numbers = [native(a, dtype) for a in args]
    lacking = np.asarray(False)  # where there is no quotient
    if name in DIVIDE and (strict or shift):
        a, b = numbers
        lacking = np.asarray((b == 0) | ((a == limits(dtype)[0]) & (a < 0) & (b == -1)))
        if strict and lacking.any():
            raise Overflow(f"a quotient that is no {dtype}")
    with np.errstate(all="ignore"):
        found = np.asarray(function(*numbers))
    if found.dtype.kind == "f":
        return converted(found, dtype, strict, shift)
    if found.dtype.kind == "b":
        return found
    found = carried(found)
    return wrapped(np.where(lacking, found ^ shift, found) if lacking.any() else found, dtype)


def converted(data: Array, dtype: str, strict: bool, shift: int = 0) -> Array:
    """Floats rounded towards zero.

    What is no number of the type (too large, NaN, an infinity) becomes what numpy makes of it on this
    machine, with the bits of `shift` turned: what differs with another shift depends on what nothing
    specifies.  Where this is strict, it raises Overflow.
    """
    low, high = limits(dtype)
    with np.errstate(all="ignore"):
        whole = np.trunc(data)
        # the largest integers of 64 bits are no floats: the next power of two is the first that is too large
        fits = (whole >= low) & (whole < float(high + 1))
        if fits.all():
            return carried(whole.astype(_numpy(dtype)))
        if strict:
            worst = whole[~fits].flat[0]
            raise Overflow(f"{worst} is no {dtype}")
        kind = np.dtype(dtype if limits(dtype)[1] >= 127 else "int8")
        made = carried(data.astype(np.float32).astype(kind))
        return wrapped(np.where(fits, made, made ^ shift), dtype)
