"""Shrinks an extraction problem to a smaller one with the same cheapest programs.

Each step decides some classes or drops some choices so that a cheapest program of the smaller problem, with
the decided classes, is a cheapest program of the whole one.  `exact` solves the smaller problem.

    class 0 (the root): reads 1 for 3, or reads 2 for 4     class 1: reads 2 for 2     class 2: costs 5
    inline class 1, which has one choice and one reader     class 0: reads 2 for 5, or reads 2 for 4
    drop the first choice of class 0, decide the rest       9 is paid, nothing is left to choose

Sets of classes are Python integers with one bit for each class (`reads`, `needs`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import NamedTuple

from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.greedy import greedy, tree_costs
from tensaurus.egraph.extract.problem import NO_PROGRAM, Problem, Selection, keep_needed
from tensaurus.egraph.extract.required_classes import required_classes, set_bits

__all__ = ["Shrunk", "shrink", "drop_unusable_choices"]

MAX_ADDED_READS = 4  # reads that inlining a class may add to the problem, about
MAX_SUBSTITUTES = 8  # how many of a class's cheapest choices are tried as substitutes of another choice


@dataclass(frozen=True)
class Shrunk:
    """A smaller problem, with the way back to the whole one.

    problem    the smaller problem, with numbers of its own
    whole      the whole problem
    choices    for each choice of the smaller problem its number in the whole one
    classes    for each class of the smaller problem its number in the whole one
    decided    the selection for classes of the whole problem that the smaller one lacks
    paid_cost  the cost that is not in the smaller problem: paid by every program of the whole one
    """

    problem: Problem
    whole: Problem
    choices: Sequence[int]
    classes: Sequence[int]
    decided: Mapping[int, int]
    paid_cost: float

    def to_whole(self, selection: Selection) -> dict[int, int]:
        """Translate a selection of the smaller problem to one of the whole problem."""
        chosen = {self.classes[eclass]: self.choices[choice] for eclass, choice in selection.items()}
        return keep_needed(self.whole, {**self.decided, **chosen})

    def from_whole(self, selection: Selection) -> dict[int, int]:
        """Translate a selection of the whole problem, less dropped choices: maybe cyclic or incomplete."""
        own = {whole: choice for choice, whole in enumerate(self.choices)}
        return {
            eclass: own[selection[whole]]
            for eclass, whole in enumerate(self.classes)
            if whole in selection and selection[whole] in own
        }


def shrink(problem: Problem, deadline: float = inf) -> Shrunk:
    """Shrink a problem by the methods of `_ShrinkingProblem` until nothing changes, or the deadline.

    Some cheapest program survives.  The deadline is of `time.monotonic`.
    Raises ValueError where the roots have no program.
    """
    work = _ShrinkingProblem.of(problem)
    drop = partial(work.drop_useless_choices, deadline)
    steps = (work.decide_free_classes, work.inline_single_choices, work.forget_paid_reads, drop)
    while monotonic() < deadline and any(step() for step in steps):
        pass
    return work.renumbered()


def drop_unusable_choices(problem: Problem) -> Shrunk:
    """Return the problem without choices that no program without a cycle can use, otherwise unchanged.

    Raises ValueError where the roots have no program.
    """
    return _ShrinkingProblem.of(problem).renumbered()


class _RatedChoice(NamedTuple):
    """A choice beside others of its class; those that cost less, then those that read less, come first."""

    cost: float
    read_count: int
    choice: int
    reads: int  # the classes that it reads, as bits
    needs: int  # the classes that every program with the choice uses, as bits


class _ShrinkingProblem:
    """A problem that is shrunk in place; choices and classes keep their numbers.

    Its fields are as in `Problem` and `Shrunk`; only `reached` classes, those below the roots, have members.
    """

    def __init__(self, problem: Problem):
        self.whole = problem
        self.costs = list(problem.costs)
        self.children = [set(children) for children in problem.children]
        self.class_of_choice = problem.class_of_choice
        self.members = [list(choices) for choices in problem.members]
        self.roots = dict.fromkeys(problem.roots)
        self.decided: dict[int, int] = {}
        self.paid_cost = 0.0
        self.reached: list[int] = []
        self._update_reached()

    @classmethod
    def of(cls, problem: Problem) -> _ShrinkingProblem:
        """Begin with the usable choices; raises ValueError where a root has no tree."""
        trees = greedy(problem)
        if any(root not in trees for root in problem.roots):
            raise ValueError(NO_PROGRAM)
        work = cls(problem)
        work.keep_usable(trees)
        return work

    def _problem(self) -> Problem:
        """Return the present problem."""
        return Problem(self.costs, self.children, self.class_of_choice, self.members, list(self.roots))

    def _update_reached(self) -> None:
        """Find the `reached` classes again, and forget the others."""
        order = dict.fromkeys(self.roots)
        stack = list(order)
        while stack:
            for choice in self.members[stack.pop()]:
                for child in sorted(self.children[choice]):
                    if child not in order:
                        order[child] = None
                        stack.append(child)
        for eclass in set(range(len(self.members))).difference(order):
            self.members[eclass] = []
        self.reached = list(order)

    def _components(self) -> dict[int, int]:
        """Return for each class the number of its strongly connected component."""
        components = strong_components(self._problem(), self.reached)
        return {eclass: number for number, part in enumerate(components) for eclass in part}

    def _readers(self) -> dict[int, list[int]]:
        """Return for each class the choices that read it."""
        readers: dict[int, list[int]] = {eclass: [] for eclass in self.reached}
        for eclass in self.reached:
            for choice in self.members[eclass]:
                for child in self.children[choice]:
                    readers[child].append(choice)
        return readers

    def keep_usable(self, trees: Selection) -> None:
        """Drop choices that read their own class or a class without a tree."""
        for eclass in self.reached:
            self.members[eclass] = [
                choice
                for choice in self.members[eclass]
                if eclass not in self.children[choice] and all(c in trees for c in self.children[choice])
            ]
        self._update_reached()

    def decide_free_classes(self) -> bool:
        """Decide classes whose cheapest tree costs nothing, and forget all reads of them.

        The tree of such a class reads only such classes, found before it, so no cycle leads through them.
        """
        problem = self._problem()
        trees = greedy(problem)
        totals = tree_costs(problem, trees)
        free = {eclass for eclass in self.reached if totals[eclass] == 0}
        for eclass in self.reached:
            for choice in self.members[eclass]:
                self.children[choice] -= free
        for eclass in free:
            self.decided[eclass] = trees[eclass]
            self.members[eclass] = []
            self.roots.pop(eclass, None)
        self.keep_usable(trees)
        return bool(free)

    def inline_single_choices(self) -> bool:
        """Replace reads of a class with one choice by reads of its children, if it is free or read once.

        A root is paid for in any case: first the cost of its cheapest choice is paid, and subtracted from all
        its choices, so that a root with one choice is free.
        """
        for eclass in self.roots:
            least = min(self.costs[choice] for choice in self.members[eclass])
            self.paid_cost += least
            for choice in self.members[eclass]:
                self.costs[choice] -= least
        readers = self._readers()
        changed = False
        for eclass in self.reached:
            if len(self.members[eclass]) != 1:
                continue
            (choice,) = self.members[eclass]
            reads, above = self.children[choice], readers[eclass]
            is_root = eclass in self.roots
            if eclass in reads:  # its only choice reads the class itself: no program has it
                continue
            if self.costs[choice] and (is_root or len(above) != 1):  # no single reader can take over the cost
                continue
            # a reads of this class and r by it become a * r reads: (a - 1) * (r - 1) - 1 more
            if (len(above) + is_root - 1) * (len(reads) - 1) > MAX_ADDED_READS:
                continue
            for reader in above:
                self.children[reader].discard(eclass)
                self.children[reader] |= reads
                self.costs[reader] += self.costs[choice]
            for child in reads:
                readers[child] = [n for n in readers[child] if n != choice]
                readers[child] += [n for n in above if n not in readers[child]]
            if is_root:
                del self.roots[eclass]
                self.roots.update(dict.fromkeys(sorted(reads)))
            self.decided[eclass] = choice
            self.members[eclass] = []
            changed = True
        if changed:
            self._update_reached()
        return changed

    def forget_paid_reads(self) -> bool:
        """Make the classes that every program needs roots, and forget reads of roots from other components.

        Such a read costs nothing more, and lies on no cycle.
        """
        needs = required_classes(self.children, self.members, self.reached)
        forced = 0  # the classes that every program needs, as bits
        for root in self.roots:
            forced |= needs[root]
        self.roots.update({eclass: None for eclass in self.reached if forced >> eclass & 1})
        component = self._components()
        changed = False
        for eclass in self.reached:
            for choice in self.members[eclass]:
                children = self.children[choice]
                paid = {c for c in children if c in self.roots and component[c] != component[eclass]}
                children -= paid
                changed |= bool(paid)
        return changed

    def drop_useless_choices(self, deadline: float = inf) -> bool:
        """Drop choices that cannot be used without a cycle, or that another of their class can replace."""
        needs = required_classes(self.children, self.members, self.reached)
        component, totals = self._components(), tree_costs(self._problem())
        dropped = set(_until_deadline(deadline, self._self_dependent(needs)))
        dropped |= set(_until_deadline(deadline, self._replaceable(needs, component, totals, dropped)))
        if not dropped:
            return False
        for eclass in self.reached:
            self.members[eclass] = [choice for choice in self.members[eclass] if choice not in dropped]
        self._update_reached()
        return True

    def _self_dependent(self, needs: Mapping[int, int]) -> Iterator[int]:
        """Yield choices that need their own class, or a set of classes that cuts it off from the roots.

        A program that uses the choice reads its class on some path from a root, and all classes on this path
        are computed from it: the choice cannot need them.  So where only two products read the product merged
        of them, it is never put together from these two.
        """
        above: dict[int, set[int]] = {eclass: set() for eclass in self.reached}
        for eclass in self.reached:
            for choice in self.members[eclass]:
                for child in self.children[choice]:
                    above[child].add(eclass)
        for eclass in self.reached:
            known: dict[int, bool] = {}  # by the set of classes that a choice needs
            for choice in self.members[eclass]:
                below = 0
                for child in self.children[choice]:
                    below |= needs[child]
                if below not in known:
                    known[below] = self._is_cut_off(eclass, below, above)
                if known[below]:
                    yield choice

    def _is_cut_off(self, eclass: int, below: int, above: Mapping[int, Iterable[int]]) -> bool:
        """Return whether every path from the roots to a class leads through the set `below`."""
        if below >> eclass & 1:
            return True
        stack, seen = [eclass], {eclass}
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
        component: Mapping[int, int],
        totals: Sequence[float],
        dropped: Collection[int],
    ) -> Iterator[int]:
        """Yield choices that a substitute of their class can always replace; of two equal ones the second.

        The substitute may read all classes that the children of the choice always need: they are below the
        class in any program that uses the choice, so that reading them closes no cycle.  It may also read
        classes of other components, for which the cost of their trees is added.

        needs      for each class the classes that all of its programs use, as bits
        component  the strongly connected component of each class
        totals     the cost of the cheapest tree of each class
        dropped    choices that are dropped already
        """
        for eclass in self.reached:
            rows = []
            for choice in self.members[eclass]:
                if choice not in dropped:
                    reads = below = 0
                    for child in self.children[choice]:
                        reads |= 1 << child
                        below |= needs[child]
                    rows.append(_RatedChoice(self.costs[choice], reads.bit_count(), choice, reads, below))
            rows.sort()
            kept: list[_RatedChoice] = []  # possible substitutes, cheapest first
            # drop a choice if a cheaper one reads only what this one needs too, or pays for trees of the rest
            for row in rows:
                if any(not other.reads & ~row.needs for other in kept) or any(
                    self._can_replace(eclass, other, row, component, totals)
                    for other in kept[:MAX_SUBSTITUTES]
                ):
                    yield row.choice
                else:
                    kept.append(row)

    def _can_replace(
        self,
        eclass: int,
        substitute: _RatedChoice,
        choice: _RatedChoice,
        component: Mapping[int, int],
        totals: Sequence[float],
    ) -> bool:
        """Return whether the substitute costs no more, with trees for classes that the choice does not need.

        Such a class in the component of `eclass` might close a cycle.
        """
        cost = substitute.cost
        for child in set_bits(substitute.reads & ~choice.needs):
            cost += totals[child]
            if cost > choice.cost or component[child] == component[eclass]:
                return False
        return True

    def renumbered(self) -> Shrunk:
        """Return the smaller problem, its choices and classes numbered anew."""
        place = {eclass: k for k, eclass in enumerate(self.reached)}
        choices = [choice for eclass in self.reached for choice in self.members[eclass]]
        numbers = count()
        smaller = Problem(
            costs=[self.costs[choice] for choice in choices],
            children=[tuple(sorted(place[c] for c in self.children[choice])) for choice in choices],
            class_of_choice=[place[self.class_of_choice[choice]] for choice in choices],
            members=[[next(numbers) for _ in self.members[eclass]] for eclass in self.reached],
            roots=sorted(place[root] for root in self.roots),
        )
        return Shrunk(smaller, self.whole, choices, self.reached, self.decided, self.paid_cost)


def _until_deadline(deadline: float, choices: Iterable[int]) -> Iterator[int]:
    """Yield the choices that are found before the deadline."""
    for each in choices:
        if monotonic() > deadline:
            return
        yield each
