"""Compares terms at further points, which tells functions apart that agree where terms are enumerated.

Many terms are evaluated at once, and each subterm that several share once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import term_size
from tensaurus.finders.synthesis.terms import Application, Pair, Term, Variable, subterms
from tensaurus.finders.synthesis.world import World

__all__ = ["ComparisonPoints"]

MAX_PAIRS = 1_000  # pairs of terms whose values are in memory at once
T = TypeVar("T")


class ComparisonPoints:
    """A number of random points, at each of which every variable of a world has a value of its own."""

    def __init__(self, world: World, field: Field, count: int, seed: int):
        self.world, self.field, self.count, self.seed = world, field, count, seed

    def keep_equal(self, groups: Iterable[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[Pair]]]:
        """Yield each group (label, pairs of terms) with those pairs that are equal at all points."""
        waiting: list[tuple[T, Sequence[Pair]]] = []
        count = 0
        for group in groups:
            waiting.append(group)
            count += len(group[1])
            if count >= MAX_PAIRS:
                yield from self._compare(waiting)
                waiting, count = [], 0
        yield from self._compare(waiting)

    def _compare(self, groups: Sequence[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[Pair]]]:
        values = self._evaluate(side for _, pairs in groups for pair in pairs for side in pair)
        for label, pairs in groups:
            yield label, [(a, b) for a, b in pairs if np.array_equal(values[a], values[b])]

    def _evaluate(self, terms: Iterable[Term]) -> dict[Term, Array]:
        """Return the values [points, *shape] of each term and subterm."""
        every = dict.fromkeys(part for term in terms for part in subterms(term))
        values: dict[Term, Array] = {x: self._variable_values(x) for x in every if isinstance(x, Variable)}
        by_use: dict[tuple[int, Use], list[Application]] = {}
        for term in (term for term in every if isinstance(term, Application)):
            by_use.setdefault((term_size(term), term.use), []).append(term)
        # smaller terms first: they are the arguments of larger ones
        for (_, use), calls in sorted(by_use.items(), key=lambda item: item[0][0]):
            if not use.types:
                values[calls[0]] = np.repeat(use.evaluate((), self.field), self.count, axis=0)
                continue
            arguments = zip(*(call.args for call in calls), strict=True)
            args = [np.concatenate([values[part] for part in parts]) for parts in arguments]
            results = use.evaluate(args, self.field)
            values.update(zip(calls, np.split(results, len(calls)), strict=True))
        return values

    def _variable_values(self, variable: Variable) -> Array:
        rng = np.random.default_rng((self.seed, variable.type, variable.number))
        return self.field.random((self.count, *self.world.shapes[variable.type]), rng)
