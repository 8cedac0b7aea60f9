"""An order of terms, and which of them laws that are known make smaller.

The order is Knuth and Bendix's with a weight of one for every operator, on terms whose variables count as
constants: it is total, well founded, and a term with a smaller part is smaller.  So what one application of
a law makes smaller, step by step, comes to the least term of its class: such a term needs no law of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import product
from typing import Any, TypeAlias

from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.terms import Pair, Term, subterms

__all__ = ["Laws", "key", "of_ranks", "size", "variables"]

Alike: TypeAlias = Callable[[Use], Hashable]


def size(term: Term) -> int:
    """How many operators it has; what stands twice counts twice."""
    return 0 if term[0] == "x" else 1 + sum(map(size, term[1:]))


def variables(term: Term) -> Iterator[Term]:
    """Those in it, from left to right, each as often as it stands there."""
    return (part for part in subterms(term) if part[0] == "x")


def key(term: Term) -> tuple[Any, ...]:
    """Smaller for a smaller term."""
    if term[0] == "x":
        return 0, -1, term[1], term[2]
    parts = tuple(map(key, term[1:]))
    return 1 + sum(part[0] for part in parts), term[0].place, *parts


def exactly(use: Use) -> Hashable:
    """A use is one of types: what is true of one type need not be of another."""
    return use


def of_ranks(use: Use) -> Hashable:
    """Uses of an operator are alike where their operands have the same ranks."""
    ranks = tuple(kind.rank for kind in use.types)
    return use.name, tuple(use.attrs.items()), use.output, ranks


def matched(pattern: Term, term: Term, found: dict[Term, Term], alike: Alike = exactly) -> bool:
    """Whether the term is an instance of the pattern; `found` becomes what its variables stand for."""
    if pattern[0] == "x":
        known = found.setdefault(pattern, term)
        return known == term
    if term[0] is not pattern[0] and (term[0] == "x" or alike(term[0]) != alike(pattern[0])):
        return False
    return all(matched(p, t, found, alike) for p, t in zip(pattern[1:], term[1:], strict=True))


def substituted(term: Term, values: dict[Term, Term]) -> Term:
    if term[0] == "x":
        return values[term]
    return (term[0], *(substituted(part, values) for part in term[1:]))


class Laws:
    """Equations between terms; of uses that are `alike`.

    They are kept by what their larger sides look like: the use, and those of arguments, None for variables.
    """

    def __init__(self, alike: Alike = exactly) -> None:
        self._alike = alike
        self._by_look: dict[tuple[Hashable, ...], list[Pair]] = {}

    def add(self, left: Term, right: Term, back: bool = True) -> None:
        """A law that makes terms smaller from the left to the right, and `back`, too."""
        for first, second in ((left, right), *([(right, left)] if back else [])):
            if first[0] != "x" and set(variables(second)) <= set(variables(first)):
                look = (self._alike(first[0]), *map(self._look, first[1:]))
                self._by_look.setdefault(look, []).append((first, second))

    def _look(self, term: Term) -> Hashable:
        return None if term[0] == "x" else self._alike(term[0])

    def reduces_inside(self, term: Term) -> bool:
        """Whether one of them makes the term smaller, applied to it or to a part of it."""
        return term[0] != "x" and (self.reduces(term) or any(map(self.reduces_inside, term[1:])))

    def reduces(self, term: Term) -> bool:
        """Whether one of them makes the term smaller, applied to all of it."""
        own = None
        looks = [dict.fromkeys((self._look(part), None)) for part in term[1:]]
        for look in product(*looks):
            for pattern, other in self._by_look.get((self._alike(term[0]), *look), ()):
                found: dict[Term, Term] = {}
                if matched(pattern, term, found, self._alike):
                    own = key(term) if own is None else own
                    if key(substituted(other, found)) < own:
                        return True
        return False
