"""Computes the rarer transcendental functions of float32, vectorized, by way of float64.

In float64 truncated Taylor series and textbook formulas are more accurate than float32, so that the result is
off by little more than the half ulp of the last rounding, and no intermediate value overflows or is
subnormal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import factorial, inf, log, nan, pi

import halide as hl

from tensaurus.kernels.math.float_bits import (
    absolute,
    apply_sign,
    at_most,
    bits,
    clamp_keeping_nan,
    horner,
    is_finite,
    is_nan,
    negate,
    round_to_float32,
    to_float64,
)
from tensaurus.kernels.math.strict_float import strict

# Constants are split in two, c = head + _REST: the product of the head and a small integer is exact.
_LOG_2 = float.fromhex("0x1.62e42feep-1")  # the first 32 bits of log(2)
_REST = 1.9082149292705877e-10
_HALF_PI = float.fromhex("0x1.921fb544p+0")  # the first 33 bits of pi / 2
_REST_OF_HALF_PI = 6.07710050650619224932e-11

# Taylor coefficients, lowest power first; even and odd functions are series in x^2.
_EXP = [1 / factorial(k) for k in range(12)]
_ATANH = [1 / (2 * k + 1) for k in range(8)]
_ATAN = [(-1) ** k / (2 * k + 1) for k in range(12)]
_SIN = [(-1) ** k / factorial(2 * k + 1) for k in range(7)]
_COS = [(-1) ** k / factorial(2 * k) for k in range(8)]
_SINH = [1 / factorial(2 * k + 1) for k in range(5)]


def _exp(x: hl.Expr) -> hl.Expr:
    """Returns exp(x) in float64 for finite x, clamped to -700..700, as `transcendental` does in float32."""
    magic = hl.f64(1.5 * 2**52)
    x = clamp_keeping_nan(x, -700, 700)
    # Adding 1.5 * 2^52 rounds x / log 2 to an integer n, which stands in the low bits of `shifted`: moved up
    # by 52 bits, they are the exponent of 2^n.
    shifted = x * hl.f64(1 / log(2)) + magic
    n = shifted - magic
    r = x - n * hl.f64(_LOG_2) - n * hl.f64(_REST)
    power = hl.reinterpret(hl.Float(64), (bits(shifted) << hl.u64(52)) + bits(hl.f64(1)))
    return horner(r, _EXP) * power


def _log(x: hl.Expr) -> hl.Expr:
    """Returns log(x) in float64 for positive x, neither subnormal nor infinite."""
    root = hl.u64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
    # x = 2^k m with m between sqrt(1/2) and sqrt(2); here k is biased by 2^11
    k = (bits(x) - root + hl.u64(2**63)) >> hl.u64(52)
    f = hl.reinterpret(hl.Float(64), bits(x) - ((k - hl.u64(2**11)) << hl.u64(52))) - hl.f64(1)
    scale = hl.reinterpret(hl.Float(64), k | bits(hl.f64(2.0**52))) - hl.f64(2.0**52 + 2**11)
    s = f / (f + hl.f64(2))
    return scale * hl.f64(log(2)) + hl.f64(2) * s * horner(s * s, _ATANH)


@strict
def sinh(x: hl.Expr) -> hl.Expr:
    d = to_float64(x)
    e = _exp(d)
    large = (e - hl.f64(1) / e) * hl.f64(0.5)
    return round_to_float32(
        is_finite(x), hl.select(absolute(d) < hl.f64(0.5), d * horner(d * d, _SINH), large), x
    )


@strict
def cosh(x: hl.Expr) -> hl.Expr:
    e = _exp(to_float64(x))
    return round_to_float32(is_finite(x), (e + hl.f64(1) / e) * hl.f64(0.5), absolute(x))


@strict
def asinh(x: hl.Expr) -> hl.Expr:
    d = to_float64(x)
    a = absolute(d)
    large = apply_sign(_log(a + hl.sqrt(a * a + hl.f64(1))), d)
    value = hl.select(a < hl.f64(2.0**-12), d * (hl.f64(1) - d * d * hl.f64(1 / 6)), large)
    return round_to_float32(is_finite(x), value, x)


@strict
def acosh(x: hl.Expr) -> hl.Expr:
    d = to_float64(x)
    value = _log(d + hl.sqrt((d - hl.f64(1)) * (d + hl.f64(1))))
    return round_to_float32(
        at_most(hl.f32(1), x) & is_finite(x), value, hl.select(x > hl.f32(1), x, hl.f32(nan))
    )


@strict
def atanh(x: hl.Expr) -> hl.Expr:
    d, one = to_float64(x), hl.f64(1)
    large = hl.f64(0.5) * _log((one + d) / (one - d))
    value = hl.select(absolute(d) < hl.f64(2.0**-12), d + d * d * d * hl.f64(1 / 3), large)
    edge = hl.select(absolute(x) == hl.f32(1), x * hl.f32(inf), hl.f32(nan))
    return round_to_float32(absolute(x) < hl.f32(1), value, edge)


def _atan(a: hl.Expr) -> hl.Expr:
    """Returns atan(a) for a >= 0 by a series in |t| <= tan(pi/8).

    The argument is reduced by atan(a) = pi/2 - atan(1/a) = pi/4 + atan((a - 1) / (a + 1)).
    """
    one = hl.f64(1)
    steep, middling = a > hl.f64(2**0.5 + 1), a > hl.f64(2**0.5 - 1)
    above = hl.select(steep, hl.f64(-1), hl.select(middling, a - one, a))
    below = hl.select(steep, a, hl.select(middling, a + one, one))
    start = hl.select(steep, hl.f64(pi / 2), hl.select(middling, hl.f64(pi / 4), hl.f64(0)))
    t = above / below
    return start + t * horner(t * t, _ATAN)


@strict
def atan(x: hl.Expr) -> hl.Expr:
    d = to_float64(x)
    edge = hl.select(is_nan(x), x, apply_sign(hl.f32(pi / 2), x))
    return round_to_float32(is_finite(x), apply_sign(_atan(absolute(d)), d), edge)


@strict
def asin(x: hl.Expr) -> hl.Expr:
    d, one = to_float64(x), hl.f64(1)
    a = absolute(d)
    value = hl.f64(2) * _atan(a / (one + hl.sqrt((one - a) * (one + a))))
    return round_to_float32(at_most(absolute(x), hl.f32(1)), apply_sign(value, d), hl.f32(nan))


@strict
def acos(x: hl.Expr) -> hl.Expr:
    d, one = to_float64(x), hl.f64(1)
    # At x = -1 the divisor is 0.  With 1e-18 instead the root is about 1e9, and atan(1e9) is pi/2 in float32.
    ratio = (one - d) / clamp_keeping_nan(one + d, 1e-18, 2)
    return round_to_float32(at_most(absolute(x), hl.f32(1)), hl.f64(2) * _atan(hl.sqrt(ratio)), hl.f32(nan))


@strict
def power(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """Returns x^y as exp(y log |x|), negated for negative x and odd y; special cases are those of C's pow."""
    a, zero, one, infinity = absolute(x), hl.f32(0), hl.f32(1), hl.f32(inf)
    whole = hl.floor(y) == y
    half = y * hl.f32(0.5)
    odd = whole & (hl.floor(half) != half)
    ordinary = (a > zero) & (a < infinity) & (absolute(y) < infinity)
    value = _exp(_log(to_float64(hl.select(ordinary, a, one))) * to_float64(y))
    # a base of 0 or infinity, or an infinite exponent, gives 0, 1 or infinity
    grows = hl.select(absolute(y) == infinity, (a > one) == (y > zero), (a == infinity) == (y > zero))
    extreme = hl.select((absolute(y) == infinity) & (a == one), one, hl.select(grows, infinity, zero))
    size = round_to_float32(ordinary, value, extreme)
    result = hl.select(odd, apply_sign(size, x), size)
    result = hl.select((x < zero) & (a < infinity) & ~whole, hl.f32(nan), result)
    result = hl.select(is_nan(x) | is_nan(y), hl.f32(nan), result)
    return hl.select((y == zero) | (x == one), one, result)


