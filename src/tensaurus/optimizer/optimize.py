"""`optimize`: takes a model and returns a faster equal model with evidence for every rewrite.

The phases of a run: read the model, run it, search, measure the best programs, confirm the speedup of the
fastest one by pairs of runs, check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import onnx

from tensaurus.optimizer.choose_runtime import compare_other_runtimes, optimize_on_fastest_runtime
from tensaurus.optimizer.result.candidate_models import measure_candidates
from tensaurus.optimizer.result.result import PhaseSeconds, Result
from tensaurus.optimizer.result.winner import choose_winner
from tensaurus.optimizer.run.available_finders import SUBNORMALS, WIDENING
from tensaurus.optimizer.run.first_run import TooSlow
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.run.options import AUTO, DEFAULTS, Options
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.strategies import STRATEGIES
from tensaurus.rules.language.rule import Rule, library
from tensaurus.rules.test.user_rules import load_user_rules
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system import signals
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import name_file_in_errors
from tensaurus.system.progress import NoProgress, Progress, RecordedProgress
from tensaurus.system.timeline import Timeline

__all__ = ["Options", "Result", "optimize"]

MIN_PREPARING_SECONDS = 60.0  # to open an `OptimizationRun`, however short the time limit is
VERIFYING_SHARE = 0.5  # of the time limit, for verifying the user's rules


def optimize(
    model: str | Path | onnx.ModelProto,
    options: Options = DEFAULTS,
    *,
    progress: Progress | None = None,
    **changes: Any,
) -> Result:
    """Return a model that computes the same function and is not slower on the backend.

    Options may be given by keyword: optimize("model.onnx", time_limit=60, backend="auto").  An interrupt ends
    the search; the best program so far is still checked and returned.
    Raises TensaurusError for a model that cannot be read or run.
    """
    options = replace(options, **changes)
    with Timeline() as timeline:
        result = _optimize(model, options, RecordedProgress(progress or NoProgress()), timeline.start)
    return replace(result, summary=replace(result.summary, timeline=tuple(timeline.events)))


def _optimize(
    model: str | Path | onnx.ModelProto, options: Options, progress: Progress, start: float
) -> Result:
    """Optimize for the backend of the options or for the fastest, in a run that began at `start`."""
    progress.phase("reading the model", 1)
    original = Original.read(model, options)
    rules = library(long=options.is_long_search, ops={str(node.op) for node in original.program.nodes})
    if options.rules:
        progress.phase("verifying the rules")
        deadline = start + VERIFYING_SHARE * options.time_limit if options.steps is None else inf
        files = map(Path, options.rules)
        rules += load_user_rules(files, library(), options.allow_unproved, progress.note, deadline)
    with name_file_in_errors(original.name):
        if why := original.why_unfit:
            progress.note(f"the model is left unchanged: {why}")
            return Result.unchanged(original, options.first_backend, Machine.here(options.threads), why)
        optimize_for_one = partial(_optimize_for_one, original, rules, progress)
        if options.backend != AUTO:
            return optimize_for_one(options, start, compares=True)
        try:
            return optimize_on_fastest_runtime(original, options, progress, start, optimize_for_one)
        except TooSlow as reason:
            return _unchanged(original, progress, options, reason)


def _optimize_for_one(
    original: Original,
    rules: Sequence[Rule],
    progress: Progress,
    options: Options,
    start: float,
    compares: bool = False,
) -> Result:
    """Optimize for the backend of the options, in a run that began at `start` (monotonic time).

    `compares` asks for the original's times on other runtimes as well.
    """
    with ExitStack() as stack:
        seconds_to_prepare = max(MIN_PREPARING_SECONDS, options.time_limit)
        deadline = inf if options.steps is not None else start + seconds_to_prepare
        try:
            with DeadlineBlock(deadline) as preparing:
                run = stack.enter_context(OptimizationRun(original, options, rules, progress, start))
            if preparing.ended:
                raise TooSlow(f"the time limit of {options.time_limit:g} s is too short to measure anything")
        except TooSlow as reason:
            return _unchanged(original, progress, options, reason)
        stack.enter_context(signals.keep_best_on_interrupt())
        progress.phase("searching", 3)
        search_start = monotonic()
        strategy = STRATEGIES[options.search](rules, run.runtime)
        flush, widen = (name not in options.without for name in (SUBNORMALS, WIDENING))
        search = ModelSearch(strategy, run.runtime, run.effort, progress, flush, widen)
        outcome, bodies = search.run(run.original.program)
        run.stop_search()
        search_end = monotonic()
        measured = measure_candidates(run, outcome, bodies)
        winner = choose_winner(run, measured)
        checking = winner.checking_seconds
        seconds = PhaseSeconds(search_end - search_start, monotonic() - search_end - checking, checking)
        result = Result.of(run, outcome, measured, winner, seconds)
        return compare_other_runtimes(run, result) if compares else result


def _unchanged(original: Original, progress: Progress, options: Options, reason: TooSlow) -> Result:
    """Return the original, and tell the user why."""
    progress.note(f"{reason}: the model is left unchanged; raise --time-limit")
    return Result.unchanged(original, options.first_backend, Machine.here(options.threads), str(reason))
