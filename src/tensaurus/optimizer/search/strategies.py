"""The searches that `--search` names: saturation, backtracking (TASO, section 5), or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol, TypeAlias

from tensaurus.egraph.core.check_egraph import Refutation
from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.egraph.extract.exact import solve
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost
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

__all__ = ["STRATEGIES", "Effort", "Runtime", "Rulesets", "Strategy"]

Watch: TypeAlias = Callable[[int, float], None]

BACKTRACKING = "backtracking"
BACKTRACKING_SHARE = 0.05  # of the time left, which backtracking has before saturation goes on
MAX_BACKTRACKING_STEPS = 400  # where the caller sets no limit
RULE_SHARE = 0.125  # of the e-nodes that one rule may add: others are to have room beside it
MAX_PROVABLE_CHOICES = 10_000  # of an extraction problem; the proof of a larger one takes minutes
PROOF_SECONDS = 10.0  # for the proof of one optimum


@dataclass(frozen=True)
class Effort:
    """How far a search may go.

    steps               number of search steps, so that results do not depend on speed; None: to the deadline
    deadline            monotonic time; None: no limit
    alpha               backtracking continues from programs up to this many times as expensive as the best
    nodes               largest number of e-nodes
    multi               rounds of exploration in which multi-pattern rules apply
    max_constant_bytes  bytes of constants that a result may keep
    """

    steps: int | None = None
    deadline: float | None = None
    alpha: float = 1.05
    nodes: int = 50_000
    multi: int = 3
    max_constant_bytes: float = inf


@dataclass(frozen=True)
class Runtime:
    """What a search can ask of the runtime that it optimizes for.

    costs            of operators and of pieces, measured when they are asked for
    find_fused       returns the pieces of a program that the runtime fuses
    observe          runs a whole program and tells where its time goes, None where it cannot tell
    refutation       says why an equation does not hold, or None; if given, checks every union (CHECK=1)
    finders          propose equations beside the rules
    may_tune         whether the kernels of a piece may be compiled, tuned where necessary, and measured
    plan_measuring   receives the pieces that will be measured next, each with the seconds it may save
    extend_deadline  called at the deadline with the program and whether a faster one was found; returns a
                     later deadline where time that was kept for the check is left, else None
    """

    costs: OperatorCosts
    find_fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    refutation: Refutation | None = None
    finders: Sequence[Finder] = ()
    may_tune: Callable[[Piece], bool] = lambda piece: True
    plan_measuring: Callable[[Mapping[Piece, float]], None] = lambda pieces: None
    extend_deadline: Callable[[Program, bool], float | None] = lambda program, found: None


class Strategy(Protocol):
    """A search whose rules are compiled once, for a program and the bodies in it."""

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        """Return the best programs; `watch` is called with the steps done and the best cost."""


class Rulesets(NamedTuple):
    """The rules of the three stages of an exploration, see `saturate`.

    simplifying  see `Rule.simplifies`
    usual        without the tag `long`
    later        all rules, for a search that has time left; None where no rule has the tag `long`
    """

    simplifying: Ruleset
    usual: Ruleset
    later: Ruleset | None

    @classmethod
    def compile(cls, rules: Sequence[Rule]) -> Rulesets:
        """Compile the rules for each stage."""
        usual = [rule for rule in rules if "long" not in rule.tags]
        simplifying = [rule for rule in usual if rule.simplifies]
        later = Ruleset(rules) if len(usual) < len(rules) else None
        return cls(Ruleset(simplifying), Ruleset(usual), later)


class SaturationStrategy:
    """Saturates an e-graph with all rewrites; the programs of the `other` search enter it."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime, other: Strategy | None = None):
        self._runtime, self._other = runtime, other
        self._rulesets = Rulesets.compile(rules)

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        extractors = [_extract_quickly]
        if effort.steps is None:  # a proof within a time limit is not the same on a slower machine
            extractors.append(_extract_exactly)

        def search_otherwise(whole: Program) -> Outcome | None:
            if self._other is None:
                return None
            return self._other.search(whole, _backtracking_effort(effort), watch)

        search = Saturation(
            self._rulesets.usual,
            standalone_costs=KernelQuota(self._runtime.costs, self._runtime.may_tune),
            extractors=extractors,
            find_fused=self._runtime.find_fused,
            observe=self._runtime.observe,
            search_otherwise=search_otherwise,
            finders=self._runtime.finders,
            exploration_limits=Limits(
                nodes=effort.nodes, multi=effort.multi, deadline=effort.deadline, rule_share=RULE_SHARE
            ),
            max_constant_bytes=effort.max_constant_bytes,
            deadline=effort.deadline,
            watch=watch,
            plan_measuring=self._runtime.plan_measuring,
            refutation=self._runtime.refutation,
            simplifying=self._rulesets.simplifying,
            later=self._rulesets.later,
            extend_deadline=self._runtime.extend_deadline,
        )
        if effort.steps is not None:
            search.steps = effort.steps
        return search.run(program)


def _backtracking_effort(effort: Effort) -> Effort:
    """Return the share of the effort that backtracking has beside a saturation."""
    if effort.deadline is None:
        return effort
    now = monotonic()
    return replace(effort, deadline=now + BACKTRACKING_SHARE * (effort.deadline - now))


class BacktrackingStrategy:
    """Applies one rewrite after the other, to the cheapest program first."""

    def __init__(self, rules: Sequence[Rule], runtime: Runtime):
        # rules with the tag `expand` only write an operator as others, for export
        self._rewriter = Rewriter(rule for rule in rules if "expand" not in rule.tags)
        self._costs = runtime.costs

    def search(self, program: Program, effort: Effort, watch: Watch) -> Outcome:
        steps = MAX_BACKTRACKING_STEPS if effort.steps is None else effort.steps
        search = Backtrack(
            self._rewriter, self._costs, effort.alpha, steps, effort.deadline,
            max_constant_bytes=effort.max_constant_bytes, watch=watch,
        )
        outcome = search.run(program)
        by = frozenset({BACKTRACKING})
        outcome.candidates = [candidate.with_searches(by) for candidate in outcome.candidates]
        return outcome


def combine_strategies(rules: Sequence[Rule], runtime: Runtime) -> Strategy:
    """Return a saturation that adds backtracking's programs to its e-graph: one extraction chooses."""
    return SaturationStrategy(rules, runtime, BacktrackingStrategy(rules, runtime))


def _extract_quickly(problem: Problem, seconds: float, start: Selection | None) -> Selection:
    return quick_extraction(problem, start, monotonic() + seconds)


def _extract_exactly(problem: Problem, seconds: float, start: Selection | None) -> Selection:
    """Return the cheaper of `start` and the exact extraction's choice; of a large problem `start` itself."""
    if start is not None and len(problem.costs) > MAX_PROVABLE_CHOICES:
        return start
    best = solve(problem, time_limit=min(seconds, PROOF_SECONDS), start=start).selection
    return best if start is None else min(start, best, key=lambda selection: dag_cost(problem, selection))


STRATEGIES: dict[str, Callable[[Sequence[Rule], Runtime], Strategy]] = {
    "both": combine_strategies,
    SATURATION: SaturationStrategy,
    BACKTRACKING: BacktrackingStrategy,
}
