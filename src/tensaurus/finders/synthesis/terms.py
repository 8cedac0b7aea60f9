"""Terms of a world: operators applied to variables and to other terms.

    MatMul(x, Transpose(x))   ->   Application(matmul, (x, Application(transpose, (x,)))), x = Variable(0, 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.finders.synthesis.operator_use import Use

__all__ = ["Application", "Pair", "Term", "Variable", "evaluate_term", "subterms"]


class Variable(NamedTuple):
    """Variable `number` of a term; `type` is the number of its type in the world."""

    type: int
    number: int


class Application(NamedTuple):
    """An operator or number of the world, applied to terms."""

    use: Use
    args: tuple[Term, ...]


Term: TypeAlias = Variable | Application
Pair: TypeAlias = tuple[Term, Term]


def subterms(term: Term) -> Iterator[Term]:
    """Yield the term and all subterms, each as often as it occurs."""
    yield term
    for part in () if isinstance(term, Variable) else term.args:
        yield from subterms(part)


def evaluate_term(term: Term, leaves: Mapping[Variable, Array], field: Field, count: int) -> Array:
    """Return the term's values for `count` values of each variable, along an axis in front."""
    if isinstance(term, Variable):
        return leaves[term]
    values = term.use.evaluate([evaluate_term(part, leaves, field, count) for part in term.args], field)
    return values if term.args else np.repeat(values, count, axis=0)
