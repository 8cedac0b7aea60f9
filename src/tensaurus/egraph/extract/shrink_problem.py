"""Shrinks an extraction problem to a smaller one with the same cheapest programs.

Each step decides some classes or drops some choices so that a cheapest program of the smaller problem, with
the decided classes, is a cheapest program of the larger one.  Sets of classes are Python integers, one bit
for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic

from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.greedy import greedy, tree_costs
from tensaurus.egraph.extract.problem import NO_PROGRAM, Choice, Problem, needed
from tensaurus.egraph.extract.required_classes import required_classes

__all__ = ["Shrunk", "shrink", "unshrunk"]

MAX_ADDED_READS = 4  # reads that inlining a class may add to the problem, about
MAX_SUBSTITUTES = 8  # how many of a class's cheapest choices are tried as substitutes of another choice


@dataclass(frozen=True)
class Shrunk:
    """A smaller problem, with the way back to the larger one.

    problem  the smaller problem, with new numbers
    whole    the larger problem
    choices  for each choice of the smaller problem its number in the larger one
    classes  for each class of the smaller problem its number in the larger one
    given    choices of classes of the larger problem that are decided
    paid     the cost that is not in the smaller problem: paid by every program of the larger one
    """

    problem: Problem
    whole: Problem
    choices: Sequence[int]
    classes: Sequence[int]
    given: Mapping[int, int]
    paid: float

    def restored(self, choice: Choice) -> dict[int, int]:
        """Translate a choice of the smaller problem to one of the larger problem."""
        chosen = {self.classes[group]: self.choices[number] for group, number in choice.items()}
        return needed(self.whole, {**self.given, **chosen})

    def adopted(self, choice: Choice) -> dict[int, int]:
        """Translate a choice of the larger problem, less what was dropped: maybe cyclic or incomplete."""
        places = {number: place for place, number in enumerate(self.choices)}
        return {
            group: places[choice[old]]
            for group, old in enumerate(self.classes)
            if old in choice and choice[old] in places
        }


def shrink(problem: Problem, deadline: float = inf) -> Shrunk:
    """Shrink a problem by the methods of `_ShrinkingProblem` until nothing changes, or the deadline.

    Some cheapest program survives.  The deadline is of `time.monotonic`.
    Raises ValueError where the roots have no program.
    """
    work = _ShrinkingProblem(problem)
    work.keep_usable(_trees(problem))
    drop = partial(work.drop_useless_choices, deadline)
    steps = (work.decide_free_classes, work.inline_single_choices, work.forget_paid_reads, drop)
    while monotonic() < deadline and any(step() for step in steps):
        pass
    return work.renumbered()


def unshrunk(problem: Problem) -> Shrunk:
    """Return the problem without choices that no program without a cycle can use, otherwise unchanged.

    Raises ValueError where the roots have no program.
    """
    work = _ShrinkingProblem(problem)
    work.keep_usable(_trees(problem))
    return work.renumbered()


def _trees(problem: Problem) -> dict[int, int]:
    """Return the cheapest trees; raises ValueError where a root has none."""
    trees = greedy(problem)
    if any(root not in trees for root in problem.roots):
        raise ValueError(NO_PROGRAM)
    return trees


class _ShrinkingProblem:
    """A problem that is shrunk in place; choices and classes keep their numbers.

    Its fields are as in `Problem` and `Shrunk`; only `reached` classes, those below the roots, have members.
    """

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
        """Return the present problem."""
        return Problem(self.costs, self.children, self.groups, self.members, list(self.roots))

    def _reach(self) -> None:
        """Find the `reached` classes again, and forget the others."""
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
        """Return for each class the choices that read it."""
        readers: dict[int, list[int]] = {group: [] for group in self.reached}
        for group in self.reached:
            for number in self.members[group]:
                for child in self.children[number]:
                    readers[child].append(number)
        return readers

    def keep_usable(self, trees: Choice) -> None:
        """Drop choices that read their own class or a class without a tree."""
        for group in self.reached:
            self.members[group] = [
                number
                for number in self.members[group]
                if group not in self.children[number] and all(c in trees for c in self.children[number])
            ]
        self._reach()

    def decide_free_classes(self) -> bool:
        """Decide classes whose cheapest tree costs nothing, and forget all reads of them.

        The tree of such a class reads only such classes, found before it, so no cycle leads through them.
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
        self.keep_usable(trees)
        return bool(free)

    def inline_single_choices(self) -> bool:
        """Replace reads of a class with one choice by reads of its children, if it is free or read once.

        A root is paid for in any case: first the cost of its cheapest choice is paid, and subtracted from all
        its choices, so that a root with one choice is free.
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
            if group in reads:  # its only choice reads the class itself: no program has it
                continue
            if self.costs[number] and (root or len(above) != 1):  # no single reader can take over the cost
                continue
            # a reads of this class and r by it become a * r reads: (a - 1) * (r - 1) - 1 more
            if (len(above) + root - 1) * (len(reads) - 1) > MAX_ADDED_READS:
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

    def forget_paid_reads(self) -> bool:
        """Make the classes that every program needs roots, and forget reads of roots from other components.

        Such a read costs nothing more, and lies on no cycle.
        """
        needs = required_classes(self.children, self.members, self.reached)
        forced = 0  # the classes that every program needs, as bits
        for root in self.roots:
            forced |= needs[root]
        self.roots.update({group: None for group in self.reached if forced >> group & 1})
        # the number of each class's component
        part = {g: k for k, p in enumerate(strong_components(self._problem(), self.reached)) for g in p}
        changed = False
        for group in self.reached:
            for number in self.members[group]:
                idle = {c for c in self.children[number] if c in self.roots and part[c] != part[group]}
                self.children[number] -= idle
                changed |= bool(idle)
        return changed

    def drop_useless_choices(self, deadline: float = inf) -> bool:
        """Drop choices that cannot be used without a cycle, or that another of their class can replace."""
        needs = required_classes(self.children, self.members, self.reached)
        part = {g: k for k, p in enumerate(strong_components(self._problem(), self.reached)) for g in p}
        totals = tree_costs(self._problem())
        gone = set(_until_deadline(deadline, self._self_dependent(needs)))
        gone |= set(_until_deadline(deadline, self._replaceable(needs, part, totals, gone)))
        if not gone:
            return False
        for group in self.reached:
            self.members[group] = [number for number in self.members[group] if number not in gone]
        self._reach()
        return True

    def _self_dependent(self, needs: Mapping[int, int]) -> Iterator[int]:
        """Yield choices that need their own class, or a set of classes that cuts it off from the roots.

        A program that uses the choice reads its class on some path from a root, and all classes on this path
        are computed from it: the choice cannot need them.  So where only two products read the product merged
        of them, it is never put together from these two.
        """
        above: dict[int, set[int]] = {group: set() for group in self.reached}
        for group in self.reached:
            for number in self.members[group]:
                for child in self.children[number]:
                    above[child].add(group)
        for group in self.reached:
            known: dict[int, bool] = {}  # by the set of classes that a choice needs
            for number in self.members[group]:
                below = 0
                for child in self.children[number]:
                    below |= needs[child]
                if below not in known:
                    known[below] = self._is_cut_off(group, below, above)
                if known[below]:
                    yield number

    def _is_cut_off(self, group: int, below: int, above: Mapping[int, Iterable[int]]) -> bool:
        """Return whether every path from the roots to a class leads through the set `below`."""
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

    def _replaceable(
        self,
        needs: Mapping[int, int],
        part: Mapping[int, int],
        totals: Sequence[float],
        gone: Iterable[int],
    ) -> Iterator[int]:
        """Yield choices that a substitute of their class can always replace; of two equal ones the second.

        The substitute may read all classes that the children of the choice always need: they are below the
        class in any program that uses the choice, so that reading them closes no cycle.  It may also read
        classes of other components, for which the cost of their trees is added.

        needs   for each class the classes that all of its programs use, as bits
        part    the strongly connected component of each class
        totals  the cost of the cheapest tree of each class
        gone    choices that are dropped already
        """
        gone = set(gone)
        for group in self.reached:
            rows = []  # (cost, number of reads, number, reads as bits, classes always needed as bits)
            for number in self.members[group]:
                if number not in gone:
                    own = below = 0
                    for child in self.children[number]:
                        own |= 1 << child
                        below |= needs[child]
                    rows.append((self.costs[number], own.bit_count(), number, own, below))
            rows.sort(key=lambda row: row[:3])
            kept: list[tuple[float, int]] = []  # (cost, reads) of possible substitutes, cheapest first
            # drop a choice if a cheaper one reads only what this one needs too, or pays for trees of the rest
            for cost, _, number, own, below in rows:
                if any(not other & ~below for _, other in kept) or any(
                    self._can_replace(group, price, other & ~below, cost, part, totals)
                    for price, other in kept[:MAX_SUBSTITUTES]
                ):
                    yield number
                else:
                    kept.append((cost, own))

    def _can_replace(
        self,
        group: int,
        price: float,
        missing: int,
        cost: float,
        part: Mapping[int, int],
        totals: Sequence[float],
    ) -> bool:
        """Return whether a substitute for `price` with trees for the classes `missing` costs at most `cost`.

        Missing classes (bits) in the component of `group` might close a cycle.
        """
        while missing:
            child = (missing & -missing).bit_length() - 1
            missing &= missing - 1
            price += totals[child]
            if price > cost or part[child] == part[group]:
                return False
        return True

    def renumbered(self) -> Shrunk:
        """Return the smaller problem, its choices and classes numbered anew."""
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


def _until_deadline(deadline: float, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers that are found before the deadline."""
    for each in numbers:
        if monotonic() > deadline:
            return
        yield each
