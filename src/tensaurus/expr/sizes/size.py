"""One small integer language for extents, indices and side conditions.

    size  ::=  sum of  coefficient * atom * atom ...        (a polynomial, always expanded and sorted)
    atom  ::=  symbol | axis | size // size | max(size, ...)

`a % b` is `a - b * (a // b)`, and `min` is `-max(-...)`, so that equal expressions have one form.  A size
without atoms *is* a Python int: the same function runs on ints in a concrete program, on symbols in a rule
or a dynamic model, and on Z3 terms (`evaluate`).  Coefficients may be exact fractions, which makes the same
polynomials the elements of the field of symbols (`expr.evaluate.fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import gcd
from typing import Any

from tensaurus.expr.sizes.open_questions import answer, watching
from tensaurus.expr.sizes.polynomial import (
    Arithmetic,
    Atom,
    Monomial,
    Number,
    Poly,
    Size,
    atoms,
    bracket,
    divided,
    evaluate,
    make,
    plus,
    polynomial,
    product,
    substitute,
    terms_of,
    times,
    without,
)
from tensaurus.expr.sizes.size_values import greater, is_term
from tensaurus.expr.sizes.symbol import Axis, Symbol

__all__ = [  # sizes are polynomials: their names are this module's own, too
    "Arithmetic", "Atom", "Axis", "Floor", "Largest", "Monomial", "Number", "Poly", "Size", "Symbol", "atoms",
    "bracket", "evaluate", "floordiv", "interval", "largest", "mod", "negative", "nonnegative", "plus",
    "polynomial", "product", "same", "smallest", "substitute", "terms_of", "times",
]


@dataclass(frozen=True, repr=False)
class Floor(Atom):
    """top // bottom, rounded towards minus infinity; bottom is positive."""

    top: Size
    bottom: Size

    @cached_property
    def key(self) -> str:  # type: ignore[override]
        return f"{bracket(self.top)} // {bracket(self.bottom)}"

    @property
    def factor(self) -> str:
        return f"({self.key})"

    def interval(self) -> tuple[Size | None, Size | None]:
        low, high = interval(self.top)
        if not isinstance(self.bottom, int) and low is not None and _nonnegative(low):
            low = 0
        below, above = (None if end is None else floordiv(end, self.bottom) for end in (low, high))
        return below, above

    def inside(self) -> tuple[Size, ...]:
        return self.top, self.bottom

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return floordiv(change(self.top), change(self.bottom))

    def value(self, of: Callable[[Atom], Any], run: Callable[[Any], Any]) -> Any:
        top, bottom = run(self.top), run(self.bottom)
        # Z3's integers have no //, and their / rounds down where the divisor is positive
        return top / bottom if is_term(top) or is_term(bottom) else top // bottom


@dataclass(frozen=True, repr=False)
class Largest(Atom):
    """max(args), where no argument is known to dominate another."""

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
            low = lows[0]
        high = None if any(h is None for h in highs) else reduce(largest, highs)
        return low, high

    def inside(self) -> tuple[Size, ...]:
        return self.args

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return reduce(largest, [change(a) for a in self.args])

    def value(self, of: Callable[[Atom], Any], run: Callable[[Any], Any]) -> Any:
        return reduce(greater, [run(a) for a in self.args])


