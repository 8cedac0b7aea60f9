"""Stand for the unknown value of an attribute: any integer, or any real number, in the place of a number.

    Transpose(x, perm=p)   a permutation must be known: no unknown value
    Pad(x, pads=(n0, n1))  n0 and n1 are unknown numbers, of which the expression and the type are computed
"""

from __future__ import annotations

from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Tensor
from tensaurus.expr.sizes.size import Atom, Poly, atoms, is_same_size, polynomial, substitute
from tensaurus.rules.prove.size_assumptions import NO_LOWER_BOUND, new_name, new_symbol

REAL_PREFIX = "$"  # first character of the name of an unknown real number
# errors raised by code that needs the value of an unknown number
UNKNOWN_VALUE_ERRORS = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)


class UnknownSize(Poly):
    """A size of unknown value: `==` asks `is_same_size`, and truth tests raise TypeError."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any) -> Any:
        return cls(size.terms) if isinstance(size, Poly) else size

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is zero")

    def __eq__(self, other: object) -> bool:
        return is_same_size(self, other)

    __hash__ = Poly.__hash__


def unknown_number(hint: str, low: int = NO_LOWER_BOUND) -> Any:
    """Return a size that stands for any integer of at least `low`."""
    return UnknownSize.of(new_symbol(hint, low))


def unknown_real(hint: str) -> Body:
    """Return a scalar that stands for any real number; like a literal, its type fits the other operand."""
    return Read(Tensor(new_name(f"{REAL_PREFIX}{hint}"), (), "real"), ())


def substitute_attribute(value: Any, values: Any) -> Any:
    """Return an attribute with symbols replaced."""
    if isinstance(value, tuple):
        return tuple(substitute_attribute(v, values) for v in value)
    return UnknownSize.of(substitute(value, values)) if isinstance(value, Poly) else value


def symbols_of(value: Any) -> frozenset[Atom]:
    """Return the symbols in an attribute."""
    if isinstance(value, tuple):
        return frozenset().union(*map(symbols_of, value))
    return atoms(polynomial(value)) if isinstance(value, Poly) else frozenset()
