"""Improves a selection by hill climbing, with moves that change several e-classes together.

Two products that a merged product could replace gain nothing one by one: the first to change pays for the
whole merged product, so no greedy search ever takes it.  A *move* therefore brings a shared e-class into the
program by several *switches* at once: each e-class in use that has a choice which reads the shared e-class
switches to that choice.

    x @ a, x @ b                                   the classes in use, each with two choices
    split(x @ [a b])[0], split(x @ [a b])[1]       after the move to the shared class split(x @ [a b])

Switches are {e-class: its new choice}, see `problem`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost, keep_needed
from tensaurus.system.garbage_collector import pause_collector

__all__ = ["improve_selection", "quick_extraction"]

MIN_GAIN_SHARE = 1e-9  # a better selection is cheaper by at least this share of the cost
REMOVED = -1  # in place of the new choice of a class: the class is removed


def improve_selection(
    problem: Problem, selection: Selection, deadline: float = inf, trees: Selection | None = None
) -> dict[int, int]:
    """Return a selection of at most the same cost that no single move makes cheaper.

    At the `deadline` (of `time.monotonic`) the best selection so far is returned.  `trees` are the cheapest
    trees, if they are known already.
    """
    return _HillClimb(problem, greedy(problem) if trees is None else trees, deadline).climb(selection)


@dataclass
class _HillClimb:
    """Climbs from a selection by moves until none gains.

    Where moves exclude each other, the first one that gains may be the wrong one: merging the two products of
    every sum, for instance, where merging the products of many sums over one weight gains more.  So three
    orders are tried.  Of moves of equal gain, that to the youngest class (of the largest number) may lead to
    the widest merged product.
    """

    problem: Problem
    trees: Selection
    deadline: float

    def __post_init__(self) -> None:
        self.shared_classes = _SharedClasses(self.problem)
        self._first: _Program | None = None

    def climb(self, selection: Selection) -> dict[int, int]:
        """Climb in all three orders of moves, and go on from the best result until no move gains."""
        start = keep_needed(self.problem, selection)
        ends = [
            self.climb_steepest(start, oldest_first=True),
            self.climb_steepest(start, oldest_first=False),
            self.climb_in_order(start),
        ]
        best = min(ends, key=lambda end: _total(self.problem, end))
        while (improved := self.switch_single_classes(best)) is not best:
            best = self.climb_in_order(improved)
        return best

    def climb_steepest(self, start: dict[int, int], oldest_first: bool) -> dict[int, int]:
        """Make the move of most gain first; of equals that to the oldest class, or to the youngest.

        Moves change the gains of others: each is computed again when it comes up, and may go back.
        """
        program = self._program(start)
        grain = program.cost * MIN_GAIN_SHARE  # changes that differ by less are equal in the queue
        sign = 1 if oldest_first else -1
        while True:
            has_moved = False
            queue = []  # (change when tried, sign * class)
            for shared in self.shared_classes.find_movable(program.selection):
                if monotonic() > self.deadline:
                    return program.selection
                if (change := self._change_by_move(program, shared)) < -grain:
                    queue.append((round(change / grain), sign * shared))
            heapify(queue)
            while queue:
                if monotonic() > self.deadline:
                    return program.selection
                shared = sign * heappop(queue)[1]
                if (change := self._change_by_move(program, shared)) >= -program.cost * MIN_GAIN_SHARE:
                    continue
                if queue and (entry := (round(change / grain), sign * shared)) > queue[0]:
                    heappush(queue, entry)
                elif moved := self._move(program, shared):
                    program, has_moved = moved, True
            if not has_moved:
                return program.selection

    def climb_in_order(self, start: dict[int, int]) -> dict[int, int]:
        """Make every move that gains, in the order of the classes, round after round."""
        program = self._program(start)
        has_moved = True
        while has_moved:
            has_moved = False
            for shared in sorted(self.shared_classes.find_movable(program.selection)):
                if monotonic() > self.deadline:
                    return program.selection
                if self._change_by_move(program, shared) < -program.cost * MIN_GAIN_SHARE and (
                    moved := self._move(program, shared)
                ):
                    program, has_moved = moved, True
        return program.selection

    def switch_single_classes(self, start: dict[int, int]) -> dict[int, int]:
        """Switch single classes: children that others read anyway cost less than their trees suggest.

        First a lower bound of the change is compared: the old choice goes, one path of new classes comes.
        """
        costs, children = self.problem.costs, self.problem.children
        program = self._program(start)
        least_costs = self._least_costs(start)
        for eclass in sorted(start):
            if eclass not in program.selection:
                continue
            if monotonic() > self.deadline:
                return program.selection
            # the change where the class goes, and all that it alone reads
            removal = program.change_by({eclass: REMOVED}) + program.cost * MIN_GAIN_SHARE
            for choice in self.problem.members[eclass]:
                least = max([least_costs.get(child, inf) for child in children[choice]], default=0.0)
                if costs[choice] + least + removal >= 0:
                    continue
                if program.change_by({eclass: choice}) < -program.cost * MIN_GAIN_SHARE and (
                    switched := self._switch_if_cheaper(program, {eclass: choice})
                ):
                    program, least_costs = switched, self._least_costs(switched.selection)
                    if eclass not in program.selection:
                        break
                    removal = program.change_by({eclass: REMOVED}) + program.cost * MIN_GAIN_SHARE
        return program.selection

    def _least_costs(self, selection: Selection) -> dict[int, float]:
        """Return for each class a bound of the cost to add it: one path of its tree, to classes in use."""
        costs, children = self.problem.costs, self.problem.children
        least_costs: dict[int, float] = {}
        for eclass, choice in self.trees.items():  # children first
            if eclass in selection:
                least_costs[eclass] = 0.0
            else:
                least_costs[eclass] = costs[choice] + max(
                    [least_costs[child] for child in children[choice]], default=0.0
                )
        return least_costs

    def _program(self, selection: dict[int, int]) -> _Program:
        """Return the program of a selection, from which moves are rated."""
        if self._first is not None and self._first.selection is selection:  # every climb begins there
            return self._first
        self.shared_classes.admit(selection)
        program = _Program(self.problem, selection, self.trees)
        self._first = self._first or program
        return program

    def _change_by_move(self, program: _Program, shared: int) -> float:
        """Return the change of the cost by the move to a shared class; 0 where the move switches nothing."""
        change = program.changes.get(shared)
        if change is None:
            switches = self.shared_classes.switches_to(shared, program.selection)
            change = program.changes[shared] = program.change_by(switches) if switches else 0.0
        return change

    def _move(self, program: _Program, shared: int) -> _Program | None:
        switches = self.shared_classes.switches_to(shared, program.selection)
        return self._switch_if_cheaper(program, switches)

    def _switch_if_cheaper(self, program: _Program, switches: Mapping[int, int]) -> _Program | None:
        """Return the program after the switches if it is complete, without a cycle, and cheaper."""
        switched = _switch(self.problem, program.selection, switches, self.trees)
        if not switched or _total(self.problem, switched) >= program.cost * (1 - MIN_GAIN_SHARE):
            return None
        return self._program(switched)


class _SharedClasses:
    """Holds for each class the classes that could read it, with their cheapest choices that do.

    Classes that were in use once stay here; callers pass the selection of the classes in use now.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        # {shared class: {class that could read it: its cheapest choice that does}}
        self.reading_choices: dict[int, dict[int, int]] = {}
        self._admitted: set[int] = set()

    def admit(self, eclasses: Iterable[int]) -> None:
        """Add classes that have come into use."""
        costs, children = self.problem.costs, self.problem.children
        for eclass in eclasses:
            if eclass in self._admitted:
                continue
            self._admitted.add(eclass)
            for choice in self.problem.members[eclass]:
                for child in children[choice]:
                    reading = self.reading_choices.setdefault(child, {})
                    if eclass not in reading or costs[choice] < costs[reading[eclass]]:
                        reading[eclass] = choice

    def switches_to(self, shared: int, selection: Selection) -> dict[int, int]:
        """Return the switches by which classes in use come to read `shared`.

        They are {} where fewer than two classes could read it, or all of these do already.
        """
        reading = self.reading_choices[shared]
        switches = {eclass: choice for eclass, choice in reading.items() if eclass in selection}
        if len(switches) < 2 or all(selection[eclass] == choice for eclass, choice in switches.items()):
            return {}
        return switches

    def find_movable(self, selection: Selection) -> list[int]:
        """Return the shared classes to which `switches_to` gives switches."""
        movable = []
        for shared, reading in self.reading_choices.items():
            if len(reading) > 1:
                switches = [selection[e] != choice for e, choice in reading.items() if e in selection]
                if len(switches) > 1 and any(switches):
                    movable.append(shared)
        return movable


