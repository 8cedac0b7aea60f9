"""Optimizes a model for each installed runtime and returns the fastest result (`--backend auto`).

The runtimes first run the original; those far behind are not tried.  The others share the time limit, and the
fastest result must be faster than the original on the runtime that runs the original fastest.

After a run for one runtime, `compare_other_runtimes` tells the user where another is faster than the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic

from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.result.candidate_models import MIN_GAIN, needed_gain
from tensaurus.optimizer.result.result import Result
from tensaurus.optimizer.run.first_run import FirstRun
from tensaurus.optimizer.run.kernel_budget import reason_without_kernels
from tensaurus.optimizer.run.optimization_run import OptimizationRun
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array, BackendError
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.end_to_end_times import ROUND_SECONDS, time_model_pairs, time_models
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Contender, Pairs, explain_refusal
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system import signals
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.progress import Progress
from tensaurus.system.scratch import temporary_folder

__all__ = ["compare_other_runtimes", "optimize_on_fastest_runtime"]

MAX_SLOWDOWN = 4.0  # of the original against the fastest runtime: no result is expected to make up for more
KERNEL_TIME_WEIGHT = 3.0  # share of the time for a runtime that loads kernels, to tune them; 1 for another
MIN_TRIAL_SECONDS = 30.0  # that each runtime has to run the model, however short the time limit is
COMPARING_SHARE = 0.1  # of the time limit, reserved for comparing the runtimes
COMPARING_TURNS = 60  # estimated turns of all builds in these comparisons
OTHERS_SECONDS = 0.05  # seconds of one round of each runtime that was not optimized for

OptimizeForOne = Callable[[Options, float], Result]
"""Optimizes for the runtime that the options name; the float is the monotonic time at which this began."""


def optimize_on_fastest_runtime(
    original: Original, options: Options, progress: Progress, start: float, optimize: OptimizeForOne
) -> Result:
    """Return the fastest result, if it is faster than the original on every runtime, else the original.

    Raises BackendError, with each runtime's reason, where no installed runtime runs the model.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        # 1. run the original on each runtime
        contest = _RuntimeContest.of(original, options, progress, start, folder)
        names = contest.find_runtimes()
        if len(names) == 1:
            progress.note(f"only {names[0]} can run this model")
            return optimize(replace(options, backend=names[0]), start)
        progress.phase("comparing the runtimes")
        originals = [(name, contest.source) for name in names]
        times = dict(zip(names, contest.measure_times(originals), strict=True))
        names.sort(key=lambda name: times[name])
        fastest = names[0]
        # 2. optimize for the runtimes that are not far behind; then an interrupt keeps the best
        stack.enter_context(signals.keep_best_on_interrupt(armed=False))
        promising = [name for name in names if times[name] <= MAX_SLOWDOWN * times[fastest]]
        results = contest.optimize_each(promising, optimize)
        builds = {name: _build(result, folder / name) for name, result in results.items() if result.rewrites}
        # 3. run the results and the original on its fastest runtime in turns, then the best result in pairs
        progress.phase("comparing the runtimes")
        if builds:
            original_seconds, *taken = contest.measure_times([(fastest, contest.source), *builds.items()])
            # relative to the original in the same turns: the machine's speed may have changed since `times`
            ratios = {name: seconds / original_seconds for name, seconds in zip(builds, taken, strict=True)}
            times |= {f"tensaurus on {name}": ratio * times[fastest] for name, ratio in ratios.items()}
            progress.note(", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in times.items()))
            best = min(ratios, key=lambda name: ratios[name])
            gain = needed_gain(results[best].summary.runs_only)
            try:
                pairs = contest.compare_pairs((fastest, contest.source), (best, builds[best]), gain)
                if pairs.comparison.shows(gain):
                    return results[best].with_comparison(pairs, times)
                refusal = f"against the original on {fastest} {pairs.comparison.refusal(gain)}"
                progress.note(f"the result for {best} is not kept: {refusal}")
            except WorkerError as error:
                progress.note(f"no result is kept: {error}")
        reason = f"no result is faster than the original on {fastest}"
        unchanged = Result.unchanged(original, fastest, contest.machine, reason)
        return unchanged.with_runtime_times(times[fastest], times)


def compare_other_runtimes(run: OptimizationRun, result: Result) -> Result:
    """Return the result with the original's times on the other installed runtimes, and note a faster one.

    A model that is served on one runtime may run faster on another than any rewrite makes it.  Nothing is
    measured where that takes more than a small part of the time limit, or where steps limit the run.
    """
    names = [run.backend, *(name for name in backends.targets() if name != run.backend)]
    limit = run.time_limit
    if limit is None or len(names) == 1 or not limit.has_time_for_runtimes(len(names)):
        return result
    if result.summary.ended_by == "interrupt":
        return result
    run.progress.phase("comparing with other runtimes")
    try:
        with signals.Interruptible():
            entries = [(name, run.source) for name in names]
            own, *others = time_models(
                entries, run.feeds, run.machine, run.database, seconds=OTHERS_SECONDS
            )
    except (WorkerError, KeyboardInterrupt):
        return result
    # relative to the original in the same turns: the machine's speed may have changed since it was measured
    original = result.summary.original_ms
    times = {n: original * s / own for n, s in zip(names[1:], others, strict=True) if s < inf}
    if not times:  # all refuse the model
        return result
    fastest = min(times, key=lambda name: times[name])
    if times[fastest] < (1 - MIN_GAIN) * result.summary.optimized_ms:
        told = f"{fastest} runs the original in {times[fastest]:.3g} ms, faster than the result"
        run.progress.note(f"{told}: --backend auto optimizes for both, and keeps the faster")
    return result.with_other_runtimes({run.backend: original, **times})


def _build(result: Result, folder: Path) -> Build:
    folder.mkdir()
    return Build.from_model(result.model, folder, result.libraries)


@dataclass(frozen=True)
class _RuntimeContest:
    """Runs the model and its results on the installed runtimes, on the inputs `feeds`."""

    source: Build
    feeds: dict[str, Array]
    options: Options
    progress: Progress
    start: float
    machine: Machine

    @classmethod
    def of(
        cls, original: Original, options: Options, progress: Progress, start: float, folder: Path
    ) -> _RuntimeContest:
        """Run the model once.  Raises TensaurusError if no inputs fit, TooSlow if it takes too long."""
        machine = Machine.here(options.threads)
        source = Build.from_model(original.model, folder, original.libraries)
        feeds = FirstRun.of(original, options, source, machine.threads).feeds
        return cls(source, feeds, options, progress, start, machine)

    def find_runtimes(self) -> list[str]:
        """Return the names of the runtimes that run the model."""
        reasons = dict[str, str | None]()
        for name in backends.targets():
            contender = Contender(name, name, self.source)
            with DeadlineBlock(max(self._deadline, monotonic() + MIN_TRIAL_SECONDS)):
                reasons[name] = explain_refusal(contender, self.feeds, self.machine.threads)
            # without an entry: the block was ended
            reasons.setdefault(name, f"no answer within {MIN_TRIAL_SECONDS:g} s")
        refused = {name: why.removeprefix(f"{name}: ") for name, why in reasons.items() if why is not None}
        if len(refused) == len(reasons):
            listed = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise BackendError(f"no backend runs the model: {listed or 'none is installed'}")
        for name, reason in refused.items():
            left_out = f"{name} is left out of the comparison, as it does not run the model"
            self.progress.note(f"{left_out}: {reason}")
        return [name for name, reason in reasons.items() if reason is None]

    def measure_times(self, entries: Sequence[tuple[str, Build]]) -> list[float]:
        """Return the seconds of one run of each build on its runtime, measured in turns."""
        options, turn = self.options, ROUND_SECONDS
        if options.steps is None:
            turn = min(ROUND_SECONDS, max(0.02, COMPARING_SHARE * options.time_limit / COMPARING_TURNS))
        with Database(options.database) as records:
            return time_models(
                entries, self.feeds, self.machine, records, seconds=turn, deadline=self._deadline
            )

    def compare_pairs(self, first: tuple[str, Build], second: tuple[str, Build], gain: float) -> Pairs:
        """Run two builds in pairs, each on its runtime."""
        with Database(self.options.database) as records:
            return time_model_pairs(
                first, second, self.feeds, self.machine, records, gain=gain, deadline=self._deadline
            )

    @property
    def _deadline(self) -> float:
        """When the whole run must be finished; infinite where a number of steps limits it."""
        return inf if self.options.steps is not None else self.start + self.options.time_limit

    def optimize_each(self, names: Sequence[str], optimize: OptimizeForOne) -> dict[str, Result]:
        """Return the result of each runtime; an interrupt of one search ends all of them."""
        options, results = self.options, dict[str, Result]()
        weights = {n: 1.0 if reason_without_kernels(options, n) else KERNEL_TIME_WEIGHT for n in names}
        for number, name in enumerate(names):
            now = monotonic()
            remaining = max(0.0, self.start + (1 - COMPARING_SHARE) * options.time_limit - now)
            self.progress.note(f"optimizing for {name}")
            share = weights[name] / sum(weights[later] for later in names[number:])
            results[name] = optimize(replace(options, backend=name, time_limit=share * remaining), now)
            if results[name].summary.ended_by == "interrupt":
                break
        return results
