"""Builds Halide expressions: bits, signs and tests of floats, conversions, clamping, polynomials.

Several functions test bits where a comparison would do, because the compiler may assume that floats are no
NaN, and then drops the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import halide as hl


def float_constant(value: float, like: hl.Expr) -> hl.Expr:
    """Returns the value as a literal of the type of `like`, float32 or float64."""
    return hl.f32(value) if like.type().bits() == 32 else hl.f64(value)


def bits(x: hl.Expr) -> hl.Expr:
    """Returns the bits of a float as an unsigned integer of the same width."""
    return hl.reinterpret(hl.UInt(x.type().bits()), x)


def _sign_bit(x: hl.Expr) -> hl.Expr:
    width = x.type().bits()
    return hl.cast(hl.UInt(width), hl.u64(2 ** (width - 1)))


def absolute(x: hl.Expr) -> hl.Expr:
    """Returns |x|. Halide's own `abs` of a float64 turns 0 into -0.0."""
    return hl.reinterpret(x.type(), bits(x) & ~_sign_bit(x))


def negate(x: hl.Expr) -> hl.Expr:
    """Returns -x with its sign bit flipped, also where x is 0 or NaN."""
    return hl.reinterpret(x.type(), bits(x) ^ _sign_bit(x))


def apply_sign(value: hl.Expr, x: hl.Expr) -> hl.Expr:
    """Returns the value, negated wherever the sign bit of x is set."""
    return hl.reinterpret(value.type(), bits(value) ^ (bits(x) & _sign_bit(x)))


def is_nan(x: hl.Expr) -> hl.Expr:
    """Tests for NaN by bits.

    Operations that are not strict, such as a sum of products, let the compiler assume that their result is no
    NaN; it would then drop `x != x`.
    """
    return bits(absolute(x)) > bits(float_constant(inf, x))


def is_infinite(x: hl.Expr) -> hl.Expr:
    """Tests for an infinity by its bits, added to themselves, which shifts the sign out.

    The compiler would recognize a plain comparison with the bits of infinity, and drop the test.
    """
    unsigned = bits(float_constant(inf, x))
    return (bits(x) + bits(x)) == unsigned + unsigned


def at_most(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns a <= b. Halide 21 compiles `<=` as `not b < a`, even in strict code: true where one is NaN."""
    return (a < b) | (a == b)


def clamp_keeping_nan(x: hl.Expr, low: float, high: float) -> hl.Expr:
    """Returns x clamped to low..high, and NaN for NaN.

    Each selection is one vmaxps or vminps, which return their second operand where one operand is NaN.
    """
    lower, upper = float_constant(low, x), float_constant(high, x)
    x = hl.select(x < lower, lower, x)
    return hl.select(upper < x, upper, x)


def round_to_float32(domain: hl.Expr, value: hl.Expr, elsewhere: hl.Expr) -> hl.Expr:
    """Rounds a float64 to float32 where `domain` holds; elsewhere returns the float32 `elsewhere`.

    Even in strict expressions the compiler assumes that a converted value is neither NaN nor infinite, and
    removes tests that only a NaN or an infinity would fail. So the caller passes `domain`, which it computed
    without comparing the value itself: where it holds, the value is no NaN.
    """
    infinity = hl.select(value > hl.f64(0), hl.f32(inf), hl.f32(-inf))
    # below this bound a number is rounded to float32's largest number, from it on to infinity
    small = absolute(value) < hl.f64(2.0**128 - 2.0**103)
    return hl.select(domain, hl.select(small, hl.cast(hl.Float(32), value), infinity), elsewhere)


def is_finite(x: hl.Expr) -> hl.Expr:
    """Tests that a float32 is neither NaN nor infinite; for strict code, in which the comparison is kept."""
    return absolute(x) < hl.f32(inf)


def to_float64(x: hl.Expr) -> hl.Expr:
    return hl.cast(hl.Float(64), x)


def horner(x: hl.Expr, coefficients: Sequence[float]) -> hl.Expr:
    """Evaluates a polynomial at x by Horner's rule; `coefficients` begin with the constant term."""
    result = float_constant(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = result * x + float_constant(c, x)
    return result
