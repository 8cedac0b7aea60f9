"""Computes exp, log, tanh and erf of float32, vectorized in float32, and erf of float64, which Halide lacks.

Arguments are reduced by strict operations; only Horner's rule may use fused multiply-adds. The coefficients
are minimax fits that are rounded one after the other from the lowest. Subnormal results are not flushed to
zero.
"""

from __future__ import annotations

from math import inf, log, nan

import halide as hl

from tensaurus.kernels.math.float_bits import absolute, apply_sign, bits, clamp_keeping_nan, horner
from tensaurus.kernels.math.strict_float import fused, strict

_LOG2_E = 1 / log(2)
_LOG_2 = 0.693359375  # the first 10 bits of log(2), so that its product with a small integer is exact
_REST = log(2) - _LOG_2

# polynomials, lowest power first; the functions `_..._polynomial` below say what each approximates, and
# _ERF_DOUBLE approximates the same as _ERF
_EXP = (1.0, 1.0, 0.49999994, 0.166665196, 0.0416682884, 0.0083688926, 0.00138193916)
_LOG = (
    0.333333135, -0.250000089, 0.200020716, -0.166679904, 0.142203629, -0.124062076, 0.118834704,
    -0.116701923, 0.0674955621,
)  # fmt: skip
_TANH = (
    -0.333333284, 0.133331746, -0.0539507158, 0.0217743553, -0.00857107528, 0.00304812705, -0.000821208407,
    0.000116210511,
)  # fmt: skip
_ERF = (
    0.128379166, -0.37612626, 0.112835787, -0.0268533472, 0.0051871622, -0.00079978531, 7.80690316e-05,
)  # fmt: skip
_ERFC = (
    1.12868857, 0.634991884, 0.10649547, -0.0239808038, 0.00374416169, -0.000347432913, 1.36572389e-05,
)  # fmt: skip
_ERF_DOUBLE = (
    0.1283791670955126, -0.37612638903183754, 0.11283791670955126, -0.026866170645131218,
    0.005223977625441674, -0.0008548327023403001, 0.00012055332978879483, -1.4925650236967501e-05,
    1.6462110782018636e-06, -1.636576864883207e-07, 1.4806027146128752e-08, -1.2277734486795524e-09,
    9.323723518153027e-11, -6.1967364287877e-12, 2.8067128195611264e-13,
)  # fmt: skip
# exp(a^2) (1 - erf(a)) (a + 5/2) for a in 1..6, interpolated as a polynomial of 2.38 (a - 5/2) / (a + 5/2) +
# 0.02
_ERFC_DOUBLE = (
    1.0608257561353167, -0.3413096658373071, 0.08089883112107979, -0.012773163443111704,
    0.0008727889449429508, 0.00011308222280872438, -2.636425433755951e-05, -1.1242381809040965e-06,
    6.779458081063368e-07, 2.7627210553749517e-08, -1.8986281693354253e-08, -1.5361344705508626e-09,
    5.29686448689529e-10, 8.8061200240907e-11, -1.1288938222224805e-11, -3.72055367268326e-12,
    2.4404288548897082e-14,
)  # fmt: skip


@fused
def _exp_polynomial(r: hl.Expr) -> hl.Expr:
    """Returns exp(r) for |r| <= log(2) / 2."""
    return horner(r, _EXP)


@fused
def _log_polynomial(f: hl.Expr) -> hl.Expr:
    """Returns (log(1 + f) - f) / f^2."""
    return f * horner(f, _LOG) + hl.f32(-0.5)


@fused
def _tanh_polynomial(s: hl.Expr) -> hl.Expr:
    """Returns tanh(x) / x - 1 for s = x^2."""
    return s * horner(s, _TANH)


@fused
def _erf_polynomial(s: hl.Expr) -> hl.Expr:
    """Returns erf(x) / x - 1 for s = x^2."""
    return horner(s, _ERF)


@fused
def _erfc_polynomial(a: hl.Expr) -> hl.Expr:
    """Returns log(1 - erf(a)) for a in 1..4."""
    return -a * horner(a, _ERFC)


