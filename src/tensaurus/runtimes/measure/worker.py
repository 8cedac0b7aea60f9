"""Runs and times one backend in a child process.

The spinning threads of one runtime slow down every other: so each session of a comparison lives in its own
process, and a process that has answered is stopped (SIGSTOP) until the next request.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import (
    WARM_UP_RUNS,
    Array,
    Bindable,
    Fusing,
    Kernel,
    Profiling,
    Session,
)
from tensaurus.runtimes.measure.machine import OtherProcesses, waited_seconds
from tensaurus.system.child import Child, ChildError

__all__ = ["DISTURBED", "RUN_LIMIT", "Round", "Worker", "WorkerError", "start_worker"]

DISTURBED = 0.1  # a timing with a larger `Round.disturbance` is repeated
MAX_REPEATS = 2  # repetitions of a disturbed timing
CACHE_EFFECT_SECONDS = 0.1  # for longer runs the contents of the caches before do not matter
MIN_LOAD_SECONDS = 0.2  # in a shorter time, clock ticks of 0.01 s do not tell how much other processes ran
RUN_LIMIT = 60.0  # seconds that a run of a model may take, by default
RUN_LIMIT_REMEDY = "Raise --run-limit, or give smaller sizes with --shape."
SLOW_SECONDS = 1.0  # runs that take this long together are enough for a timing
COMPILED_BYTES_PER_SECOND = 2.0e7  # a runtime compiles at least this many bytes of a model in a second


class WorkerError(ChildError):
    """A worker refused, died or did not answer in time; the message is one line."""


@dataclass(frozen=True)
class Round:
    """Consecutive runs of one session."""

    samples: tuple[float, ...]  # seconds of each run, in order
    # Share of the cores that other processes took, or of the time that our threads waited for a core.
    disturbance: float

    @property
    def median(self) -> float:
        """The median of the seconds of one run."""
        return median(self.samples)


class Worker(Child):
    """One child process with one backend, which holds at most one session.

    Used by one thread at a time; `close` it or use it in a `with`.  The child cannot outlive this process.
    """

    error_type = WorkerError
    pauses_when_idle = True

    def __init__(
        self, backend: str, *, threads: int, timeout: float = 300.0, remedy: str | None = None
    ) -> None:
        """Start the process; an answer may take `timeout` seconds; `remedy` tells users how to get more."""
        self.backend = backend
        super().__init__(
            backend,
            f"{__name__}:WorkerServer",
            backend,
            threads,
            timeout=timeout,
            environment={"OPENBLAS_NUM_THREADS": str(threads)},
            remedy=remedy,
        )

    def compile(self, build: Build, *, plain: bool = False) -> float:
        """Compile a model in the place of the last; return the seconds.  For `plain` see `backends.Plain`."""
        return float(self.ask("compile", build, plain))

    def feed(self, feeds: Mapping[str, Array]) -> None:
        """Set the inputs, by name, for all runs that follow."""
        self.ask("feed", dict(feeds))

    def run(self) -> list[Array]:
        """Run once and return all outputs, in the model's order."""
        outputs: list[Array] = self.ask("run")
        return outputs

    def time(self, seconds: float) -> Round:
        """Run for about `seconds`, once at least; the first run does not count if it is short.

        In turns below MIN_LOAD_SECONDS only the time that our threads waited counts as disturbance.
        """
        samples, disturbance = self.ask("time", seconds, patience=seconds)
        return Round(samples, disturbance)

    def measure(
        self, build: Build, feeds: Mapping[str, Array], *, seconds: float, runs: int
    ) -> tuple[float, bool]:
        """Return the median seconds of one run of a small model, and whether other processes disturbed it.

        The model is compiled, warmed up, run for `seconds` and at least `runs` times (three runs are enough
        once 5 * `seconds` have passed, one after SLOW_SECONDS), run again where it was disturbed and is not
        slow, and dropped.
        """
        middle, disturbed = self.ask("measure", build, dict(feeds), seconds, runs, patience=seconds)
        return middle, disturbed

    def profile(
        self, build: Build, feeds: Mapping[str, Array], seconds: float
    ) -> list[tuple[Kernel, float]] | None:
        """Return the runtime's kernels and their seconds (`backends.Profiling`), and drop the session.

        None where the backend cannot tell.
        """
        kernels: list[tuple[Kernel, float]] | None
        kernels = self.ask("profile", build, dict(feeds), seconds, patience=seconds)
        return kernels

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """Return the tensors that each of the runtime's kernels computes (`backends.Fusing`).

        Returns [] where the backend cannot tell.  Drops the session.
        """
        kernels: list[frozenset[str]] = self.ask("kernels", build)
        return kernels


