"""Assume an answer about sizes by replacing symbols, so that it holds by the form of the sizes alone.

    n == m        m becomes n                           n - k >= 0     n becomes k + n', n' >= 0
    n % g == 0    n becomes g * n'                      a*b == c*d     a = p*q, b = r*s, c = p*r, d = q*s

A replacement admits exactly the assumed values, or more of them (a symbol may lose its lower bound).  So a
proof for all values of the new symbols covers all sizes of the assumption.  A size is a sum of terms (atoms,
coefficient): 2*n*m - 3 is ((n, m), 2), ((), -3).  The last form holds by the unique
factorisation of integers: two equal products of positive integers have a common refinement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

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

SIZE_QUESTIONS = ("zero", "nonnegative")  # kinds of questions about sizes
NO_LOWER_BOUND = -(2**62)  # lower bound of a symbol that has none: numbers are stored in 64 bits

Replacements = Mapping[Atom, Size]  # of symbols


class NameCounter:
    """Counts the names made for each hint; `mark` is put before each name's number."""

    def __init__(self, taken: Mapping[str, int], mark: str = ""):
        self.taken, self.mark = dict(taken), mark

    def name(self, hint: str) -> str:
        """Return a new name that begins like the hint."""
        begin = hint.partition(".")[0]
        number = self.taken[begin] = self.taken.get(begin, 0) + 1
        return f"{begin}.{self.mark}{number}"


_naming: ContextVar[NameCounter] = ContextVar("naming")
_global_names = NameCounter({}, "n")  # of names outside a context, which the mark tells from those inside


@contextmanager
def fresh_names(taken: Mapping[str, int] = MappingProxyType({})) -> Iterator[NameCounter]:
    """Make names in this context that differ from those counted in `taken`.

    Similar cases then use the same names, so that results for one case can be reused for the others.
    """
    own = NameCounter(taken)
    token = _naming.set(own)
    try:
        yield own
    finally:
        _naming.reset(token)


def new_name(hint: str) -> str:
    """Return a name that begins like the hint, and that is new in the context of `fresh_names`."""
    return _naming.get(_global_names).name(hint)


def new_symbol(hint: str, low: int, high: Size | None = None) -> Size:
    """Return a new symbol; its name begins like the hint."""
    size: Size = polynomial(Symbol(new_name(hint), low, high))
    return size


def solve_question(question: Question) -> list[Replacements] | None:
    """Return replacements of symbols that together admit every value for which the answer is yes.

    None where no such replacements are known; empty where the answer is never yes.
    """
    if question.kind == "zero":
        return _solve_zero(question.subject)
    return _solve_nonnegative(question.subject) if question.kind == "nonnegative" else None


def _solve_zero(gap: Size) -> list[Replacements] | None:
    """Return replacements that make a size, the difference of two equal ones, zero; see `solve_question`."""
    if isinstance(gap, int):
        return [{}] if gap == 0 else []
    if is_nonnegative(gap - 1) or is_nonnegative(-1 - gap):
        return []
    remainder = _as_remainder(gap)
    if remainder is not None:
        return _solve_remainder(remainder)
    for signed in (gap, -gap):  # a size that is never below 0 is 0 only at its smallest
        if is_nonnegative(signed):
            return _solve_sum_of_nonnegative(signed) or _solve_quotient(signed)
    return _solve_for_symbol(gap) or _solve_quotient(gap) or _common_refinement(gap)


def _solve_for_symbol(gap: Poly) -> list[Replacements] | None:
    """Solve where a symbol is a term of its own: it becomes what the other terms require.

    Best is a symbol whose lower bound the value has by its form, since it is lost otherwise.
    """
    common_factor = gcd(*(int(c) for _, c in gap.terms))
    solution: Replacements | None = None
    for factors, coefficient in gap.terms:
        if len(factors) != 1 or abs(coefficient) != common_factor or not _is_isolated(factors[0], gap):
            continue
        (own,) = factors
        assert isinstance(own, Symbol)
        if own.high is not None:
            continue
        multiple = (polynomial(own) * coefficient - gap) * (1 if coefficient > 0 else -1)
        value = _divide_coefficients(multiple, common_factor)
        assert value is not None
        if own.low == NO_LOWER_BOUND or is_nonnegative(value - own.low):
            return [{own: value}]
        solution = solution or {own: value}
    return None if solution is None else [solution]


