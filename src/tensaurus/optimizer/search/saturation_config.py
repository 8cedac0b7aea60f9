"""Holds what configures a search by equality saturation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.egraph.core.check_egraph import Refutation
from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.egraph.match.saturate import Limits, Ruleset
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.part_time_limits import Extractor
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.costs import StandaloneCosts

__all__ = ["SaturationConfig"]

MAX_EXTRACTIONS = 400
EXPLORING_SHARE = 0.15  # of the time left, in which the e-graph is filled
MIN_EXPLORING_SECONDS = 2.0  # for it however little time is left, up to all of that
# Largest e-graph for each second left: an extraction takes about 30 microseconds an e-node, and a search
# has a dozen of them.  Exploring and extracting from ConvNeXt's 37,000 e-nodes took 24 of 45 seconds.
ENODES_PER_SECOND = 600
MIN_GROWTH = 8  # an e-graph may grow to this multiple of the model's own e-nodes, however little time is left


@dataclass
class SaturationConfig:
    """What one search works with; `watch(extractions done, best cost)` is called after every extraction.

    ruleset             compiled rules
    simplifying, later  rules of the stages before and after, or None, see `saturate`
    standalone_costs    costs of pieces measured by themselves
    extractors          applied in order: a quick one finds what to measure, the last one proves the optimum;
                        each returns the choices of the e-classes that the roots need, and of no others
    find_fused          returns the pieces of a program that its runtime fuses
    observe             runs a whole program and tells where its time goes; None where nothing can tell
    search_otherwise    runs another search, whose programs enter the e-graph; None where there is no other
    finders             propose equations that no rule writes, beside nested calls and commutativity
    exploration_limits  bounds of the e-graph
    max_constant_bytes  bytes of constants that a program may keep; never less than the original keeps
    steps               largest number of extractions
    deadline            monotonic time of the end, or None; later parts are ended (`part_time_limits`)
    keep                number of programs to return beside the original
    plan_measuring      receives the pieces that will be measured next, each with the seconds it may save
    extend_deadline     returns a later deadline, given whether a faster program was found, or None: time that
                        was kept for the check of a result may be left
    refutation          checks every union of the exploration, where it is given
    """

    ruleset: Ruleset
    standalone_costs: StandaloneCosts
    extractors: Sequence[Extractor]
    find_fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    search_otherwise: Callable[[Program], Outcome | None] = lambda program: None
    finders: Sequence[Finder] = ()
    exploration_limits: Limits = Limits()
    max_constant_bytes: float = inf
    steps: int = MAX_EXTRACTIONS
    deadline: float | None = None
    keep: int = 3
    watch: Callable[[int, float], None] = lambda steps, best: None
    plan_measuring: Callable[[Mapping[Piece, float]], None] = lambda pieces: None
    refutation: Refutation | None = None
    simplifying: Ruleset | None = None
    later: Ruleset | None = None
    extend_deadline: Callable[[Program, bool], float | None] = lambda program, found: None

    def limit_exploration(self, original_enodes: int) -> Limits:
        """Return the limits of an exploration that begins now: of its time, its e-nodes, and what it merges.

        `original_enodes` is the number of the model's own e-nodes.
        """
        limits = replace(self.exploration_limits, merged_enodes=original_enodes)
        if limits.deadline is None:
            return limits
        now = monotonic()
        left = limits.deadline - now
        seconds = max(EXPLORING_SHARE * left, min(MIN_EXPLORING_SECONDS, left))
        affordable = max(MIN_GROWTH * original_enodes, int(ENODES_PER_SECOND * left))
        return replace(limits, deadline=now + seconds, nodes=min(limits.nodes, affordable))
