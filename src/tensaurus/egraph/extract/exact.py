"""Exact extraction: the cheapest program of an e-graph, cycles and all, and a proof that none is cheaper.

The problem is shrunk, and what is left falls into parts that share nothing.  Of each part the linear
relaxation with rows for cycles and covers gives a bound, and often the cheapest program.  What the bound
shows to be too dear is dropped, and what is left is a problem again; otherwise CP-SAT finishes it.
No cycle needs to be filtered during exploration, as in TENSAT (section 5.2).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.egraph.extract.cpsat import CpSat
from tensaurus.egraph.extract.formulation import Cycles, Formulation, formulate, supports
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.independent_blocks import Block, blocks
from tensaurus.egraph.extract.linear_relaxation import relax
from tensaurus.egraph.extract.local_search import improve_choice
from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost, needed
from tensaurus.egraph.extract.shrink_problem import Shrunk, shrink, unshrunk

__all__ = ["Cycles", "Extraction", "solve"]

FEWER = 0.1  # of the choices may go for being too dear: then the problem is shrunk again
PROVED = 1e-6  # a gap that counts as none: costs are measured, and solvers have tolerances
LONG = 1e6  # seconds; the solvers count milliseconds


@dataclass(frozen=True)
class Extraction:
    """A choice without a cycle, and how good it is: no program costs less than `bound`."""

    choice: dict[int, int]  # of the classes that the roots need
    cost: float
    bound: float
    seconds: float
    rounds: int  # linear and integer programs solved

    @property
    def gap(self) -> float:
        """By what part of its cost it may be too dear."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no program is cheaper, within a millionth."""
        return self.gap <= PROVED


def solve(
    problem: Problem,
    *,
    cycles: Cycles = "components",
    time_limit: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    start: Choice | None = None,
    shrunk: bool = True,
) -> Extraction:
    """The cheapest program, or the best found within the time limit (seconds), and a bound.

    cycles   "components": orders inside components and rows for cycles; "cuts": such rows alone, added as
             they are broken; "order": an order of all classes (the paper's program); "none": cycles are not
             kept out, a program that has one is repaired and need not be the cheapest
    workers  threads of CP-SAT; with one, equal calls give equal answers unless the time limit is met
    start    a choice to begin with, if it has no cycle and is complete
    shrunk   false: the problem as it is

    Raises ValueError where the roots have no program.
    """
    began = monotonic()
    deadline = began + min(time_limit, LONG)
    whole = _Whole.of(problem, start, cycles, shrunk, deadline)
    whole.improve(_Search(cycles, shrunk, workers, seed % 2**31), deadline)
    choice = whole.choice()
    cost = dag_cost(problem, choice)
    if cost == inf:
        raise AssertionError("a cyclic or incomplete choice")
    return Extraction(choice, cost, min(cost, whole.bound()), monotonic() - began, whole.rounds())


@dataclass
class _Whole:
    """A problem that is solved in parts."""

    smaller: Shrunk
    parts: list[_Part]

    @classmethod
    def of(
        cls, problem: Problem, start: Choice | None, cycles: Cycles, shrunk: bool, deadline: float
    ) -> _Whole:
        """Raises ValueError where the roots have no program."""
        smaller = shrink(problem, (monotonic() + deadline) / 2) if shrunk else unshrunk(problem)
        left = smaller.problem
        places = [[list(range(len(left.costs)))], [list(range(len(left.members)))]]
        parts = blocks(left) if shrunk else [Block(left, *places)]
        first = smaller.adopted(
            improve_choice(problem, greedy(problem), deadline) if start is None else start
        )
        return cls(smaller, [_Part.of(block, first, cycles, deadline) for block in parts])

    def improve(self, search: _Search, deadline: float) -> None:
        """Solve the parts; those that did not finish get the time that others left."""
        for _ in range(2):
            todo = [part for part in self.parts if not part.closed]
            for place, part in enumerate(todo):
                left = deadline - monotonic()
                if left > 0:
                    search.improve(part, monotonic() + left / (len(todo) - place))

    def choice(self) -> dict[int, int]:
        """The best choice."""
        chosen: dict[int, int] = {}
        for part in self.parts:
            chosen |= part.block.restored(part.choice)
        return self.smaller.restored(chosen)

    def bound(self) -> float:
        """The best bound."""
        return self.smaller.paid + sum(part.bound * len(part.block.choices) for part in self.parts)

    def rounds(self) -> int:
        """Linear and integer programs solved."""
        return sum(part.rounds + (part.rest.rounds() if part.rest else 0) for part in self.parts)


