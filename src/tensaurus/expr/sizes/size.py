"""Integers of a program that may be unknown: extents of axes, indices, and side conditions.

    size  ::=  sum of  coefficient * atom * atom ...        (a polynomial, always expanded and sorted)
    atom  ::=  symbol | axis | size // size | max(size, ...)

    (6*n + 4) // 2   ->   3*n + 2        (4*i + j) // 4 with axis j:4   ->   i

`a % b` is `a - b * (a // b)`, and `min` is `-max(-...)`, so that equal expressions have one form.  A size
without atoms *is* a Python int: the same function runs on ints in a concrete program, symbols in a rule or a
dynamic model, and Z3 terms (`evaluate`).  Coefficients may be fractions, for the field of rational functions
(`expr.evaluate.fields`).

This module decides comparisons, and is where callers import sizes from: `polynomial` has the arithmetic,
`symbol` the unknowns, `simplify_sizes` floors, maxima and bounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tensaurus.expr.sizes.open_questions import ask, is_recording_questions
from tensaurus.expr.sizes.polynomial import (
    Arithmetic,
    Atom,
    Monomial,
    Number,
    Poly,
    Size,
    atoms,
    bracketed,
    evaluate,
    plus,
    polynomial,
    product,
    single_atom,
    substitute,
    terms_of,
    times,
)
from tensaurus.expr.sizes.simplify_sizes import (
    Floor,
    Largest,
    floordiv,
    interval,
    is_provably_nonnegative,
    largest,
)
from tensaurus.expr.sizes.symbol import Axis, Symbol

__all__ = [
    "Arithmetic", "Atom", "Axis", "Floor", "Largest", "Monomial", "Number", "Poly", "Size", "Symbol", "atoms",
    "bracketed", "evaluate", "floordiv", "interval", "is_negative", "is_nonnegative", "is_same_size",
    "largest", "mod", "plus", "polynomial", "product", "single_atom", "smallest", "substitute", "terms_of",
    "times",
]  # fmt: skip


def mod(a: Any, b: Any) -> Any:
    """Return a % b, which has the sign of b."""
    return a % b


def smallest(a: Any, b: Any) -> Any:
    """Return min(a, b)."""
    return 0 - largest(0 - a, 0 - b)


def is_nonnegative(size: Any) -> bool:
    """Return whether size >= 0 provably; where that is open, the assumed answer, or False."""
    if not isinstance(size, Arithmetic):
        return bool(size >= 0)
    if is_provably_nonnegative(size):
        return True
    return (
        is_recording_questions()
        and not is_provably_nonnegative(-1 - size)
        and ask("nonnegative", polynomial(size))
    )


def is_negative(size: Any) -> bool:
    """Return whether size < 0 provably.  An open sign is False, and is not recorded as a question."""
    return is_provably_nonnegative(-1 - size)


def is_same_size(a: Any, b: Any) -> bool:
    """Return whether two sizes are provably equal for all values of their symbols."""
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return bool(a == b)
    # not a == b: an `UnknownSize` (`rules`) defines == by this function
    if terms_of(a) == terms_of(b):
        return True
    difference = _undecided_difference(a, b) if is_recording_questions() else None
    return difference is not None and ask("zero", difference)


@lru_cache(maxsize=100_000)
def _undecided_difference(a: Any, b: Any) -> Poly | None:
    """Return a - b or b - a, so that both orders are one question; None where it is provably not 0."""
    difference = a - b
    if (
        not isinstance(difference, Poly)
        or is_provably_nonnegative(difference - 1)
        or is_provably_nonnegative(-1 - difference)
    ):
        return None
    return difference if difference.terms[0][1] > 0 else times(-1, difference)
