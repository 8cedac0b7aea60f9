"""An assumption about sizes, made by replacing symbols: what then holds, holds by the sizes' form alone.

    n == m        m stands for n                        n - k >= 0     n stands for k + n', n' >= 0
    n % g == 0    n stands for g * n'                   a*b == c*d     a = p*q, b = r*s, c = p*r, d = q*s

Every case is exact or lets in more values than are assumed (a symbol may lose its lower bound): what is shown
for all values of the new symbols is shown for all sizes that the assumption admits.  The last form holds by
the unique factorisation of integers: two products of positive integers have a common refinement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd
from types import MappingProxyType
from typing import Any

from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import (
    Atom,
    Floor,
    Largest,
    Poly,
    Size,
    Symbol,
    atoms,
    is_nonnegative,
    polynomial,
    product,
    substitute,
    terms_of,
)

SIZES = ("zero", "nonnegative")  # kinds of questions about sizes
LEAST = -(2**62)  # the lower bound of a symbol that has none: numbers are stored in 64 bits

Values = Mapping[Atom, Size]


class Naming:
    """How many names begin alike, by how they begin, and what is in front of the number of each."""

    def __init__(self, taken: Mapping[str, int], mark: str = ""):
        self.taken, self.mark = dict(taken), mark

    def name(self, hint: str) -> str:
        """One that begins like the hint."""
        begin = hint.partition(".")[0]
        number = self.taken[begin] = self.taken.get(begin, 0) + 1
        return f"{begin}.{self.mark}{number}"


_naming: ContextVar[Naming] = ContextVar("naming")
_elsewhere = Naming({}, "n")


@contextmanager
def naming(taken: Mapping[str, int] = MappingProxyType({})) -> Iterator[Naming]:
    """New names differ from those that are taken: so they are the same in all cases that are alike, and what
    is known of one of them is known of the others."""
    own = Naming(taken)
    token = _naming.set(own)
    try:
        yield own
    finally:
        _naming.reset(token)


def new_name(hint: str) -> str:
    """A name that begins like the hint, and that nothing has which is `naming`."""
    return _naming.get(_elsewhere).name(hint)


def symbol(hint: str, low: int, high: Size | None = None) -> Size:
    """A new symbol; its name begins like the hint."""
    size: Size = polynomial(Symbol(new_name(hint), low, high))
    return size


def ways(question: Question) -> list[Values] | None:
    """Replacements of symbols that together admit every value for which the answer is yes.

    None where no such replacement is known; empty where the answer is never yes.
    """
    if question.kind == "zero":
        return _zero(question.subject)
    return _nonnegative(question.subject) if question.kind == "nonnegative" else None


def _zero(gap: Size) -> list[Values] | None:
    if isinstance(gap, int):
        return [{}] if gap == 0 else []
    if is_nonnegative(gap - 1) or is_nonnegative(-1 - gap):
        return []
    multiple = _remainder(gap)
    if multiple is not None:
        top, bottom, left = multiple
        top = top - left
        share = gcd(*(int(c) for _, c in terms_of(top)))
        if isinstance(bottom, int) and gcd(share, bottom) == 1:
            top = _divided(top, share) or top
        hint = min((a.key for a in atoms(top) if isinstance(a, Symbol)), default="n")
        least = 1 if is_nonnegative(top - 1) else 0 if is_nonnegative(top) else LEAST
        return _zero(top - bottom * symbol(hint, least))
    for signed in (gap, -gap):
        if is_nonnegative(signed):
            return _all_zero(signed) or _quotient(signed)
    share = gcd(*(int(c) for _, c in gap.terms))
    solution: Values | None = None
    for factors, coefficient in gap.terms:
        if len(factors) == 1 and abs(coefficient) == share and _alone(factors[0], gap):
            (own,) = factors
            assert isinstance(own, Symbol)
            if own.high is not None:
                continue
            value = (polynomial(own) * coefficient - gap) * (1 if coefficient > 0 else -1)
            value = _divided(value, share)
            if value is None:
                return None
            if own.low == LEAST or is_nonnegative(value - own.low):
                kept: Values = {own: value}
                return [kept]
            solution = solution or {own: value}
    if solution is not None:
        return [solution]
    return _quotient(gap) or _refined(gap)


def easier(question: Question) -> Question | None:
    """A question that is easier to assume and answers this one: f(n) = f(m) where n = m."""
    if question.kind != "zero" or len(question.subject.terms) != 2:
        return None
    ((first, c), (second, d)) = question.subject.terms
    if c != -d or not any(isinstance(a, (Floor, Largest)) for a in (*first, *second)):
        return None
    one, other = ({a for f in side for a in atoms(f) if isinstance(a, Symbol)} for side in (first, second))
    left, right = one - other, other - one
    if len(left) != 1 or len(right) != 1:
        return None
    (a,), (b,) = left, right
    gap = polynomial(a) - b
    if substitute(question.subject, {a: polynomial(b)}) != 0:
        return None
    return Question("zero", gap if gap.terms[0][1] > 0 else -gap)


def _quotient(gap: Poly) -> list[Values] | None:
    """Where a quotient stands alone: t // b = n, so t = b*n + r with 0 <= r < b."""
    for factors, coefficient in gap.terms:
        (atom, *more) = factors or (None,)
        if not more and abs(coefficient) == 1 and isinstance(atom, Floor):
            if isinstance(atom.top - gap, Poly) and (atom.top - polynomial(atom)) in (gap, -gap):
                # t // b = t where b is 1, or t is 0 or -1
                each = [_zero(atom.bottom - 1), _zero(polynomial(atom.top)), _zero(atom.top + 1)]
                return None if None in each else [values for solutions in each for values in solutions or ()]
            value = polynomial(atom) - gap * int(coefficient)
            if atom in atoms(value):
                continue
            rest = symbol("r", 0, atom.bottom - 1)
            solutions = _zero(atom.top - (atom.bottom * value + rest))
            if solutions is not None:
                return solutions
    return None