@dataclass
class _Part:
    """A part with the best choice and the best bound so far."""

    block: Block
    form: Formulation
    choice: dict[int, int]
    cost: float
    bound: float = 0.0
    rounds: int = 0
    relaxed: bool = False
    rest: _Whole | None = None  # all programs that cost less than...
    limit: float = inf

    @classmethod
    def of(cls, block: Block, start: Choice, cycles: Cycles, deadline: float) -> _Part:
        """With the better of the cheapest trees and of what a start takes in the part's occurrences.

        Shrinking may have dropped some of that: cheapest trees take its place.
        """
        problem = block.problem
        starts = block.adopted(start)
        candidates = [greedy(problem), *starts, *(_repaired(problem, choice) for choice in starts)]
        best = min(candidates, key=lambda choice: dag_cost(problem, choice))
        best = improve_choice(problem, best, deadline)
        return cls(block, formulate(problem, cycles), needed(problem, best), dag_cost(problem, best))

    @property
    def closed(self) -> bool:
        """Whether nothing is left to gain."""
        return self.bound >= self.cost * (1 - PROVED / 10)

    def offer(self, choice: Choice) -> None:
        """Take the choice if it is better."""
        cost = dag_cost(self.block.problem, choice)
        if cost < self.cost:
            self.choice, self.cost = needed(self.block.problem, choice), cost

    def learn(self, bound: float) -> None:
        """Take the bound if it is better."""
        self.bound = min(self.cost, max(self.bound, bound))

    def drop(self, dear: Collection[int], cycles: Cycles, deadline: float) -> None:
        """Go on without choices that no program takes which costs less than the best one known."""
        problem = self.block.problem
        members = [[number for number in group if number not in dear] for group in problem.members]
        self.limit = self.cost
        try:
            self.rest = _Whole.of(replace(problem, members=members), self.choice, cycles, True, deadline)
        except ValueError:
            self.learn(self.limit)


@dataclass(frozen=True)
class _Search:
    """How parts are solved."""

    cycles: Cycles
    shrunk: bool
    workers: int
    seed: int

    def improve(self, part: _Part, deadline: float) -> None:
        """Raise the bound and lower the cost of a part until they meet or the time is up."""
        problem = part.block.problem
        if part.rest is not None:
            part.rest.improve(self, deadline)
            part.offer(part.rest.choice())
            part.learn(min(part.limit, part.rest.bound()))
            return
        if self.cycles in ("components", "cuts") and not part.relaxed:
            half = (monotonic() + deadline) / 2
            relaxed = relax(part.form, part.choice, part.cost, half)
            part.relaxed = True
            part.rounds += relaxed.rounds
            part.form.supports += relaxed.supports
            part.form.covers += relaxed.covers
            part.learn(relaxed.bound)
            part.offer(relaxed.choice)
            if self.shrunk and not part.closed and len(relaxed.dear) > FEWER * len(problem.costs):
                part.drop(relaxed.dear, self.cycles, deadline)
                self.improve(part, deadline)
                return
        while not part.closed and monotonic() < deadline:
            part.rounds += 1
            solver = CpSat(self.workers, self.seed)
            answer = solver.solve(part.form, part.choice, part.cost, deadline - monotonic())
            part.learn(answer.bound)
            if answer.choice is None:
                return
            if problem.order(answer.choice) is not None:
                part.offer(answer.choice)
                return
            part.offer(_repaired(problem, answer.choice))
            if self.cycles == "none":
                return
            if self.cycles == "cuts":
                part.form.supports += supports(problem, answer.choice)


def _repaired(problem: Problem, choice: Choice) -> dict[int, int]:
    """The cheapest trees where what the choice takes is free: it is kept as far as can be."""
    costs = list(problem.costs)
    for number in choice.values():
        costs[number] = 0.0
    return greedy(replace(problem, costs=costs))