def floordiv(a: Any, b: Any) -> Any:
    """a // b; terms that b divides leave the bracket, and a remainder known to lie in [0, b) vanishes."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    a, b = polynomial(a), polynomial(b)
    if b == 1:
        return a
    if isinstance(b, int) and b <= 0:
        if b == 0 and any(isinstance(atom, Axis) and atom.extent == 0 for atom in atoms(a)):
            return 0  # of an axis without values
        raise ValueError(f"division by {b}")
    divisor = terms_of(b)
    if len(divisor) != 1:
        return _floor_by_sum(a, b)
    (below, scale) = divisor[0]
    quotient: dict[Monomial, Number] = {}
    rest: dict[Monomial, Number] = {}
    for factors, coefficient in terms_of(a):
        left = without(factors, below)
        if left is not None and coefficient % scale == 0:
            quotient[left] = quotient.get(left, 0) + coefficient // scale
        elif left is not None and not below and isinstance(b, int):
            # the multiple of b that brings the coefficient into [0, b) leaves; one canonical remainder
            whole = coefficient // scale
            if whole:
                quotient[left] = quotient.get(left, 0) + whole
            rest[factors] = coefficient - whole * scale
        else:
            rest[factors] = coefficient
    remainder = make(rest)
    low, high = interval(remainder)
    if low is not None and high is not None and _nonnegative(low) and _nonnegative(b - 1 - high):
        return make(quotient)
    if low is not None and high is not None and _nonnegative(-1 - high) and _nonnegative(low + b):
        return plus(make(quotient), -1)
    shared = _common_factor(rest, b) if isinstance(b, int) else _common_monomial(rest, below, scale)
    if shared is not None:
        return plus(make(quotient), floordiv(*shared))
    single = terms_of(remainder)
    if len(single) == 1 and single[0][1] == 1 and len(single[0][0]) == 1:
        inner = single[0][0][0]
        if isinstance(inner, Floor):
            return plus(make(quotient), floordiv(inner.top, inner.bottom * b))
    return plus(make(quotient), Floor(remainder, b))


Arithmetic.quotient = floordiv


def _remainder(size: Any, divisor: Any) -> bool:
    """Whether 0 <= size < divisor, provably."""
    low, high = interval(size)
    return low is not None and high is not None and _nonnegative(low) and _nonnegative(divisor - 1 - high)


def _common_factor(rest: Mapping[Monomial, Number], b: int) -> tuple[Any, int] | None:
    """(x, m) where rest // b == x // m because rest = g*x + r and b = g*m with 0 <= r < g."""
    for g in sorted({gcd(b, int(c)) for c in rest.values()} - {1}, reverse=True):
        inside = {m: c // g for m, c in rest.items() if c % g == 0}
        if _remainder(make({m: c for m, c in rest.items() if c % g != 0}), g):
            return make(inside), b // g
    return None


def _common_monomial(
    rest: Mapping[Monomial, Number], below: Monomial, scale: Number
) -> tuple[Any, Any] | None:
    """As `_common_factor`, for a factor g that is a symbol of the divisor `scale` * `below`."""
    for atom in dict.fromkeys(below):
        left = {m: without(m, (atom,)) for m in rest}
        inside = {part: rest[m] for m, part in left.items() if part is not None}
        if inside and _remainder(make({m: c for m, c in rest.items() if left[m] is None}), atom):
            return make(inside), make({without(below, (atom,)) or (): scale})
    return None


def _floor_by_sum(a: Any, b: Any) -> Any:
    """Division by a polynomial of several terms: its multiples are recognised, and a remainder below it."""
    if _remainder(a, b):
        return 0
    quotient, rest = divided(a, b)
    if _remainder(rest, b):
        return quotient
    return plus(quotient, -1) if _remainder(plus(rest, b), b) else polynomial(Floor(a, b))


def mod(a: Any, b: Any) -> Any:
    """a % b with the sign of b."""
    return a % b


def largest(a: Any, b: Any) -> Any:
    """max(a, b), decided where the bounds decide it."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    a, b = polynomial(a), polynomial(b)
    if _nonnegative(a - b):
        return a
    if _nonnegative(b - a):
        return b
    args: list[Size] = []
    for size in (a, b):
        whole = size.terms if isinstance(size, Poly) else ()
        only = whole[0][0] if len(whole) == 1 and whole[0][1] == 1 else ()
        if len(only) == 1 and isinstance(only[0], Largest):
            args.extend(only[0].args)
        else:
            args.append(size)
    kept = [a for a in set(args) if not any(b != a and _nonnegative(b - a) for b in args)]
    return polynomial(Largest(tuple(sorted(kept, key=str)))) if len(kept) > 1 else kept[0]


def smallest(a: Any, b: Any) -> Any:
    """min(a, b)."""
    return 0 - largest(0 - a, 0 - b)


@lru_cache(maxsize=200_000)
def interval(size: Any) -> tuple[Size | None, Size | None]:
    """Bounds, both inclusive, in symbols alone; None where there is none.

    Axes that occur in several terms are bounded term by term, so the bounds hold but need not be tight.
    """
    if not isinstance(size, Arithmetic):
        return size, size
    found = _without_remainder(size)
    if found is not None:
        scale, modulus, rest = found
        first, last = interval(rest)
        span = scale * (modulus - 1)
        below, above = (0, span) if _nonnegative(scale) else (span, 0)
        return None if first is None else first + below, None if last is None else last + above
    low: Any = 0
    high: Any = 0
    for factors, coefficient in terms_of(size):
        bottom, top = _interval_of_product(factors)
        if coefficient < 0:
            bottom, top = top, bottom
        low = None if low is None or bottom is None else low + coefficient * bottom
        high = None if high is None or top is None else high + coefficient * top
    return low, high


def _without_remainder(size: Any) -> tuple[Any, Any, Size] | None:
    """(m, k, rest) where size = m * (t % k) + rest, of fewer terms: a remainder is bounded as one.

    So is t - t // 2, which is t % 2 + t // 2.
    """
    floors = {a for factors, _ in terms_of(size) for a in factors if isinstance(a, Floor)}
    for factors, coefficient in terms_of(size):
        inside = [a for a in factors if isinstance(a, Floor)]
        for top, bottom in _dividends(inside[0], floors) if len(inside) == 1 else ():
            (below, scale), *more = terms_of(bottom)
            shared = None if more else without(without(factors, (inside[0],)) or (), below)
            if shared is None:
                continue
            m = make({shared: -(coefficient // scale)})
            rest = plus(size, times(times(-1, m), plus(top, times(times(-1, bottom), inside[0]))))
            signed = _all_symbols(m) and (_nonnegative(m) or _nonnegative(-m))
            if signed and len(terms_of(rest)) < len(terms_of(size)):
                return m, bottom, rest
    return None


def _dividends(floor: Floor, floors: set[Floor]) -> Iterator[tuple[Any, Any]]:
    """(t, k) where the floor is t // k: x // (m*k) is (x // m) // k."""
    yield floor.top, floor.bottom
    for other in floors - {floor}:
        part = floordiv(floor.bottom, other.bottom)
        if other.top == floor.top and part != 1 and times(part, other.bottom) == floor.bottom:
            yield polynomial(other), part


def _interval_of_product(factors: Monomial) -> tuple[Size | None, Size | None]:
    low: Size | None = 1
    high: Size | None = 1
    for atom in factors:
        if isinstance(atom, Symbol):
            bottom: Size | None = polynomial(atom)
            top: Size | None = bottom
        else:
            bottom, top = atom.interval()
        numbers = (low, high, bottom, top)
        if all(isinstance(n, int) for n in numbers):
            corners = [low * bottom, low * top, high * bottom, high * top]  # type: ignore[operator]
            low, high = min(corners), max(corners)
        elif low is not None and bottom is not None and _nonnegative(low) and _nonnegative(bottom):
            low = low * bottom
            high = None if high is None or top is None else high * top
        else:
            return None, None
    return low, high


def nonnegative(size: Any) -> bool:
    """True where the size is provably >= 0 for all its symbols and axes; False means *not proved*."""
    if not isinstance(size, Arithmetic):
        return bool(size >= 0)
    if _nonnegative(size):
        return True
    return watching() and not _nonnegative(-1 - size) and answer("nonnegative", polynomial(size))


def negative(size: Any) -> bool:
    """True where the size is provably < 0; what is refused then asks nothing where that is open."""
    return _nonnegative(-1 - size)


@lru_cache(maxsize=200_000)
def _nonnegative(size: Any) -> bool:
    if not isinstance(size, Arithmetic):
        return bool(size >= 0)
    inside = atoms(size)
    if _all_symbols(size):
        shifted = substitute(size, {a: plus(a, a.low) for a in inside if isinstance(a, Symbol) and a.low})
        return all(coefficient >= 0 for _, coefficient in terms_of(shifted)) or _at_most(size, inside)
    if not all(isinstance(a, (Symbol, Floor, Largest)) for a in inside):
        low, _ = interval(size)
        return low is not None and low != size and _nonnegative(low)
    # without axes, interval would ask this function about the same floors again
    found = _without_remainder(size)
    if found is not None:
        scale, modulus, rest = found
        return _nonnegative(rest if _nonnegative(scale) else rest + scale * (modulus - 1))
    return _nonnegative_with_floors(size)


def _at_most(size: Any, inside: frozenset[Atom]) -> bool:
    """As `_nonnegative`, by the upper bounds of symbols that are only taken away."""
    added = {a for factors, coefficient in terms_of(size) if coefficient > 0 for a in factors}
    bounds: dict[Atom, Any] = {
        a: a.high for a in inside - added if isinstance(a, Symbol) and a.high is not None
    }
    signed = any(isinstance(a, Symbol) and a.low < 0 for a in inside)
    return bool(bounds) and not signed and _nonnegative(substitute(size, bounds))


def _all_symbols(size: Any) -> bool:
    return all(isinstance(a, Symbol) for a in atoms(size))


def _nonnegative_with_floors(size: Any) -> bool:
    """size >= 0 where every floor over symbols is bounded apart: t // b <= t / b, and >= 0 where t is.

    A floor that is both added and taken away is bounded twice, which is sound and loses a little.
    """
    total: Any = 0
    for factors, coefficient in terms_of(size):
        product: Any = coefficient
        for atom in factors:
            if isinstance(atom, Floor):
                if not _nonnegative(atom.top):
                    return False
                share = Fraction(1, atom.bottom) if isinstance(atom.bottom, int) else 1
                product = times(product, 0 if coefficient > 0 else times(share, atom.top))
            elif isinstance(atom, Symbol) and atom.low >= 0:
                product = times(product, atom)
            elif isinstance(atom, Largest) and coefficient > 0 and any(map(_nonnegative, atom.args)):
                product = times(product, next(a for a in atom.args if _nonnegative(a)))
            else:
                return False
        total = plus(total, product)
    return bool(total != size) and _nonnegative(total)


def same(a: Any, b: Any) -> bool:
    """Provably equal for all values of their symbols."""
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return bool(a == b)
    # not ==: the symbols of attributes ask this function
    if terms_of(a) == terms_of(b):
        return True
    gap = _gap(a, b) if watching() else None
    return gap is not None and answer("zero", gap)


@lru_cache(maxsize=100_000)
def _gap(a: Any, b: Any) -> Poly | None:
    """The difference, of either sign, where it may be zero."""
    gap = a - b
    if not isinstance(gap, Poly) or _nonnegative(gap - 1) or _nonnegative(-1 - gap):
        return None
    return gap if gap.terms[0][1] > 0 else times(-1, gap)
