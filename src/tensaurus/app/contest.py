"""The bench: a model on every runtime that a user might pick, and what the optimizer makes of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from tensaurus._version import __version__
from tensaurus.app.report.bench_records import Record, Setting
from tensaurus.app.zoo.selection import Subject
from tensaurus.check.inputs.draw_inputs import require_ranges
from tensaurus.check.inputs.timing_inputs import sample_feeds
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.optimize import optimize
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.machine_peaks import QUICK_REPEATS, Peaks, measure_peaks
from tensaurus.runtimes.measure.measure import Timing, time_in_turns
from tensaurus.runtimes.measure.worker import Worker, WorkerError
from tensaurus.runtimes.price.operation_counts import Demand, count_demand
from tensaurus.system.errors import TensaurusError, name_file_in_errors
from tensaurus.system.progress import NoProgress, Progress
from tensaurus.system.scratch import temporary_folder
from tensaurus.system.signals import keep_nothing_on_interrupt

__all__ = ["Contest", "setting_here"]

ROUND = 0.25  # seconds that a contender computes at a time
CALM = 0.75  # a machine that reaches less of its peaks is shared with somebody, whom no process list shows
ATTEMPTS = 3  # to find it calm
PATIENCE = 900.0  # seconds that a runtime may take to compile


@dataclass(frozen=True, eq=False)
class _Entrant:
    name: str
    backend: str
    build: Build
    ours: bool = False
    note: str = ""


def setting_here(threads: int | None = None) -> Setting:
    """This machine, its peaks measured now (about three seconds), the versions, and the date."""
    machine, peers = Machine.here(threads), backends.peers()
    peaks = measure_peaks(machine.threads)
    return Setting(
        processor=machine.processor,
        cores=machine.cores,
        threads=machine.threads,
        versions=", ".join(f"{name} {version}" for name, version in machine.versions if name in peers),
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
        instructions=peaks.instructions,
        peak_gflops=peaks.flops / 1e9,
        peak_cache_gbs=peaks.cache / 1e9,
        peak_memory_gbs=peaks.memory / 1e9,
    )


def _commit() -> str:
    """Of the checkout that this package lies in, with a plus where files differ from it; else the version."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if git("ls-files", "--error-unmatch", __file__) and (short := git("rev-parse", "--short=10", "HEAD")):
            return short + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except OSError:  # no git here
        pass
    return f"version {__version__}"


