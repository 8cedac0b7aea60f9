"""Finds Chvatal-Gomory cuts: rows that every program satisfies, but not a solution of the linear relaxation.

Of seven products of which any four may be merged, a program needs 2 merged products; the relaxation takes
parts of several that overlap, 7/4 in all.  `linear_relaxation.relax` passes its solution, x of each choice
and y of each class (see `formulation`), and adds the rows that the solution violates.

Every program of a class takes one of the class's *leaves*, choices that `_leaves` finds: the sum of x of its
leaves is at least y, that is sum of x + (1 - y) >= 1.  Such rows of a set S of classes are added up and
divided by d, and all coefficients and the right side are rounded up, as variables are 0 or 1 (Chvatal, 1973;
Gomory, 1958).  Where n classes of S have a choice as their leaf, its coefficient is ceil(n / d):

    sum over choices of ceil(n / d) x + sum over S of (1 - y) >= ceil(|S| / d)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tensaurus.egraph.extract.formulation import Cover
from tensaurus.egraph.extract.greedy import tree_costs
from tensaurus.egraph.extract.problem import Problem

__all__ = ["CoverSeparator"]

# In a solution x is the part of a choice that is taken, y the part of a class that is computed.
MIN_VIOLATION = 0.01  # a row that is violated by less is not worth adding
MIN_TAKEN = 1e-6  # a choice with a smaller x counts as not taken
MIN_CLASS_VALUE = 0.9  # classes with a smaller y are passed over
MAX_DIVISOR = 8  # largest number by which a sum of rows is divided
MAX_SIZE_FACTOR = 2  # a set grows to this many times the divisor, plus 1
MAX_ROWS = 200  # rows that are added in one round


class CoverSeparator:
    """Finds rows that a solution violates (separation); keeps the leaves of all classes for later rounds."""

    def __init__(self, problem: Problem):
        self._problem = problem
        totals = tree_costs(problem)
        self._leaves_of_class: dict[int, frozenset[int]] = {}
        roots = set(problem.roots)
        # For each choice the child at which a path down its program goes on: the most expensive one that is
        # no root.  A choice that costs at least as much as this child is a leaf (None).  So a path passes the
        # cheap Split of a merged product and goes on to the product.
        self._next_on_path: list[int | None] = []
        for choice, children in enumerate(problem.children):
            most = max((c for c in children if c not in roots), key=lambda c: (totals[c], -c), default=None)
            goes_down = most is not None and totals[most] > problem.costs[choice]
            self._next_on_path.append(most if goes_down else None)

    def _leaves(self, eclass: int) -> frozenset[int]:
        """Return choices one of which every program of the class takes: its path down ends at one."""
        if eclass not in self._leaves_of_class:
            leaves, stack, seen = set(), [eclass], {eclass}
            while stack:
                for choice in self._problem.members[stack.pop()]:
                    below = self._next_on_path[choice]
                    if below is None:
                        leaves.add(choice)
                    elif below not in seen:
                        seen.add(below)
                        stack.append(below)
            self._leaves_of_class[eclass] = frozenset(leaves)
        return self._leaves_of_class[eclass]

    def violated_rows(self, x: Sequence[float], y: Sequence[float]) -> list[Cover]:
        """Return the rows that a solution violates by most."""
        taken_leaves = {}  # the leaves of each class that are taken
        for eclass, part in enumerate(y):
            if part > MIN_CLASS_VALUE:
                taken_leaves[eclass] = [choice for choice in self._leaves(eclass) if x[choice] > MIN_TAKEN]
        readers: dict[int, list[int]] = defaultdict(list)  # for each leaf the classes that have it as one
        for eclass, leaves in taken_leaves.items():
            for choice in leaves:
                readers[choice].append(eclass)
        excesses: dict[tuple[int, frozenset[int]], float] = {}  # {(d, S): by how much the row is violated}
        for eclass, leaves in taken_leaves.items():
            if len(leaves) > 1:
                most = max(len(readers[choice]) for choice in leaves)
                for divisor in range(2, min(most, MAX_DIVISOR) + 1):
                    for inside, excess in self._grow_sets(eclass, divisor, x, y, taken_leaves, readers):
                        excesses[divisor, inside] = excess
        best = sorted(excesses, key=lambda key: (-excesses[key], key[0], sorted(key[1])))
        return [self._row(divisor, sorted(inside)) for divisor, inside in best[:MAX_ROWS]]

    def _grow_sets(
        self,
        start: int,
        divisor: int,
        x: Sequence[float],
        y: Sequence[float],
        taken_leaves: dict[int, list[int]],
        readers: dict[int, list[int]],
    ) -> Iterator[tuple[frozenset[int], float]]:
        """Yield sets S grown from `start`, with their violations; see `violated_rows` for the arguments.

        Each step adds the class that adds least to the row's left side (`total`).  Only sets of
        k * divisor + 1 classes are yielded: rounding raises their right side most.
        """
        counts: Counter[int] = Counter()  # for each leaf the classes inside that have it
        inside: set[int] = set()
        near: set[int] = set()  # classes outside that share a leaf with one inside
        total, eclass = 0.0, start
        while True:
            inside.add(eclass)
            near.discard(eclass)
            total += 1 - y[eclass]
            for choice in taken_leaves[eclass]:
                if counts[choice] % divisor == 0:  # ceil(n / d) grows by 1 with this class
                    total += x[choice]
                counts[choice] += 1
                near.update(other for other in readers[choice] if other not in inside)
            if len(inside) % divisor == 1:
                excess = len(inside) // divisor + 1 - total
                if excess > MIN_VIOLATION:
                    yield frozenset(inside), excess
                if len(inside) > MAX_SIZE_FACTOR * divisor:
                    return
            if not near:
                return
            _, eclass = min(
                (1 - y[other] + sum(x[n] for n in taken_leaves[other] if counts[n] % divisor == 0), other)
                for other in near
            )

    def _row(self, divisor: int, inside: Sequence[int]) -> Cover:
        """Return the row of a set; 1 - y of a root is 0."""
        counts = Counter(choice for eclass in inside for choice in self._leaves(eclass))
        factors = {choice: -(-count // divisor) for choice, count in sorted(counts.items())}
        roots = set(self._problem.roots)
        return Cover(factors, [g for g in inside if g not in roots], -(-len(inside) // divisor))
