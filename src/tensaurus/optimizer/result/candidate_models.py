"""Writes a search's candidates as ONNX models, and measures these in turns with the original.

The search priced a candidate by the sum of its operators' costs.  Here it is run as a whole:

    Outcome  --measure_candidates-->  MeasuredModels  --choose_winner-->  Winner  (--> Result)

In: the candidates of an `Outcome`, such as three programs of 8.0, 8.2 and 8.9 ms by their operators.
Out: a `CandidateModel` for each that could be written, with its measured seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from tensaurus.check.program.candidate import Candidate
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.run.available_finders import SUBNORMALS
from tensaurus.optimizer.run.open_sizes import NeedsFixedSizes, open_all_sizes
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.prepare_program import flush_candidate
from tensaurus.runtimes.measure.end_to_end_times import ROUND_SECONDS, time_models
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.errors import TensaurusError
from tensaurus.system.timeline import record

__all__ = ["CandidateModel", "MeasuredModels", "format_skipped", "measure_candidates", "needed_gain"]

RAISE_LIMIT = "raise --time-limit"  # the remedy in notes about work for which there was no time
MIN_WRITING_SECONDS = 1.0  # that writing a candidate as ONNX may take, however little time is left
# Share of the time limit that writing the first candidate may take: transformed weights of VGG-19 take 3 s.
FIRST_WRITING_SHARE = 0.2
FIXED_SIZES_GAIN = 0.05  # least gain of a result that runs only at fixed sizes, which makes up for that loss
MIN_GAIN = 0.02  # least gain of a result; the place of a model's memory in a process may make as much


def needed_gain(fixed_sizes: str) -> float:
    """Return the share of time that a result must gain, which is more if it runs only at fixed sizes."""
    return FIXED_SIZES_GAIN if fixed_sizes else MIN_GAIN


@dataclass(frozen=True)
class CandidateModel:
    """A candidate that was written as an ONNX model.

    fast_sizes   inputs at whose sizes alone the model runs the candidate; at other sizes it runs the
                 original, or `general`, a candidate that holds at all sizes
    at_sizes     the build of the candidate alone, where there are `fast_sizes`
    fixed_sizes  inputs at whose sizes alone the model runs
    why_fixed    why the candidate does not run at other sizes
    seconds      of one run, measured in turns with the original and the other models; infinite before that
    """

    candidate: Candidate
    build: Build
    fast_sizes: str = ""
    general: Candidate | None = None
    at_sizes: Build | None = None
    fixed_sizes: str = ""
    why_fixed: str = ""
    seconds: float = inf

    @property
    def needed_gain(self) -> float:
        """The share of time that it must gain."""
        return needed_gain(self.fixed_sizes)

    @property
    def penalized_seconds(self) -> float:
        """Seconds, increased where the model runs only at fixed sizes, to rank it behind equal ones."""
        return self.seconds * (1 + self.needed_gain) / (1 + MIN_GAIN)


@dataclass(frozen=True)
class MeasuredModels:
    """All candidate models of a run, measured beside the original.

    bodies            candidates for the bodies of If, Loop and Scan, which all models contain
    original_seconds  of one run of the original, measured in turns with the models
    """

    bodies: Sequence[Candidate]
    original_seconds: float
    models: Sequence[CandidateModel]

    def candidates_in(self, model: CandidateModel) -> tuple[Candidate, ...]:
        """Return the candidates whose rewrites lead to a model: those of the bodies, then the model's own.

        The last one is what the model runs at the given sizes.
        """
        general = () if model.general is None else (model.general,)
        return *self.bodies, *general, model.candidate

    def fastest_by_search(self, default_search: str) -> dict[str, float]:
        """Return the seconds of each search's fastest model; one without a search is the default's."""
        best: dict[str, float] = {}
        for model in self.models:
            for search in model.candidate.by or {default_search}:
                best[search] = min(model.seconds, best.get(search, self.original_seconds))
        return best or {default_search: self.original_seconds}


def measure_candidates(run: OptimizationRun, outcome: Outcome, bodies: Sequence[Candidate]) -> MeasuredModels:
    """Write the outcome's candidates as ONNX and measure them in turns with the original.

    A candidate that cannot be written, or not in time, is dropped with a note.
    """
    run.progress.phase("measuring the best programs", 4)
    # the candidate without a step is the search's original: the model itself, unless bodies were improved
    candidates = [candidate for candidate in outcome.candidates if candidate.step is not None or bodies]
    limit, models = run.time_limit, list[CandidateModel]()
    deadline = inf if limit is None else limit.measuring_deadline
    for number, candidate in enumerate(candidates):
        # + 2: this candidate and the original; the first candidate is always measured
        if models and limit is not None and monotonic() + limit.measuring_seconds(len(models) + 2) > deadline:
            skipped = len(candidates) - number
            run.progress.note(format_skipped(skipped, "rewritten program", "measured"))
            break
        least = MIN_WRITING_SECONDS
        if not models and limit is not None:
            least = max(least, FIRST_WRITING_SHARE * run.options.time_limit)
        if (model := _write_candidate(run, candidate, bodies, deadline, least)) is not None:
            models.append(model)
    for reason in dict.fromkeys(model.why_fixed for model in models if model.fixed_sizes):
        loss = f"a rewritten program would accept only the sizes {run.original.fixed_sizes} ({reason})"
        run.progress.note(f"{loss}; it is kept only if it gains at least {100 * FIXED_SIZES_GAIN:g} %")
    latest = inf if limit is None else max(deadline, monotonic()) + limit.patience_seconds(len(models) + 1)
    with DeadlineBlock(latest) as measuring:
        original_seconds, *times = _measure_times(run, [model.build for model in models], deadline)
        for model, seconds in zip(models, times, strict=True):
            expected_ms, original_ms = model.candidate.cost * 1e3, original_seconds * 1e3
            record("run", expected_ms=expected_ms, took_ms=seconds * 1e3, original_ms=original_ms)
        models = [replace(model, seconds=seconds) for model, seconds in zip(models, times, strict=True)]
        models = _use_general_rewrites(run, models, original_seconds)
    if measuring.ended and limit is not None:
        run.progress.note(f"measuring took too long, so the model is left unchanged: {RAISE_LIMIT}")
        original_seconds, models = limit.run_seconds, []
    return MeasuredModels(bodies, original_seconds, models)


def format_skipped(count: int, what: str, done: str) -> str:
    """Return the note on programs for which there was no time: '2 faster programs were not checked, ...'."""
    some = f"1 {what} was" if count == 1 else f"{count} {what}s were"
    return f"{some} not {done}, for lack of time: a higher --time-limit may give a faster result"


def _write_candidate(
    run: OptimizationRun, candidate: Candidate, bodies: Sequence[Candidate], deadline: float, least: float
) -> CandidateModel | None:
    """Return a candidate with its model; None, and a note, if it cannot be written in time.

    Writing may take half of the time left, and `least` seconds, however little time is left.
    """
    now, failure = monotonic(), ""
    with DeadlineBlock(now + max(least, (deadline - now) / 2)) as writing:
        try:
            if SUBNORMALS not in run.options.without:
                candidate = flush_candidate(candidate)
            model = _build_candidate(run, candidate, bodies)
        except TensaurusError as error:
            failure = f"it cannot be written as ONNX: {error}"
    if writing.ended:
        failure = f"writing it as ONNX takes too long: {RAISE_LIMIT}"
    elif not failure and model.build.constant_bytes > run.max_constant_bytes:
        stored, most = model.build.constant_bytes / 1e6, run.max_constant_bytes / 1e6
        failure = f"it stores {stored:.3g} MB of constants, more than {most:.3g} MB: --max-memory allows more"
    if failure:
        run.progress.note(f"dropped a rewritten program: {failure}")
    return None if failure else model


def _build_candidate(
    run: OptimizationRun, candidate: Candidate, bodies: Sequence[Candidate]
) -> CandidateModel:
    """Return the candidate as a model with all sizes open that the original leaves open.

    If its rewrites do not hold at all sizes, the model runs the original at other sizes than the given ones.
    If that cannot be written, it runs at the given sizes alone.  Raises TensaurusError where the candidate
    cannot be written.
    """
    original = run.original
    if not original.fixed_sizes:
        return CandidateModel(candidate, run.builds(candidate.program))
    try:
        if bodies:
            reason = "its rewrites in the bodies of If, Loop and Scan hold only for the given sizes"
            raise NeedsFixedSizes(reason)
        program = open_all_sizes(candidate, original.open_program, run.rules)
        return CandidateModel(candidate, run.builds(program))
    except TensaurusError as error:
        reason = str(error)
    sizes, fixed = original.fixed_sizes, run.builds(candidate.program)
    try:
        guarded = run.guard_sizes(fixed, run.source)
        return CandidateModel(candidate, guarded, sizes, at_sizes=fixed, why_fixed=reason)
    except TensaurusError:
        return CandidateModel(candidate, fixed, fixed_sizes=sizes, why_fixed=reason)


def _use_general_rewrites(
    run: OptimizationRun, models: list[CandidateModel], original_seconds: float
) -> list[CandidateModel]:
    """Return the models with what holds at all sizes and is faster in the place of the original.

    A model that runs a candidate at the given sizes alone runs the original elsewhere.  The fastest model
    that holds at all sizes takes the original's place, if it gained at the given sizes.
    """
    open_models = [model for model in models if not model.fast_sizes and not model.fixed_sizes]
    best = min(open_models, key=lambda model: model.seconds, default=None)
    if best is None or best.seconds > (1 - MIN_GAIN) * original_seconds:
        return models
    return [
        model
        if model.at_sizes is None
        else replace(model, build=run.guard_sizes(model.at_sizes, best.build), general=best.candidate)
        for model in models
    ]


def _measure_times(run: OptimizationRun, builds: Sequence[Build], deadline: float) -> list[float]:
    """Return the seconds of one run of the original, then of each build, measured in turns."""
    return time_models(
        [(run.backend, build) for build in (run.source, *builds)], run.feeds, run.machine, run.database,
        seconds=ROUND_SECONDS if run.time_limit is None else run.time_limit.turn_seconds,
        deadline=deadline,
    )
