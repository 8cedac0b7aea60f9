"""The searches that one can ask for by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Protocol, TypeAlias

from tensaurus.egraph.core.check_egraph import Refutation
from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.egraph.extract.exact import solve
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost
from tensaurus.egraph.match.saturate import Limits, Ruleset
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.backtrack import Backtrack
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.rank_programs import SATURATION
from tensaurus.optimizer.search.saturation import Saturation
from tensaurus.rules.language.match import Rewriter
from tensaurus.rules.language.rule import Rule
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.kernel_quota import KernelQuota
from tensaurus.runtimes.price.operator_times import OperatorCosts

__all__ = ["STRATEGIES", "Effort", "Runtime", "Strategy", "tiers"]

Watch: TypeAlias = Callable[[int, float], None]

BACKTRACKING = "backtracking"
OTHER = 0.05  # of the time that is left, backtracking's where both search
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
    finders  propose equalities beside the rules
    kernels  whether one more eOperator may be measured
    expect   is given the pieces that will be measured, before they are, and what each may save
    extended  a later deadline of a program's search, see `Saturation`
    """

    costs: OperatorCosts
    fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    refutation: Refutation | None = None
    finders: Sequence[Finder] = ()
    kernels: Callable[[], bool] = lambda: True
    expect: Callable[[Mapping[Piece, float]], None] = lambda pieces: None
    extended: Callable[[Program, bool], float | None] = lambda program, found: None


class Strategy(Protocol):
    """A search with its rules made ready once, for a program and the bodies in it."""

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        """The best programs; `watch` is called with the steps done and the best cost."""


def tiers(rules: Sequence[Rule]) -> tuple[Ruleset, Ruleset | None]:
    """The rules that every search takes, and all of them where there are others."""
    usual = [rule for rule in rules if "long" not in rule.tags]
    return Ruleset(usual), Ruleset(rules) if len(usual) < len(rules) else None


class Saturating:
    """All rewrites at once in an e-graph; what `other` finds enters it."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime, other: Strategy | None = None):
        self._runtime, self._other = runtime, other
        self._ruleset, self._later = tiers(rules)

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        extractors = [_quick]
        if effort.steps is None:  # a proof that runs out of time ends differently on another day
            extractors.append(_exact)

        def other(whole: Program) -> Outcome | None:
            return None if self._other is None else self._other.search(whole, _part(effort), watch)

        search = Saturation(
            self._ruleset,
            KernelQuota(self._runtime.costs, self._runtime.kernels),
            extractors,
            self._runtime.fused,
            self._runtime.observe,
            other,
            self._runtime.finders,
            Limits(nodes=effort.nodes, multi=effort.multi, deadline=effort.deadline),
            effort.memory,
            deadline=effort.deadline,
            watch=watch,
            expect=self._runtime.expect,
            refutation=self._runtime.refutation,
            later=self._later,
            extended=self._runtime.extended,
        )
        if effort.steps is not None:
            search.steps = effort.steps
        return search.run(program)


def _part(effort: Effort) -> Effort:
    """What another search may take of it."""
    if effort.deadline is None:
        return effort
    now = monotonic()
    return replace(effort, deadline=now + OTHER * (effort.deadline - now))


class Backtracking:
    """One rewrite after the other, the cheapest program first."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime):
        self._rewriter = Rewriter(rule for rule in rules if "expand" not in rule.tags)
        self._costs = runtime.costs

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        steps = BACKTRACKS if effort.steps is None else effort.steps
        search = Backtrack(
            self._rewriter,
            self._costs,
            effort.alpha,
            steps,
            effort.deadline,
            memory=effort.memory,
            watch=watch,
        )
        outcome = search.run(program)
        by = frozenset({BACKTRACKING})
        outcome.candidates = [candidate.also(by) for candidate in outcome.candidates]
        return outcome


def both(rules: Sequence[Rule], runtime: Runtime) -> Strategy:
    """Saturation, with backtracking's programs in its e-graph: one extraction chooses among everything."""
    return Saturating(rules, runtime, Backtracking(rules, runtime))


def _quick(problem: Problem, seconds: float, start: Choice | None) -> Choice:
    return quick_extraction(problem, start, monotonic() + seconds)


def _exact(problem: Problem, seconds: float, start: Choice | None) -> Choice:
    if start is not None and len(problem.costs) > PROVABLE:
        return start
    best = solve(problem, time_limit=min(seconds, PROOF), start=start).choice
    return best if start is None else min(start, best, key=lambda choice: dag_cost(problem, choice))


STRATEGIES: dict[str, Callable[[Sequence[Rule], Runtime], Strategy]] = {
    "both": both,
    SATURATION: Saturating,
    BACKTRACKING: Backtracking,
}
