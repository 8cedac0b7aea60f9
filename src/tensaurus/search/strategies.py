"""The searches that one can ask for by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Protocol, TypeAlias

from tensaurus.cost.observe import Observation
from tensaurus.cost.operators import OperatorCosts
from tensaurus.egraph.check import Refutation
from tensaurus.egraph.saturate import Limits, Ruleset
from tensaurus.extraction.exact import solve
from tensaurus.extraction.improve import quick
from tensaurus.extraction.problem import Choice, Problem, dag_cost
from tensaurus.graph.node import Node
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.rules.match import Rewriter
from tensaurus.rules.rule import Rule
from tensaurus.search.backtrack import Backtrack
from tensaurus.search.candidate import Candidate, Outcome
from tensaurus.search.saturation import Saturation

__all__ = ["STRATEGIES", "Effort", "Runtime", "Strategy"]

Watch: TypeAlias = Callable[[int, float], None]

SATURATION, BACKTRACKING = "saturation", "backtracking"
MOST = 0.75  # of the time of both, saturation's
BACKTRACKS = 400  # steps of it at most where the caller sets no limit on them
PROVABLE = 10_000  # choices; of more than that a proof takes minutes
PROOF = 10.0  # seconds that the proof of one optimum may take


@dataclass(frozen=True)
class Effort:
    """How far a search may go.

    steps     of the search, the same on any day; None: until the deadline
    deadline  of `time.monotonic`; None: no limit
    alpha     how much worse than the best a program may be that backtracking goes on from
    nodes     e-nodes at most
    multi     rounds of exploration in which rules of several roots take part
    memory    bytes of constants that a result may keep
    """

    steps: int | None = None
    deadline: float | None = None
    alpha: float = 1.05
    nodes: int = 50_000
    multi: int = 3
    memory: float = inf


@dataclass(frozen=True)
class Runtime:
    """What a search can ask of the runtime.

    costs    of operators and of pieces, measured when they are asked for
    fused    the pieces of a program that it fuses
    observe  runs a whole program and tells where its time goes, None where it cannot
    refutation  of a rule's instance, where every union is to be checked
    """

    costs: OperatorCosts
    fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    refutation: Refutation | None = None


class Strategy(Protocol):
    """A search with its rules made ready once, for a program and the bodies in it."""

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        """The best programs; `watch` is told of the steps done and of the best cost."""


class Saturating:
    """All rewrites at once in an e-graph."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime):
        self._ruleset, self._runtime = Ruleset(rules), runtime

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        extractors = [_quick]
        if effort.steps is None:  # a proof that runs out of time ends differently on another day
            extractors.append(_exact)
        limits = Limits(nodes=effort.nodes, multi=effort.multi, deadline=effort.deadline)
        search = Saturation(
            self._ruleset,
            self._runtime.costs,
            extractors,
            self._runtime.fused,
            self._runtime.observe,
            limits,
            effort.memory,
            deadline=effort.deadline,
            watch=watch,
            refutation=self._runtime.refutation,
        )
        if effort.steps is not None:
            search.steps = effort.steps
        return search.run(program)


class Backtracking:
    """One rewrite after the other, the cheapest program first."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime):
        self._rewriter = Rewriter(rule for rule in rules if "expand" not in rule.tags)
        self._costs = runtime.costs

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        steps = BACKTRACKS if effort.steps is None else effort.steps
        search = Backtrack(self._rewriter, self._costs, effort.alpha, steps, effort.deadline, watch=watch)
        return search.run(program)


class Both:
    """Saturation within most of the time, then backtracking; the best programs of both.

    Two searches that err differently leave more to measure end to end.
    """

    def __init__(self, rules: Sequence[Rule], runtime: Runtime):
        self._first = Saturating(rules, runtime)
        self._second = Backtracking(rules, runtime)

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        now, most = monotonic(), effort
        if effort.deadline is not None:
            most = replace(effort, deadline=now + MOST * (effort.deadline - now))
        first = self._first.search(program, most, watch)
        if first.ended_by == "interrupt":
            return first
        second = self._second.search(program, effort, watch)
        found: dict[tuple[Node, ...], Candidate] = {}
        for name, outcome in ((SATURATION, first), (BACKTRACKING, second)):
            for candidate in outcome.candidates:
                known = found.get(candidate.program.roots, candidate)
                found[candidate.program.roots] = replace(known, by=known.by | {name})
        ended_by = "interrupt" if second.ended_by == "interrupt" else first.ended_by
        return replace(
            first,
            candidates=list(found.values()),
            ended_by=ended_by,
            steps=first.steps + second.steps,
            programs=first.programs + second.programs,
            seconds=first.seconds + second.seconds,
            notes=[*first.notes, *second.notes],
        )


def _quick(problem: Problem, seconds: float, start: Choice | None) -> Choice:
    return quick(problem, start, monotonic() + seconds)


def _exact(problem: Problem, seconds: float, start: Choice | None) -> Choice:
    if start is not None and len(problem.costs) > PROVABLE:
        return start
    found = solve(problem, time_limit=min(seconds, PROOF), start=start).choice
    return found if start is None else min(start, found, key=lambda choice: dag_cost(problem, choice))


STRATEGIES: dict[str, Callable[[Sequence[Rule], Runtime], Strategy]] = {
    "both": Both,
    SATURATION: Saturating,
    BACKTRACKING: Backtracking,
}
