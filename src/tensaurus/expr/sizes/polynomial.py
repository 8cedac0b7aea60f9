"""Polynomials with integer or rational coefficients, always expanded and sorted.

    polynomial  ::=  sum of  coefficient * atom * atom ...          (n + 1)*(n - 1)   ->   n*n - 1

Equal polynomials are therefore equal records, and can be hashed.  A polynomial without atoms *is* a number.
`expr.sizes.size` defines the atoms of sizes (floors, maxima) and exports all this, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, ClassVar, TypeAlias, Union

Number: TypeAlias = int | Fraction
Size: TypeAlias = Union[int, "Poly"]


CACHED_RESULTS = 1 << 16  # sums that are cached, and as many products


class HasOwnOperators:
    """Base of types, such as bodies of expressions, whose own operators also take a size on their left."""

    __slots__ = ()


class Arithmetic:
    """Gives polynomials and atoms the operators +, -, *, // and %.

    `quotient` computes a // b; `expr.sizes.size`, which knows the bounds of atoms, sets it.
    """

    __slots__ = ()
    quotient: ClassVar[Callable[[Any, Any], Any]]

    def __add__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, HasOwnOperators) else plus(self, other)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return times(-1, self)

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, HasOwnOperators) else plus(self, times(-1, other))

    def __rsub__(self, other: Any) -> Any:
        return plus(other, times(-1, self))

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, HasOwnOperators) else times(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, HasOwnOperators) else Arithmetic.quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return Arithmetic.quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return (
            NotImplemented
            if isinstance(other, HasOwnOperators)
            else self - other * Arithmetic.quotient(self, other)
        )

    def __rmod__(self, other: Any) -> Any:
        return other - self * Arithmetic.quotient(other, self)


class Atom(Arithmetic):
    """An indivisible factor of a monomial; `key` orders atoms and is their text."""

    __slots__ = ()
    key: str

    @property
    def factor_text(self) -> str:
        """The atom's text inside a product."""
        return self.key

    def interval(self) -> tuple[Size | None, Size | None]:
        """Return the inclusive lower and upper bound, sizes over symbols alone, None where there is none."""
        return None, None

    def nested_sizes(self) -> tuple[Size, ...]:
        """Return the sizes that the atom is computed from."""
        return ()

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        """Return the atom with every nested size changed, simplified where that is possible."""
        return self

    def value(self, lookup: Callable[[Atom], Any], evaluate_size: Callable[[Any], Any]) -> Any:
        """Return the atom's value, given the values of symbols and axes and an evaluator of sizes."""
        return lookup(self)

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return self.key


Monomial: TypeAlias = tuple[Atom, ...]
PolyTerms: TypeAlias = tuple[tuple[Monomial, Number], ...]  # monomials with their coefficients


class Poly(Arithmetic):
    """A polynomial in atoms with at least one atom: immutable, expanded, sorted.

    terms   ((factors, coefficient), ...): 2*n*n - 1 is (((n, n), 2), ((), -1))
    """

    __slots__ = ("terms", "_hash", "_text", "_atoms")

    def __init__(self, terms: PolyTerms):
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None
        self._atoms: frozenset[Atom] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms
        )

    def __str__(self) -> str:
        if self._text is None:
            self._text = _format_terms(self.terms)
        return self._text

    __repr__ = __str__


def _format_terms(terms: PolyTerms) -> str:
    text = ""
    for factors, coefficient in terms:
        names = [a.factor_text for a in factors]
        sign, magnitude = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
        number_text = (
            []
            if magnitude == 1 and names
            else [str(magnitude) if isinstance(magnitude, int) else f"({magnitude})"]
        )
        text += f" {sign} " + "*".join(number_text + names)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def bracketed(size: Size) -> str:
    """Return the size's text as an operand: in brackets unless it is one name or number."""
    text = str(size)
    return text if text.replace("_", "a").replace(".", "a").isalnum() else f"({text})"


def make_polynomial(terms: Mapping[Monomial, Number]) -> Any:
    """Return the sum of coefficient * monomial, as a number where no atom is left."""
    kept = [(m, c) for m, c in terms.items() if c != 0]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=_monomial_order)
    elif not kept[0][0]:
        value = kept[0][1]
        return int(value) if value == int(value) else value
    return Poly(tuple(kept))


def _monomial_order(term: tuple[Monomial, Number]) -> tuple[int, list[str]]:
    """Order terms by falling degree, then by atoms: a division begins with the first, a number is last."""
    factors = term[0]
    return -len(factors), [a.key for a in factors]


def polynomial(size: Any) -> Any:
    """Return an atom as a polynomial of one term; anything else unchanged."""
    return Poly((((size,), 1),)) if isinstance(size, Atom) else size


def terms_of(size: Any) -> PolyTerms:
    """Return the terms (atoms, coefficient) of any size, constants included."""
    if isinstance(size, Poly):
        return size.terms
    if isinstance(size, Atom):
        return (((size,), 1),)
    return (((), size),) if size != 0 else ()


