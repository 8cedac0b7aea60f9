"""Computes with integers as every runtime does: results wrap around, quotients are rounded towards zero.

Only a division by 0, which stops a runtime's process, gives 0, as in the evaluator.

Halide assumes that sums of int32 and int64 do not overflow, so sums are computed in the unsigned type.
Halide's `/` rounds so that remainders are not negative. Its division towards zero traps where the
processor's does: for a divisor 0, and for the least integer divided by -1.
"""

from __future__ import annotations

from collections.abc import Callable

import halide as hl


def integer_constant(value: int, like: hl.Expr) -> hl.Expr:
    """Returns the value as a literal of the type of `like`."""
    kind = like.type()
    return hl.cast(kind, hl.u64(value) if kind.is_uint() else hl.i64(value))


def wrapping(function: Callable[..., hl.Expr]) -> Callable[..., hl.Expr]:
    """Returns a function of +, - and * that wraps around: it computes in the unsigned type of equal width."""

    def wrapped(*args: hl.Expr) -> hl.Expr:
        kind = args[0].type()
        unsigned = hl.UInt(kind.bits())
        return hl.reinterpret(kind, function(*(hl.reinterpret(unsigned, a) for a in args)))

    return wrapped


add = wrapping(lambda a, b: a + b)
negate = wrapping(lambda a: ~a + integer_constant(1, a))


def quotient(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns a / b rounded towards zero, and 0 where b is 0."""
    zero, one = integer_constant(0, b), integer_constant(1, b)
    if b.type().is_uint():
        return hl.select(b == zero, zero, a / hl.select(b == zero, one, b))
    # the least integer has no negative, so division by -1 must wrap around instead of trapping
    minus_one = integer_constant(-1, b)
    truncated = hl.div_round_to_zero(a, hl.select((b == zero) | (b == minus_one), one, b))
    return hl.select(b == zero, zero, hl.select(b == minus_one, negate(a), truncated))


def remainder(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns the remainder of division rounded towards zero, with the sign of a, and 0 where b is 0."""
    zero, one = integer_constant(0, b), integer_constant(1, b)
    if b.type().is_uint():
        return hl.select(b == zero, zero, a % hl.select(b == zero, one, b))
    is_zero = (b == zero) | (b == integer_constant(-1, b))
    return hl.select(is_zero, zero, hl.mod_round_to_zero(a, hl.select(is_zero, one, b)))


def modulo(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns the remainder of division rounded down, with the sign of b, and 0 where b is 0."""
    rest, zero = remainder(a, b), integer_constant(0, b)
    if b.type().is_uint():
        return rest
    needs_shift = (rest != zero) & ((rest < zero) != (b < zero))
    return hl.select(needs_shift, add(rest, b), rest)


def sign(a: hl.Expr) -> hl.Expr:
    zero, one = integer_constant(0, a), integer_constant(1, a)
    positive = hl.select(a > zero, one, zero)
    return positive if a.type().is_uint() else hl.select(a < zero, integer_constant(-1, a), positive)


def absolute(a: hl.Expr) -> hl.Expr:
    return a if a.type().is_uint() else hl.select(a < integer_constant(0, a), negate(a), a)
