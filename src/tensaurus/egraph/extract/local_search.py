"""Improves a choice by hill climbing, with moves that change several classes together.

Two products that a merged product could replace gain nothing one by one: the first to change pays for the
whole merged product, so no greedy choice ever takes it.  A *move* therefore brings a shared class into the
program by several *turns* at once: each class in use that could read the shared class gets a choice that
does.  `turns` and other choices are {class: number of its e-node}, as in `problem`.
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
from tensaurus.system.garbage_collector import pause_collector

__all__ = ["improve_choice", "quick_extraction"]

MIN_GAIN_SHARE = 1e-9  # a better choice is cheaper by at least this share of the cost


def improve_choice(
    problem: Problem, choice: Choice, deadline: float = inf, trees: Choice | None = None
) -> dict[int, int]:
    """Return a choice of at most the same cost that no single move makes cheaper.

    At the `deadline` (of `time.monotonic`) the best choice so far is returned.  `trees` are the cheapest
    trees, if they are known already.
    """
    return _HillClimb(problem, greedy(problem) if trees is None else trees, deadline).climb(choice)


@dataclass
class _HillClimb:
    """Climbs from a choice by moves until none gains.

    Where moves exclude each other, the first one that gains may be the wrong one: merging the two products of
    every sum, for instance, where merging the products of many sums over one weight gains more.  So three
    orders are tried.  Of moves of equal gain, that to the youngest class (of the largest number) may lead to
    the widest merged product.
    """

    problem: Problem
    trees: Choice
    deadline: float

    def __post_init__(self) -> None:
        self.shared_classes = _SharedClasses(self.problem)
        self._first: _ProgramState | None = None

    def climb(self, choice: Choice) -> dict[int, int]:
        """Climb in all three orders of moves, and go on from the best result until no move gains."""
        begun = needed(self.problem, choice)
        ends = [self.climb_steepest(begun, 1), self.climb_steepest(begun, -1), self.climb_in_order(begun)]
        best = min(ends, key=lambda better: _total(self.problem, better))
        while (alone := self.move_single_classes(best)) is not best:
            best = self.climb_in_order(alone)
        return best

    def climb_steepest(self, begun: dict[int, int], age: int) -> dict[int, int]:
        """Make the move of most gain first; of equals that to the oldest class (age 1) or youngest (-1).

        Moves change the gains of others: each is computed again when it comes up, and may go back.
        """
        problem = self.problem
        best, cost = begun, _total(problem, begun)
        grain = cost * MIN_GAIN_SHARE  # changes that differ by less are equal in the queue
        while True:
            state, moved = self._state_of(best), False
            queue = []  # (change when tried, age * class)
            for shared in self.shared_classes.turnable(best):
                if monotonic() > self.deadline:
                    return best
                if (change := self._cost_change(state, shared)) < -grain:
                    queue.append((round(change / grain), age * shared))
            heapify(queue)
            while queue:
                if monotonic() > self.deadline:
                    return best
                shared = age * heappop(queue)[1]
                if (change := self._cost_change(state, shared)) >= -cost * MIN_GAIN_SHARE:
                    continue
                if queue and (entry := (round(change / grain), age * shared)) > queue[0]:
                    heappush(queue, entry)
                elif made := self._move(state, shared, cost):
                    best, cost, moved = made, _total(problem, made), True
                    state = self._state_of(best)
            if not moved:
                return best

    def climb_in_order(self, begun: dict[int, int]) -> dict[int, int]:
        """Make every move that gains, in the order of the classes, round after round."""
        best, cost = begun, _total(self.problem, begun)
        moved = True
        while moved:
            state, moved = self._state_of(best), False
            for shared in sorted(self.shared_classes.turnable(best)):
                if monotonic() > self.deadline:
                    return best
                if self._cost_change(state, shared) < -cost * MIN_GAIN_SHARE and (
                    made := self._move(state, shared, cost)
                ):
                    best, cost, moved = made, _total(self.problem, made), True
                    state = self._state_of(best)
        return best

    def move_single_classes(self, begun: dict[int, int]) -> dict[int, int]:
        """Change single classes: children that others read anyway cost less than their trees suggest.

        First a lower bound of the change: the old choice goes, one path of new classes comes.
        """
        problem, costs, children = self.problem, self.problem.costs, self.problem.children
        best, cost = begun, _total(problem, begun)
        state, least_costs = self._state_of(best), self._least_costs(best)
        for group in sorted(begun):
            if group not in best:
                continue
            if monotonic() > self.deadline:
                return best
            goes = state.change({group: -1}) + cost * MIN_GAIN_SHARE  # class and what it alone reads go
            for number in problem.members[group]:
                least = max([least_costs.get(child, inf) for child in children[number]], default=0.0)
                if costs[number] + least + goes >= 0:
                    continue
                if state.change({group: number}) < -cost * MIN_GAIN_SHARE and (
                    made := self._if_cheaper(state, {group: number}, cost)
                ):
                    best, cost = made, _total(problem, made)
                    state, least_costs = self._state_of(best), self._least_costs(best)
                    if group not in best:
                        break
                    goes = state.change({group: -1}) + cost * MIN_GAIN_SHARE
        return best

    def _least_costs(self, best: Choice) -> dict[int, float]:
        """Return for each class a bound of the cost to add it: one path of its tree, to classes in use."""
        costs, children = self.problem.costs, self.problem.children
        least_costs: dict[int, float] = {}
        for group, number in self.trees.items():  # children first
            if group in best:
                least_costs[group] = 0.0
            else:
                least_costs[group] = costs[number] + max(
                    [least_costs[child] for child in children[number]], default=0.0
                )
        return least_costs

    def _state_of(self, best: Choice) -> _ProgramState:
        """Return the state that rates the moves from `best`."""
        if self._first is not None and self._first.best is best:  # every climb begins there
            return self._first
        self.shared_classes.admit(best)
        state = _ProgramState(self.problem, best, self.trees)
        self._first = self._first or state
        return state

    def _cost_change(self, state: _ProgramState, shared: int) -> float:
        """Return the change of the cost by the move to a shared class; 0 where the move turns nothing."""
        change = state.changes.get(shared)
        if change is None:
            turns = self.shared_classes.turns(shared, state.best)
            change = state.changes[shared] = state.change(turns) if turns else 0.0
        return change

    def _move(self, state: _ProgramState, shared: int, cost: float) -> dict[int, int] | None:
        return self._if_cheaper(state, self.shared_classes.turns(shared, state.best), cost)

    def _if_cheaper(
        self, state: _ProgramState, turns: Mapping[int, int], cost: float
    ) -> dict[int, int] | None:
        """Return the choice after the turns if it is complete, without a cycle, and cheaper; else None."""
        made = _apply_turns(self.problem, state.best, turns, self.trees)
        return made if made is not None and _total(self.problem, made) < cost * (1 - MIN_GAIN_SHARE) else None


class _SharedClasses:
    """Holds for each class the classes that could read it, with their cheapest choices that do.

    Classes that were in use once stay here; callers pass `best`, which holds the classes in use now.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.known: dict[int, dict[int, int]] = {}  # {class: {class that could read it: choice that does}}
        self._admitted: set[int] = set()

    def admit(self, groups: Iterable[int]) -> None:
        """Add classes that have come into use."""
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
        """Return the choices by which classes in use could read `shared`; {} if fewer than two, or all do."""
        turns = {group: number for group, number in self.known[shared].items() if group in best}
        if len(turns) < 2 or all(best[group] == number for group, number in turns.items()):
            return {}
        return turns

    def turnable(self, best: Choice) -> list[int]:
        """Return the classes that two or more classes in use could read, and not all of these read."""
        turnable = []
        for shared, known in self.known.items():
            if len(known) > 1:
                used = [best[group] != number for group, number in known.items() if group in best]
                if len(used) > 1 and any(used):
                    turnable.append(shared)
        return turnable