def easier_question(question: Question) -> Question | None:
    """Return a question that is easier to assume and implies this one: n = m where f(n) = f(m) is asked.

    The two terms contain a quotient or a maximum, and one symbol each that the other lacks: n // 2 - m // 2.
    """
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


def _solve_quotient(gap: Poly) -> list[Replacements] | None:
    """Solve where a quotient is a term of its own: t // b = n, so t = b*n + r with 0 <= r < b."""
    for factors, coefficient in gap.terms:
        (atom, *more) = factors or (None,)
        if not more and abs(coefficient) == 1 and isinstance(atom, Floor):
            if isinstance(atom.top - gap, Poly) and (atom.top - polynomial(atom)) in (gap, -gap):
                # t // b = t where b is 1, or t is 0 or -1
                gaps = (atom.bottom - 1, polynomial(atom.top), atom.top + 1)
                each = list(map(_solve_zero, gaps))
                return None if None in each else [values for solutions in each for values in solutions or ()]
            value = polynomial(atom) - gap * int(coefficient)
            if atom in atoms(value):
                continue
            rest = new_symbol("r", 0, atom.bottom - 1)
            solutions = _solve_zero(atom.top - (atom.bottom * value + rest))
            if solutions is not None:
                return solutions
    return None


def _solve_sum_of_nonnegative(gap: Poly) -> list[Replacements] | None:
    """Solve where a sum of nonnegative terms is zero: every symbol has its smallest value."""
    lows: dict[Atom, int] = {a: a.low for a in atoms(gap) if isinstance(a, Symbol)}
    shifted = terms_of(substitute(gap, {a: a + low for a, low in lows.items() if low}))
    if any(len(m) != 1 or c < 0 or m[0] not in lows for m, c in shifted):
        return _common_refinement(gap)
    return [{m[0]: lows[m[0]] for m, _ in shifted}]


