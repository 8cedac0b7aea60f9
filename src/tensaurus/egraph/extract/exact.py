"""Exact extraction: finds the cheapest program of an e-graph and proves that no program is cheaper.

1. The problem is shrunk (`shrink_problem`) and split into parts that share no e-class (`independent_blocks`).
2. The linear relaxation of each part, with rows that forbid cycles and rows that are rounded up to whole
   numbers (`cover_cuts`), gives a lower bound, and often the cheapest program (`linear_relaxation`).
3. Choices that the bound shows to be too expensive are dropped.  If they are many, the rest begins at 1
   again; else CP-SAT solves the part (`cpsat`).

A `_Division` is a problem after step 1, with a `_Part` for each part; a part whose rest begins at 1 again has
a division of its own (`cheaper`), and so on.

A *choice* of a class is one of its e-nodes; a `Choice` names one for each class that is needed.

E-graphs may have cycles: none needs to be filtered during exploration, as TENSAT does (section 5.2).
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

RESHRINK_SHARE = 0.1  # of the choices; if the bound drops more of them, shrinking again pays
PROOF_GAP = 1e-6  # gap that counts as none: costs are measured, and solvers have tolerances
MAX_SECONDS = 1e6  # longest time limit, as the solvers count milliseconds in limited integers


@dataclass(frozen=True)
class Extraction:
    """A choice of e-nodes without a cycle, with a proof of its quality: no program costs less than `bound`.

    choice   for each e-class that the roots need
    rounds   linear and integer programs that were solved
    """

    choice: dict[int, int]
    cost: float
    bound: float
    seconds: float
    rounds: int

    @property
    def gap(self) -> float:
        """The largest share of the cost by which another program may be cheaper."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether no program is cheaper, within `PROOF_GAP`."""
        return self.gap <= PROOF_GAP


def solve(
    problem: Problem,
    *,
    cycles: Cycles = "components",
    time_limit: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    start: Choice | None = None,
    shrink_first: bool = True,
) -> Extraction:
    """Return the cheapest program, or the best one found within the time limit (seconds), with a bound.

    cycles        "components": orders inside components and rows for cycles; "cuts": only such rows, added
                  when a solution breaks them; "order": an order of all classes (TENSAT's formulation);
                  "none": cycles are allowed, and a solution with one is repaired and need not be the cheapest
    workers       threads of CP-SAT; with one, equal calls give equal answers unless the time limit is met
    start         a choice to begin with, if it has no cycle and is complete
    shrink_first  whether to shrink and split the problem

    Raises ValueError where the roots have no program.
    """
    began = monotonic()
    deadline = began + min(time_limit, MAX_SECONDS)
    division = _Division.of(problem, start, cycles, shrink_first, deadline)
    division.improve(_Solver(cycles, shrink_first, workers, seed % 2**31), deadline)
    choice = division.choice()
    cost = dag_cost(problem, choice)
    if cost == inf:
        raise AssertionError("a cyclic or incomplete choice")
    return Extraction(choice, cost, min(cost, division.bound()), monotonic() - began, division.rounds())


@dataclass
class _Division:
    """A problem that was shrunk and split into parts, which are solved one by one.

    Equal parts are solved once, as one `Block` with several occurrences.
    """

    smaller: Shrunk
    parts: list[_Part]

    @classmethod
    def of(
        cls, problem: Problem, start: Choice | None, cycles: Cycles, shrink_first: bool, deadline: float
    ) -> _Division:
        """Shrink and split the problem.  Raises ValueError where the roots have no program."""
        # shrinking may take half of the time
        smaller = shrink(problem, (monotonic() + deadline) / 2) if shrink_first else unshrunk(problem)
        small = smaller.problem
        # unsplit, the problem is one part that occurs once and keeps its numbers
        places = [[list(range(len(small.costs)))], [list(range(len(small.members)))]]
        parts = blocks(small) if shrink_first else [Block(small, *places)]
        first = smaller.adopted(  # the choice to beat, as far as the smaller problem still has it
            improve_choice(problem, greedy(problem), deadline) if start is None else start
        )
        return cls(smaller, [_Part.of(block, first, cycles, deadline) for block in parts])

    def improve(self, solver: _Solver, deadline: float) -> None:
        """Solve the parts; in a second turn, unfinished parts get the time that others did not need."""
        for _ in range(2):
            unsolved = [part for part in self.parts if not part.is_solved]
            for place, part in enumerate(unsolved):
                seconds_left = deadline - monotonic()
                if seconds_left > 0:
                    solver.improve(part, monotonic() + seconds_left / (len(unsolved) - place))

    def choice(self) -> dict[int, int]:
        """Return the best choice so far, of the whole problem."""
        chosen: dict[int, int] = {}
        for part in self.parts:
            chosen |= part.block.restored(part.choice)
        return self.smaller.restored(chosen)

    def bound(self) -> float:
        """Return the best lower bound so far, of the whole problem."""
        # a part's bound counts once for each of its occurrences
        return self.smaller.paid + sum(part.bound * len(part.block.choices) for part in self.parts)

    def rounds(self) -> int:
        """Return the number of linear and integer programs that were solved."""
        return sum(part.rounds + (part.cheaper.rounds() if part.cheaper else 0) for part in self.parts)