@cache
def _two_over_pi() -> list[int]:
    """Returns 24 overlapping windows of the bits of 2 / pi.

    Window k is the 32 bits that end at the bit worth 2^-(8 k + 8).
    """
    scale = 1 << 400

    def arctan_of_inverse(n: int) -> int:
        total, term, k = 0, scale // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    circle = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))  # pi, by Machin's formula
    quotient = 2 * scale * scale // circle
    return [(quotient >> (392 - 8 * k)) & 0xFFFFFFFF for k in range(24)]


def _select_by_index(index: hl.Expr, numbers: Sequence[int]) -> hl.Expr:
    """Selects numbers[index] by bisection, without a load; the count of numbers is a power of two."""
    if len(numbers) == 1:
        return hl.u32(numbers[0])
    half = len(numbers) // 2
    low, high = _select_by_index(index, numbers[:half]), _select_by_index(index, numbers[half:])
    return hl.select((index & hl.u32(half)) == hl.u32(0), low, high)


def _quarter_turns(a: hl.Expr) -> tuple[hl.Expr, hl.Expr]:
    """Reduces a float32 a >= 0 to (n, r) with a = n pi/2 + r and |r| <= pi/4; n modulo 4.

    For a >= 2 the product with 2/pi is computed in integers from the bits that matter (Payne and Hanek,
    1983): 2 bits of the number of quarter turns and 62 of the fraction. That is enough: no float32 comes
    nearer to a multiple of pi/2 than 2^-32.
    """
    table = _two_over_pi()
    # a = mantissa * 2^(exponent - 22); exponent // 8 chooses windows of 2/pi, exponent % 8 shifts mantissa
    exponent = hl.max(bits(a) >> hl.u32(23), hl.u32(128)) - hl.u32(128)
    # three windows that adjoin, 96 bits of 2/pi; their products with the mantissa count units of 2^-94, 2^-62
    # and 2^-30 quarter turns. The sum counts units of 2^-62, modulo 2^64, which are 4 quarter turns.
    words = (_select_by_index(exponent >> hl.u32(3), table[k : k + 16]) for k in (8, 4, 0))
    mantissa = ((bits(a) & hl.u32(0x7FFFFF)) | hl.u32(0x800000)) << (exponent & hl.u32(7))
    low, middle, high = (hl.cast(hl.UInt(64), mantissa) * hl.cast(hl.UInt(64), word) for word in words)
    product = (high << hl.u64(32)) + middle + (low >> hl.u64(32))
    turns = (product + hl.u64(2**61)) >> hl.u64(62)
    fraction = hl.reinterpret(hl.Int(64), product - (turns << hl.u64(62)))
    far = hl.cast(hl.Float(64), fraction) * hl.f64(pi / 2 / 2**62)
    d = to_float64(a)  # below 2 there are no quarter turns or one
    near = hl.select(a > hl.f32(pi / 4), d - hl.f64(_HALF_PI) - hl.f64(_REST_OF_HALF_PI), d)
    few = hl.select(a > hl.f32(pi / 4), hl.u32(1), hl.u32(0))
    return hl.select(a < hl.f32(2), few, hl.cast(hl.UInt(32), turns)), hl.select(a < hl.f32(2), near, far)


def _sine(n: hl.Expr, r: hl.Expr) -> hl.Expr:
    """Returns sin(n pi/2 + r)."""
    s = r * r
    size = hl.select((n & hl.u32(1)) == hl.u32(0), r * horner(s, _SIN), horner(s, _COS))
    return hl.select((n & hl.u32(2)) == hl.u32(0), size, negate(size))


@strict
def sin(x: hl.Expr) -> hl.Expr:
    value = _sine(*_quarter_turns(absolute(x)))
    return round_to_float32(is_finite(x), apply_sign(value, to_float64(x)), hl.f32(nan))


@strict
def cos(x: hl.Expr) -> hl.Expr:
    n, r = _quarter_turns(absolute(x))
    return round_to_float32(is_finite(x), _sine(n + hl.u32(1), r), hl.f32(nan))


@strict
def tan(x: hl.Expr) -> hl.Expr:
    n, r = _quarter_turns(absolute(x))
    value = _sine(n, r) / _sine(n + hl.u32(1), r)
    return round_to_float32(is_finite(x), apply_sign(value, to_float64(x)), hl.f32(nan))