def _divide_coefficients(value: Any, common_factor: int) -> Size | None:
    """Return the size divided by a number, None where a coefficient is no multiple of the number."""
    if any(c % common_factor for _, c in terms_of(value)):
        return None
    quotient: Size = sum((product(f) * (c // common_factor) for f, c in terms_of(value)), 0)
    return quotient


def _is_isolated(atom: Atom, size: Poly) -> bool:
    """Return whether the atom is a symbol that is one term of the size, and occurs nowhere else."""
    if not isinstance(atom, Symbol):
        return False
    inside = [m for m, _ in size.terms if any(atom in atoms(polynomial(a)) for a in m)]
    return len(inside) == 1 and inside[0] == (atom,)


class _Remainder(NamedTuple):
    """The size top % bottom - left, or its negative, with 0 <= left < bottom."""

    top: Size
    bottom: Size
    left: int


def _as_remainder(gap: Poly) -> _Remainder | None:
    """Return the size as a remainder minus a number, None where it is none."""
    for atom in atoms(gap):
        if isinstance(atom, Floor):
            rest = polynomial(atom.top) - atom.bottom * polynomial(atom)
            for left in (rest - gap, rest + gap):
                if isinstance(left, int) and left >= 0 and is_nonnegative(atom.bottom - left - 1):
                    return _Remainder(atom.top, atom.bottom, left)
    return None


def _solve_remainder(remainder: _Remainder) -> list[Replacements] | None:
    """Solve top % bottom = left: top - left is bottom times a new symbol."""
    top, bottom = remainder.top - remainder.left, remainder.bottom
    common_factor = gcd(*(int(c) for _, c in terms_of(top)))
    if isinstance(bottom, int) and gcd(common_factor, bottom) == 1:  # 3*n % 4 = 0 where n % 4 = 0
        top = _divide_coefficients(top, common_factor) or top
    hint = min((a.key for a in atoms(top) if isinstance(a, Symbol)), default="n")
    least = 1 if is_nonnegative(top - 1) else 0 if is_nonnegative(top) else NO_LOWER_BOUND
    return _solve_zero(top - bottom * new_symbol(hint, least))


def _common_refinement(gap: Poly) -> list[Replacements] | None:
    """Solve where two products of symbols are equal, a*b = c*d.

    Each pair of factors, one of either product, has a new symbol: a = p*q, b = r*s, c = p*r, d = q*s.  Equal
    factors of both products are cancelled; where one may be 0, that is a case of its own.
    """
    if len(gap.terms) != 2:
        return None
    (left, c), (right, d) = gap.terms
    if c != -d or not all(isinstance(a, Symbol) for a in (*left, *right)):
        return None
    first, second = list(left), list(right)
    cases: list[Replacements] = []
    for atom in left:
        if atom in second:
            first.remove(atom)
            second.remove(atom)
            if isinstance(atom, Symbol) and atom.low < 1:
                cases.append({atom: 0})
    lows = [a.low for a in (*first, *second) if isinstance(a, Symbol)]
    if len({*first, *second}) < len(lows) or min(lows, default=0) < 0:  # a square, or a negative factor
        return None
    if any(isinstance(a, Symbol) and a.high is not None for a in (*first, *second)):
        return None  # the bound would be lost, and the question asked again
    # two products that are both zero have a common refinement, too
    parts = {(a, b): new_symbol(a.key, int(min(lows) > 0)) for a in first for b in second}
    values: dict[Atom, Size] = {a: product(parts[a, b] for b in second) for a in first}
    values |= {b: product(parts[a, b] for a in first) for b in second}
    return [*cases, values]


def _solve_nonnegative(size: Size) -> list[Replacements] | None:
    """Return replacements that make a size nonnegative; see `solve_question`."""
    if isinstance(size, int):
        return [{}] if size >= 0 else []
    if is_nonnegative(size):
        return [{}]
    if is_nonnegative(-1 - size):
        return []
    if is_nonnegative(-size):
        return _solve_zero(size)
    solution = None
    for values, exact_replacement in _bound_replacements(size):
        if exact_replacement:
            return [values]
        solution = solution or values
    if solution is not None:
        return [solution]
    constant = next((c for m, c in size.terms if not m), 0)
    if len(size.terms) == 2 and constant < 0:
        (factors, coefficient), _ = size.terms
        if coefficient >= -constant and all(isinstance(a, Symbol) and a.low >= 0 for a in factors):
            # a product is positive if all factors are
            return [{a: new_symbol(a.key, 1) for a in factors if isinstance(a, Symbol) and a.low == 0}]
    return None


def _bound_replacements(size: Poly) -> Iterator[tuple[Replacements, bool]]:
    """Yield replacements of one symbol that make the size nonnegative, and if its bound is kept."""
    least = next((int(c) for m, c in size.terms if not m), 0)
    for sign in (1, -1):
        for factors, coefficient in size.terms:
            if len(factors) != 1 or coefficient != sign or not _is_isolated(factors[0], size):
                continue
            (own,) = factors
            assert isinstance(own, Symbol)
            rest = size - sign * polynomial(own)
            # own = slack - rest, or rest - slack; a subtracted constant becomes the slack's lower bound
            slack = new_symbol(own.name, max(-least, 0))
            rest = rest + max(-least, 0) if least < 0 else rest
            value = (slack - rest) if sign > 0 else (rest - slack)
            yield {own: value}, own.low == NO_LOWER_BOUND or is_nonnegative(value - own.low)