@dataclass(frozen=True)
class Contest:
    """How contenders are measured: each alone in its process, in turns, one of them computing at a time.

    `peers` are backends that run the original, `ours` those that run the optimizer's result for them;
    `against` are further files to run on every peer; `rounds` are turns of a quarter of a second;
    `results` is a folder that keeps what is made of each model, as MODEL.BACKEND.onnx.
    """

    setting: Setting
    peers: Sequence[str]
    ours: Sequence[str] = ()
    against: Sequence[Path] = ()
    rounds: int = 10
    time_limit: float = 60.0
    steps: int | None = None
    seed: int = 0
    database: Path | None = None
    results: Path | None = None
    progress: Progress = field(default_factory=NoProgress)

    def records(self, subject: Subject) -> list[Record]:
        """One for every contender, those that do not run included; the first is the first peer that does.

        Raises TensaurusError where no peer runs the model.
        """
        progress, threads = self.progress, self.setting.threads
        with name_file_in_errors(subject.name), ExitStack() as stack:
            progress.phase(f"{subject.name}: reading it")
            model = subject.load()
            program = import_model(inline_functions(model, subject.name), subject.shapes, subject.name)
            require_ranges(model, subject.ranges)
            folder = stack.enter_context(temporary_folder())
            libraries = find_libraries(subject.file) if subject.file is not None else ()
            source = Build.from_model(model, folder, libraries)
            feeds, words, _ = sample_feeds(
                model, subject.shapes, self.seed, source, self.peers[0], threads, subject.ranges
            )
            if words:
                progress.note(f"no sizes were given for every input; timed with {words}")
            entrants = [_Entrant(peer, peer, source) for peer in self.peers]
            others = [(Build.from_file(file), f"{file} on") for file in self.against]
            entrants += [_Entrant(f"{name} {p}", p, build) for build, name in others for p in self.peers]
            entrants += [self._optimized(subject, model, backend, source, folder) for backend in self.ours]
            return self._measured(subject, entrants, feeds, count_demand(program))

    def _optimized(
        self, subject: Subject, model: onnx.ModelProto, backend: str, source: Build, folder: Path
    ) -> _Entrant:
        """The optimizer's result for the backend."""
        name = f"tensaurus on {backend}"
        self.progress.note(f"{subject.name}: optimizing for {backend}")
        try:
            with keep_nothing_on_interrupt():
                result = optimize(
                    subject.file or model,
                    shapes=subject.shapes,
                    ranges=subject.ranges,
                    backend=backend,
                    threads=self.setting.threads,
                    time_limit=self.time_limit,
                    steps=self.steps,
                    seed=self.seed,
                    database=self.database,
                    progress=self.progress,
                )
        except TensaurusError as error:
            return _Entrant(name, backend, source, True, str(error))
        if result.summary.ended_by == "interrupt":  # what it would have found is not known
            raise KeyboardInterrupt
        runtime = result.summary.backend
        if runtime != backend:
            name = f"tensaurus on {runtime} ({backend})"
        if not result.rewrites:
            return _Entrant(name, runtime, source, True, "unchanged")
        if self.results is not None:
            stem = Path(subject.name).name.removesuffix(".onnx")
            result.save(self.results / f"{stem}.{runtime}.onnx")
        kept = folder / backend
        kept.mkdir()
        return _Entrant(name, runtime, Build.from_model(result.model, kept, result.libraries), True)

    def _measured(
        self, subject: Subject, entrants: Sequence[_Entrant], feeds: Mapping[str, Array], needs: Demand
    ) -> list[Record]:
        progress, threads = self.progress, self.setting.threads
        entered: dict[_Entrant, Worker] = {}
        outputs: dict[_Entrant, list[Array]] = {}
        refused: dict[_Entrant, str] = {}
        with ExitStack() as stack:
            for entrant in entrants:
                if entrant.note:
                    continue
                progress.phase(f"{subject.name}: compiling it for {entrant.name}")
                worker = stack.enter_context(Worker(entrant.backend, threads=threads, timeout=PATIENCE))
                try:
                    worker.compile(entrant.build)
                    worker.feed(feeds)
                    outputs[entrant] = worker.run()
                    worker.time(ROUND)
                except WorkerError as error:
                    refused[entrant] = str(error)
                    progress.note(f"{subject.name}: {entrant.name} does not run: {error}")
                    worker.close()
                else:
                    entered[entrant] = worker
            if not entered:
                reasons = "; ".join(refused.values())
                raise TensaurusError(f"no backend runs it: {reasons}")
            names = [entrant.name for entrant in entered]
            attempts: list[tuple[float, list[Timing]]] = []
            for _ in range(ATTEMPTS):
                progress.phase(f"{subject.name}: timing in turns")
                before = self._calm()
                taken = time_in_turns(names, list(entered.values()), self.rounds, ROUND)
                attempts.append((min(before, self._calm()), taken))
                if attempts[-1][0] >= CALM:
                    break
                progress.note(f"{subject.name}: the machine reached {attempts[-1][0]:.0%} of a peak")
            calm, taken = max(attempts, key=lambda attempt: attempt[0])
            if calm < CALM:
                taken = [replace(timing, disturbed=len(timing.rounds)) for timing in taken]
            timings = dict(zip(entered, taken, strict=True))
        truth = next(iter(outputs.values()))
        errors = {entrant: _difference(found, truth) for entrant, found in outputs.items()}
        for entrant in entrants:  # what stays as it is takes the time of the original
            if entrant.note == "unchanged":
                same = next((e for e in timings if e.backend == entrant.backend and not e.ours), None)
                if same is not None:
                    timings[entrant], errors[entrant] = timings[same], 0.0
        return [
            self._record(subject, e, timings.get(e), errors.get(e, nan), needs, e.note or refused.get(e, ""))
            for e in entrants
        ]

    def _calm(self) -> float:
        """The share of the machine's peaks that it reaches now; nothing else of ours is running."""
        setting = self.setting
        rates = (setting.peak_gflops, setting.peak_cache_gbs, setting.peak_memory_gbs)
        peaks = Peaks(setting.instructions, *(rate * 1e9 for rate in rates))
        return peaks.reached(measure_peaks(setting.threads, QUICK_REPEATS))

    def _record(
        self,
        subject: Subject,
        entrant: _Entrant,
        timing: Timing | None,
        error: float,
        needs: Demand,
        note: str,
    ) -> Record:
        return Record(
            **asdict(self.setting),
            model=subject.name,
            contender=entrant.name,
            backend=entrant.backend,
            ours=entrant.ours,
            exact=backends.find(entrant.backend).exact,
            rounds_ms=tuple(median(samples) * 1e3 for samples in timing.rounds) if timing else (),
            median_ms=timing.median * 1e3 if timing else nan,
            minimum_ms=timing.minimum * 1e3 if timing else nan,
            spread=timing.spread if timing else nan,
            disturbed=timing.disturbed if timing else 0,
            error=error,
            gflop=2 * needs.multiply_adds / 1e9,
            compulsory_mb=needs.compulsory / 1e6,
            traffic_mb=needs.traffic / 1e6,
            note=note,
        )


def _difference(found: Sequence[Array], truth: Sequence[Array]) -> float:
    """The largest difference of two runs' numbers, over the largest number; infinite where one has none."""

    def differences() -> Iterator[float]:
        for a, b in zip(found, truth, strict=True):
            if a.shape != b.shape:
                yield float("inf")
            elif b.dtype.kind in "biuf" and b.size:
                wide, true = np.asarray(a, np.float64), np.asarray(b, np.float64)
                same = (wide == true) | (np.isnan(wide) & np.isnan(true))
                with np.errstate(invalid="ignore"):
                    gaps = np.where(same, 0.0, np.nan_to_num(np.abs(wide - true), nan=np.inf))
                largest = float(np.abs(true[np.isfinite(true)]).max(initial=0.0))
                yield float(gaps.max()) / (largest or 1.0)

    return max(differences(), default=0.0) if len(found) == len(truth) else float("inf")
