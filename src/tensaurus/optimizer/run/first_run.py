"""Runs a model for the first time: finds inputs that it accepts, and how long one run takes.

A model may hold a loop that never ends, so the first run has only a part of the time limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.check.inputs.timing_inputs import draw_timing_inputs, time_run
from tensaurus.check.inputs.user_inputs import load_user_inputs, require_ranges
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.measure import warm_up_runs
from tensaurus.runtimes.measure.worker import start_worker
from tensaurus.system.deadline import DeadlineBlock

__all__ = ["FirstRun", "TooSlow"]

MIN_SECONDS = 10.0  # in which even a busy machine starts a process and runs a small model
LONG_RUN_SECONDS = 1.0  # a run that takes longer is not timed again
TIME_SHARE = 0.5  # of the time limit: four processes load and run a model before a result can be compared


class TooSlow(Exception):
    """No result of the model can be measured within the time limit; the text says why."""


@dataclass(frozen=True)
class FirstRun:
    """The inputs that a model ran on, and how long that took.

    user_inputs    the part of the inputs that the user gave
    assumed_sizes  the sizes that were made up for the inputs, for users; "" where none were
    load_seconds   until a process was ready to run the model, and what its first runs took longer
    run_seconds    of one run
    """

    feeds: dict[str, Array]
    user_inputs: dict[str, Array]
    assumed_sizes: str
    load_seconds: float
    run_seconds: float

    @classmethod
    def of(cls, original: Original, options: Options, source: Build, threads: int) -> FirstRun:
        """Run the model on the first backend that the options name.

        Raises TensaurusError where the model runs on no inputs, and TooSlow where it does not finish within
        `TIME_SHARE` of the time limit.
        """
        model, shapes, ranges = original.model, options.shapes or {}, options.ranges or {}
        require_ranges(model, ranges)
        user_inputs, began = load_user_inputs(options.inputs, model, shapes), monotonic()
        patience = inf if options.steps is not None else max(MIN_SECONDS, TIME_SHARE * options.time_limit)
        backend, run_limit = options.first_backend, options.run_limit
        with DeadlineBlock(began + patience):
            feeds, assumed_sizes, run_seconds = draw_timing_inputs(
                model, shapes, options.seed, source, backend, threads, ranges, run_limit, user_inputs
            )
            return cls(feeds, user_inputs, assumed_sizes, _seconds_to_load(began, run_seconds), run_seconds)
        # reached only where the block was ended
        limit = f"{options.time_limit:g} s are too short to compare a result with it"
        raise TooSlow(f"the model did not finish one run in {patience:g} s: {limit}")

    def time_again(self, options: Options, source: Build, threads: int) -> FirstRun:
        """Return the record with the times of runs in another process, where these are shorter.

        While the first runs are timed, the processes that tune kernels start: a run of ResNet-50 seemed to
        take 0.23 instead of 0.04 s, and the time that was reserved for its check left the search half of its
        own.  Runs of seconds outlast that start, and are not repeated.
        """
        if self.run_seconds >= LONG_RUN_SECONDS:
            return self
        began, backend = monotonic(), options.first_backend
        with start_worker(source, backend, threads=threads, limit=options.run_limit) as worker:
            run_seconds = time_run(worker, self.feeds)
        return replace(
            self,
            load_seconds=min(self.load_seconds, _seconds_to_load(began, run_seconds)),
            run_seconds=min(self.run_seconds, run_seconds),
        )


def _seconds_to_load(began: float, run_seconds: float) -> float:
    """Return the seconds since a process began to start, without those of its runs."""
    return max(0.0, monotonic() - began - (1 + warm_up_runs(run_seconds)) * run_seconds)
