"""A better choice from a good one, by moves that several classes make together.

Two products that a merged product could replace gain nothing alone: the first to move pays for all of it, so
no greedy choice ever takes it.  A move therefore brings a class into the program and turns every class to it
that could read it, at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost, needed
from tensaurus.system.garbage_collector import collector_resting

__all__ = ["improved", "quick"]

GAIN = 1e-9  # a better choice is cheaper by at least this share


def improved(
    problem: Problem, choice: Choice, deadline: float = inf, trees: Choice | None = None
) -> dict[int, int]:
    """A choice at most as dear, that no single move makes cheaper, or as far as one comes until the deadline.

    `deadline` is of `time.monotonic`; `trees` are the cheapest ones, where they are known.
    """
    return _Climb(problem, greedy(problem) if trees is None else trees, deadline).fully(choice)


@dataclass
class _Climb:
    """Moves from a choice until none gains.

    Where moves exclude each other, the first one that gains anything can be the wrong one: merging the two
    products of every sum, for instance, where merging products over one weight, of many sums, gains more.
    Of moves that gain the same, the one to the youngest class may be that to the widest merged product.
    """

    problem: Problem
    trees: Choice
    deadline: float

    def __post_init__(self) -> None:
        self.offers = _Offers(self.problem)
        self._first: _Standing | None = None

    def fully(self, choice: Choice) -> dict[int, int]:
        """Every way up from a choice, until no move gains."""
        begun = needed(self.problem, choice)
        ends = [self.steeply(begun, 1), self.steeply(begun, -1), self.anyhow(begun)]
        best = min(ends, key=lambda better: _total(self.problem, better))
        while (alone := self.singly(best)) is not best:
            best = self.anyhow(alone)
        return best

    def steeply(self, begun: dict[int, int], age: int) -> dict[int, int]:
        """The move that gains most first, of equals that to the oldest class (age 1) or the youngest (-1)."""
        problem = self.problem
        best, cost = begun, _total(problem, begun)
        grain = cost * GAIN
        while True:
            standing, moved = self._standing(best), False
            queue = []  # by what they gained when tried
            for shared in self.offers.turnable(best):
                if monotonic() > self.deadline:
                    return best
                if (change := self._change(standing, shared)) < -grain:
                    queue.append((round(change / grain), age * shared))
            heapify(queue)
            while queue:
                if monotonic() > self.deadline:
                    return best
                shared = age * heappop(queue)[1]
                if (change := self._change(standing, shared)) >= -cost * GAIN:
                    continue
                if queue and (entry := (round(change / grain), age * shared)) > queue[0]:
                    heappush(queue, entry)
                elif made := self._turned(standing, shared, cost):
                    best, cost, moved = made, _total(problem, made), True
                    standing = self._standing(best)
            if not moved:
                return best

    def anyhow(self, begun: dict[int, int]) -> dict[int, int]:
        """Every move that gains, in the order of the classes, round after round."""
        best, cost = begun, _total(self.problem, begun)
        moved = True
        while moved:
            standing, moved = self._standing(best), False
            for shared in sorted(self.offers.turnable(best)):
                if monotonic() > self.deadline:
                    return best
                if self._change(standing, shared) < -cost * GAIN and (
                    made := self._turned(standing, shared, cost)
                ):
                    best, cost, moved = made, _total(self.problem, made), True
                    standing = self._standing(best)
        return best

    def singly(self, begun: dict[int, int]) -> dict[int, int]:
        """Every class by itself: what others read anyway is cheaper than its tree made it look."""
        problem, costs, children = self.problem, self.problem.costs, self.problem.children
        best, cost = begun, _total(problem, begun)
        standing, comes = self._standing(best), self._comes(best)
        for group in sorted(begun):
            if group not in best:
                continue
            if monotonic() > self.deadline:
                return best
            goes = standing.change({group: -1}) + cost * GAIN
            for number in problem.members[group]:
                least = max([comes.get(child, inf) for child in children[number]], default=0.0)
                if costs[number] + least + goes >= 0:
                    continue
                if standing.change({group: number}) < -cost * GAIN and (
                    made := self._cheaper(standing, {group: number}, cost)
                ):
                    best, cost = made, _total(problem, made)
                    standing, comes = self._standing(best), self._comes(best)
                    if group not in best:
                        break
                    goes = standing.change({group: -1}) + cost * GAIN
        return best

    def _comes(self, best: Choice) -> dict[int, float]:
        """Of each class, what it costs at least to have it: one path of its tree, down to what is in use."""
        costs, children = self.problem.costs, self.problem.children
        comes: dict[int, float] = {}
        for group, number in self.trees.items():  # children first
            if group in best:
                comes[group] = 0.0
            else:
                comes[group] = costs[number] + max([comes[child] for child in children[number]], default=0.0)
        return comes

    def _standing(self, best: Choice) -> _Standing:
        if self._first is not None and self._first.best is best:  # every climb begins there
            return self._first
        self.offers.admit(best)
        standing = _Standing(self.problem, best, self.trees)
        self._first = self._first or standing
        return standing

    def _change(self, standing: _Standing, shared: int) -> float:
        """What the move to a class changes of the cost; 0 where it turns nothing."""
        change = standing.changes.get(shared)
        if change is None:
            turns = self.offers.turns(shared, standing.best)
            change = standing.changes[shared] = standing.change(turns) if turns else 0.0
        return change

    def _turned(self, standing: _Standing, shared: int, cost: float) -> dict[int, int] | None:
        return self._cheaper(standing, self.offers.turns(shared, standing.best), cost)

    def _cheaper(self, standing: _Standing, turns: Mapping[int, int], cost: float) -> dict[int, int] | None:
        """The choice after the turns, where it is one and costs less."""
        made = _resolved(self.problem, standing.best, turns, self.trees)
        return made if made is not None and _total(self.problem, made) < cost * (1 - GAIN) else None


class _Offers:
    """Of each class that could serve several, those in use that could read it, and each one's cheapest way.

    What was in use once stays: `best` says what is.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.known: dict[int, dict[int, int]] = {}
        self._admitted: set[int] = set()

    def admit(self, groups: Iterable[int]) -> None:
        """Classes that have come into use."""
        costs, children = self.problem.costs, self.problem.children
        for group in groups:
            if group in self._admitted:
                continue
            self._admitted.add(group)
            for number in self.problem.members[group]:
                for child in children[number]:
                    known = self.known.setdefault(child, {})
                    if group not in known or costs[number] < costs[known[group]]:
                        known[group] = number

    def turns(self, shared: int, best: Choice) -> dict[int, int]:
        """The classes in use that could read this one, and how; none where fewer than two, or all do."""
        turns = {group: number for group, number in self.known[shared].items() if group in best}
        if len(turns) < 2 or all(best[group] == number for group, number in turns.items()):
            return {}
        return turns

    def turnable(self, best: Choice) -> list[int]:
        """Classes that two or more of the classes in use could read, and do not all."""
        turnable = []
        for shared, known in self.known.items():
            if len(known) > 1:
                used = [best[group] != number for group, number in known.items() if group in best]
                if len(used) > 1 and any(used):
                    turnable.append(shared)
        return turnable