class _Program:
    """A program from which moves begin: a selection with its cost and the number of reads of each class."""

    def __init__(self, problem: Problem, selection: dict[int, int], trees: Selection):
        self.problem, self.selection, self.trees = problem, selection, trees
        self.cost = _total(problem, selection)
        self.changes: dict[int, float] = {}  # the change of the cost by the move to a shared class
        self.reads = Counter(problem.roots)
        for choice in selection.values():
            self.reads.update(problem.children[choice])

    def change_by(self, switches: Mapping[int, int]) -> float:
        """Return the change of the cost by switches, cycles not excluded; infinity where there is no program.

        Reads are counted: a class that becomes read comes in by its cheapest tree, a class that is read no
        more goes.
        """
        costs, children = self.problem.costs, self.problem.children
        selection, trees = self.selection, self.trees
        now: dict[int, int] = {}  # present reads of classes that were touched
        current: dict[int, int] = {}  # choices of classes that were switched or came in
        change = 0.0
        read: list[int] = []  # classes with one more read, once for each
        release: list[int] = []  # classes with one read less
        for eclass, choice in switches.items():
            old = selection[eclass]
            if old != choice:
                change -= costs[old]
                release += children[old]
                if choice != REMOVED:
                    current[eclass] = choice
                    change += costs[choice]
                    read += children[choice]
        reads = self.reads
        # reads before releases, so that no class goes that a switched class still needs
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
                    gone = selection[child]
                change -= costs[gone]
                release += children[gone]
        return change


