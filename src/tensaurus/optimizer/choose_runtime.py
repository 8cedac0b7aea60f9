"""Of several runtimes the one with the fastest result: the optimizer runs for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic

from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.result.contenders import needed_gain
from tensaurus.optimizer.result.result import Result
from tensaurus.optimizer.run.first_run import FirstRun
from tensaurus.optimizer.run.kernel_budget import reason_without_kernels
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.original import Original
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array, BackendError
from tensaurus.runtimes.measure.database import Database
from tensaurus.runtimes.measure.end_to_end_times import SECONDS, contest_pairs, contest_times
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import Contender, Pairs, explain_refusal
from tensaurus.runtimes.measure.worker import WorkerError
from tensaurus.system import signals
from tensaurus.system.deadline import DeadlineBlock
from tensaurus.system.progress import Progress
from tensaurus.system.scratch import temporary_folder

__all__ = ["on_fastest_runtime"]

HOPELESS = 4.0  # times the fastest runtime's time for the original: no result is expected to make up for it
GENERATED = 3.0  # times as long the search goes on for a runtime that loads kernels, which take time to tune
READY = 30.0  # seconds in which a runtime must have run the model, at least, however short the time limit is
COMPARED = 0.1  # of the time limit, kept for comparing the runtimes
TURNS = 60  # of contenders in these comparisons, about

Optimized = Callable[[Options, float], Result]
"""A run for one runtime, which begins at a time of `time.monotonic`."""


def on_fastest_runtime(
    original: Original, options: Options, progress: Progress, start: float, optimized: Optimized
) -> Result:
    """The result that is fastest on its runtime and faster than the original is on any; else the original.

    Raises BackendError, with each runtime's reason, where none of those that are installed runs the model.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        contest = _Contest.of(original, options, progress, start, folder)
        names = contest.running()
        if len(names) == 1:
            progress.note(f"only {names[0]} can run this model")
            return optimized(replace(options, backend=names[0]), start)
        progress.phase("comparing the runtimes")
        times = dict(zip(names, contest.times([(name, contest.source) for name in names]), strict=True))
        names.sort(key=lambda name: times[name])
        fastest = names[0]
        stack.enter_context(signals.keep_best_on_interrupt(armed=False))
        hopeful = [name for name in names if times[name] <= HOPELESS * times[fastest]]
        results = contest.results(hopeful, optimized)
        builds = {name: _build(result, folder / name) for name, result in results.items() if result.rewrites}
        progress.phase("comparing the runtimes")
        if builds:
            base, *taken = contest.times([(fastest, contest.source), *builds.items()])
            rates = {name: seconds / base for name, seconds in zip(builds, taken, strict=True)}
            times |= {f"tensaurus on {name}": rate * times[fastest] for name, rate in rates.items()}
            progress.note(", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in times.items()))
            best = min(rates, key=lambda name: rates[name])
            gain = needed_gain(results[best].summary.runs_only)
            try:
                pairs = contest.pairs((fastest, contest.source), (best, builds[best]), gain)
                if pairs.comparison.shows(gain):
                    return results[best].compared(pairs, times)
                progress.note(pairs.comparison.refusal(gain))
            except WorkerError as error:
                progress.note(f"no result is kept: {error}")
        reason = f"no result is faster than the original on {fastest}"
        unchanged = Result.unchanged(original, fastest, contest.machine, reason)
        return unchanged.among(times[fastest], times)


def _build(result: Result, folder: Path) -> Build:
    folder.mkdir()
    return Build.from_model(result.model, folder, result.libraries)


@dataclass(frozen=True)
class _Contest:
    """The model on the installed runtimes, with the inputs that are timed."""

    source: Build
    feeds: dict[str, Array]
    options: Options
    progress: Progress
    start: float
    machine: Machine

    @classmethod
    def of(
        cls, original: Original, options: Options, progress: Progress, start: float, folder: Path
    ) -> _Contest:
        """Raises TensaurusError where the model runs on no inputs, and TooSlow where it takes too long."""
        machine = Machine.here(options.threads)
        source = Build.from_model(original.model, folder, original.libraries)
        feeds = FirstRun.of(original, options, source, machine.threads).feeds
        return cls(source, feeds, options, progress, start, machine)

    def running(self) -> list[str]:
        """Names of the runtimes that run the model."""
        reasons = dict[str, str | None]()
        for name in backends.targets():
            contender = Contender(name, name, self.source)
            with DeadlineBlock(max(self._end, monotonic() + READY)):
                reasons[name] = explain_refusal(contender, self.feeds, self.machine.threads)
            reasons.setdefault(name, f"no answer within {READY:g} s")
        refused = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
        if len(refused) == len(reasons):
            raise BackendError(f"no backend runs the model: {'; '.join(refused) or 'none is installed'}")
        for words in refused:
            self.progress.note(f"the model does not run on {words}")
        return [name for name, reason in reasons.items() if reason is None]

    def times(self, entries: Sequence[tuple[str, Build]]) -> list[float]:
        """Seconds of one run of each on its runtime, in turns."""
        options, turn = self.options, SECONDS
        if options.steps is None:
            turn = min(SECONDS, max(0.02, COMPARED * options.time_limit / TURNS))
        with Database(options.database) as records:
            return contest_times(entries, self.feeds, self.machine, records, seconds=turn, deadline=self._end)

    def pairs(self, first: tuple[str, Build], second: tuple[str, Build], gain: float) -> Pairs:
        """Two of them, each on its runtime, side by side."""
        with Database(self.options.database) as records:
            return contest_pairs(
                first, second, self.feeds, self.machine, records, gain=gain, deadline=self._end
            )

    @property
    def _end(self) -> float:
        """Of all, where time limits the run."""
        return inf if self.options.steps is not None else self.start + self.options.time_limit

    def results(self, names: Sequence[str], optimized: Optimized) -> dict[str, Result]:
        """Of each runtime; an interrupt in one of them ends the search for all."""
        options, results = self.options, dict[str, Result]()
        parts = {name: 1.0 if reason_without_kernels(options, name) else GENERATED for name in names}
        for name in names:
            now = monotonic()
            left = max(0.0, self.start + (1 - COMPARED) * options.time_limit - now)
            self.progress.note(f"optimizing for {name}")
            share = parts[name] / sum(parts.values())
            results[name] = optimized(replace(options, backend=name, time_limit=share * left), now)
            del parts[name]
            if results[name].summary.ended_by == "interrupt":
                break
        return results