class _Standing:
    """A program that moves begin from, and how often each of its classes is read."""

    def __init__(self, problem: Problem, best: Choice, trees: Choice):
        self.problem, self.best, self.trees = problem, best, trees
        self.changes: dict[int, float] = {}  # by the class that is turned to
        self.reads = Counter(problem.roots)
        for number in best.values():
            self.reads.update(problem.children[number])

    def change(self, turns: Mapping[int, int]) -> float:
        """What the turns change of its cost, unless they close a cycle; infinite where there is no program.

        Reads are counted: what is read first comes in by its cheapest tree, what is read no more goes. A turn
        to -1 is one to nothing.
        """
        costs, children, best, trees = self.problem.costs, self.problem.children, self.best, self.trees
        now: dict[int, int] = {}  # reads of what was touched
        current: dict[int, int] = {}  # choices of what turned, and of what came in
        change = 0.0
        read: list[int] = []
        release: list[int] = []
        for group, number in turns.items():
            old = best[group]
            if old != number:
                change -= costs[old]
                release += children[old]
                if number >= 0:
                    current[group] = number
                    change += costs[number]
                    read += children[number]
        reads = self.reads
        while read:
            child = read.pop()
            count = now.get(child)
            if count is None:
                count = reads.get(child, 0)
                if not count:
                    tree = trees.get(child)
                    if tree is None:  # a class that needs itself
                        return inf
                    current[child] = tree
                    change += costs[tree]
                    read += children[tree]
            now[child] = count + 1
        while release:
            child = release.pop()
            count = now.get(child)
            if count is None:
                count = reads[child]
            now[child] = count - 1
            if count == 1:
                gone = current.get(child)
                if gone is None:
                    gone = best[child]
                change -= costs[gone]
                release += children[gone]
        return change


def _resolved(
    problem: Problem, best: Choice, turns: Mapping[int, int], trees: Choice
) -> dict[int, int] | None:
    """The choice after the turns, what is new below them by the cheapest trees; None where there is none."""
    chosen: dict[int, int] = {}
    state: dict[int, bool] = {}  # false while below it is looked at
    stack = list(problem.roots)
    while stack:
        group = stack[-1]
        if group in state:
            stack.pop()
            state[group] = True
            continue
        state[group] = False
        number = turns.get(group)
        if number is None:
            number = best.get(group, trees.get(group))
        if number is None:  # a class that needs itself
            return None
        chosen[group] = number
        for child in problem.children[number]:
            seen = state.get(child)
            if seen is None:
                stack.append(child)
            elif not seen:
                return None
    return chosen


def _total(problem: Problem, choice: Choice) -> float:
    return sum(problem.costs[number] for number in choice.values()) if choice else inf


@collector_resting()
def quick(problem: Problem, start: Choice | None = None, deadline: float = inf) -> dict[int, int]:
    """A good choice in a second or so, no proof: the cheapest trees, then moves.

    `start` is a choice to beat, if it has no cycle and is complete: moves are made from it too.  Trees that
    count what is shared once (`greedy_dag`) take longer, and end no better after the moves.
    """
    climb = _Climb(problem, greedy(problem), deadline)
    begun = [climb.trees] if start is None or not problem.order(start) else [climb.trees, start]
    return min(map(climb.fully, begun), key=lambda choice: dag_cost(problem, choice))
