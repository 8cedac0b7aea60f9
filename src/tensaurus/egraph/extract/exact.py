"""Exact extraction: finds the cheapest program of an e-graph and proves that no program is cheaper.

1. The problem is shrunk (`shrink_problem`) and split into parts that share no e-class (`independent_blocks`).
2. The linear relaxation of each part, with rows that forbid cycles and rows that are rounded up to whole
   numbers (`cover_cuts`), gives a lower bound, and often the cheapest program (`linear_relaxation`).
3. Choices that the bound shows to be too expensive are dropped.  If they are many, the rest begins at 1
   again; else CP-SAT solves the part (`cpsat`).

A `_Division` is a problem after step 1, with a `_Part` for each part; a part whose rest begins at 1 again has
a division of its own (`cheaper`), and so on.

E-graphs may have cycles: none needs to be filtered during exploration, as TENSAT does (section 5.2).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.egraph.extract.cpsat import CpSat
from tensaurus.egraph.extract.formulation import Cycles, Formulation, formulate, violated_supports
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.independent_blocks import Block, single_block, split_into_blocks
from tensaurus.egraph.extract.linear_relaxation import relax
from tensaurus.egraph.extract.local_search import improve_selection
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost, keep_needed
from tensaurus.egraph.extract.shrink_problem import Shrunk, drop_unusable_choices, shrink

__all__ = ["Cycles", "Extraction", "solve"]

RESHRINK_SHARE = 0.1  # of the choices; if the bound drops more of them, shrinking again pays
PROOF_GAP = 1e-6  # gap that counts as none: costs are measured, and solvers have tolerances
MAX_SECONDS = 1e6  # longest time limit, as the solvers count milliseconds in limited integers


@dataclass(frozen=True)
class Extraction:
    """A selection without a cycle, with a proof of its quality: no program costs less than `bound`.

    rounds  linear and integer programs that were solved
    """

    selection: dict[int, int]
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
    start: Selection | None = None,
    shrink_first: bool = True,
) -> Extraction:
    """Return the cheapest program, or the best one found within the time limit (seconds), with a bound.

    cycles        "components": orders inside components and rows for cycles; "cuts": only such rows, added
                  when a solution breaks them; "order": an order of all classes (TENSAT's formulation);
                  "none": cycles are allowed, and a solution with one is repaired and need not be the cheapest
    workers       threads of CP-SAT; with one, equal calls give equal answers unless the time limit is met
    start         a selection to begin with, if it has no cycle and is complete
    shrink_first  whether to shrink and split the problem

    Raises ValueError where the roots have no program.
    """
    began = monotonic()
    deadline = began + min(time_limit, MAX_SECONDS)
    division = _Division.of(problem, start, cycles, shrink_first, deadline)
    division.improve(_Solver(cycles, shrink_first, workers, seed % 2**31), deadline)
    selection = division.selection()
    cost = dag_cost(problem, selection)
    if cost == inf:
        raise AssertionError("a cyclic or incomplete choice")
    return Extraction(selection, cost, min(cost, division.bound()), monotonic() - began, division.rounds())


@dataclass
class _Division:
    """A problem that was shrunk and split into parts, which are solved one by one.

    Equal parts are solved once, as one `Block` with several occurrences.
    """

    smaller: Shrunk
    parts: list[_Part]

    @classmethod
    def of(
        cls, problem: Problem, start: Selection | None, cycles: Cycles, shrink_first: bool, deadline: float
    ) -> _Division:
        """Shrink and split the problem.  Raises ValueError where the roots have no program."""
        if shrink_first:
            smaller = shrink(problem, (monotonic() + deadline) / 2)  # in at most half of the time
            parts = split_into_blocks(smaller.problem)
        else:
            smaller = drop_unusable_choices(problem)
            parts = [single_block(smaller.problem)]
        if start is None:
            start = improve_selection(problem, greedy(problem), deadline)
        known = smaller.from_whole(start)  # the selection to beat, as far as the smaller problem still has it
        return cls(smaller, [_Part.of(block, known, cycles, deadline) for block in parts])

    def improve(self, solver: _Solver, deadline: float) -> None:
        """Solve the parts; in a second turn, unfinished parts get the time that others did not need."""
        for _ in range(2):
            unsolved = [part for part in self.parts if not part.is_solved]
            for place, part in enumerate(unsolved):
                seconds_left = deadline - monotonic()
                if seconds_left > 0:
                    solver.improve(part, monotonic() + seconds_left / (len(unsolved) - place))

    def selection(self) -> dict[int, int]:
        """Return the best selection so far, of the whole problem."""
        chosen: dict[int, int] = {}
        for part in self.parts:
            chosen |= part.block.to_whole(part.selection)
        return self.smaller.to_whole(chosen)

    def bound(self) -> float:
        """Return the best lower bound so far, of the whole problem."""
        # a part's bound counts once for each of its occurrences
        return self.smaller.paid_cost + sum(part.bound * len(part.block.occurrences) for part in self.parts)

    def rounds(self) -> int:
        """Return the number of linear and integer programs that were solved."""
        return sum(part.rounds + (part.cheaper.rounds() if part.cheaper else 0) for part in self.parts)


@dataclass
class _Part:
    """A part with the best selection and the best bound so far.

    is_relaxed  whether its linear relaxation was tried
    cheaper     the problem of all programs that cost less than `cheaper_limit`, where choices were dropped
    """

    block: Block
    form: Formulation
    selection: dict[int, int]
    cost: float
    bound: float = 0.0
    rounds: int = 0
    is_relaxed: bool = False
    cheaper: _Division | None = None
    cheaper_limit: float = inf

    @classmethod
    def of(cls, block: Block, start: Selection, cycles: Cycles, deadline: float) -> _Part:
        """Begin with the cheapest trees, or with what `start` chooses in one of the part's occurrences.

        Shrinking may have dropped e-nodes that `start` uses: `_repair_choice` fills the gaps with trees.
        """
        problem = block.problem
        starts = block.from_whole(start)
        repaired = [_repair_selection(problem, selection) for selection in starts]
        candidates = [greedy(problem), *starts, *repaired]
        best = min(candidates, key=lambda selection: dag_cost(problem, selection))
        best = improve_selection(problem, best, deadline)
        return cls(block, formulate(problem, cycles), keep_needed(problem, best), dag_cost(problem, best))

    @property
    def is_solved(self) -> bool:
        """Whether the gap is within a tenth of `PROOF_GAP`: then a whole of such parts is optimal."""
        return self.bound >= self.cost * (1 - PROOF_GAP / 10)

    def take_selection(self, selection: Selection) -> None:
        """Take the selection if it is cheaper."""
        cost = dag_cost(self.block.problem, selection)
        if cost < self.cost:
            self.selection, self.cost = keep_needed(self.block.problem, selection), cost

    def take_bound(self, bound: float) -> None:
        """Take the lower bound if it is higher."""
        self.bound = min(self.cost, max(self.bound, bound))

    def drop_choices(self, too_expensive: Collection[int], cycles: Cycles, deadline: float) -> None:
        """Go on with `cheaper`, without the choices that no program cheaper than the best one can take."""
        problem = self.block.problem
        members = [[choice for choice in eclass if choice not in too_expensive] for eclass in problem.members]
        self.cheaper_limit = self.cost
        try:
            smaller = replace(problem, members=members)
            self.cheaper = _Division.of(smaller, self.selection, cycles, True, deadline)
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
        # "order" and "none" do without the rows of the relaxation
        if part.cheaper is None and not part.is_relaxed and self.cycles in ("components", "cuts"):
            self._relax(part, (monotonic() + deadline) / 2, deadline)
        if part.cheaper is None:
            self._run_cpsat(part, deadline)
        else:
            part.cheaper.improve(self, deadline)
            part.take_selection(part.cheaper.selection())
            # a program with a dropped choice costs at least `cheaper_limit`
            part.take_bound(min(part.cheaper_limit, part.cheaper.bound()))

    def _relax(self, part: _Part, relaxation_deadline: float, deadline: float) -> None:
        """Solve the linear relaxation; where it shows many choices to be too expensive, drop them."""
        relaxed = relax(part.form, part.selection, part.cost, relaxation_deadline)
        part.is_relaxed = True
        part.rounds += relaxed.rounds
        part.form.supports += relaxed.supports
        part.form.covers += relaxed.covers
        part.take_bound(relaxed.bound)
        part.take_selection(relaxed.selection)
        drops_many = len(relaxed.too_expensive) > RESHRINK_SHARE * len(part.block.problem.costs)
        if self.shrink_first and not part.is_solved and drops_many:
            part.drop_choices(relaxed.too_expensive, self.cycles, deadline)

    def _run_cpsat(self, part: _Part, deadline: float) -> None:
        """Run CP-SAT once, or with "cuts" until an answer has no cycle."""
        problem = part.block.problem
        while not part.is_solved and monotonic() < deadline:
            part.rounds += 1
            answer = CpSat(self.workers, self.seed).solve(part.form, part.selection, part.cost, deadline)
            part.take_bound(answer.bound)
            if answer.selection is None:
                return
            if problem.order(answer.selection) is not None:  # always, unless `cycles` is "cuts" or "none"
                part.take_selection(answer.selection)
                return
            part.take_selection(_repair_selection(problem, answer.selection))
            if self.cycles == "none":
                return
            if self.cycles == "cuts":
                part.form.supports += violated_supports(problem, answer.selection)


def _repair_selection(problem: Problem, selection: Selection) -> dict[int, int]:
    """Return the cheapest trees if the choices of `selection` cost 0: close to it, but without a cycle."""
    costs = list(problem.costs)
    for choice in selection.values():
        costs[choice] = 0.0
    return greedy(replace(problem, costs=costs))
