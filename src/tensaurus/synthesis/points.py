"""Points at which terms are compared once more; many terms are computed at once, a part of several once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from tensaurus.algebra.arithmetic import Array, Field
from tensaurus.synthesis.terms import Pair, Term
from tensaurus.synthesis.use import Use
from tensaurus.synthesis.world import World

__all__ = ["Points"]

PAIRS = 1_000  # of terms that are compared at once: of these the values are in memory
T = TypeVar("T")
_Level: TypeAlias = dict[Use, list[tuple[int, tuple[int, ...]]]]  # the terms of each use, and their arguments


class Points:
    """So many points, at each of which every variable of a world has another value; drawn by the seed."""

    def __init__(self, world: World, field: Field, count: int, seed: int):
        self.world, self.field, self.count, self.seed = world, field, count, seed

    def compared(self, groups: Iterable[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[bool]]]:
        """Of each group in turn: whether the terms of each of its pairs are equal at all points."""
        waiting: list[tuple[T, Sequence[Pair]]] = []
        count = 0
        for group in groups:
            waiting.append(group)
            count += len(group[1])
            if count >= PAIRS:
                yield from self._compared(waiting)
                waiting, count = [], 0
        yield from self._compared(waiting)

    def _compared(self, groups: Sequence[tuple[T, Sequence[Pair]]]) -> Iterator[tuple[T, list[bool]]]:
        values = iter(self._values([side for _, pairs in groups for pair in pairs for side in pair]))
        for what, pairs in groups:
            yield what, [bool(np.array_equal(next(values), next(values))) for _ in pairs]

    def _values(self, terms: Sequence[Term]) -> list[Array]:
        """Of each term: [points, *shape]."""
        numbers: dict[tuple[object, ...], int] = {}
        depths: list[int] = []
        values: list[Array] = []
        levels: list[_Level] = []

        def number(term: Term) -> int:
            parts = () if term[0] == "x" else tuple(map(number, term[1:]))
            key = term if term[0] == "x" else (term[0], *parts)
            known = numbers.setdefault(key, len(depths))
            if known < len(depths):
                return known
            depths.append(depth := 0 if term[0] == "x" else 1 + max((depths[n] for n in parts), default=0))
            values.append(self._leaf(term) if term[0] == "x" else np.empty(0))
            while len(levels) < depth:
                levels.append({})
            if depth:
                levels[depth - 1].setdefault(term[0], []).append((known, parts))
            return known

        roots = [number(term) for term in terms]
        for level in levels:
            for use, every in level.items():
                if not use.types:
                    values[every[0][0]] = np.repeat(use.values((), self.field), self.count, axis=0)
                    continue
                places = zip(*(parts for _, parts in every), strict=True)
                args = [np.concatenate([values[n] for n in each]) for each in places]
                made = use.values(args, self.field)
                for (known, _), own in zip(every, np.split(made, len(every)), strict=True):
                    values[known] = own
        return [values[root] for root in roots]

    def _leaf(self, variable: Term) -> Array:
        _, kind, number = variable
        rng = np.random.default_rng((self.seed, kind, number))
        return self.field.random((self.count, *self.world.shapes[kind]), rng)
