"""Computes exact remainders of float32.

x - trunc(x / y) * y would not have one digit right where x / y is large: the quotient has only 24 bits.
"""

from __future__ import annotations

from math import inf, nan

import halide as hl

from tensaurus.kernels.math.float_bits import absolute, apply_sign, is_finite, round_to_float32, to_float64
from tensaurus.kernels.math.strict_float import strict


@strict
def remainder(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """Returns x minus a multiple of y, with the sign of x and smaller than |y| (C's fmod)."""
    rest, divisor = absolute(to_float64(x)), absolute(to_float64(y))
    for k in reversed(range(10)):
        # Before step k the rest is below divisor * 2^(28 * (k + 1)), so the quotient is below 2^28. A whole
        # quotient of 28 bits times a divisor of 24 bits has 52 bits: exact in float64. Ten steps reach 2^280,
        # and |x / y| is below 2^128 / 2^-149 = 2^277.
        multiple = divisor * hl.f64(2.0 ** (28 * k))
        rest = rest - hl.trunc(rest / multiple) * multiple
    ordinary = is_finite(x) & is_finite(y) & (y != hl.f32(0))
    # fmod(x, inf) is x
    unchanged = is_finite(x) & (absolute(y) == hl.f32(inf))
    return round_to_float32(ordinary, apply_sign(rest, to_float64(x)), hl.select(unchanged, x, hl.f32(nan)))


@strict
def modulo(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """Returns x minus a multiple of y, with the sign of y (the `%` of Python and numpy)."""
    rest, zero = remainder(x, y), hl.f32(0)
    shifted = hl.select((rest < zero) != (y < zero), rest + y, rest)
    return hl.select(rest == zero, apply_sign(zero, y), shifted)
