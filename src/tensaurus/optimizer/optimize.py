"""The main loop: a model in, a faster equal model out, with evidence for every rewrite."""

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

from tensaurus.optimizer.choose_runtime import on_fastest_runtime
from tensaurus.optimizer.result.contenders import contenders
from tensaurus.optimizer.result.result import Result
from tensaurus.optimizer.run.available_finders import SUBNORMALS
from tensaurus.optimizer.run.first_run import TooSlow
from tensaurus.optimizer.run.options import AUTO, DEFAULTS, Options
from tensaurus.optimizer.run.original import Original
from tensaurus.optimizer.run.target import Target
from tensaurus.optimizer.search.model_search import ModelSearch
from tensaurus.optimizer.search.strategies import STRATEGIES
from tensaurus.rules.language.rule import Rule, library
from tensaurus.rules.test.user_rules import load_user_rules
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system import signals
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import name_file_in_errors
from tensaurus.system.progress import NoProgress, Progress

__all__ = ["Options", "Result", "optimize"]

READY = 60.0  # seconds until candidates can be measured, at least, however short the time limit is
VERIFYING = 0.5  # of the time limit, for rules of the user's own


def optimize(
    model: str | Path | onnx.ModelProto,
    options: Options = DEFAULTS,
    *,
    progress: Progress | None = None,
    **changes: Any,
) -> Result:
    """A model that computes the same function and is never slower on the backend.

    What `Options` lists may be given by keyword, too: optimize("model.onnx", time_limit=60, backend="auto").
    An interrupt ends the search; the best program so far is still checked and returned.
    Raises TensaurusError for a model that cannot be read or run.
    """
    start, options = monotonic(), replace(options, **changes)
    progress = progress or NoProgress()
    progress.phase("reading the model", 1)
    original = Original.read(model, options)
    rules = library(long=options.long, ops={str(node.op) for node in original.program.nodes})
    if options.rules:
        progress.phase("verifying the rules")
        until = start + VERIFYING * options.time_limit if options.steps is None else inf
        own = map(Path, options.rules)
        rules += load_user_rules(own, library(), options.allow_unproved, progress.note, until)
    with name_file_in_errors(original.name):
        if original.unfit:
            progress.note(f"the model is left unchanged: {original.unfit}")
            return Result.unchanged(original, options.first, Machine.here(options.threads), original.unfit)
        optimized = partial(_optimized, original, rules, progress)
        if options.backend != AUTO:
            return optimized(options, start)
        try:
            return on_fastest_runtime(original, options, progress, start, optimized)
        except TooSlow as reason:
            return _unchanged(original, progress, options, reason)


def _optimized(
    original: Original, rules: Sequence[Rule], progress: Progress, options: Options, start: float
) -> Result:
    """On one backend, in a run whose time began at `start`."""
    with ExitStack() as stack:
        ready = inf if options.steps is not None else start + max(READY, options.time_limit)
        try:
            with DeadlineBlock(ready) as preparing:
                target = stack.enter_context(Target(original, options, rules, progress, start))
            if preparing.ended:
                raise TooSlow(f"the time limit of {options.time_limit:g} s is too short to measure anything")
        except TooSlow as reason:
            return _unchanged(original, progress, options, reason)
        stack.enter_context(signals.keep_best_on_interrupt())
        progress.phase("searching", 3)
        begun = monotonic()
        strategy = STRATEGIES[options.search](rules, target.runtime)
        flush = SUBNORMALS not in options.without
        search = ModelSearch(strategy, target.runtime, target.effort, progress, flush)
        outcome, bodies = search.run(original.program)
        target.rest()
        searched = monotonic()
        ranked = contenders(target, outcome, bodies)
        winner = ranked.winner()
        seconds = searched - begun, monotonic() - searched - winner.checking, winner.checking
        return Result.of(target, outcome, ranked, winner, seconds)


def _unchanged(original: Original, progress: Progress, options: Options, reason: TooSlow) -> Result:
    progress.note(f"{reason}: the model is left unchanged; raise --time-limit")
    return Result.unchanged(original, options.first, Machine.here(options.threads), str(reason))
