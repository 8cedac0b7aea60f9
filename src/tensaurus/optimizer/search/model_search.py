"""Searches a whole model: prepares the bodies and searches them, then the model.

The bodies (of If, Loop and Scan) come first, then the model with the best bodies.  To prepare is to flush
subnormal constants that no result depends on (`prepare_program`) and, of the model alone, to compute in
float32 what is of half precision (`rules/prove/wide_floats`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.prepare_program import (
    flush_bodies,
    flush_program,
    prepend_preparation,
    widen_candidate,
)
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
    widen  whether to compute in float32 what is of half precision
    noted  lines that were shown for one body, and need not be shown again
    """

    strategy: Strategy
    runtime: Runtime
    effort: Effort
    progress: Progress
    flush: bool = True
    widen: bool = True
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
        if self.widen:
            first = widen_candidate(first)
        # the search begins with the prepared model; how it was prepared is how each candidate begins
        return prepend_preparation(first, self.search(first.program)), [*flushed, *bodies]

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