@dataclass
class _Part:
    """A part with the best choice and the best bound so far.

    is_relaxed  whether its linear relaxation was tried
    cheaper     the problem of all programs that cost less than `cheaper_limit`, where choices were dropped
    """

    block: Block
    form: Formulation
    choice: dict[int, int]
    cost: float
    bound: float = 0.0
    rounds: int = 0
    is_relaxed: bool = False
    cheaper: _Division | None = None
    cheaper_limit: float = inf

    @classmethod
    def of(cls, block: Block, start: Choice, cycles: Cycles, deadline: float) -> _Part:
        """Begin with the cheapest trees, or with what `start` chooses in one of the part's occurrences.

        Shrinking may have dropped e-nodes that `start` uses: `_repair_choice` fills the gaps with trees.
        """
        problem = block.problem
        starts = block.adopted(start)
        candidates = [greedy(problem), *starts, *(_repair_choice(problem, choice) for choice in starts)]
        best = min(candidates, key=lambda choice: dag_cost(problem, choice))
        best = improve_choice(problem, best, deadline)
        return cls(block, formulate(problem, cycles), needed(problem, best), dag_cost(problem, best))

    @property
    def is_solved(self) -> bool:
        """Whether the gap is within a tenth of `PROOF_GAP`: then a whole of such parts is optimal."""
        return self.bound >= self.cost * (1 - PROOF_GAP / 10)

    def take_choice(self, choice: Choice) -> None:
        """Take the choice if it is cheaper."""
        cost = dag_cost(self.block.problem, choice)
        if cost < self.cost:
            self.choice, self.cost = needed(self.block.problem, choice), cost

    def take_bound(self, bound: float) -> None:
        """Take the lower bound if it is higher."""
        self.bound = min(self.cost, max(self.bound, bound))

    def drop_choices(self, too_expensive: Collection[int], cycles: Cycles, deadline: float) -> None:
        """Go on with `cheaper`, without the choices that no program cheaper than the best one can take."""
        problem = self.block.problem
        members = [[number for number in group if number not in too_expensive] for group in problem.members]
        self.cheaper_limit = self.cost
        try:
            smaller = replace(problem, members=members)
            self.cheaper = _Division.of(smaller, self.choice, cycles, True, deadline)
        except ValueError:  # no program is cheaper
            self.take_bound(self.cheaper_limit)


@dataclass(frozen=True)
class _Solver:
    """Solves parts, by the options of `solve`."""

    cycles: Cycles
    shrink_first: bool
    workers: int
    seed: int

    def improve(self, part: _Part, deadline: float) -> None:
        """Raise the bound and lower the cost of a part until they meet or the time is over."""
        problem = part.block.problem
        # an earlier call has dropped choices: go on with the rest
        if part.cheaper is not None:
            part.cheaper.improve(self, deadline)
            part.take_choice(part.cheaper.choice())
            # a program with a dropped choice costs at least `cheaper_limit`
            part.take_bound(min(part.cheaper_limit, part.cheaper.bound()))
            return
        # the linear relaxation, once, in half of the time; "order" and "none" do without its rows
        if self.cycles in ("components", "cuts") and not part.is_relaxed:
            half = (monotonic() + deadline) / 2
            relaxed = relax(part.form, part.choice, part.cost, half)
            part.is_relaxed = True
            part.rounds += relaxed.rounds
            part.form.supports += relaxed.supports
            part.form.covers += relaxed.covers
            part.take_bound(relaxed.bound)
            part.take_choice(relaxed.choice)
            drops_many = len(relaxed.too_expensive) > RESHRINK_SHARE * len(problem.costs)
            if self.shrink_first and not part.is_solved and drops_many:
                part.drop_choices(relaxed.too_expensive, self.cycles, deadline)
                self.improve(part, deadline)
                return
        # CP-SAT: once, or with "cuts" until an answer has no cycle
        while not part.is_solved and monotonic() < deadline:
            part.rounds += 1
            solver = CpSat(self.workers, self.seed)
            answer = solver.solve(part.form, part.choice, part.cost, deadline)
            part.take_bound(answer.bound)
            if answer.choice is None:
                return
            if problem.order(answer.choice) is not None:  # always, unless `cycles` is "cuts" or "none"
                part.take_choice(answer.choice)
                return
            part.take_choice(_repair_choice(problem, answer.choice))
            if self.cycles == "none":
                return
            if self.cycles == "cuts":
                part.form.supports += supports(problem, answer.choice)


def _repair_choice(problem: Problem, choice: Choice) -> dict[int, int]:
    """Return a choice without a cycle, close to `choice`: the cheapest trees if its own e-nodes cost 0."""
    costs = list(problem.costs)
    for number in choice.values():
        costs[number] = 0.0
    return greedy(replace(problem, costs=costs))