def _all_zero(gap: Poly) -> list[Values] | None:
    """Where a sum of what is at least zero is zero: every symbol is as small as it may be."""
    lows: dict[Atom, int] = {a: a.low for a in atoms(gap) if isinstance(a, Symbol)}
    shifted = terms_of(substitute(gap, {a: a + low for a, low in lows.items() if low}))
    if any(len(m) != 1 or c < 0 or m[0] not in lows for m, c in shifted):
        return _refined(gap)
    return [{m[0]: lows[m[0]] for m, _ in shifted}]


def _divided(value: Any, share: int) -> Size | None:
    if any(c % share for _, c in terms_of(value)):
        return None
    quotient: Size = sum((product(f) * (c // share) for f, c in terms_of(value)), 0)
    return quotient


def _alone(atom: Atom, size: Poly) -> bool:
    """True for a symbol that stands in one term of the size, and inside of none."""
    if not isinstance(atom, Symbol):
        return False
    inside = [m for m, _ in size.terms if any(atom in atoms(polynomial(a)) for a in m)]
    return len(inside) == 1 and inside[0] == (atom,)


def _remainder(gap: Poly) -> tuple[Size, Size, int] | None:
    """(top, bottom, c) where the size is top % bottom - c, or its negative, with 0 <= c < bottom."""
    for atom in atoms(gap):
        if isinstance(atom, Floor):
            rest = polynomial(atom.top) - atom.bottom * polynomial(atom)
            for left in (rest - gap, rest + gap):
                if isinstance(left, int) and left >= 0 and is_nonnegative(atom.bottom - left - 1):
                    return atom.top, atom.bottom, left
    return None


def _refined(gap: Poly) -> list[Values] | None:
    """Where two products of symbols are equal."""
    if len(gap.terms) != 2:
        return None
    (left, c), (right, d) = gap.terms
    if c != -d or not all(isinstance(a, Symbol) for a in (*left, *right)):
        return None
    first, second = list(left), list(right)
    cases: list[Values] = []
    for atom in left:
        if atom in second:
            first.remove(atom)
            second.remove(atom)
            if isinstance(atom, Symbol) and atom.low < 1:
                cases.append({atom: 0})
    lows = [a.low for a in (*first, *second) if isinstance(a, Symbol)]
    if len({*first, *second}) < len(lows) or min(lows, default=0) < 0:
        return None
    if any(isinstance(a, Symbol) and a.high is not None for a in (*first, *second)):
        return None  # its bound would be lost, and the question asked again
    # products with a zero on both sides have a common refinement, too
    parts = {(a, b): symbol(a.key, int(min(lows) > 0)) for a in first for b in second}
    values: dict[Atom, Size] = {a: product(parts[a, b] for b in second) for a in first}
    values |= {b: product(parts[a, b] for a in first) for b in second}
    return [*cases, values]


def _nonnegative(size: Size) -> list[Values] | None:
    if isinstance(size, int):
        return [{}] if size >= 0 else []
    if is_nonnegative(size):
        return [{}]
    if is_nonnegative(-1 - size):
        return []
    if is_nonnegative(-size):
        return _zero(size)
    solution = None
    for values, kept in _above(size):
        if kept:
            return [values]
        solution = solution or values
    if solution is not None:
        return [solution]
    constant = next((c for m, c in size.terms if not m), 0)
    if len(size.terms) == 2 and constant < 0:
        (factors, coefficient), _ = size.terms
        if coefficient >= -constant and all(isinstance(a, Symbol) and a.low >= 0 for a in factors):
            # a product is positive where its factors are
            return [{a: symbol(a.key, 1) for a in factors if isinstance(a, Symbol) and a.low == 0}]
    return None


def _above(size: Poly) -> Iterator[tuple[Values, bool]]:
    """Replacements of one symbol by which the size is at least zero, and whether it keeps its own bound."""
    least = next((int(c) for m, c in size.terms if not m), 0)
    for sign in (1, -1):
        for factors, coefficient in size.terms:
            if len(factors) != 1 or coefficient != sign or not _alone(factors[0], size):
                continue
            (own,) = factors
            assert isinstance(own, Symbol)
            rest = size - sign * polynomial(own)
            # own = slack - rest, or rest - slack; a constant that is taken away is the slack's lower bound
            slack = symbol(own.name, max(-least, 0))
            rest = rest + max(-least, 0) if least < 0 else rest
            value = (slack - rest) if sign > 0 else (rest - slack)
            yield {own: value}, own.low == LEAST or is_nonnegative(value - own.low)
