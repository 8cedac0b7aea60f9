"""Scalar functions of floats that keep their own rules of arithmetic, whatever they are called in.

By default Halide lets LLVM reassociate, contract, and assume that nothing is NaN or infinite (all operations
are `reassoc nnan ninf nsz contract afn`; its own simplifier takes x * 0 for 0).  Under `hl.strict_float(e)`
every operation below e is that of IEEE 754, and a product and a sum never become one fused multiply-add;
conversions between floats stay `nnan ninf` even there.  Neither is what a kernel wants throughout.

`strict_float` stops at calls of Funcs, whose arguments are int32.  So a function of floats becomes a Func of
their bits, inlined as any other, of which no instruction is left.  It takes time in proportion to the calls,
whereas `strict_float` walks the tree below, in which what is shared occurs once for each of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TypeAlias

import halide as hl

Function: TypeAlias = Callable[..., hl.Expr]


def strict(function: Function) -> Function:
    """The function, of floats and bools, operation by operation as IEEE 754 has it."""
    return _apart(function, hl.strict_float)


def fused(function: Function) -> Function:
    """The function, whose products and sums may become fused multiply-adds: for Horner's rule, no more.

    A sum of three would be reassociated, x y + x becomes x (y + 1), and what compares the result with NaN or
    an infinity is dropped.
    """
    return _apart(function, lambda result: result)


def _apart(function: Function, rule: Function) -> Function:
    @cache
    def func(widths: tuple[int, ...]) -> hl.Func:
        words = [[hl.Var(f"x{n}_{k}") for k in range((w + 31) // 32)] for n, w in enumerate(widths)]
        inlined = hl.Func(function.__name__.strip("<_>"))
        inlined[tuple(v for part in words for v in part)] = rule(function(*map(_joined, words, widths)))
        return inlined

    @wraps(function)
    def called(*args: hl.Expr) -> hl.Expr:
        inlined = func(tuple(a.type().bits() for a in args))
        return hl.Expr(inlined[tuple(word for a in args for word in _words(a))])

    return called


def _words(x: hl.Expr) -> list[hl.Expr]:
    """The bits of a float or a bool as int32, the lowest first."""
    if x.type().is_bool():
        return [hl.cast(hl.Int(32), x)]
    if x.type().bits() == 32:
        return [hl.reinterpret(hl.Int(32), x)]
    whole = hl.reinterpret(hl.UInt(64), x)
    return [hl.reinterpret(hl.Int(32), hl.cast(hl.UInt(32), w)) for w in (whole, whole >> hl.u64(32))]


def _joined(words: Sequence[hl.Expr], width: int) -> hl.Expr:
    if width == 1:
        return words[0] != 0
    if width == 32:
        return hl.reinterpret(hl.Float(32), words[0])
    low, high = (hl.cast(hl.UInt(64), hl.reinterpret(hl.UInt(32), w)) for w in words)
    return hl.reinterpret(hl.Float(64), low | (high << hl.u64(32)))
