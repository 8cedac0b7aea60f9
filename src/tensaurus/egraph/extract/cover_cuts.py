"""Finds Chvatal-Gomory cuts: seven products that are merged by four take two merges, not 1.75.

Each class of a set needs one of its leaves, choices at which its programs end.  These rows are added up for
several classes and divided by a number, and all coefficients and the right side are rounded up, as variables
are 0 or 1 (Chvatal, 1973; Gomory, 1958).  Overlapping merged operators leave the linear relaxation such gaps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tensaurus.egraph.extract.formulation import Cover
from tensaurus.egraph.extract.greedy import tree_costs
from tensaurus.egraph.extract.problem import Problem

__all__ = ["Covers"]

MIN_VIOLATION = 0.01  # a row that is violated by less is not worth adding
MIN_TAKEN = 1e-6  # a choice with a smaller x counts as not taken
MIN_CLASS_VALUE = 0.9  # classes with a smaller y are passed over
MAX_DIVISOR = 8  # of sums of rows
MAX_SIZE_FACTOR = 2  # a set grows to this many times the divisor, plus 1
MAX_ROWS = 200  # that are added in one round


class Covers:
    """Finds violated rows; keeps the leaves of all classes for later rounds."""

    def __init__(self, problem: Problem):
        self._problem = problem
        totals = tree_costs(problem)
        self._known: dict[int, frozenset[int]] = {}
        roots = set(problem.roots)
        # One child stands for all that a choice reads: the most expensive one that is no root.
        self._below: list[int | None] = []
        for number, children in enumerate(problem.children):
            dear = max((c for c in children if c not in roots), key=lambda c: (totals[c], -c), default=None)
            below = dear is not None and totals[dear] > problem.costs[number]
            self._below.append(dear if below else None)

    def _leaves(self, group: int) -> frozenset[int]:
        """Return choices of which every program of the class takes one: a path down a program ends at one."""
        if group not in self._known:
            leaves, stack, seen = set(), [group], {group}
            while stack:
                for number in self._problem.members[stack.pop()]:
                    below = self._below[number]
                    if below is None:
                        leaves.add(number)
                    elif below not in seen:
                        seen.add(below)
                        stack.append(below)
            self._known[group] = frozenset(leaves)
        return self._known[group]

    def broken(self, x: Sequence[float], y: Sequence[float]) -> list[Cover]:
        """Return the rows that a solution violates by most."""
        taken = {}
        for group, part in enumerate(y):
            if part > MIN_CLASS_VALUE:
                taken[group] = [number for number in self._leaves(group) if x[number] > MIN_TAKEN]
        readers: dict[int, list[int]] = defaultdict(list)
        for group, leaves in taken.items():
            for number in leaves:
                readers[number].append(group)
        excesses: dict[tuple[int, frozenset[int]], float] = {}
        for group, leaves in taken.items():
            if len(leaves) > 1:
                most = max(len(readers[number]) for number in leaves)
                for by in range(2, min(most, MAX_DIVISOR) + 1):
                    for inside, excess in self._grow_sets(group, by, x, y, taken, readers):
                        excesses[by, inside] = excess
        best = sorted(excesses, key=lambda key: (-excesses[key], key[0], sorted(key[1])))
        return [self._row(by, sorted(inside)) for by, inside in best[:MAX_ROWS]]

    def _grow_sets(
        self,
        start: int,
        by: int,
        x: Sequence[float],
        y: Sequence[float],
        taken: dict[int, list[int]],
        readers: dict[int, list[int]],
    ) -> Iterator[tuple[frozenset[int], float]]:
        """Yield sets grown from `start`, each time by the class that adds least, with their violations."""
        counts: Counter[int] = Counter()
        inside: set[int] = set()
        near: set[int] = set()
        total, group = 0.0, start
        while True:
            inside.add(group)
            near.discard(group)
            total += 1 - y[group]
            for number in taken[group]:
                if counts[number] % by == 0:
                    total += x[number]
                counts[number] += 1
                near.update(other for other in readers[number] if other not in inside)
            if len(inside) % by == 1:
                excess = len(inside) // by + 1 - total
                if excess > MIN_VIOLATION:
                    yield frozenset(inside), excess
                if len(inside) > MAX_SIZE_FACTOR * by:
                    return
            if not near:
                return
            _, group = min(
                (1 - y[other] + sum(x[n] for n in taken[other] if counts[n] % by == 0), other)
                for other in near
            )

    def _row(self, by: int, inside: Sequence[int]) -> Cover:
        counts = Counter(number for group in inside for number in self._leaves(group))
        factors = {number: -(-count // by) for number, count in sorted(counts.items())}
        roots = set(self._problem.roots)
        return Cover(factors, [g for g in inside if g not in roots], -(-len(inside) // by))
