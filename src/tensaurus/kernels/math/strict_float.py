"""Lets a scalar function of floats keep its own rules of arithmetic in whatever kernel it is used.

By default Halide lets LLVM reassociate, contract, and assume that no operand is NaN or infinite (all
operations are `reassoc nnan ninf nsz contract afn`, and Halide's own simplifier replaces x * 0 by 0). Under
`hl.strict_float(e)` every operation below e follows IEEE 754, and a product and a sum never become one fused
multiply-add; only conversions between floats stay `nnan ninf`. A kernel needs strict arithmetic in its scalar
functions, and the fast default in its sums of products.

`hl.strict_float` stops at calls of Funcs, whose arguments are int32. So a function of floats becomes a Func
of the bits of its arguments; Halide inlines the Func, and the conversions leave no instruction. That compiles
in time proportional to the number of calls, whereas `hl.strict_float` of the whole kernel would walk the
expression tree, in which a shared subexpression occurs once for each of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TypeAlias

import halide as hl

Function: TypeAlias = Callable[..., hl.Expr]


def strict(function: Function) -> Function:
    """Decorates a function of floats and bools so that each of its operations follows IEEE 754."""
    return _as_inlined_func(function, hl.strict_float)


def fused(function: Function) -> Function:
    """Decorates a function so that its products and sums may fuse to multiply-adds: only for Horner's rule.

    A sum of three terms would be reassociated, x y + x becomes x (y + 1), and comparisons of the result that
    only NaN or an infinity would fail are dropped.
    """
    return _as_inlined_func(function, lambda result: result)


def _as_inlined_func(function: Function, rule: Function) -> Function:
    @cache
    def func(widths: tuple[int, ...]) -> hl.Func:
        words = [[hl.Var(f"x{n}_{k}") for k in range((w + 31) // 32)] for n, w in enumerate(widths)]
        inlined = hl.Func(function.__name__.strip("<_>"))
        inlined[tuple(v for part in words for v in part)] = rule(function(*map(_from_words, words, widths)))
        return inlined

    @wraps(function)
    def called(*args: hl.Expr) -> hl.Expr:
        inlined = func(tuple(a.type().bits() for a in args))
        return hl.Expr(inlined[tuple(word for a in args for word in _to_words(a))])

    return called


def _to_words(x: hl.Expr) -> list[hl.Expr]:
    """Splits the bits of a float or a bool into int32 words, the lowest first."""
    if x.type().is_bool():
        return [hl.cast(hl.Int(32), x)]
    if x.type().bits() == 32:
        return [hl.reinterpret(hl.Int(32), x)]
    whole = hl.reinterpret(hl.UInt(64), x)
    return [hl.reinterpret(hl.Int(32), hl.cast(hl.UInt(32), w)) for w in (whole, whole >> hl.u64(32))]


def _from_words(words: Sequence[hl.Expr], width: int) -> hl.Expr:
    if width == 1:
        return words[0] != 0
    if width == 32:
        return hl.reinterpret(hl.Float(32), words[0])
    low, high = (hl.cast(hl.UInt(64), hl.reinterpret(hl.UInt(32), w)) for w in words)
    return hl.reinterpret(hl.Float(64), low | (high << hl.u64(32)))
