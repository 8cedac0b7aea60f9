"""Which conversions between element types keep every number, and what those to narrower floats make of it.

    int8 -> float16 -> float32 -> float64      keeps every number
    float64 -> float32,  int32 -> float32      rounds: 16777217 becomes 16777216

What rounds is a function of its argument and no identity: over the reals it rounds, in a field in which
nothing can be rounded it is unknown, but that it keeps zero.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.ir.integer_types import is_integer, limits

Array: TypeAlias = np.ndarray[Any, Any]

# binary digits of a number, and the exponents of the largest and of the least (normal) one
FORMATS = {
    "float16": (11, 15, -14),
    "bfloat16": (8, 127, -126),
    "float32": (24, 127, -126),
    "float64": (53, 1023, -1022),
}
LITERALS = frozenset({"int", "real"})  # which are of the type that they meet


def is_float(dtype: str) -> bool:
    """Whether it is an element type of floating-point numbers."""
    return dtype in FORMATS


def largest(dtype: str) -> int:
    """The largest number of a type of floats."""
    digits, exponent, _ = FORMATS[dtype]
    return int((2**digits - 1) * 2 ** (exponent + 1 - digits))


def keeps_numbers(source: str, target: str) -> bool:
    """Whether every number of one element type is one of another, a floating-point type."""
    digits, largest, least = FORMATS[target]
    if source == "bool" or source in LITERALS:
        return True
    if is_integer(source):
        low, high = limits(source)
        return bool(max(-low, high) <= 2**digits)
    own_digits, own_largest, own_least = FORMATS[source]
    # the least subnormal number is one of so many digits less
    return own_digits <= digits and own_largest <= largest and own_least - own_digits >= least - digits


def rounds(source: str, target: str) -> bool:
    """Whether a conversion may make another floating-point number of a number."""
    return is_float(target) and not keeps_numbers(source, target)


def rounded(data: Array, target: str) -> Array:
    """Numbers in float64 as the nearest of an element type, ties to even; infinite beyond its largest."""
    with np.errstate(all="ignore"):
        if target != "bfloat16":
            return np.asarray(data, target).astype(np.float64)
        return _nearest(np.asarray(data, np.float64), target)


def spacing(data: Array, target: str) -> Array:
    """The distance of the numbers of an element type around others, below its largest."""
    digits, _, least = FORMATS[target]
    return np.asarray(np.ldexp(1.0, np.maximum(np.frexp(data)[1] - 1, least) - (digits - 1)))


def _nearest(data: Array, target: str) -> Array:
    """Of a type that numpy lacks: rounding to float32 first would round twice."""
    largest, step = FORMATS[target][1], spacing(data, target)
    found = np.round(data / step) * step
    found = np.where(np.abs(found) >= 2.0 ** (largest + 1), np.copysign(np.inf, data), found)
    return np.asarray(np.where(np.isfinite(data), found, data))
