"""Runs the finders on programs that a search extracts, and inserts their equations into its e-graph.

A finder looks at one program, since the regions of all programs in an e-graph are too many; the equations
then hold for every program in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import DeferringFinder, Finder, find_all
from tensaurus.graph.ir.program import Program
from tensaurus.system.timeline import record

__all__ = ["MAX_NEW_ENODES", "FinderRunner"]

MAX_NEW_ENODES = 10_000  # that finders may add for one program, or another search with its programs
IDLE_SHARE = 0.5  # of the time that is left, for work that finders deferred
DUE_FACTOR = 2.0  # finders run again after kernels were measured for this many times their last run


@dataclass
class FinderRunner:
    """Runs finders on extracted programs, and decides when they are due again.

    unions             number of unions of e-classes that finders have made
    last_run_seconds   that the last run of the finders took
    measuring_seconds  for which kernels were measured since then; finders may know another form of a kernel
                       that turned out to be slow
    """

    graph: EGraph
    finders: Sequence[Finder]
    unions: int = field(default=0, init=False)
    last_run_seconds: float = field(default=0.0, init=False)
    measuring_seconds: float = field(default=0.0, init=False)

    def run(self, program: Program) -> None:
        """Insert the finders' equations for a program that is in the e-graph."""
        began = monotonic()
        self.graph.programs = [program]
        unions = find_all(self.graph, self.finders, len(self.graph) + MAX_NEW_ENODES)
        self.unions += unions
        self.last_run_seconds, self.measuring_seconds = monotonic() - began, 0.0
        record("finders", unions=unions, finding_seconds=self.last_run_seconds)

    def run_deferred(self, program: Program, deadline: float | None) -> bool:
        """Give finders with deferred work a part of the time left; return whether they made a new union."""
        before, deferring = self.unions, [f for f in self.finders if isinstance(f, DeferringFinder)]
        seconds = 0.0 if deadline is None else IDLE_SHARE * (deadline - monotonic())
        # `sum`, not `any`, as every finder is to get its share
        if seconds > 0 and sum(finder.grant_time(seconds / len(deferring)) for finder in deferring):
            self.run(program)
        return self.unions > before

    @property
    def is_due(self) -> bool:
        """Whether kernels were measured for long enough since the last run."""
        return bool(self.finders) and self.measuring_seconds > DUE_FACTOR * self.last_run_seconds
