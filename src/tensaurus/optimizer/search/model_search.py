"""Searches a whole model: flushes subnormal constants, then searches the bodies, then the model.

A flush replaces subnormal constants that no result depends on by 0 (`flush_constants`).  The bodies (of If,
Loop and Scan) are flushed and searched first; the model with the best bodies is flushed and searched then.
"""

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

FLUSHING_SHARE = 0.25  # of the time that is left, for finding subnormal constants without influence
MIN_FLUSHING_SECONDS = 1.0  # for finding them, however little time is left


@dataclass
class ModelSearch:
    """Runs one strategy on the bodies and on the model, until one deadline; an interrupt ends all searches.

    flush  whether to flush subnormal constants first
    noted  lines that were shown for one body, and need not be shown again
    """

    strategy: Strategy
    runtime: Runtime
    effort: Effort
    progress: Progress
    flush: bool = True
    interrupted: bool = False
    noted: set[str] = field(default_factory=set)

    def run(self, program: Program) -> tuple[Outcome, list[Candidate]]:
        """Return the outcome for the model with its best bodies, and the bodies as candidates."""
        flushed: list[Candidate] = []
        if self.flush:
            with self._flushing_block():
                program, flushed = flush_bodies(program)
        with_best_bodies, bodies = search_bodies(program, self.search)
        first = Candidate(with_best_bodies, inf)
        if self.flush:
            with self._flushing_block():
                first = flush_program(with_best_bodies)
        # the search begins with the flushed model; a flush becomes the first step of each candidate
        return prepend_flush(first, self.search(first.program)), [*flushed, *bodies]

    def _flushing_block(self) -> DeadlineBlock:
        """Return a block that ends after a part of the time left; a program not yet flushed then stays."""
        now, deadline = monotonic(), self.effort.deadline
        if deadline is None:
            return DeadlineBlock(inf)
        return DeadlineBlock(now + max(MIN_FLUSHING_SECONDS, FLUSHING_SHARE * (deadline - now)))

    def search(self, program: Program) -> Outcome:
        """Search the model or one body, and report progress and notes."""
        if self.interrupted:  # in an earlier body
            return Outcome([Candidate(program, inf)], "interrupt")
        deadline = self.effort.deadline

        def watch(done: int, best: float | None = None) -> None:
            seconds_left = None if deadline is None else max(0.0, deadline - monotonic())
            best_ms = None if best is None or best == inf else best * 1e3
            self.progress.step(done, self.effort.steps, best_ms, seconds_left)

        # `before_measuring` is called before each measurement: progress is shown before the first step, too
        self.runtime.costs.before_measuring = lambda: watch(0)
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
