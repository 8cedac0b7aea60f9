"""The first run of a model: on inputs that it accepts, and in a share of the time limit."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic

from tensaurus.check.inputs.draw_inputs import require_ranges
from tensaurus.check.inputs.timing_inputs import sample_feeds
from tensaurus.check.inputs.user_inputs import load_user_inputs
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes.backends import Array
from tensaurus.system.deadline import DeadlineBlock

__all__ = ["FirstRun", "TooSlow"]

STARTING = 10.0  # seconds in which a process starts and runs a small model, on a busy machine, too
SHARE = 0.5  # of the time limit: four processes load and run a model before a result of it is compared


class TooSlow(Exception):
    """No result of the model can be measured within the time limit; the text says why."""


@dataclass(frozen=True)
class FirstRun:
    """The inputs that a model ran on, and how long that took.

    given  those of them that the caller gave
    words  the sizes that were made up for it; "" where none were
    load   seconds until a process was ready to run it
    run    seconds of the run
    """

    feeds: dict[str, Array]
    given: dict[str, Array]
    words: str
    load: float
    run: float

    @classmethod
    def of(cls, original: Original, options: Options, source: Build, threads: int) -> FirstRun:
        """Run the model on the first backend that is asked for.

        Raises TensaurusError where it runs on no inputs, and TooSlow where it has not done so in the SHARE of
        the time limit: a model may hold a loop that never ends.
        """
        model, shapes, ranges = original.model, options.shapes or {}, options.ranges or {}
        require_ranges(model, ranges)
        given, began = load_user_inputs(options.inputs, model, shapes), monotonic()
        patience = inf if options.steps is not None else max(STARTING, SHARE * options.time_limit)
        with DeadlineBlock(began + patience):
            feeds, words, run = sample_feeds(
                model, shapes, options.seed, source, options.first, threads, ranges, options.run_limit, given
            )
            return cls(feeds, given, words, monotonic() - began - run, run)
        limit = f"{options.time_limit:g} s are too short to compare a result with it"
        raise TooSlow(f"the model did not finish one run in {patience:g} s: {limit}")
