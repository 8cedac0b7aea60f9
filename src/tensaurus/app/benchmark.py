"""Times the original of a model on each runtime, and the optimizer's results for it, for `tensaurus bench`.

`Benchmark.measure_model` takes a model and returns a record for each contender, a model on a backend: for the
peers onnxruntime and openvino, and results for onnxruntime, these are

    onnxruntime, openvino    the original on each peer
    model2.onnx on openvino  another model file (`--against`), on each peer
    tensaurus on onnxruntime the optimizer's result

Contenders are compared fairly only if nothing else computes while one of them is timed. So each contender has
a process of its own, the contenders compute in turns, and the machine's peaks are measured before and after:
where they are not reached, other work disturbed the timing, and the turns are repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import onnx

from tensaurus._version import __version__
from tensaurus.app.report.bench_records import Record, Setting
from tensaurus.app.zoo.selection import Subject
from tensaurus.check.inputs.timing_inputs import draw_timing_inputs
from tensaurus.check.inputs.user_inputs import require_ranges
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.optimize import optimize
from tensaurus.optimizer.run.options import AUTO
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.machine_peaks import QUICK_REPEATS, Peaks, measure_peaks
from tensaurus.runtimes.measure.measure import Timing, time_in_turns
from tensaurus.runtimes.measure.worker import Worker, WorkerError
from tensaurus.runtimes.price.operation_counts import Work, count_work
from tensaurus.system.errors import TensaurusError, name_file_in_errors
from tensaurus.system.progress import NoProgress, Progress
from tensaurus.system.scratch import temporary_folder
from tensaurus.system.signals import keep_nothing_on_interrupt

__all__ = ["Benchmark", "measure_setting"]

TURN_SECONDS = 0.25  # that a contender computes at a time
# Share of its peaks that the machine reaches unless another guest of the host computes, unseen by us.
MIN_PEAK_SHARE = 0.75
MAX_ATTEMPTS = 3  # timings of one model, until the machine reaches MIN_PEAK_SHARE
COMPILE_SECONDS = 900.0  # that a runtime may take to compile: Inductor takes minutes for large models


@dataclass(eq=False)
class _Contender:
    """A model on a backend, and what is measured of it.

    is_ours  whether the model is the optimizer's result
    note     why there is no result or why the model does not run, or "unchanged"; "" where it is timed
    outputs  of the model's first run
    error    largest difference of these from the first contender's outputs
    """

    name: str
    backend: str
    build: Build
    is_ours: bool = False
    note: str = ""
    outputs: list[Array] | None = None
    timing: Timing | None = None
    error: float = nan


class _Attempt(NamedTuple):
    """One timing of all contenders, with the share of its peaks that the machine reached around it."""

    peak_share: float
    timings: list[Timing]


def measure_setting(threads: int | None = None) -> Setting:
    """Return a description of the machine, with its peaks measured now (3 s), the versions and the date."""
    machine, peers = Machine.here(threads), backends.peers()
    peaks = measure_peaks(machine.threads)
    return Setting(
        processor=machine.processor,
        cores=machine.cores,
        threads=machine.threads,
        versions=", ".join(f"{name} {version}" for name, version in machine.versions if name in peers),
        commit=_find_commit(),
        date=datetime.now(UTC).date().isoformat(),
        instructions=peaks.instructions,
        peak_gflops=peaks.flops / 1e9,
        peak_cache_gbs=peaks.cache / 1e9,
        peak_memory_gbs=peaks.memory / 1e9,
    )


def _find_commit() -> str:
    """Return the commit of this package's checkout, with "+" if files differ; outside of one the version."""

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
class Benchmark:
    """Holds which contenders are timed, and how.

    setting     the machine with its peaks, as `measure_setting` returns it
    peers       backends that run the original
    ours        backends that run the optimizer's result for them
    against     further model files, to run on every peer
    rounds      turns of a quarter of a second for each contender
    time_limit  seconds of one optimization; `steps` (search steps) limits it instead, where given
    results     a folder that keeps the optimized models, as MODEL.BACKEND.onnx
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

    def measure_model(self, subject: Subject) -> list[Record]:
        """Return a record for every contender, also for those that do not run.

        Raises TensaurusError if no contender runs the model.
        """
        progress, threads = self.progress, self.setting.threads
        with name_file_in_errors(subject.name), ExitStack() as stack:
            progress.phase(f"{subject.name}: reading the model")
            model = subject.load()
            program = import_model(inline_functions(model, subject.name), subject.shapes, subject.name)
            require_ranges(model, subject.ranges)
            folder = stack.enter_context(temporary_folder())
            libraries = find_libraries(subject.file) if subject.file is not None else ()
            source = Build.from_model(model, folder, libraries)
            feeds, assumed_sizes, _ = draw_timing_inputs(
                model, subject.shapes, self.seed, source, self.peers[0], threads, subject.ranges
            )
            if assumed_sizes:
                sizes = f"not all input sizes were given; timed with {assumed_sizes}"
                progress.note(f"{sizes}. To time other sizes, use --shape")
            # on each peer the original and the other files, then our result for each backend of `ours`
            contenders = [_Contender(peer, peer, source) for peer in self.peers]
            others = [(Build.from_file(file), f"{file} on") for file in self.against]
            contenders += [_Contender(f"{name} {p}", p, build) for build, name in others for p in self.peers]
            contenders += [self._optimize(subject, model, backend, source, folder) for backend in self.ours]
            return self._measure_contenders(subject, contenders, feeds, count_work(program))

    def _optimize(
        self, subject: Subject, model: onnx.ModelProto, backend: str, source: Build, folder: Path
    ) -> _Contender:
        """Optimize the model for the backend, or for the fastest one ("auto"), and return a contender."""
        name = f"tensaurus on {backend}"
        self.progress.note(f"{subject.name}: optimizing for {backend}")
        try:
            with keep_nothing_on_interrupt():
                result = optimize(
                    subject.file or model, shapes=subject.shapes, ranges=subject.ranges, backend=backend,
                    threads=self.setting.threads, time_limit=self.time_limit, steps=self.steps,
                    seed=self.seed, database=self.database, progress=self.progress,
                )
        except TensaurusError as error:
            runtime = self.peers[0] if backend == AUTO else backend  # a record names a backend
            return _Contender(name, runtime, source, True, str(error))
        if result.summary.ended_by == "interrupt":  # the result of the full search is not known
            raise KeyboardInterrupt
        runtime = result.summary.backend
        if runtime != backend:  # "auto" chose this runtime
            name = f"tensaurus on {runtime} ({backend})"
        if not result.rewrites:
            return _Contender(name, runtime, source, True, "unchanged")
        if self.results is not None:
            stem = Path(subject.name).name.removesuffix(".onnx")
            result.save(self.results / f"{stem}.{runtime}.onnx")
        subfolder = folder / backend
        subfolder.mkdir()
        return _Contender(name, runtime, Build.from_model(result.model, subfolder, result.libraries), True)

    def _measure_contenders(
        self, subject: Subject, contenders: Sequence[_Contender], feeds: Mapping[str, Array], needs: Work
    ) -> list[Record]:
        """Start a process for each contender, time all in turns, and return a record for each.

        Outputs are compared with those of the first contender that runs: a peer, where one does. `needs` are
        the operations and bytes of the original, by which the rates of all contenders are counted.
        """
        with ExitStack() as stack:
            started = [contender for contender in contenders if not contender.note]
            starts = ((c, self._start_worker(subject, c, feeds, stack)) for c in started)
            workers = {contender: worker for contender, worker in starts if worker is not None}
            if not workers:
                reason = f"no backend runs the model: {'; '.join(contender.note for contender in started)}"
                raise TensaurusError(reason, remedy="Name another with --peers, or give sizes with --shape.")
            for contender, timing in zip(workers, self._time_in_turns(subject, workers), strict=True):
                contender.timing = timing
        truth = next(contender.outputs for contender in started if contender.outputs is not None)
        for contender in started:
            if contender.outputs is not None:
                contender.error = largest_difference(contender.outputs, truth)
        for contender in contenders:  # an unchanged model takes the time of the original
            if contender.note == "unchanged":
                same = (c for c in workers if c.backend == contender.backend and not c.is_ours)
                if (original := next(same, None)) is not None:
                    contender.timing, contender.error = original.timing, 0.0
        return [self._make_record(subject, contender, needs) for contender in contenders]

    def _start_worker(
        self, subject: Subject, contender: _Contender, feeds: Mapping[str, Array], stack: ExitStack
    ) -> Worker | None:
        """Start a process that runs the model once; return None, with a note, where it does not run."""
        self.progress.phase(f"{subject.name}: compiling the model for {contender.name}")
        worker = Worker(contender.backend, threads=self.setting.threads, timeout=COMPILE_SECONDS)
        stack.enter_context(worker)
        try:
            worker.compile(contender.build)
            worker.feed(feeds)
            contender.outputs = worker.run()
            worker.time(TURN_SECONDS)  # warms up; the figures are not used
        except WorkerError as error:
            contender.note = str(error)
            left_out = f"{contender.name} is left out of the comparison"
            self.progress.note(f"{subject.name}: {left_out}, because it does not run the model: {error}")
            worker.close()
            return None
        return worker

    def _time_in_turns(self, subject: Subject, workers: Mapping[_Contender, Worker]) -> list[Timing]:
        """Time the contenders, again where the machine did not reach its peaks; return the calmest attempt.

        If the machine never reaches its peaks, all rounds count as disturbed.
        """
        names = [contender.name for contender in workers]
        attempts: list[_Attempt] = []
        for _ in range(MAX_ATTEMPTS):
            self.progress.phase(f"{subject.name}: timing in turns")
            share_before = self._measure_peak_share()
            timings = time_in_turns(names, list(workers.values()), self.rounds, TURN_SECONDS)
            attempts.append(_Attempt(min(share_before, self._measure_peak_share()), timings))
            if attempts[-1].peak_share >= MIN_PEAK_SHARE:
                break
            reached = f"the machine reached {attempts[-1].peak_share:.0%} of its peak speed"
            self.progress.note(f"{subject.name}: {reached}")
        calmest = max(attempts, key=lambda attempt: attempt.peak_share)
        if calmest.peak_share < MIN_PEAK_SHARE:
            return [replace(timing, disturbed=len(timing.rounds)) for timing in calmest.timings]
        return calmest.timings

    def _measure_peak_share(self) -> float:
        """Return the share of its peaks that the machine reaches now; no contender computes meanwhile."""
        setting = self.setting
        rates = (setting.peak_gflops, setting.peak_cache_gbs, setting.peak_memory_gbs)
        peaks = Peaks(setting.instructions, *(rate * 1e9 for rate in rates))
        return peaks.reached(measure_peaks(setting.threads, QUICK_REPEATS))

    def _make_record(self, subject: Subject, contender: _Contender, needs: Work) -> Record:
        """Return the record of a contender; its times are nan without a timing."""
        timing = contender.timing
        return Record(
            **asdict(self.setting),
            model=subject.name,
            contender=contender.name,
            backend=contender.backend,
            ours=contender.is_ours,
            exact=backends.find(contender.backend).exact,
            rounds_ms=tuple(median(samples) * 1e3 for samples in timing.rounds) if timing else (),
            median_ms=timing.median * 1e3 if timing else nan,
            minimum_ms=timing.minimum * 1e3 if timing else nan,
            spread=timing.spread if timing else nan,
            disturbed=timing.disturbed if timing else 0,
            error=contender.error,
            gflop=2 * needs.multiply_adds / 1e9,
            compulsory_mb=needs.compulsory_bytes / 1e6,
            traffic_mb=needs.traffic_bytes / 1e6,
            note=contender.note,
        )


def largest_difference(outputs: Sequence[Array], truth: Sequence[Array]) -> float:
    """Return the largest difference of two runs' outputs, each relative to the output's largest element.

    The difference is infinite where one run has a number and the other NaN, and where shapes differ.
    """

    def differences() -> Iterator[float]:
        for a, b in zip(outputs, truth, strict=True):
            if a.shape != b.shape:
                yield float("inf")
            elif b.dtype.kind in "biuf" and b.size:
                wide, true = np.asarray(a, np.float64), np.asarray(b, np.float64)
                same = (wide == true) | (np.isnan(wide) & np.isnan(true))
                with np.errstate(invalid="ignore"):
                    gaps = np.where(same, 0.0, np.nan_to_num(np.abs(wide - true), nan=np.inf))
                largest = float(np.abs(true[np.isfinite(true)]).max(initial=0.0))
                yield float(gaps.max()) / (largest or 1.0)

    return max(differences(), default=0.0) if len(outputs) == len(truth) else float("inf")