def _exp_parts(x: hl.Expr) -> tuple[hl.Expr, hl.Expr]:
    """Returns (p, n) with exp(x) = p * 2^n, p in 0.7..1.5, and n the bits of an int32 (arbitrary for NaN)."""
    # adding the magic number rounds to an integer, and leaves that integer in the last bits of the sum
    magic = hl.f32(1.5 * 2**23)
    shifted = x * hl.f32(_LOG2_E) + magic
    n = shifted - magic
    # n * _LOG_2 is exact: 9 bits of n and 10 of the constant
    r = (x - n * hl.f32(_LOG_2)) - n * hl.f32(_REST)
    return _exp_polynomial(r), bits(shifted) - bits(magic)


def _power_of_two(n: hl.Expr) -> hl.Expr:
    return hl.reinterpret(hl.Float(32), (n << hl.u32(23)) + hl.u32(0x3F800000))  # 0x3F800000: bits of 1.0


@strict
def exp(x: hl.Expr) -> hl.Expr:
    p, n = _exp_parts(clamp_keeping_nan(x, -104, 89))
    # 2^n is multiplied in two steps, of which only the second may overflow or round to a subnormal number
    half = hl.reinterpret(hl.UInt(32), hl.reinterpret(hl.Int(32), n) >> 1)
    return p * _power_of_two(half) * _power_of_two(n - half)


@strict
def tanh(x: hl.Expr) -> hl.Expr:
    a = absolute(x)
    p, n = _exp_parts(clamp_keeping_nan(a, 0, 10) * hl.f32(2))
    large = hl.f32(1) - hl.f32(2) / (p * _power_of_two(n) + hl.f32(1))  # 1 - 2 / (exp(2 a) + 1)
    return apply_sign(hl.select(a < hl.f32(1), a + a * _tanh_polynomial(a * a), large), x)


@strict
def erf(x: hl.Expr) -> hl.Expr:
    a = absolute(x)
    p, n = _exp_parts(_erfc_polynomial(clamp_keeping_nan(a, 0, 3.95)))
    large = hl.f32(1) - p * _power_of_two(n)
    return apply_sign(hl.select(a < hl.f32(1), a + a * _erf_polynomial(a * a), large), x)


@strict
def erf_double(x: hl.Expr) -> hl.Expr:
    """Returns erf of a float64, by the exponential function of the C library."""
    a = clamp_keeping_nan(absolute(x), 0, 6)
    t = hl.f64(2.38) * ((a - hl.f64(2.5)) / (a + hl.f64(2.5))) + hl.f64(0.02)
    large = hl.f64(1) - hl.exp(-a * a) * (horner(t, _ERFC_DOUBLE) / (a + hl.f64(2.5)))
    return apply_sign(hl.select(a < hl.f64(1), a + a * horner(a * a, _ERF_DOUBLE), large), x)


@strict
def logarithm(x: hl.Expr) -> hl.Expr:
    tiny = x < hl.f32(2.0**-126)
    normal = bits(hl.select(tiny, x * hl.f32(2.0**23), x))
    # x = 2^k m with m between sqrt(1/2) and sqrt(2)
    k = hl.reinterpret(hl.Int(32), normal - hl.u32(0x3F3504F3)) >> 23  # the constant: bits of sqrt(1/2)
    m = hl.reinterpret(hl.Float(32), normal - (hl.reinterpret(hl.UInt(32), k) << hl.u32(23)))
    scale = hl.cast(hl.Float(32), k - hl.select(tiny, 23, 0))
    f = m - hl.f32(1)
    result = scale * hl.f32(_LOG_2) + (f + (f * f * _log_polynomial(f) + scale * hl.f32(_REST)))
    zero, infinity = hl.f32(0), hl.f32(inf)
    edge = hl.select(x == zero, hl.f32(-inf), hl.select(x < zero, hl.f32(nan), x))
    return hl.select((x > zero) & (x < infinity), result, edge)
