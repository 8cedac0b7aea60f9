"""The search of a whole model: the bodies in it, then the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.flush_constants import flush_bodies, flush_program, prepend_flush
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.strategies import Effort, Runtime, Strategy
from tensaurus.optimizer.search.subgraph_bodies import search_bodies
from tensaurus.system import signals
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.progress import Progress

__all__ = ["ModelSearch"]

FLUSHING = 0.25  # of the time that is left, for finding constants without influence
LEAST = 1.0  # seconds for that at least


@dataclass
class ModelSearch:
    """One strategy for the bodies and the model, with one effort; an interrupt ends all of them.

    flush  whether subnormal constants that no result depends on become 0, before everything else
    """

    strategy: Strategy
    runtime: Runtime
    effort: Effort
    progress: Progress
    flush: bool = True
    interrupted: bool = False
    noted: set[str] = field(default_factory=set)  # lines that were shown for one body and hold for others

    def run(self, program: Program) -> tuple[Outcome, list[Candidate]]:
        """The outcome for the model with its best bodies, and these bodies with their chains."""
        flushed: list[Candidate] = []
        if self.flush:
            with self._flushing():
                program, flushed = flush_bodies(program)
        better, bodies = search_bodies(program, self.search)
        first = Candidate(better, inf)
        if self.flush:
            with self._flushing():
                first = flush_program(better)
        return prepend_flush(first, self.search(first.program)), [*flushed, *bodies]

    def _flushing(self) -> DeadlineBlock:
        """A block that ends after a part of the time left; what is not flushed then stays as it is."""
        now, deadline = monotonic(), self.effort.deadline
        return DeadlineBlock(inf if deadline is None else now + max(LEAST, FLUSHING * (deadline - now)))

    def search(self, program: Program) -> Outcome:
        """The outcome for one of them."""
        if self.interrupted:  # in a body: what comes after it stays as it is
            return Outcome([Candidate(program, inf)], "interrupt")
        deadline = self.effort.deadline

        def watch(done: int, best: float | None = None) -> None:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            known = None if best is None or best == inf else best * 1e3
            self.progress.step(done, self.effort.steps, known, left)

        self.runtime.costs.measuring = lambda: watch(0)  # before the first step operators are measured
        outcome = self.strategy.search(program, self.effort, watch)
        if outcome.ended_by == "interrupt":
            self.interrupted = True
            if not signals.was_interrupt_announced():
                self.progress.note(signals.INTERRUPT_MESSAGE)
        for note in dict.fromkeys(outcome.notes):
            if note not in self.noted:
                self.noted.add(note)
                self.progress.note(note)
        return outcome
