"""Polynomials in atoms: always expanded and sorted, so that equal polynomials are equal records.

    polynomial  ::=  sum of  coefficient * atom * atom ...

A polynomial without atoms *is* a number.  `expr.sizes.size` says which atoms there are for sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, ClassVar, TypeAlias, Union

Number: TypeAlias = int | Fraction
Size: TypeAlias = Union[int, "Poly"]


KNOWN = 1 << 16  # sums, and products, that are kept


class Wider:
    """What may contain sizes: its own operators combine it with them."""

    __slots__ = ()


class Arithmetic:
    """Operators of everything that can stand in a size.

    `quotient` is a // b.  A ring has none: it is given by whoever knows the atoms' bounds
    (`expr.sizes.size`).
    """

    __slots__ = ()
    quotient: ClassVar[Callable[[Any, Any], Any]]

    def __add__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Wider) else plus(self, other)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return times(-1, self)

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Wider) else plus(self, times(-1, other))

    def __rsub__(self, other: Any) -> Any:
        return plus(other, times(-1, self))

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Wider) else times(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Wider) else Arithmetic.quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return Arithmetic.quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Wider) else self - other * Arithmetic.quotient(self, other)

    def __rmod__(self, other: Any) -> Any:
        return other - self * Arithmetic.quotient(other, self)


class Atom(Arithmetic):
    """An indivisible factor; `key` orders atoms and prints them."""

    __slots__ = ()
    key: str

    @property
    def factor(self) -> str:
        """Its text inside a product."""
        return self.key

    def interval(self) -> tuple[Size | None, Size | None]:
        """Lower and upper bound, both inclusive, in symbols alone; None where there is none."""
        return None, None

    def inside(self) -> tuple[Size, ...]:
        """The sizes inside it, those it is computed from."""
        return ()

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        """The same atom with every size inside it changed."""
        return self

    def value(self, of: Callable[[Atom], Any], run: Callable[[Any], Any]) -> Any:
        """Its value, given a lookup for symbols and axes and an evaluator for sizes."""
        return of(self)

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return self.key


Monomial: TypeAlias = tuple[Atom, ...]


class Poly(Arithmetic):
    """A polynomial in atoms with at least one atom: immutable, expanded, sorted."""

    __slots__ = ("terms", "_hash", "_text", "_atoms")

    def __init__(self, terms: tuple[tuple[Monomial, Number], ...]):
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
            self._text = _print(self.terms)
        return self._text

    __repr__ = __str__


def _print(terms: tuple[tuple[Monomial, Number], ...]) -> str:
    text = ""
    for factors, coefficient in terms:
        names = [a.factor for a in factors]
        sign, size = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
        digits = [] if size == 1 and names else [str(size) if isinstance(size, int) else f"({size})"]
        text += f" {sign} " + "*".join(digits + names)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def bracket(size: Size) -> str:
    """The size as an operand: bracketed unless it is one name or number."""
    text = str(size)
    return text if text.replace("_", "a").replace(".", "a").isalnum() else f"({text})"


def make(terms: Mapping[Monomial, Number]) -> Any:
    """The sum of coefficient * monomial, as a number where no atom is left."""
    kept = [(m, c) for m, c in terms.items() if c != 0]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=_place)
    elif not kept[0][0]:
        value = kept[0][1]
        return int(value) if value == int(value) else value
    return Poly(tuple(kept))


def _place(term: tuple[Monomial, Number]) -> tuple[int, list[str]]:
    factors = term[0]
    return -len(factors), [a.key for a in factors]


def polynomial(size: Any) -> Any:
    """An atom as a size; anything else unchanged."""
    return Poly((((size,), 1),)) if isinstance(size, Atom) else size


def terms_of(size: Any) -> tuple[tuple[Monomial, Number], ...]:
    """The terms (atoms, coefficient) of any size, constant included."""
    if isinstance(size, Poly):
        return size.terms
    if isinstance(size, Atom):
        return (((size,), 1),)
    return (((), size),) if size != 0 else ()


def plus(a: Any, b: Any) -> Any:
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return a + b
    return _sum(_plain(a), _plain(b))


def times(a: Any, b: Any) -> Any:
    if not isinstance(a, Arithmetic) and not isinstance(b, Arithmetic):
        return a * b
    return _product(_plain(a), _plain(b))


def _plain(size: Any) -> Any:
    """The same as a polynomial alone: a kind that says itself what it equals is no key."""
    return Poly(size.terms) if type(size) is not Poly and isinstance(size, Poly) else size


# Proofs ask for the same sums and products again and again: nine of ten are known.  By type, too: 1 is no
# Fraction(1), which is written in another way.
@lru_cache(maxsize=KNOWN, typed=True)
def _sum(a: Any, b: Any) -> Any:
    total = dict(terms_of(a))
    for monomial, coefficient in terms_of(b):
        total[monomial] = total.get(monomial, 0) + coefficient
    return make(total)


@lru_cache(maxsize=KNOWN, typed=True)
def _product(a: Any, b: Any) -> Any:
    total: dict[Monomial, Number] = {}
    for left, c in terms_of(a):
        for right, d in terms_of(b):
            factors = left + right
            if left and right:
                factors = tuple(sorted(factors, key=lambda atom: atom.key))
            total[factors] = total.get(factors, 0) + c * d
    return make(total)


def without(factors: Monomial, gone: Monomial) -> Monomial | None:
    """The monomial divided by another, None where that leaves a remainder."""
    left = list(factors)
    for atom in gone:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def divided(a: Any, b: Poly) -> tuple[Any, Any]:
    """(q, r) with a = b*q + r, q of whole coefficients: long division, leading terms first.

    (g + h)*q leaves nothing over g + h.  Atoms of one key have no order: r is what is left then.
    """
    lead, scale = b.terms[0]
    quotient: Any = 0
    rest: Any = 0
    seen: set[Monomial] = set()
    while terms := terms_of(a):
        factors, coefficient = terms[0]
        if factors in seen:
            break
        seen.add(factors)
        left = without(factors, lead)
        if left is None or coefficient % scale:
            part = make({factors: coefficient})
            rest = plus(rest, part)
        else:
            multiple = make({left: coefficient // scale})
            part = times(multiple, b)
            quotient = plus(quotient, multiple)
        a = plus(a, times(-1, part))
    return quotient, plus(rest, a)


def atoms(size: Any) -> frozenset[Atom]:
    """Every atom of the size, those inside other atoms included."""
    if not isinstance(size, Poly):
        return _with_inside(size) if isinstance(size, Atom) else frozenset()
    if size._atoms is None:
        own = {atom for factors, _ in size.terms for atom in factors}
        size._atoms = frozenset(own.union(*map(_with_inside, own)))
    return size._atoms


def _with_inside(atom: Atom) -> frozenset[Atom]:
    return frozenset([atom]).union(*map(atoms, atom.inside()))


def substitute(size: Any, values: Mapping[Atom, Any]) -> Any:
    """The size with atoms replaced."""
    if isinstance(size, int):
        return size
    if isinstance(size, Atom):
        size = polynomial(size)
    if not isinstance(size, Poly):
        return size
    total: Any = 0
    for factors, coefficient in size.terms:
        product: Any = coefficient
        for atom in factors:
            value = values.get(atom)
            if value is None:
                value = atom.rebuild(lambda inner: substitute(inner, values))
            product = times(product, value)
        total = plus(total, product)
    return total


def evaluate(size: Any, of: Callable[[Atom], Any]) -> Any:
    """The value under a lookup of atoms; ints, integer arrays and Z3 terms all work."""
    if isinstance(size, (int, Fraction)):
        return size

    def run(piece: Any) -> Any:
        if not isinstance(piece, Arithmetic):
            return piece
        total: Any = 0
        for factors, coefficient in terms_of(piece):
            product: Any = coefficient
            for atom in factors:
                product = product * atom.value(of, run)
            total = total + product
        return total

    return run(size)


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes, 1 for none."""
    return reduce(operator.mul, sizes, 1)
