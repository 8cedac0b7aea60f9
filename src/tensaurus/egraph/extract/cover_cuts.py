"""Rows that round up: seven products that are merged by four take two merges, not one and three quarters.

Each class of a set needs one of its leaves, choices at which its programs end.  The rows of k classes or more
are added up and divided by a number, and as all that is taken is taken whole, what is left over counts as
one more (Chvatal, 1973; Gomory, 1958).  Merged operators that overlap leave the linear relaxation such gaps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tensaurus.egraph.extract.formulation import Cover
from tensaurus.egraph.extract.greedy import tree_costs
from tensaurus.egraph.extract.problem import Problem

__all__ = ["Covers"]

BROKEN = 0.01  # by how much a row is broken that is worth adding
TAKEN = 1e-6  # what counts as taken
SURE = 0.9  # classes of which less is taken are passed over
MOST = 8  # what sums are divided by, at most
TURNS = 2  # a set grows to so many times that number, and one
ROWS = 200  # in each round


class Covers:
    """The leaves of a problem's classes, for all rounds."""

    def __init__(self, problem: Problem):
        self._problem = problem
        totals = tree_costs(problem)
        self._known: dict[int, frozenset[int]] = {}
        roots = set(problem.roots)
        # Of what a choice reads one class stands for it: the dearest that is not read in any case.
        self._below: list[int | None] = []
        for number, children in enumerate(problem.children):
            dear = max((c for c in children if c not in roots), key=lambda c: (totals[c], -c), default=None)
            below = dear is not None and totals[dear] > problem.costs[number]
            self._below.append(dear if below else None)

    def _leaves(self, group: int) -> frozenset[int]:
        """Choices of which every program of the class takes one: the way down a program ends somewhere."""
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
        """Rows that a solution breaks, those that it breaks by most."""
        taken = {}
        for group, part in enumerate(y):
            if part > SURE:
                taken[group] = [number for number in self._leaves(group) if x[number] > TAKEN]
        readers: dict[int, list[int]] = defaultdict(list)
        for group, leaves in taken.items():
            for number in leaves:
                readers[number].append(group)
        excesses: dict[tuple[int, frozenset[int]], float] = {}
        for group, leaves in taken.items():
            if len(leaves) > 1:
                most = max(len(readers[number]) for number in leaves)
                for by in range(2, min(most, MOST) + 1):
                    for inside, excess in self._grown(group, by, x, y, taken, readers):
                        excesses[by, inside] = excess
        best = sorted(excesses, key=lambda key: (-excesses[key], key[0], sorted(key[1])))
        return [self._row(by, sorted(inside)) for by, inside in best[:ROWS]]

    def _grown(
        self,
        start: int,
        by: int,
        x: Sequence[float],
        y: Sequence[float],
        taken: dict[int, list[int]],
        readers: dict[int, list[int]],
    ) -> Iterator[tuple[frozenset[int], float]]:
        """Sets that grow by the class that adds least to what is taken."""
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
                if excess > BROKEN:
                    yield frozenset(inside), excess
                if len(inside) > TURNS * by:
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
