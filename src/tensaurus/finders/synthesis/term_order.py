"""Orders terms, and decides whether known laws make a term smaller.

The order is Knuth and Bendix's with a weight of one for every operator, on terms whose variables count as
constants: it is total and well founded, and replacing a subterm by a smaller one makes a term smaller.  So
applying laws as long as they make a term smaller ends; a law about a term that other laws make smaller
follows from these and from laws of smaller terms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import product
from typing import Any, TypeAlias

from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.terms import Application, Pair, Term, Variable, subterms

__all__ = ["Laws", "order_key", "rank_key", "term_size", "variables_in"]

UseKey: TypeAlias = Callable[[Use], Hashable]
"""Returns equal keys for uses that a law does not distinguish."""


def term_size(term: Term) -> int:
    """Return the number of operators, those of a repeated subterm as often as it occurs."""
    return 0 if isinstance(term, Variable) else 1 + sum(map(term_size, term.args))


def variables_in(term: Term) -> Iterator[Variable]:
    """Yield the variables from left to right, each as often as it occurs."""
    return (part for part in subterms(term) if isinstance(part, Variable))


def order_key(term: Term) -> tuple[Any, ...]:
    """Return a sort key: a smaller term has a smaller key."""
    if isinstance(term, Variable):
        return 0, -1, term.type, term.number
    parts = tuple(map(order_key, term.args))
    return 1 + sum(part[0] for part in parts), term.use.place, *parts


def use_key(use: Use) -> Hashable:
    """Distinguish all uses: a law of some types may be false for others."""
    return use


def rank_key(use: Use) -> Hashable:
    """Identify uses of one operator on operands of the same ranks."""
    ranks = tuple(kind.rank for kind in use.types)
    return use.name, tuple(use.attrs.items()), use.output, ranks


def match_term(pattern: Term, term: Term, found: dict[Variable, Term], key: UseKey = use_key) -> bool:
    """Return whether the term is an instance of the pattern; put its variables' values into `found`."""
    if isinstance(pattern, Variable):
        return found.setdefault(pattern, term) == term
    if isinstance(term, Variable) or term.use is not pattern.use and key(term.use) != key(pattern.use):
        return False
    return all(match_term(p, t, found, key) for p, t in zip(pattern.args, term.args, strict=True))


def substitute_term(term: Term, values: dict[Variable, Term]) -> Term:
    """Return the term with its variables replaced."""
    if isinstance(term, Variable):
        return values[term]
    return Application(term.use, tuple(substitute_term(part, values) for part in term.args))


class Laws:
    """Known equations between terms, applied where they make a term smaller.

    They are indexed by the keys of the replaced side's root and of its arguments' roots, None for variables.
    """

    def __init__(self, key: UseKey = use_key) -> None:
        self._key = key
        self._by_roots: dict[tuple[Hashable, ...], list[Pair]] = {}

    def add(self, left: Term, right: Term, back: bool = True) -> None:
        """Add a law from the left to the right side, and `back` as well."""
        for first, second in ((left, right), *([(right, left)] if back else [])):
            if isinstance(first, Application) and set(variables_in(second)) <= set(variables_in(first)):
                roots = (self._key(first.use), *map(self._root_key, first.args))
                self._by_roots.setdefault(roots, []).append((first, second))

    def _root_key(self, term: Term) -> Hashable:
        return None if isinstance(term, Variable) else self._key(term.use)

    def reduces_inside(self, term: Term) -> bool:
        """Return whether a law, applied to the term or to a subterm, makes it smaller."""
        if isinstance(term, Variable):
            return False
        return self.reduces(term) or any(map(self.reduces_inside, term.args))

    def reduces(self, term: Application) -> bool:
        """Return whether a law, applied at the term's root, makes it smaller."""
        term_key = None
        argument_keys = [dict.fromkeys((self._root_key(part), None)) for part in term.args]
        for arguments in product(*argument_keys):
            for pattern, other in self._by_roots.get((self._key(term.use), *arguments), ()):
                found: dict[Variable, Term] = {}
                if match_term(pattern, term, found, self._key):
                    term_key = order_key(term) if term_key is None else term_key
                    if order_key(substitute_term(other, found)) < term_key:
                        return True
        return False
