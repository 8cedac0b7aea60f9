"""Holds what configures a search by equality saturation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

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


@dataclass
class SaturationConfig:
    """A configured search; `watch(extractions done, best cost)` is called after every extraction.

    ruleset             compiled rules; `later`: these and those that only long searches apply, see `saturate`
    alone               costs of pieces measured by themselves
    extractors          applied in order: a quick one finds what to measure, the last one proves the optimum;
                        each returns the choices of the e-classes that the roots need, and of no others
    fused               returns the pieces of a program that its runtime fuses
    observe             runs a whole program and tells where its time goes; None where nothing can tell
    other               another search, whose programs enter the e-graph; None where it found nothing
    finders             propose equations that no rule writes, beside nested calls and commutativity
    exploration_limits  bounds of the e-graph
    memory              bytes of constants that a program may keep; never less than the original keeps
    steps               largest number of extractions
    deadline            monotonic time of the end, or None; later parts are ended (`part_time_limits`)
    keep                number of programs to return beside the original
    expect              receives the pieces that will be measured next, each with the seconds it may save
    extended            returns a later deadline, given whether a faster program was found, or None: time that
                        was kept for the check of a result may be left
    refutation          checks every union of the exploration, where it is given
    """

    ruleset: Ruleset
    alone: StandaloneCosts
    extractors: Sequence[Extractor]
    fused: Callable[[Program], Iterable[Piece]] = lambda program: ()
    observe: Callable[[Program], Observation | None] = lambda program: None
    other: Callable[[Program], Outcome | None] = lambda program: None
    finders: Sequence[Finder] = ()
    exploration_limits: Limits = Limits()
    memory: float = inf
    steps: int = MAX_EXTRACTIONS
    deadline: float | None = None
    keep: int = 3
    watch: Callable[[int, float], None] = lambda steps, best: None
    expect: Callable[[Mapping[Piece, float]], None] = lambda pieces: None
    refutation: Refutation | None = None
    later: Ruleset | None = None
    extended: Callable[[Program, bool], float | None] = lambda program, found: None
