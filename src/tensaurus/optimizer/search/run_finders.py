"""What the finders make of the programs that a search extracts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import DeferringFinder, Finder, find_all
from tensaurus.graph.ir.program import Program

__all__ = ["ENTERING", "Showing"]

ENTERING = 10_000  # e-nodes at most that a look at one program, or another search's, may add
IDLE = 0.5  # of the time that is left, for what finders left undone
PART = 2.0  # times what the last look took, that kernels are measured before another one is due


@dataclass
class Showing:
    """Callable with a program, in whose e-graph the finders' equations are from then on.

    unions    of e-classes that finders have made
    seconds   of the last look
    measured  seconds that kernels were measured for since then: of one that turns out to be slow, finders may
              know another form
    """

    graph: EGraph
    finders: Sequence[Finder]
    unions: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    measured: float = field(default=0.0, init=False)

    def __call__(self, program: Program) -> None:
        began = monotonic()
        self.graph.programs = [program]
        self.unions += find_all(self.graph, self.finders, len(self.graph) + ENTERING)
        self.seconds, self.measured = monotonic() - began, 0.0

    def unhurried(self, program: Program, deadline: float | None) -> bool:
        """Whether finders that left something undone make more of a program in what would be idle time."""
        before, left = self.unions, [f for f in self.finders if isinstance(f, DeferringFinder)]
        seconds = 0.0 if deadline is None else IDLE * (deadline - monotonic())
        if seconds > 0 and sum(finder.grant_time(seconds / len(left)) for finder in left):
            self(program)
        return self.unions > before

    @property
    def due(self) -> bool:
        """Whether enough was measured since the last look."""
        return bool(self.finders) and self.measured > PART * self.seconds
