"""Converts Halide expressions between element types.

Floats become integers by truncation. For a NaN, and a number that the target type cannot hold, ONNX defines
no result; here it is that of x86: the least int32 or int64, and for a narrower type the last bits of these.
Float types are float32 and float64: kernels compute with no others.
"""

from __future__ import annotations

from math import inf, nan

import halide as hl

from tensaurus.kernels.math.float_bits import (
    absolute,
    float_constant,
    is_finite,
    is_nan,
    round_to_float32,
    to_float64,
)
from tensaurus.kernels.math.integer_arithmetic import integer_constant
from tensaurus.kernels.math.strict_float import strict


def convert(x: hl.Expr, kind: hl.Type) -> hl.Expr:
    """Returns x converted to the type `kind`."""
    source = x.type()
    if source == kind:
        return x
    if source.is_bool():
        return hl.select(x, hl.cast(kind, 1), hl.cast(kind, 0))
    if source.is_float():
        return _convert_float(x, kind)
    return x != integer_constant(0, x) if kind.is_bool() else hl.cast(kind, x)


def _convert_float(x: hl.Expr, kind: hl.Type) -> hl.Expr:
    if kind.is_bool():
        return _is_nonzero(x)
    if kind.is_float():
        return _to_float64(x) if kind.bits() == 64 else _to_float32(x)
    if kind.bits() < 32 or kind == hl.Int(32):
        return hl.cast(kind, _truncate_to_signed(x, 32))
    if kind == hl.UInt(64):
        top = float_constant(2.0**63, x)  # from here on x - 2^63 is converted, and bit 63 is set
        above = hl.reinterpret(kind, _truncate_to_signed(_subtract(x, top), 64)) ^ hl.u64(2**63)
        return hl.select(_is_less(x, top), hl.reinterpret(kind, _truncate_to_signed(x, 64)), above)
    return hl.cast(kind, _truncate_to_signed(x, 64))


def _truncate_to_signed(x: hl.Expr, width: int) -> hl.Expr:
    """Truncates to an int32 or int64; numbers out of range and NaN become the least one."""
    fits = _is_magnitude_below(x, float_constant(2.0 ** (width - 1), x))
    return hl.select(fits, hl.cast(hl.Int(width), x), hl.cast(hl.Int(width), hl.i64(-(2 ** (width - 1)))))


@strict
def _to_float32(x: hl.Expr) -> hl.Expr:
    """Rounds a float64; a NaN is selected, as the compiler assumes that conversions meet none."""
    return round_to_float32(~is_nan(x), x, hl.f32(nan))


@strict
def _to_float64(x: hl.Expr) -> hl.Expr:
    """Widens a float32; the compiler assumes that conversions meet numbers, so others are selected."""
    edge = hl.select(x > hl.f32(0), hl.f64(inf), hl.select(x < hl.f32(0), hl.f64(-inf), hl.f64(nan)))
    return hl.select(is_finite(x), to_float64(x), edge)


@strict
def _is_nonzero(x: hl.Expr) -> hl.Expr:
    return x != float_constant(0, x)


@strict
def _subtract(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    return x - y


@strict
def _is_less(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    return x < y


@strict
def _is_magnitude_below(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """Returns whether |x| < y."""
    return absolute(x) < y
