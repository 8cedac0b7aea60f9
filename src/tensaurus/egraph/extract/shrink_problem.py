"""A smaller extraction problem with the same cheapest programs.

Each step turns a problem into one whose cheapest programs, with what the step gave, are cheapest programs of
the former.  Sets of classes are Python integers, one bit for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic

from tensaurus.egraph.extract.cyclic_components import components
from tensaurus.egraph.extract.greedy import greedy, tree_costs
from tensaurus.egraph.extract.problem import Choice, Problem, needed
from tensaurus.egraph.extract.required_classes import needs_of

__all__ = ["Shrunk", "shrink", "unshrunk"]

WIDTH = 4  # an inlined class may add so many reads
BEST = 8  # of the choices kept of a class, so many are tried as substitutes of another


@dataclass(frozen=True)
class Shrunk:
    """The smaller problem, numbered anew; programs of the larger one cost `paid` more."""

    problem: Problem
    whole: Problem
    choices: Sequence[int]  # of the smaller problem's choices, those of the larger one
    classes: Sequence[int]
    given: Mapping[int, int]  # of classes of the larger problem that are decided
    paid: float

    def restored(self, choice: Choice) -> dict[int, int]:
        """A choice of the larger problem."""
        chosen = {self.classes[group]: self.choices[number] for group, number in choice.items()}
        return needed(self.whole, {**self.given, **chosen})

    def adopted(self, choice: Choice) -> dict[int, int]:
        """What is left of a choice of the larger problem; it may be cyclic or incomplete."""
        places = {number: place for place, number in enumerate(self.choices)}
        return {
            group: places[choice[old]]
            for group, old in enumerate(self.classes)
            if old in choice and choice[old] in places
        }


def shrink(problem: Problem, deadline: float = inf) -> Shrunk:
    """Without what some cheapest program does not use, and what is decided; see _Work's methods.

    What is found after the deadline (of `time.monotonic`) stays.
    Raises ValueError where the roots have no program.
    """
    work = _Work(problem)
    work.usable(_trees(problem))
    steps = (work.settle, work.inline, work.detach, partial(work.drop, deadline))
    while monotonic() < deadline and any(step() for step in steps):
        pass
    return work.numbered()


def unshrunk(problem: Problem) -> Shrunk:
    """The problem as it is, but for choices that no program without a cycle can use.

    Raises ValueError where the roots have no program.
    """
    work = _Work(problem)
    work.usable(_trees(problem))
    return work.numbered()


def _trees(problem: Problem) -> dict[int, int]:
    """The cheapest trees; raises ValueError where a root has none."""
    trees = greedy(problem)
    if any(root not in trees for root in problem.roots):
        raise ValueError("a root has no program: all its choices need a cycle or a class without choices")
    return trees


class _Work:
    """A problem that shrinks; its choices and classes keep their numbers."""

    def __init__(self, problem: Problem):
        self.whole = problem
        self.costs = list(problem.costs)
        self.children = [set(children) for children in problem.children]
        self.groups = problem.groups
        self.members = [list(group) for group in problem.members]
        self.roots = dict.fromkeys(problem.roots)
        self.given: dict[int, int] = {}
        self.paid = 0.0
        self.reached: list[int] = []
        self._reach()

    def _problem(self) -> Problem:
        """What is left; what is not reached has no members."""
        return Problem(self.costs, self.children, self.groups, self.members, list(self.roots))

    def _reach(self) -> None:
        """Forget classes that are not below the roots."""
        order = dict.fromkeys(self.roots)
        stack = list(order)
        while stack:
            for number in self.members[stack.pop()]:
                for child in sorted(self.children[number]):
                    if child not in order:
                        order[child] = None
                        stack.append(child)
        for group in set(range(len(self.members))).difference(order):
            self.members[group] = []
        self.reached = list(order)

    def _readers(self) -> dict[int, list[int]]:
        """Of each class, the choices that read it."""
        readers: dict[int, list[int]] = {group: [] for group in self.reached}
        for group in self.reached:
            for number in self.members[group]:
                for child in self.children[number]:
                    readers[child].append(number)
        return readers

    def usable(self, trees: Choice) -> None:
        """Drop choices that have no tree or read their own class."""
        for group in self.reached:
            self.members[group] = [
                number
                for number in self.members[group]
                if group not in self.children[number] and all(c in trees for c in self.children[number])
            ]
        self._reach()

    def settle(self) -> bool:
        """Give classes that cost nothing the choice of their tree; what they read then costs nothing either.

        Such choices read only such classes, found before them: no cycle leads through one of them.
        """
        problem = self._problem()
        trees = greedy(problem)
        totals = tree_costs(problem, trees)
        free = {group for group in self.reached if totals[group] == 0}
        for group in self.reached:
            for number in self.members[group]:
                self.children[number] -= free
        for group in free:
            self.given[group] = trees[group]
            self.members[group] = []
            self.roots.pop(group, None)
        self.usable(trees)
        return bool(free)

    def inline(self) -> bool:
        """Replace a class of one choice, which costs nothing or has one reader, by what that reads.

        A root is paid for in any case: what its cheapest choice costs is paid now.
        """
        for group in self.roots:
            least = min(self.costs[number] for number in self.members[group])
            self.paid += least
            for number in self.members[group]:
                self.costs[number] -= least
        readers = self._readers()
        changed = False
        for group in self.reached:
            if len(self.members[group]) != 1:
                continue
            (number,) = self.members[group]
            reads, above = self.children[number], readers[group]
            root = group in self.roots
            if group in reads:
                continue
            if self.costs[number] and (root or len(above) != 1):
                continue
            if (len(above) + root - 1) * (len(reads) - 1) > WIDTH:
                continue
            for reader in above:
                self.children[reader].discard(group)
                self.children[reader] |= reads
                self.costs[reader] += self.costs[number]
            for child in reads:
                readers[child] = [n for n in readers[child] if n != number]
                readers[child] += [n for n in above if n not in readers[child]]
            if root:
                del self.roots[group]
                self.roots.update(dict.fromkeys(sorted(reads)))
            self.given[group] = number
            self.members[group] = []
            changed = True
        if changed:
            self._reach()
        return changed

    def detach(self) -> bool:
        """Make what every program needs a root, and forget the reads of it from other components.

        Such a read costs nothing and lies on no cycle.
        """
        needs = needs_of(self.children, self.members, self.reached)
        forced = 0
        for root in self.roots:
            forced |= needs[root]
        self.roots.update({group: None for group in self.reached if forced >> group & 1})
        part = {g: k for k, p in enumerate(components(self._problem(), self.reached)) for g in p}
        changed = False
        for group in self.reached:
            for number in self.members[group]:
                idle = {c for c in self.children[number] if c in self.roots and part[c] != part[group]}
                self.children[number] -= idle
                changed |= bool(idle)
        return changed

    def drop(self, deadline: float = inf) -> bool:
        """Drop choices that cannot be used without a cycle, or that another one of their class beats."""
        needs = needs_of(self.children, self.members, self.reached)
        part = {g: k for k, p in enumerate(components(self._problem(), self.reached)) for g in p}
        totals = tree_costs(self._problem())
        gone = set(_until(deadline, self._self_dependent(needs)))
        gone |= set(_until(deadline, self._beaten(needs, part, totals, gone)))
        if not gone:
            return False
        for group in self.reached:
            self.members[group] = [number for number in self.members[group] if number not in gone]
        self._reach()
        return True

    def _self_dependent(self, needs: Mapping[int, int]) -> Iterator[int]:
        """Choices that need their own class, or others without which no way leads from the roots to it.

        A program that uses the choice reads it on some way from a root; what the choice needs on that way is
        computed from it.  So a product merged of two others is never split into just these two again.
        """
        above: dict[int, set[int]] = {group: set() for group in self.reached}
        for group in self.reached:
            for number in self.members[group]:
                for child in self.children[number]:
                    above[child].add(group)
        for group in self.reached:
            known: dict[int, bool] = {}
            for number in self.members[group]:
                below = 0
                for child in self.children[number]:
                    below |= needs[child]
                if below not in known:
                    known[below] = self._enclosed(group, below, above)
                if known[below]:
                    yield number

    def _enclosed(self, group: int, below: int, above: Mapping[int, Iterable[int]]) -> bool:
        """Whether every way from the roots to the class leads through the set."""
        if below >> group & 1:
            return True
        stack, seen = [group], {group}
        while stack:
            place = stack.pop()
            if place in self.roots:
                return False
            for reader in above[place]:
                if reader not in seen and not below >> reader & 1:
                    seen.add(reader)
                    stack.append(reader)
        return True

    def _beaten(
        self,
        needs: Mapping[int, int],
        part: Mapping[int, int],
        totals: Sequence[float],
        gone: Iterable[int],
    ) -> Iterator[int]:
        """Choices that another one of their class can always replace; of two that are alike the first stays.

        What a choice's child always needs lies below the class in any program that uses the choice, so that
        to read it closes no cycle.  Nor does a class of another component; where the program lacks it, its
        tree is added, as far as the program lacks that.
        """
        gone = set(gone)
        for group in self.reached:
            rows = []
            for number in self.members[group]:
                if number not in gone:
                    own = below = 0
                    for child in self.children[number]:
                        own |= 1 << child
                        below |= needs[child]
                    rows.append((self.costs[number], own.bit_count(), number, own, below))
            rows.sort(key=lambda row: row[:3])
            kept: list[tuple[float, int]] = []
            for cost, _, number, own, below in rows:
                if any(not other & ~below for _, other in kept) or any(
                    self._replaces(group, price, other & ~below, cost, part, totals)
                    for price, other in kept[:BEST]
                ):
                    yield number
                else:
                    kept.append((cost, own))

    def _replaces(
        self,
        group: int,
        price: float,
        missing: int,
        cost: float,
        part: Mapping[int, int],
        totals: Sequence[float],
    ) -> bool:
        """Whether a choice and the trees of the classes that are missing cost no more than `cost`."""
        while missing:
            child = (missing & -missing).bit_length() - 1
            missing &= missing - 1
            price += totals[child]
            if price > cost or part[child] == part[group]:
                return False
        return True

    def numbered(self) -> Shrunk:
        """The smaller problem."""
        place = {group: k for k, group in enumerate(self.reached)}
        choices = [number for group in self.reached for number in self.members[group]]
        rows: list[list[int]] = [[] for _ in self.reached]
        for k, number in enumerate(choices):
            rows[place[self.groups[number]]].append(k)
        smaller = Problem(
            costs=[self.costs[number] for number in choices],
            children=[tuple(sorted(place[c] for c in self.children[number])) for number in choices],
            groups=[place[self.groups[number]] for number in choices],
            members=rows,
            roots=sorted(place[root] for root in self.roots),
        )
        return Shrunk(smaller, self.whole, choices, self.reached, self.given, self.paid)


def _until(deadline: float, numbers: Iterable[int]) -> Iterator[int]:
    for each in numbers:
        if monotonic() > deadline:
            return
        yield each


