"""What floats are made of: their bits, signs and bounds, and polynomials of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import halide as hl


def number(value: float, like: hl.Expr) -> hl.Expr:
    """A float of the type of another."""
    return hl.f32(value) if like.type().bits() == 32 else hl.f64(value)


def bits(x: hl.Expr) -> hl.Expr:
    """The bits of a float, an unsigned integer."""
    return hl.reinterpret(hl.UInt(x.type().bits()), x)


def _sign(x: hl.Expr) -> hl.Expr:
    width = x.type().bits()
    return hl.cast(hl.UInt(width), hl.u64(2 ** (width - 1)))


def absolute(x: hl.Expr) -> hl.Expr:
    """|x|; Halide's own of float64 makes 0 -0.0."""
    return hl.reinterpret(x.type(), bits(x) & ~_sign(x))


def negated(x: hl.Expr) -> hl.Expr:
    """-x, also of 0 and NaN."""
    return hl.reinterpret(x.type(), bits(x) ^ _sign(x))


def signed(value: hl.Expr, x: hl.Expr) -> hl.Expr:
    """The value, negated where x has the sign."""
    return hl.reinterpret(value.type(), bits(value) ^ (bits(x) & _sign(x)))


def is_nan(x: hl.Expr) -> hl.Expr:
    """By its bits: what is not strict, such as a sum of products, the compiler takes for a number."""
    return bits(absolute(x)) > bits(number(inf, x))


def is_infinite(x: hl.Expr) -> hl.Expr:
    """By its bits, too, but the sign: an equation of all of them with infinity the compiler sees through."""
    unsigned = bits(number(inf, x))
    return (bits(x) + bits(x)) == unsigned + unsigned


def at_most(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """a <= b, which Halide 21 compiles as not b < a even where it is strict: true of NaN."""
    return (a < b) | (a == b)


def within(x: hl.Expr, low: float, high: float) -> hl.Expr:
    """x between numbers; NaN stays: each is one vmaxps or vminps, which return their second operand."""
    least, most = number(low, x), number(high, x)
    x = hl.select(x < least, least, x)
    return hl.select(most < x, most, x)


def rounded(domain: hl.Expr, value: hl.Expr, elsewhere: hl.Expr) -> hl.Expr:
    """A float64 as float32.

    Even in strict expressions the compiler assumes that conversions meet numbers alone, and drops comparisons
    that only NaN or infinities would fail: so these are chosen by other comparisons.
    """
    infinity = hl.select(value > hl.f64(0), hl.f32(inf), hl.f32(-inf))
    # what is less is rounded to float32's largest number
    small = absolute(value) < hl.f64(2.0**128 - 2.0**103)
    return hl.select(domain, hl.select(small, hl.cast(hl.Float(32), value), infinity), elsewhere)


def finite(x: hl.Expr) -> hl.Expr:
    return absolute(x) < hl.f32(inf)


def double(x: hl.Expr) -> hl.Expr:
    return hl.cast(hl.Float(64), x)


def horner(x: hl.Expr, coefficients: Sequence[float]) -> hl.Expr:
    """The polynomial of these coefficients, lowest first."""
    result = number(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = result * x + number(c, x)
    return result
