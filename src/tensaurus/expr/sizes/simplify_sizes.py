"""Build floors and maxima of sizes in simplified form, by the bounds and signs of polynomials.

    (6*n + 4) // 2   ->   3*n + 2        (4*i + j) // 4 with axis j:4   ->   i        max(n, n + 1)  ->  n + 1

`interval` bounds a size and `is_provably_nonnegative` proves a sign; building an atom needs both.  Callers
import all of this from `expr.sizes.size`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import gcd
from typing import Any, NamedTuple

from tensaurus.expr.sizes.polynomial import (
    Arithmetic,
    Atom,
    Monomial,
    Number,
    PolyTerms,
    Size,
    atoms,
    bracketed,
    divide_monomial,
    divide_polynomial,
    make_polynomial,
    plus,
    polynomial,
    single_atom,
    substitute,
    terms_of,
    times,
)
from tensaurus.expr.sizes.symbol import Axis, Symbol


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
        if not isinstance(self.bottom, int) and low is not None and is_provably_nonnegative(low):
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
        return top / bottom if _is_z3_term(top) or _is_z3_term(bottom) else top // bottom


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
        return reduce(_maximum_value, [evaluate_size(a) for a in self.args])


def _is_z3_term(value: Any) -> bool:
    """Return whether the value is a Z3 term, without importing Z3."""
    return type(value).__module__.startswith("z3")


def _maximum_value(a: Any, b: Any) -> Any:
    """Return the maximum of ints, arrays or Z3 terms."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if _is_z3_term(a) or _is_z3_term(b):
        import z3

        return z3.If(a >= b, a, b)
    import numpy as np

    return np.maximum(a, b)


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
    divisor_terms = terms_of(b)
    if len(divisor_terms) != 1:
        return _floordiv_by_sum(a, b)
    quotient, remainder = _divide_terms(a, b)
    if _is_remainder_of(remainder, b):
        return quotient
    low, high = interval(remainder)
    if (
        low is not None
        and high is not None
        and is_provably_nonnegative(-1 - high)
        and is_provably_nonnegative(low + b)
    ):
        return plus(quotient, -1)  # the remainder is in [-b, 0)
    if isinstance(b, int):
        reduced = _cancel_number(terms_of(remainder), b)
    else:
        reduced = _cancel_atom(terms_of(remainder), *divisor_terms[0])
    if reduced is not None:
        return plus(quotient, floordiv(*reduced))
    only_atom = single_atom(remainder)
    if isinstance(only_atom, Floor):  # x // m // b == x // (m*b)
        return plus(quotient, floordiv(only_atom.top, only_atom.bottom * b))
    return plus(quotient, Floor(remainder, b))


Arithmetic.quotient = floordiv


def _divide_terms(a: Any, b: Any) -> tuple[Any, Any]:
    """Return (q, r) with a == b*q + r, for a divisor of one term.

    A number b leaves coefficients in [0, b) in r, so that r is canonical.  By a symbolic b only exact
    multiples are divided.
    """
    ((divisor_factors, scale),) = terms_of(b)
    quotient: dict[Monomial, Number] = {}
    rest: dict[Monomial, Number] = {}
    for factors, coefficient in terms_of(a):
        ratio = divide_monomial(factors, divisor_factors)
        if ratio is None or coefficient % scale != 0 and not isinstance(b, int):
            rest[factors] = coefficient
            continue
        quotient[ratio] = quotient.get(ratio, 0) + coefficient // scale
        if coefficient % scale:
            rest[factors] = coefficient % scale
    return make_polynomial(quotient), make_polynomial(rest)


def _is_remainder_of(size: Any, divisor: Any) -> bool:
    """Return whether 0 <= size < divisor, provably."""
    low, high = interval(size)
    return (
        low is not None
        and high is not None
        and is_provably_nonnegative(low)
        and is_provably_nonnegative(divisor - 1 - high)
    )


