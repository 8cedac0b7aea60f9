"""A process of its own that runs and times one backend.

The spinning threads of one runtime slow down any other that is alive, so each session that is compared lives
in its own process, and a process that has answered is stopped (SIGSTOP) until it is asked again.
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
from tensaurus.runtimes.backends import Array, Bindable, Fusing, Kernel, Profiling, Session
from tensaurus.runtimes.measure.machine import Bystanders, waited_seconds
from tensaurus.system.child import Child, ChildError

__all__ = ["DISTURBED", "RUN_LIMIT", "Round", "Worker", "WorkerError", "tried"]

DISTURBED = 0.1  # a larger disturbance means that a timing is repeated
REPEATS = 2  # so many times at most
COLD = 0.1  # seconds of a run from which on it does not matter what the caches held before
ATTENTION = 0.2  # seconds within which a machine's clock ticks, of 0.01 s, tell what other processes took
RUN_LIMIT = 60.0  # seconds that a run of a model whose behaviour nobody knows may take
MORE_TIME = "--run-limit gives a run more time, smaller sizes by --shape make it shorter."
SLOW = 1.0  # seconds of a run, or of a few, which are long enough to tell what one takes
LOADING = 2.0e7  # bytes of a model that are compiled in a second, at least


class WorkerError(ChildError):
    """A worker refused, died or did not answer in time; one line."""


@dataclass(frozen=True)
class Round:
    """Consecutive runs of one session."""

    samples: tuple[float, ...]  # seconds of each run, in order
    disturbance: (
        float  # share of the cores that other processes took, or of the time that ours waited for one
    )

    @property
    def median(self) -> float:
        """Seconds of one run."""
        return median(self.samples)


class Worker(Child):
    """One process with one backend. Used by one thread at a time; `close` it or use it in a `with`.

    It cannot outlive this process, and holds at most one session.
    """

    error = WorkerError
    resting = True

    def __init__(
        self, backend: str, *, threads: int, timeout: float = 300.0, remedy: str | None = None
    ) -> None:
        """Start it; `timeout` is in seconds, for each answer; `remedy` is what helps where that is short."""
        self.backend = backend
        super().__init__(
            backend,
            f"{__name__}:Desk",
            backend,
            threads,
            timeout=timeout,
            environment={"OPENBLAS_NUM_THREADS": str(threads)},
            remedy=remedy,
        )

    def compile(self, build: Build, *, plain: bool = False) -> float:
        """Replace the session; returns the seconds that it took.  For `plain` see `backends.Plain`."""
        return float(self.ask("compile", build, plain))

    def feed(self, feeds: Mapping[str, Array]) -> None:
        """Set the inputs, by name, of every run that follows."""
        self.ask("feed", dict(feeds))

    def run(self) -> list[Array]:
        """All outputs, in the model's order."""
        outputs: list[Array] = self.ask("run")
        return outputs

    def time(self, seconds: float) -> Round:
        """Run for about `seconds`, once at least; a short run first of all counts for nothing.

        In turns of less than ATTENTION seconds only that our threads waited is a disturbance.
        """
        samples, disturbance = self.ask("time", seconds, patience=seconds)
        return Round(samples, disturbance)

    def measure(
        self, build: Build, feeds: Mapping[str, Array], *, seconds: float, runs: int
    ) -> tuple[float, bool]:
        """Median seconds of one run of a small model, and whether other processes disturbed it.

        It is compiled, warmed up, run for `seconds` and `runs` times at least (three runs are enough after
        5 * `seconds`, one after SLOW), again where it was disturbed and is not slow, and dropped.
        """
        middle, disturbed = self.ask("measure", build, dict(feeds), seconds, runs, patience=seconds)
        return middle, disturbed

    def profile(
        self, build: Build, feeds: Mapping[str, Array], seconds: float
    ) -> list[tuple[Kernel, float]] | None:
        """Where the time of a model goes (`backends.Profiling`); None where the backend cannot tell.

        Drops the session.
        """
        kernels: list[tuple[Kernel, float]] | None
        kernels = self.ask("profile", build, dict(feeds), seconds, patience=seconds)
        return kernels

    def kernels(self, build: Build) -> list[frozenset[str]]:
        """What the runtime makes of a model (`backends.Fusing`); nothing where the backend cannot tell.

        Drops the session.
        """
        kernels: list[frozenset[str]] = self.ask("kernels", build)
        return kernels


def tried(build: Build, backend: str, *, threads: int, limit: float, plain: bool = False) -> Worker:
    """A worker that has compiled a model whose behaviour nobody knows; a run may take `limit` seconds.

    For `plain` see `backends.Plain`.  Raises WorkerError.
    """
    worker = Worker(backend, threads=threads, timeout=limit + build.whole_size // LOADING, remedy=MORE_TIME)
    try:
        worker.compile(build, plain=plain)
    except BaseException:
        worker.close()
        raise
    worker.timeout = limit
    return worker


class Desk:
    """The verbs that the child understands."""

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
            raise backends.BackendError(f"{self._backend} cannot run a model as it is written")
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
        bystanders = Bystanders(())
        samples, waited = self._samples(0.0, 1)  # finds another's data in the caches
        if samples[0] < COLD:
            samples, waited = self._samples(seconds, 1)
        return samples, max(waited, bystanders.share() if seconds >= ATTENTION else 0.0)

    def measure(
        self, build: Build, feeds: dict[str, Array], seconds: float, runs: int
    ) -> tuple[float, bool]:
        try:
            self.compile(build)
            self.feed(feeds)
            start = time.perf_counter()
            self._call()
            if time.perf_counter() - start < SLOW:
                self._call()
            attempts = []
            for _ in range(1 + REPEATS):
                samples, waited = self._samples(seconds, runs)
                attempts.append((waited, median(samples)))
                if waited <= DISTURBED or sum(samples) > SLOW:
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
        """Seconds of each run, for `seconds` and `runs` times; three are enough after 5 * `seconds`, one
        after SLOW.

        With it the share of the time that our threads waited for a core: below 0.01 on a calm machine, even
        in 20 ms, and 0.5 to 1.6 beside one busy process on two cores.
        """
        if (call := self._call) is None:
            raise ValueError("no feeds were given")
        samples: list[float] = []
        gc.disable()
        waited = waited_seconds()
        try:
            start = now = time.perf_counter()
            while (spent := now - start) < seconds or len(samples) < (
                runs if spent < 5 * seconds else min(3, runs) if spent < SLOW else 1
            ):
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