def single_atom(size: Any) -> Atom | None:
    """Return the atom that the size is; None for a number, a multiple, a product or a sum."""
    terms = terms_of(size)
    if len(terms) != 1:
        return None
    ((factors, coefficient),) = terms
    return factors[0] if coefficient == 1 and len(factors) == 1 else None


def plus(a: Any, b: Any) -> Any:
    """Return a + b."""
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return a + b
    return _sum(_without_subclass(a), _without_subclass(b))


def times(a: Any, b: Any) -> Any:
    """Return a * b."""
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return a * b
    return _product(_without_subclass(a), _without_subclass(b))


def _without_subclass(size: Any) -> Any:
    """Return a polynomial that compares by its terms: subclasses with their own == cannot be keys."""
    return Poly(size.terms) if type(size) is not Poly and isinstance(size, Poly) else size


# In proofs nine of ten sums and products are found in the cache.  `typed`: 1 == Fraction(1), but the two are
# printed differently.
@lru_cache(maxsize=CACHED_RESULTS, typed=True)
def _sum(a: Any, b: Any) -> Any:
    total = dict(terms_of(a))
    for monomial, coefficient in terms_of(b):
        total[monomial] = total.get(monomial, 0) + coefficient
    return make_polynomial(total)


@lru_cache(maxsize=CACHED_RESULTS, typed=True)
def _product(a: Any, b: Any) -> Any:
    total: dict[Monomial, Number] = {}
    for left, c in terms_of(a):
        for right, d in terms_of(b):
            factors = left + right
            if left and right:
                factors = tuple(sorted(factors, key=lambda atom: atom.key))
            total[factors] = total.get(factors, 0) + c * d
    return make_polynomial(total)


def divide_monomial(factors: Monomial, divisor: Monomial) -> Monomial | None:
    """Return one monomial divided by another, None where the division leaves a remainder."""
    quotient = list(factors)
    for atom in divisor:
        if atom not in quotient:
            return None
        quotient.remove(atom)
    return tuple(quotient)


def divide_polynomial(a: Any, b: Poly) -> tuple[Any, Any]:
    """Return (q, r) with a = b*q + r by long division, where q has integer coefficients.

    For example (g + h)*q divided by g + h leaves r = 0.  Atoms with equal keys have no order, so that a
    division may stop early; the remaining terms are then part of r.
    """
    leading_factors, leading_coefficient = b.terms[0]
    quotient: Any = 0
    rest: Any = 0
    visited: set[Monomial] = set()  # monomials that have led: one that leads again would do so forever
    while terms := terms_of(a):
        factors, coefficient = terms[0]
        if factors in visited:
            break
        visited.add(factors)
        quotient_factors = divide_monomial(factors, leading_factors)
        if quotient_factors is None or coefficient % leading_coefficient:  # the leading term joins the rest
            term = make_polynomial({factors: coefficient})
            rest = plus(rest, term)
        else:
            multiple = make_polynomial({quotient_factors: coefficient // leading_coefficient})
            term = times(multiple, b)
            quotient = plus(quotient, multiple)
        a = plus(a, times(-1, term))
    return quotient, plus(rest, a)


def atoms(size: Any) -> frozenset[Atom]:
    """Return every atom of the size, including atoms nested in other atoms."""
    if not isinstance(size, Poly):
        return _with_nested_atoms(size) if isinstance(size, Atom) else frozenset()
    if size._atoms is None:
        own = {atom for factors, _ in size.terms for atom in factors}
        size._atoms = frozenset(own.union(*map(_with_nested_atoms, own)))
    return size._atoms


def _with_nested_atoms(atom: Atom) -> frozenset[Atom]:
    return frozenset([atom]).union(*map(atoms, atom.nested_sizes()))


def substitute(size: Any, values: Mapping[Atom, Any]) -> Any:
    """Return the size with atoms replaced by values, nested atoms included."""
    if isinstance(size, int):
        return size
    if isinstance(size, Atom):
        size = polynomial(size)
    if not isinstance(size, Poly):
        return size
    total: Any = 0
    for factors, coefficient in size.terms:
        term: Any = coefficient
        for atom in factors:
            value = values.get(atom)
            if value is None:
                value = atom.rebuild(lambda inner: substitute(inner, values))
            term = times(term, value)
        total = plus(total, term)
    return total


def evaluate(size: Any, lookup: Callable[[Atom], Any]) -> Any:
    """Return the size's value; the atoms' values may be ints, integer arrays or Z3 terms."""
    if isinstance(size, (int, Fraction)):
        return size

    def evaluate_size(part: Any) -> Any:
        if not isinstance(part, Arithmetic):
            return part
        total: Any = 0
        for factors, coefficient in terms_of(part):
            term: Any = coefficient
            for atom in factors:
                term = term * atom.value(lookup, evaluate_size)
            total = total + term
        return total

    return evaluate_size(size)


def product(sizes: Iterable[Any]) -> Any:
    """Return the product of sizes, 1 for none."""
    return reduce(operator.mul, sizes, 1)
