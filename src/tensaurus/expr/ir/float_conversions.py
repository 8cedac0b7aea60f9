"""Say which conversions between element types are exact, and round to the narrower float types.

    int8 -> float16 -> float32 -> float64      exact
    float64 -> float32,  int32 -> float32      rounds: 16777217 becomes 16777216

An exact conversion is the identity.  One that rounds is an unknown function: GF(p), say, cannot round, and
knows only that the conversion of zero is zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.ir.integer_types import integer_limits, is_integer

Array: TypeAlias = np.ndarray[Any, Any]


class FloatFormat(NamedTuple):
    """A floating-point format, by its exponents of the largest and the least normal number."""

    digits: int  # of the significand, binary, the implicit one included
    max_exponent: int
    min_exponent: int


FLOAT_FORMATS = {
    "float16": FloatFormat(11, 15, -14),
    "bfloat16": FloatFormat(8, 127, -126),
    "float32": FloatFormat(24, 127, -126),
    "float64": FloatFormat(53, 1023, -1022),
}
LITERAL_KINDS = frozenset({"int", "real"})  # kinds of literals, which take the type of other operands


def is_float(dtype: str) -> bool:
    """Return whether this is a floating-point element type."""
    return dtype in FLOAT_FORMATS


def largest_finite(dtype: str) -> int:
    """Return the largest finite number of a floating-point type."""
    digits, exponent, _ = FLOAT_FORMATS[dtype]
    return int((2**digits - 1) * 2 ** (exponent + 1 - digits))


def is_exact_conversion(source: str, target: str) -> bool:
    """Return whether every number of `source` is one of `target`, a floating-point type."""
    if source == "bool" or source in LITERAL_KINDS:
        return True
    if is_integer(source):
        low, high = integer_limits(source)
        return bool(max(-low, high) <= 2 ** FLOAT_FORMATS[target].digits)
    own, other = FLOAT_FORMATS[source], FLOAT_FORMATS[target]
    return (
        own.digits <= other.digits
        and own.max_exponent <= other.max_exponent
        # the exponent of the least subnormal number is min_exponent - (digits - 1)
        and own.min_exponent - own.digits >= other.min_exponent - other.digits
    )


def is_rounding_conversion(source: str, target: str) -> bool:
    """Return whether a conversion to a floating-point type may change a number."""
    return is_float(target) and not is_exact_conversion(source, target)


def round_to_dtype(data: Array, target: str) -> Array:
    """Round float64 numbers to the nearest of a float type, ties to even; infinite beyond its largest."""
    with np.errstate(all="ignore"):
        if target != "bfloat16":
            return np.asarray(data, target).astype(np.float64)
        return _nearest(np.asarray(data, np.float64), target)


def float_spacing(data: Array, target: str) -> Array:
    """Return the distance between neighbouring numbers of a float type at each element."""
    digits, _, least = FLOAT_FORMATS[target]
    return np.asarray(np.ldexp(1.0, np.maximum(np.frexp(data)[1] - 1, least) - (digits - 1)))


def _nearest(data: Array, target: str) -> Array:
    """Round to a type that numpy lacks, in one step: going through float32 would round twice."""
    step, limit = float_spacing(data, target), 2.0 ** (FLOAT_FORMATS[target].max_exponent + 1)
    rounded = np.round(data / step) * step
    rounded = np.where(np.abs(rounded) >= limit, np.copysign(np.inf, data), rounded)
    return np.asarray(np.where(np.isfinite(data), rounded, data))