def _cancel_number(dividend: PolyTerms, b: int) -> tuple[Any, int] | None:
    """Return (x, m) with dividend // b == x // m and m < b: where dividend = g*x + r, b = g*m, 0 <= r < g."""
    for g in sorted({gcd(b, int(c)) for _, c in dividend} - {1}, reverse=True):
        if _is_remainder_of(make_polynomial({m: c for m, c in dividend if c % g != 0}), g):
            return make_polynomial({m: c // g for m, c in dividend if c % g == 0}), b // g
    return None


def _cancel_atom(dividend: PolyTerms, divisor_factors: Monomial, scale: Number) -> tuple[Any, Any] | None:
    """Do the same as `_cancel_number` for the divisor scale * divisor_factors; g is one of its atoms."""
    for g in dict.fromkeys(divisor_factors):
        ratios = [(divide_monomial(m, (g,)), m, c) for m, c in dividend]
        multiples = {ratio: c for ratio, _, c in ratios if ratio is not None}
        others = make_polynomial({m: c for ratio, m, c in ratios if ratio is None})
        if multiples and _is_remainder_of(others, g):
            bottom = make_polynomial({divide_monomial(divisor_factors, (g,)) or (): scale})
            return make_polynomial(multiples), bottom
    return None


def _floordiv_by_sum(a: Any, b: Any) -> Any:
    """Return a // b for a divisor of several terms, simplified where b divides part of a."""
    if _is_remainder_of(a, b):
        return 0
    quotient, rest = divide_polynomial(a, b)
    if _is_remainder_of(rest, b):
        return quotient
    return plus(quotient, -1) if _is_remainder_of(plus(rest, b), b) else polynomial(Floor(a, b))


def largest(a: Any, b: Any) -> Any:
    """Return max(a, b), simplified where the bounds of a - b decide its sign."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    a, b = polynomial(a), polynomial(b)
    if is_provably_nonnegative(a - b):
        return a
    if is_provably_nonnegative(b - a):
        return b
    args: list[Size] = []
    for size in (a, b):  # max(max(x, y), z) is flattened
        atom = single_atom(size)
        args.extend(atom.args if isinstance(atom, Largest) else [size])
    kept = [a for a in set(args) if not any(b != a and is_provably_nonnegative(b - a) for b in args)]
    return polynomial(Largest(tuple(sorted(kept, key=str)))) if len(kept) > 1 else kept[0]


@lru_cache(maxsize=200_000)
def interval(size: Any) -> tuple[Size | None, Size | None]:
    """Return inclusive (low, high) over symbols alone, None where unbounded: n + i, i:4 is in n..n + 3."""
    if not isinstance(size, Arithmetic):
        return size, size
    modulo = _split_modulo(size)
    if modulo is not None:
        first, last = interval(modulo.rest)
        end = modulo.scale * (modulo.modulus - 1)  # scale * (t % modulus) lies between 0 and this end
        below, above = (0, end) if is_provably_nonnegative(modulo.scale) else (end, 0)
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


class _ModuloSplit(NamedTuple):
    """The size scale * (t % modulus) + rest."""

    scale: Any
    modulus: Any
    rest: Size


def _split_modulo(size: Any) -> _ModuloSplit | None:
    """Return the size as scale * (t % modulus) + rest with fewer terms in rest, None if there is no t.

    Bounding t % k by [0, k) is tighter than bounding t and t // k apart: t - 4 * (t // 4) is 1 * (t % 4) + 0.
    """
    floors = {a for factors, _ in terms_of(size) for a in factors if isinstance(a, Floor)}
    for factors, coefficient in terms_of(size):
        own_floors = [a for a in factors if isinstance(a, Floor)]
        for top, bottom in _dividends(own_floors[0], floors) if len(own_floors) == 1 else ():
            others = divide_monomial(factors, (own_floors[0],)) or ()  # the factors beside the floor
            (bottom_factors, bottom_coefficient), *more_terms = terms_of(bottom)
            ratio = None if more_terms else divide_monomial(others, bottom_factors)
            if ratio is None:
                continue
            # t % k == t - k * (t // k)
            scale = make_polynomial({ratio: -(coefficient // bottom_coefficient)})
            remainder = plus(top, times(times(-1, bottom), own_floors[0]))
            rest = plus(size, times(times(-1, scale), remainder))
            has_sign = all(isinstance(a, Symbol) for a in atoms(scale)) and (
                is_provably_nonnegative(scale) or is_provably_nonnegative(-scale)
            )
            if has_sign and len(terms_of(rest)) < len(terms_of(size)):  # callers need the sign of the scale
                return _ModuloSplit(scale, bottom, rest)
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
        elif (
            low is not None
            and least is not None
            and is_provably_nonnegative(low)
            and is_provably_nonnegative(least)
        ):
            low = low * least
            high = None if high is None or most is None else high * most
        else:
            return None, None
    return low, high


@lru_cache(maxsize=200_000)
def is_provably_nonnegative(size: Any) -> bool:
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
        return (
            low is not None and low != size and is_provably_nonnegative(low)
        )  # low == size would ask forever
    # `interval` is not used without axes: it would ask this function about the same floors again
    modulo = _split_modulo(size)
    if modulo is not None:
        scale, modulus, rest = modulo
        return is_provably_nonnegative(
            rest if is_provably_nonnegative(scale) else rest + scale * (modulus - 1)
        )
    return _is_nonnegative_with_floors(size)


def _is_nonnegative_at_highs(size: Any, nested_atoms: frozenset[Atom]) -> bool:
    """Return whether size >= 0 with each symbol that occurs in subtracted terms alone at its upper bound."""
    positive_atoms = {a for factors, coefficient in terms_of(size) if coefficient > 0 for a in factors}
    bounds: dict[Atom, Any] = {
        a: a.high for a in nested_atoms - positive_atoms if isinstance(a, Symbol) and a.high is not None
    }
    if not bounds or any(isinstance(a, Symbol) and a.low < 0 for a in nested_atoms):
        return False  # a negative factor would turn the bound of its term around
    return is_provably_nonnegative(substitute(size, bounds))


def _is_nonnegative_with_floors(size: Any) -> bool:
    """Return whether size >= 0 with 0 for each added floor t // b (t >= 0), t / b for a subtracted one."""
    total: Any = 0
    for factors, coefficient in terms_of(size):
        bound: Any = coefficient  # a lower bound of the term
        for atom in factors:
            if isinstance(atom, Floor):
                if not is_provably_nonnegative(atom.top):
                    return False
                reciprocal = Fraction(1, atom.bottom) if isinstance(atom.bottom, int) else 1  # b >= 1
                bound = times(bound, 0 if coefficient > 0 else times(reciprocal, atom.top))
            elif isinstance(atom, Symbol) and atom.low >= 0:
                bound = times(bound, atom)
            elif (
                isinstance(atom, Largest) and coefficient > 0 and any(map(is_provably_nonnegative, atom.args))
            ):
                bound = times(
                    bound, next(a for a in atom.args if is_provably_nonnegative(a))
                )  # max(a, ...) >= a
            else:
                return False
        total = plus(total, bound)
    return bool(total != size) and is_provably_nonnegative(total)  # total == size would ask the same again
