"""Integers of a program that may be unknown: extents of axes, indices, and side conditions.

    size  ::=  sum of  coefficient * atom * atom ...        (a polynomial, always expanded and sorted)
    atom  ::=  symbol | axis | size // size | max(size, ...)

    (6*n + 4) // 2   ->   3*n + 2        (4*i + j) // 4 with axis j:4   ->   i

`a % b` is `a - b * (a // b)`, and `min` is `-max(-...)`, so that equal expressions have one form.  A size
without atoms *is* a Python int: the same function runs on ints in a concrete program, symbols in a rule or a
dynamic model, and Z3 terms (`evaluate`).  `interval` and `is_nonnegative` prove bounds and signs.
Coefficients may be fractions, for the field of rational functions (`expr.evaluate.fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import gcd
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
    divide_monomial,
    divide_polynomial,
    evaluate,
    make_polynomial,
    plus,
    polynomial,
    product,
    substitute,
    terms_of,
    times,
)
from tensaurus.expr.sizes.size_values import is_z3_term, maximum_value
from tensaurus.expr.sizes.symbol import Axis, Symbol

__all__ = [  # this module is also where callers import polynomials from
    "Arithmetic", "Atom", "Axis", "Floor", "Largest", "Monomial", "Number", "Poly", "Size", "Symbol", "atoms",
    "bracketed", "evaluate", "floordiv", "interval", "is_negative", "is_nonnegative", "is_same_size",
    "largest", "mod", "plus", "polynomial", "product", "smallest", "substitute", "terms_of", "times",
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Floor(Atom):
    """The atom top // bottom, rounded towards minus infinity; bottom is positive."""

    top: Size
    bottom: Size

    @cached_property
    def key(self) -> str:  # type: ignore[override]
        return f"{bracketed(self.top)} // {bracketed(self.bottom)}"

    @property
    def factor_text(self) -> str:
        return f"({self.key})"

    def interval(self) -> tuple[Size | None, Size | None]:
        low, high = interval(self.top)
        if not isinstance(self.bottom, int) and low is not None and _nonnegative(low):
            low = 0  # weaker, but 0 // bottom is 0: low // bottom may be another floor
        below, above = (None if bound is None else floordiv(bound, self.bottom) for bound in (low, high))
        return below, above

    def nested_sizes(self) -> tuple[Size, ...]:
        return self.top, self.bottom

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return floordiv(change(self.top), change(self.bottom))

    def value(self, lookup: Callable[[Atom], Any], evaluate_size: Callable[[Any], Any]) -> Any:
        top, bottom = evaluate_size(self.top), evaluate_size(self.bottom)
        # Z3 integers have no //; their / rounds down for positive divisors
        return top / bottom if is_z3_term(top) or is_z3_term(bottom) else top // bottom


@dataclass(frozen=True, repr=False)
class Largest(Atom):
    """The atom max(args), where no argument is known to dominate another."""

    args: tuple[Size, ...]

    @cached_property
    def key(self) -> str:  # type: ignore[override]
        return f"max({', '.join(map(str, self.args))})"

    def interval(self) -> tuple[Size | None, Size | None]:
        pairs = [interval(a) for a in self.args]
        lows = [low for low, _ in pairs if low is not None]
        highs = [high for _, high in pairs]
        low = reduce(largest, lows) if lows else None
        if low is not None and not isinstance(low, int) and any(isinstance(a, Largest) for a in atoms(low)):
            low = lows[0]  # the first argument's bound holds, too, and brings no new max
        high = None if any(h is None for h in highs) else reduce(largest, highs)
        return low, high

    def nested_sizes(self) -> tuple[Size, ...]:
        return self.args

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return reduce(largest, [change(a) for a in self.args])

    def value(self, lookup: Callable[[Atom], Any], evaluate_size: Callable[[Any], Any]) -> Any:
        return reduce(maximum_value, [evaluate_size(a) for a in self.args])


