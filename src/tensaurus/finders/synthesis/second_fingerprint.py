"""Points at which terms are compared once more; many terms are computed at once, a part of several once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import size
from tensaurus.finders.synthesis.terms import Pair, Term, subterms
from tensaurus.finders.synthesis.world import World

__all__ = ["Points"]

PAIRS = 1_000  # of terms that are compared at once: of these the values are in memory
T = TypeVar("T")


class Points:
    """So many points, at each of which every variable of a world has another value; drawn by the seed."""

    def __init__(self, world: World, field: Field, count: int, seed: int):
        self.world, self.field, self.count, self.seed = world, field, count, seed

    def equal(self, groups: Iterable[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[Pair]]]:
        """Of each group in turn those of its pairs whose terms are equal at all points."""
        waiting: list[tuple[T, Sequence[Pair]]] = []
        count = 0
        for group in groups:
            waiting.append(group)
            count += len(group[1])
            if count >= PAIRS:
                yield from self._equal(waiting)
                waiting, count = [], 0
        yield from self._equal(waiting)

    def _equal(self, groups: Sequence[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[Pair]]]:
        values = self._values(side for _, pairs in groups for pair in pairs for side in pair)
        for what, pairs in groups:
            yield what, [(a, b) for a, b in pairs if np.array_equal(values[a], values[b])]

    def _values(self, terms: Iterable[Term]) -> dict[Term, Array]:
        """Of each term, and of all inside: [points, *shape]."""
        every = dict.fromkeys(part for term in terms for part in subterms(term))
        values = {x: self._leaf(x) for x in every if x[0] == "x"}
        alike: dict[tuple[int, Use], list[Term]] = {}
        for term in (term for term in every if term[0] != "x"):
            alike.setdefault((size(term), term[0]), []).append(term)
        for (_, use), some in sorted(alike.items(), key=lambda item: item[0][0]):
            if not use.types:
                values[some[0]] = np.repeat(use.values((), self.field), self.count, axis=0)
                continue
            places = zip(*(term[1:] for term in some), strict=True)
            args = [np.concatenate([values[part] for part in each]) for each in places]
            made = use.values(args, self.field)
            values.update(zip(some, np.split(made, len(some)), strict=True))
        return values

    def _leaf(self, variable: Term) -> Array:
        _, kind, number = variable
        rng = np.random.default_rng((self.seed, kind, number))
        return self.field.random((self.count, *self.world.shapes[kind]), rng)