def _switch(
    problem: Problem, selection: Selection, switches: Mapping[int, int], trees: Selection
) -> dict[int, int] | None:
    """Return the selection after the switches, new classes by their cheapest trees; None for no program."""
    switched: dict[int, int] = {}
    is_done: dict[int, bool] = {}  # False while the classes below are visited
    stack = list(problem.roots)
    while stack:
        eclass = stack[-1]
        if eclass in is_done:
            stack.pop()
            is_done[eclass] = True
            continue
        is_done[eclass] = False
        choice = switches.get(eclass)
        if choice is None:
            choice = selection.get(eclass, trees.get(eclass))
        if choice is None:  # a class that needs itself
            return None
        switched[eclass] = choice
        for child in problem.children[choice]:
            done = is_done.get(child)
            if done is None:
                stack.append(child)
            elif not done:
                return None
    return switched


def _total(problem: Problem, selection: Selection) -> float:
    return sum(problem.costs[choice] for choice in selection.values()) if selection else inf


@pause_collector()
def quick_extraction(
    problem: Problem, start: Selection | None = None, deadline: float = inf
) -> dict[int, int]:
    """Return a good selection within about a second, without a proof: the cheapest trees, improved by moves.

    The search also climbs from `start`, a selection to beat, if it has no cycle and is complete.  To begin
    with `greedy_dag` instead of trees takes longer, and the results after the moves are no better.
    """
    climb = _HillClimb(problem, greedy(problem), deadline)
    starts = [climb.trees] if start is None or not problem.order(start) else [climb.trees, start]
    return min(map(climb.climb, starts), key=lambda selection: dag_cost(problem, selection))
