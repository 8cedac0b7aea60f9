"""Remainders of float32, exact: what one division and its truncation leave would have no digit right."""

from __future__ import annotations

from math import inf, nan

import halide as hl

from tensaurus.kernels.math.float_bits import absolute, double, finite, rounded, signed
from tensaurus.kernels.math.strict_float import strict


@strict
def remainder(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """x less a whole multiple of y, of the sign of x and smaller than y (C's fmod)."""
    rest, divisor = absolute(double(x)), absolute(double(y))
    for k in reversed(range(10)):
        # Quotients are below 2^28, of numbers of 24 bits: float64 has room for their product, and for the
        # distance of a quotient from a whole number.  10 steps suffice, as x / y is less than 2^277.
        multiple = divisor * hl.f64(2.0 ** (28 * k))
        rest = rest - hl.trunc(rest / multiple) * multiple
    ordinary = finite(x) & finite(y) & (y != hl.f32(0))
    unchanged = finite(x) & (absolute(y) == hl.f32(inf))
    return rounded(ordinary, signed(rest, double(x)), hl.select(unchanged, x, hl.f32(nan)))


@strict
def modulo(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """x less a whole multiple of y, of the sign of y (Python's and numpy's)."""
    rest, zero = remainder(x, y), hl.f32(0)
    turned = hl.select((rest < zero) != (y < zero), rest + y, rest)
    return hl.select(rest == zero, signed(zero, y), turned)