def start_worker(build: Build, backend: str, *, threads: int, limit: float, plain: bool = False) -> Worker:
    """Start a worker and compile a model that was never run before; a run may take `limit` seconds.

    For `plain` see `backends.Plain`.  Raises WorkerError.
    """
    compiling = build.total_bytes // COMPILED_BYTES_PER_SECOND
    worker = Worker(backend, threads=threads, timeout=limit + compiling, remedy=RUN_LIMIT_REMEDY)
    try:
        worker.compile(build, plain=plain)
    except BaseException:
        worker.close()
        raise
    worker.timeout = limit
    return worker


def _enough_runs(spent: float, seconds: float, runs: int) -> int:
    """Return how many runs are enough for a timing of `seconds`, when `spent` seconds have passed."""
    if spent < 5 * seconds:
        return runs
    return min(3, runs) if spent < SLOW_SECONDS else 1


class WorkerServer:
    """Answers requests in the child process; `Worker` calls these methods by name."""

    def __init__(self, backend: str, threads: int) -> None:
        self._backend, self._threads = backend, threads
        self._session: Session | None = None
        self._call: Any = None
        self._feeds: dict[str, Array] = {}

    def compile(self, build: Build, plain: bool = False) -> float:
        self._drop()  # two sessions would disturb each other
        start = time.perf_counter()
        backend = backends.find(self._backend)
        if not plain:
            self._session = backend.compile(build, threads=self._threads)
        elif isinstance(backend, backends.Plain):
            self._session = backend.plain(build, threads=self._threads)
        else:
            raise backends.BackendError(f"{self._backend} cannot run a model without graph optimizations")
        return time.perf_counter() - start

    def feed(self, feeds: dict[str, Array]) -> None:
        session = self._compiled()
        if isinstance(session, Bindable):
            self._call = session.bind(feeds)
        else:
            self._call = lambda: session.run(None, feeds)
        self._feeds = feeds

    def run(self) -> list[Array]:
        return self._compiled().run(None, self._feeds)

    def time(self, seconds: float) -> tuple[tuple[float, ...], float]:
        others = OtherProcesses(())
        samples, waited = self._samples(0.0, 1)  # the caches hold the data of another process
        if samples[0] < CACHE_EFFECT_SECONDS:
            samples, waited = self._samples(seconds, 1)
        return samples, max(waited, others.share() if seconds >= MIN_LOAD_SECONDS else 0.0)

    def measure(self, build: Build, feeds: dict[str, Array], seconds: float, runs: int) -> tuple[float, bool]:
        try:
            self.compile(build)
            self.feed(feeds)
            start = time.perf_counter()
            for _ in range(WARM_UP_RUNS):
                if time.perf_counter() - start < SLOW_SECONDS:
                    self._call()
            attempts = []
            for _ in range(1 + MAX_REPEATS):
                samples, waited = self._samples(seconds, runs)
                attempts.append((waited, median(samples)))
                if waited <= DISTURBED or sum(samples) > SLOW_SECONDS:
                    break
            waited, middle = min(attempts)
            return middle, waited > DISTURBED
        finally:
            self._drop()

    def profile(
        self, build: Build, feeds: dict[str, Array], seconds: float
    ) -> list[tuple[Kernel, float]] | None:
        self._drop()
        backend = backends.find(self._backend)
        if not isinstance(backend, Profiling):
            return None
        return backend.profile(build, feeds, threads=self._threads, seconds=seconds)

    def kernels(self, build: Build) -> list[frozenset[str]]:
        self._drop()
        backend = backends.find(self._backend)
        return backend.kernels(build) if isinstance(backend, Fusing) else []

    def _samples(self, seconds: float, runs: int) -> tuple[tuple[float, ...], float]:
        """Run for `seconds` and `runs` times; for slow models fewer runs are enough, see `Worker.measure`.

        Returns the seconds of each run, and the share of the time that our threads waited for a core: below
        0.01 on a calm machine, even in 20 ms, and 0.5 to 1.6 beside one busy process on two cores.
        """
        if (call := self._call) is None:
            raise ValueError("no feeds were given")
        samples: list[float] = []
        gc.disable()
        waited = waited_seconds()
        try:
            start = now = time.perf_counter()
            while (spent := now - start) < seconds or len(samples) < _enough_runs(spent, seconds, runs):
                call()
                before, now = now, time.perf_counter()
                samples.append(now - before)
        finally:
            gc.enable()
        return tuple(samples), max(0.0, waited_seconds() - waited) / (now - start)

    def _drop(self) -> None:
        self._session = self._call = None
        self._feeds = {}

    def _compiled(self) -> Session:
        if self._session is None:
            raise ValueError("no model was compiled")
        return self._session
