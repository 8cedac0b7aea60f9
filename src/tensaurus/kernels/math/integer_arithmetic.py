"""Arithmetic of integers as every runtime has it: results wrap, quotients are rounded towards zero.

Halide takes sums of int32 and int64 not to overflow, so they are those of the unsigned type; its `/` rounds
so that remainders are not negative, and its division towards zero traps where the processor's does.
"""

from __future__ import annotations

from collections.abc import Callable

import halide as hl


def literal(value: int, like: hl.Expr) -> hl.Expr:
    """An integer of the type of an expression."""
    kind = like.type()
    return hl.cast(kind, hl.u64(value) if kind.is_uint() else hl.i64(value))


def wrapping(function: Callable[..., hl.Expr]) -> Callable[..., hl.Expr]:
    """A ring operation modulo 2^bits."""

    def wrapped(*args: hl.Expr) -> hl.Expr:
        kind = args[0].type()
        natural = hl.UInt(kind.bits())
        return hl.reinterpret(kind, function(*(hl.reinterpret(natural, a) for a in args)))

    return wrapped


added = wrapping(lambda a, b: a + b)
negative = wrapping(lambda a: ~a + literal(1, a))


def quotient(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """a / b rounded towards zero; 0 where b is 0."""
    zero, one = literal(0, b), literal(1, b)
    if b.type().is_uint():
        return hl.select(b == zero, zero, a / hl.select(b == zero, one, b))
    # the least integer has no negative: by -1 it wraps
    minus = literal(-1, b)
    whole = hl.div_round_to_zero(a, hl.select((b == zero) | (b == minus), one, b))
    return hl.select(b == zero, zero, hl.select(b == minus, negative(a), whole))


def remainder(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """What the quotient rounded towards zero leaves, of the sign of a; 0 where b is 0."""
    zero, one = literal(0, b), literal(1, b)
    if b.type().is_uint():
        return hl.select(b == zero, zero, a % hl.select(b == zero, one, b))
    nothing = (b == zero) | (b == literal(-1, b))
    return hl.select(nothing, zero, hl.mod_round_to_zero(a, hl.select(nothing, one, b)))


def modulo(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """What the quotient rounded down leaves, of the sign of b; 0 where b is 0."""
    rest, zero = remainder(a, b), literal(0, b)
    if b.type().is_uint():
        return rest
    turned = (rest != zero) & ((rest < zero) != (b < zero))
    return hl.select(turned, added(rest, b), rest)


def sign(a: hl.Expr) -> hl.Expr:
    zero, one = literal(0, a), literal(1, a)
    positive = hl.select(a > zero, one, zero)
    return positive if a.type().is_uint() else hl.select(a < zero, literal(-1, a), positive)


def absolute(a: hl.Expr) -> hl.Expr:
    return a if a.type().is_uint() else hl.select(a < literal(0, a), negative(a), a)