class _ProgramState:
    """A program from which moves begin, with the number of reads of each class."""

    def __init__(self, problem: Problem, best: Choice, trees: Choice):
        self.problem, self.best, self.trees = problem, best, trees
        self.changes: dict[int, float] = {}  # the change of the cost by the move to a shared class
        self.reads = Counter(problem.roots)
        for number in best.values():
            self.reads.update(problem.children[number])

    def change(self, turns: Mapping[int, int]) -> float:
        """Return the change of the cost by turns, cycles not excluded; infinity where there is no program.

        Reads are counted: a class that becomes read comes in by its cheapest tree, a class that is read no
        more goes.  A turn to -1 removes the class.
        """
        costs, children, best, trees = self.problem.costs, self.problem.children, self.best, self.trees
        now: dict[int, int] = {}  # present reads of classes that were touched
        current: dict[int, int] = {}  # choices of classes that were turned or came in
        change = 0.0
        read: list[int] = []  # classes with one more read, once for each
        release: list[int] = []  # classes with one read less
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
        # reads before releases, so that no class goes that a turn still needs
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
            if count == 1:  # the last read: the class goes, and its own reads
                gone = current.get(child)
                if gone is None:
                    gone = best[child]
                change -= costs[gone]
                release += children[gone]
        return change


def _apply_turns(
    problem: Problem, best: Choice, turns: Mapping[int, int], trees: Choice
) -> dict[int, int] | None:
    """Return the choice after the turns, new classes by their cheapest trees; None if that is no program."""
    chosen: dict[int, int] = {}
    state: dict[int, bool] = {}  # False while the classes below are visited
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


@pause_collector()
def quick_extraction(problem: Problem, start: Choice | None = None, deadline: float = inf) -> dict[int, int]:
    """Return a good choice within about a second, without a proof: the cheapest trees, improved by moves.

    The search also climbs from `start`, a choice to beat, if it has no cycle and is complete.  To begin with
    `greedy_dag` instead of trees takes longer, and the results after the moves are no better.
    """
    climb = _HillClimb(problem, greedy(problem), deadline)
    begun = [climb.trees] if start is None or not problem.order(start) else [climb.trees, start]
    return min(map(climb.climb, begun), key=lambda choice: dag_cost(problem, choice))
