"""Conversions between element types.

Floats become integers by truncation.  What is no integer of the type (too large, NaN) ONNX leaves open; here
it is what x86 makes of it: the least int32 or int64, and of a narrower type their last bits.
"""

from __future__ import annotations

from math import inf, nan

import halide as hl

from tensaurus.kernels.math.float_bits import absolute, double, finite, is_nan, number, rounded
from tensaurus.kernels.math.integer_arithmetic import literal
from tensaurus.kernels.math.strict_float import strict


def converted(x: hl.Expr, kind: hl.Type) -> hl.Expr:
    """x as another type."""
    source = x.type()
    if source == kind:
        return x
    if source.is_bool():
        return hl.select(x, hl.cast(kind, 1), hl.cast(kind, 0))
    if source.is_float():
        return _of_float(x, kind)
    return x != literal(0, x) if kind.is_bool() else hl.cast(kind, x)


def _of_float(x: hl.Expr, kind: hl.Type) -> hl.Expr:
    if kind.is_bool():
        return _nonzero(x)
    if kind.is_float():
        return _widened(x) if kind.bits() == 64 else _narrowed(x)
    if kind.bits() < 32 or kind == hl.Int(32):
        return hl.cast(kind, _signed(x, 32))
    if kind == hl.UInt(64):
        top = number(2.0**63, x)
        above = hl.reinterpret(kind, _signed(_less(x, top), 64)) ^ hl.u64(2**63)
        return hl.select(_below(x, top), hl.reinterpret(kind, _signed(x, 64)), above)
    return hl.cast(kind, _signed(x, 64))


def _signed(x: hl.Expr, width: int) -> hl.Expr:
    """The int32 or int64; the least one where there is none."""
    fits = _within(x, number(2.0 ** (width - 1), x))
    return hl.select(fits, hl.cast(hl.Int(width), x), hl.cast(hl.Int(width), hl.i64(-(2 ** (width - 1)))))


@strict
def _narrowed(x: hl.Expr) -> hl.Expr:
    return rounded(~is_nan(x), x, hl.f32(nan))


@strict
def _widened(x: hl.Expr) -> hl.Expr:
    """The compiler takes for a number what is converted alone."""
    edge = hl.select(x > hl.f32(0), hl.f64(inf), hl.select(x < hl.f32(0), hl.f64(-inf), hl.f64(nan)))
    return hl.select(finite(x), double(x), edge)


@strict
def _nonzero(x: hl.Expr) -> hl.Expr:
    return x != number(0, x)


@strict
def _less(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    return x - y


@strict
def _below(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    return x < y


@strict
def _within(x: hl.Expr, y: hl.Expr) -> hl.Expr:
    """|x| < y, or whatever is truncated to -y."""
    return absolute(x) < y