def floordiv(a: Any, b: Any) -> Any:
    """Return a // b; multiples of b leave the floor, and a remainder that is provably in [0, b) is dropped.

    Raises ValueError for a number b <= 0, except for b = 0 where a is an index of an axis without values.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    a, b = polynomial(a), polynomial(b)
    if b == 1:
        return a
    if isinstance(b, int) and b <= 0:
        if b == 0 and any(isinstance(atom, Axis) and atom.extent == 0 for atom in atoms(a)):
            return 0  # an index of an axis without values is never computed
        raise ValueError(f"division by {b}")
    divisor = terms_of(b)
    if len(divisor) != 1:
        return _floor_by_sum(a, b)
    divisor_factors, scale = divisor[0]  # b is scale times the product of divisor_factors
    quotient: dict[Monomial, Number] = {}  # by monomial; together with `rest`: a == b * quotient + rest
    rest: dict[Monomial, Number] = {}
    for factors, coefficient in terms_of(a):
        ratio = divide_monomial(factors, divisor_factors)
        if ratio is None or coefficient % scale != 0 and not isinstance(b, int):
            rest[factors] = coefficient
            continue  # by a symbolic divisor only exact multiples are divided
        # by a number: coefficients of the remainder are reduced to [0, b), so that it is canonical
        multiple = coefficient // scale
        if multiple:
            quotient[ratio] = quotient.get(ratio, 0) + multiple
        if coefficient % scale:
            rest[factors] = coefficient - multiple * scale
    remainder = make_polynomial(rest)
    low, high = interval(remainder)
    if low is not None and high is not None and _nonnegative(low) and _nonnegative(b - 1 - high):
        return make_polynomial(quotient)  # the remainder is in [0, b)
    if low is not None and high is not None and _nonnegative(-1 - high) and _nonnegative(low + b):
        return plus(make_polynomial(quotient), -1)  # the remainder is in [-b, 0)
    reduced = _common_factor(rest, b) if isinstance(b, int) else _common_monomial(rest, divisor[0])
    if reduced is not None:  # remainder // b is another floor with a smaller divisor
        return plus(make_polynomial(quotient), floordiv(*reduced))
    remainder_terms = terms_of(remainder)
    if len(remainder_terms) == 1 and remainder_terms[0][1] == 1 and len(remainder_terms[0][0]) == 1:
        only_atom = remainder_terms[0][0][0]  # the remainder is this atom alone
        if isinstance(only_atom, Floor):  # x // m // b == x // (m*b)
            return plus(make_polynomial(quotient), floordiv(only_atom.top, only_atom.bottom * b))
    return plus(make_polynomial(quotient), Floor(remainder, b))


Arithmetic.quotient = floordiv


def _is_remainder_of(size: Any, divisor: Any) -> bool:
    """Return whether 0 <= size < divisor, provably."""
    low, high = interval(size)
    return low is not None and high is not None and _nonnegative(low) and _nonnegative(divisor - 1 - high)


def _common_factor(rest: Mapping[Monomial, Number], b: int) -> tuple[Any, int] | None:
    """Return (x, m) with rest // b == x // m, m < b: by a g with rest = g*x + r, b = g*m and 0 <= r < g."""
    for g in sorted({gcd(b, int(c)) for c in rest.values()} - {1}, reverse=True):
        multiples = {m: c // g for m, c in rest.items() if c % g == 0}
        if _is_remainder_of(make_polynomial({m: c for m, c in rest.items() if c % g != 0}), g):
            return make_polynomial(multiples), b // g
    return None


def _common_monomial(
    rest: Mapping[Monomial, Number], divisor: tuple[Monomial, Number]
) -> tuple[Any, Any] | None:
    """Do the same as `_common_factor` for a divisor of one term, where g is one of its atoms."""
    divisor_factors, scale = divisor
    for atom in dict.fromkeys(divisor_factors):
        ratios = {m: divide_monomial(m, (atom,)) for m in rest}
        multiples = {ratio: rest[m] for m, ratio in ratios.items() if ratio is not None}
        others = make_polynomial({m: c for m, c in rest.items() if ratios[m] is None})
        if multiples and _is_remainder_of(others, atom):
            bottom = make_polynomial({divide_monomial(divisor_factors, (atom,)) or (): scale})
            return make_polynomial(multiples), bottom
    return None


def _floor_by_sum(a: Any, b: Any) -> Any:
    """Return a // b for a divisor of several terms, simplified where b divides part of a."""
    if _is_remainder_of(a, b):
        return 0
    quotient, rest = divide_polynomial(a, b)
    if _is_remainder_of(rest, b):
        return quotient
    return plus(quotient, -1) if _is_remainder_of(plus(rest, b), b) else polynomial(Floor(a, b))


def mod(a: Any, b: Any) -> Any:
    """Return a % b, which has the sign of b."""
    return a % b


def largest(a: Any, b: Any) -> Any:
    """Return max(a, b), simplified where the bounds of a - b decide its sign."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    a, b = polynomial(a), polynomial(b)
    if _nonnegative(a - b):
        return a
    if _nonnegative(b - a):
        return b
    args: list[Size] = []
    for size in (a, b):
        terms = size.terms if isinstance(size, Poly) else ()
        factors = terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else ()
        if len(factors) == 1 and isinstance(factors[0], Largest):  # max(max(x, y), z) is flattened
            args.extend(factors[0].args)
        else:
            args.append(size)
    kept = [a for a in set(args) if not any(b != a and _nonnegative(b - a) for b in args)]
    return polynomial(Largest(tuple(sorted(kept, key=str)))) if len(kept) > 1 else kept[0]


def smallest(a: Any, b: Any) -> Any:
    """Return min(a, b)."""
    return 0 - largest(0 - a, 0 - b)


@lru_cache(maxsize=200_000)
def interval(size: Any) -> tuple[Size | None, Size | None]:
    """Return inclusive (low, high) over symbols alone, None where unbounded: n + i, i:4 is in n..n + 3."""
    if not isinstance(size, Arithmetic):
        return size, size
    modulo = _split_modulo(size)
    if modulo is not None:
        scale, modulus, rest = modulo
        first, last = interval(rest)
        largest_part = scale * (modulus - 1)
        below, above = (0, largest_part) if _nonnegative(scale) else (largest_part, 0)
        return None if first is None else first + below, None if last is None else last + above
    low: Any = 0
    high: Any = 0
    for factors, coefficient in terms_of(size):  # each term is bounded by itself
        least, most = _interval_of_product(factors)
        if coefficient < 0:
            least, most = most, least
        low = None if low is None or least is None else low + coefficient * least
        high = None if high is None or most is None else high + coefficient * most
    return low, high


def _split_modulo(size: Any) -> tuple[Any, Any, Size] | None:
    """Return (m, k, rest) where size = m * (t % k) + rest with fewer terms in rest, None if there is none.

    Bounding t % k by [0, k) is tighter than bounding t and t // k apart: t - 4 * (t // 4) is 1 * (t % 4) + 0.
    """
    floors = {a for factors, _ in terms_of(size) for a in factors if isinstance(a, Floor)}
    for factors, coefficient in terms_of(size):
        own_floors = [a for a in factors if isinstance(a, Floor)]
        for top, bottom in _dividends(own_floors[0], floors) if len(own_floors) == 1 else ():
            others = divide_monomial(factors, (own_floors[0],)) or ()  # the factors beside the floor
            (divisor_factors, scale), *more_terms = terms_of(bottom)
            ratio = None if more_terms else divide_monomial(others, divisor_factors)
            if ratio is None:
                continue
            m = make_polynomial({ratio: -(coefficient // scale)})  # since t % k == t - k * (t // k)
            rest = plus(size, times(times(-1, m), plus(top, times(times(-1, bottom), own_floors[0]))))
            has_sign = all(isinstance(a, Symbol) for a in atoms(m)) and (_nonnegative(m) or _nonnegative(-m))
            if has_sign and len(terms_of(rest)) < len(terms_of(size)):  # callers need the sign of m
                return m, bottom, rest
    return None


def _dividends(floor: Floor, floors: set[Floor]) -> Iterator[tuple[Any, Any]]:
    """Yield every (t, k) with floor == t // k, by x // (m*k) == (x // m) // k."""
    yield floor.top, floor.bottom
    for other in floors - {floor}:
        quotient = floordiv(floor.bottom, other.bottom)
        if other.top == floor.top and quotient != 1 and times(quotient, other.bottom) == floor.bottom:
            yield polynomial(other), quotient


def _interval_of_product(factors: Monomial) -> tuple[Size | None, Size | None]:
    """Return inclusive bounds of a product of atoms, None where there is none."""
    low: Size | None = 1
    high: Size | None = 1
    for atom in factors:
        if isinstance(atom, Symbol):
            least: Size | None = polynomial(atom)  # bounds may contain symbols
            most: Size | None = least
        else:
            least, most = atom.interval()
        if all(isinstance(n, int) for n in (low, high, least, most)):
            corners = [low * least, low * most, high * least, high * most]  # type: ignore[operator]
            low, high = min(corners), max(corners)
        elif low is not None and least is not None and _nonnegative(low) and _nonnegative(least):
            low = low * least
            high = None if high is None or most is None else high * most
        else:
            return None, None
    return low, high


def is_nonnegative(size: Any) -> bool:
    """Return whether size >= 0 provably; where that is open, the assumed answer, or False."""
    if not isinstance(size, Arithmetic):
        return bool(size >= 0)
    if _nonnegative(size):
        return True
    return is_recording_questions() and not _nonnegative(-1 - size) and ask("nonnegative", polynomial(size))


def is_negative(size: Any) -> bool:
    """Return whether size < 0 provably.  An open sign is False, and is not recorded as a question."""
    return _nonnegative(-1 - size)


@lru_cache(maxsize=200_000)
def _nonnegative(size: Any) -> bool:
    """Return whether size >= 0 provably, without recording a question where that is open."""
    if not isinstance(size, Arithmetic):
        return bool(size >= 0)
    nested_atoms = atoms(size)
    if all(isinstance(a, Symbol) for a in nested_atoms):
        # each symbol becomes its low plus an s >= 0: if no coefficient is negative then, no value is
        lows: dict[Atom, Any] = {a: plus(a, a.low) for a in nested_atoms if isinstance(a, Symbol) and a.low}
        has_only_positive_terms = all(c >= 0 for _, c in terms_of(substitute(size, lows)))
        return has_only_positive_terms or _is_nonnegative_at_highs(size, nested_atoms)
    if not all(isinstance(a, (Symbol, Floor, Largest)) for a in nested_atoms):
        low, _ = interval(size)
        return low is not None and low != size and _nonnegative(low)  # low == size would ask forever
    # `interval` is not used without axes: it would ask this function about the same floors again
    modulo = _split_modulo(size)
    if modulo is not None:
        scale, modulus, rest = modulo
        return _nonnegative(rest if _nonnegative(scale) else rest + scale * (modulus - 1))
    return _is_nonnegative_with_floors(size)


def _is_nonnegative_at_highs(size: Any, nested_atoms: frozenset[Atom]) -> bool:
    """Return whether size >= 0 with each symbol that occurs in subtracted terms alone at its upper bound."""
    positive_atoms = {a for factors, coefficient in terms_of(size) if coefficient > 0 for a in factors}
    bounds: dict[Atom, Any] = {
        a: a.high for a in nested_atoms - positive_atoms if isinstance(a, Symbol) and a.high is not None
    }
    if not bounds or any(isinstance(a, Symbol) and a.low < 0 for a in nested_atoms):
        return False  # a negative factor would turn the bound of its term around
    return _nonnegative(substitute(size, bounds))


def _is_nonnegative_with_floors(size: Any) -> bool:
    """Return whether size >= 0 with 0 for each added floor t // b (t >= 0), t / b for a subtracted one."""
    total: Any = 0
    for factors, coefficient in terms_of(size):
        bound: Any = coefficient  # a lower bound of the term
        for atom in factors:
            if isinstance(atom, Floor):
                if not _nonnegative(atom.top):
                    return False
                reciprocal = Fraction(1, atom.bottom) if isinstance(atom.bottom, int) else 1  # b >= 1
                bound = times(bound, 0 if coefficient > 0 else times(reciprocal, atom.top))
            elif isinstance(atom, Symbol) and atom.low >= 0:
                bound = times(bound, atom)
            elif isinstance(atom, Largest) and coefficient > 0 and any(map(_nonnegative, atom.args)):
                bound = times(bound, next(a for a in atom.args if _nonnegative(a)))  # max(a, ...) >= a
            else:
                return False
        total = plus(total, bound)
    return bool(total != size) and _nonnegative(total)  # total == size would ask the same again


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
    if not isinstance(difference, Poly) or _nonnegative(difference - 1) or _nonnegative(-1 - difference):
        return None
    return difference if difference.terms[0][1] > 0 else times(-1, difference)
