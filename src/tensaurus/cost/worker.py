"""A process of its own that runs and times one backend.

The spinning threads of one runtime slow down any other that is alive, so each session that is compared lives
in its own process, and a process that has answered is stopped (SIGSTOP) until it is asked again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from statistics import median
from threading import Lock
from types import TracebackType
from typing import IO, Any

from tensaurus import backends
from tensaurus.backends import Array, Bindable, Profiling, Session
from tensaurus.cost.machine import allowed_cores, busy_seconds, waited_seconds
from tensaurus.errors import TensaurusError
from tensaurus.scratch import environment, spool
from tensaurus.signals import adopt, disown

__all__ = ["DISTURBED", "Round", "Worker", "WorkerError"]

DISTURBED = 0.1  # a larger disturbance means that a timing is repeated
REPEATS = 2  # so many times at most


class WorkerError(TensaurusError):
    """A worker refused, died or did not answer in time; one line."""


@dataclass(frozen=True)
class Round:
    """Consecutive runs of one session."""

    samples: tuple[float, ...]  # seconds of each run, in order
    disturbance: (
        float  # share of the cores that other processes took, or of the time that ours waited for one
    )


class Worker:
    """One process with one backend. Used by one thread at a time; `close` it or use it in a `with`.

    It cannot outlive this process, and holds at most one session.
    """

    def __init__(self, backend: str, *, threads: int, timeout: float = 300.0) -> None:
        """Start it; `timeout` is in seconds, for each answer."""
        self.backend = backend
        self.timeout = timeout
        here, there = Pipe()
        self._connection = here
        self._errors = spool()
        order = _Order(here, self._errors)
        try:
            job = partial(_start, backend, threads, there, self._errors)
            self._process = _nursery(os.getpid()).submit(order.fill, job).result()
        except BaseException:
            order.cancel()
            raise
        self.close = weakref.finalize(self, _end, os.getpid(), self._process, here, self._errors)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self.close.alive and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def compile(self, model: bytes | Path) -> float:
        """Replace the session; returns the seconds that it took."""
        return float(self._ask("compile", model))

    def feed(self, feeds: Mapping[str, Array]) -> None:
        """Set the inputs, by name, of every run that follows."""
        self._ask("feed", dict(feeds))

    def run(self) -> list[Array]:
        """All outputs, in the model's order."""
        outputs: list[Array] = self._ask("run")
        return outputs

    def time(self, seconds: float) -> Round:
        """Run for about `seconds`, once at least."""
        samples, disturbance = self._ask("time", seconds, patience=seconds)
        return Round(samples, disturbance)

    def measure(
        self, model: bytes | Path, feeds: Mapping[str, Array], *, seconds: float, runs: int
    ) -> tuple[float, bool]:
        """Median seconds of one run of a small model, and whether other processes disturbed it.

        It is compiled, warmed up, run for `seconds` and `runs` times at least (three runs are enough after
        5 * `seconds`), again where it was disturbed, and dropped.
        """
        middle, disturbed = self._ask("measure", model, dict(feeds), seconds, runs, patience=seconds)
        return middle, disturbed

    def profile(
        self, model: bytes | Path, feeds: Mapping[str, Array], seconds: float
    ) -> list[tuple[frozenset[str], float]] | None:
        """Where the time of a model goes (`backends.Profiling`); None where the backend cannot tell.

        Drops the session.
        """
        found: list[tuple[frozenset[str], float]] | None
        found = self._ask("profile", model, dict(feeds), seconds, patience=seconds)
        return found

    def _ask(self, verb: str, *arguments: object, patience: float = 0.0) -> Any:
        if not self.close.alive:
            raise WorkerError(f"{self.backend}: the worker is closed")
        try:
            self._process.send_signal(signal.SIGCONT)
            self._connection.send((verb, *arguments))
            if not self._connection.poll(self.timeout + patience):
                self.close()
                raise WorkerError(f"{self.backend}: no answer within {self.timeout + patience:g} s")
            fine, value = self._connection.recv()
            self._process.send_signal(signal.SIGSTOP)
        except (EOFError, OSError):
            raise WorkerError(f"{self.backend}: {self._last_words()}") from None
        except BaseException:  # an answer may be on its way: it must not be taken for the next one
            self.close()
            raise
        if not fine:
            raise WorkerError(str(value))
        return value

    def _last_words(self) -> str:
        """Why it died; closes it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.poll()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        self.close()
        if status is not None and status < 0:
            cause = f"the worker was killed by {signal.Signals(-status).name}"
        else:
            cause = f"the worker ended with status {status}"
        return f"{cause}: {last}" if last else cause

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Order:
    """A worker to be started by another thread; an interrupt of the one that waits does not end that."""

    connection: Connection
    errors: IO[bytes]
    lock: Lock = field(default_factory=Lock)
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False

    def fill(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start it, and end it where nobody waits any more."""
        process = start()
        with self.lock:
            self.process = process
            cancelled = self.cancelled
        if cancelled:
            _end(os.getpid(), process, self.connection, self.errors)
        return process

    def cancel(self) -> None:
        """End it, now or when it has started."""
        with self.lock:
            self.cancelled = True
            process = self.process
        self.connection.close()
        if process is not None:
            _end(os.getpid(), process, self.connection, self.errors)


@cache
def _nursery(pid: int) -> ThreadPoolExecutor:
    """The thread that starts workers: PR_SET_PDEATHSIG fires when the *thread* that forked ends, so one that
    lives as long as the process forks them all. A forked process (another pid) needs its own."""
    return ThreadPoolExecutor(1, f"workers-of-{pid}")


def _start(backend: str, threads: int, connection: Connection, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    descriptor = connection.fileno()
    command = f"from tensaurus.cost.worker import serve; serve({descriptor}, {backend!r}, {threads})"
    with connection:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C reaches the parent alone, which closes its workers
            env={
                **environment(),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OPENBLAS_NUM_THREADS": str(threads),
            },
        )
    adopt(process.pid)
    return process


def _end(owner: int, process: subprocess.Popen[bytes], connection: Connection, errors: IO[bytes]) -> None:
    connection.close()
    errors.close()
    if owner == os.getpid():  # not in a copy of the parent that was forked
        process.kill()
        disown(process.pid)
        process.wait()


def serve(descriptor: int, backend: str, threads: int) -> None:
    """The child's side: answer (verb, *arguments) with (True, value) or (False, one line) until the end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG, Linux
    connection = Connection(descriptor)
    desk = _Desk(backend, threads)
    while True:
        try:
            verb, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(desk, verb)(*arguments))
        except Exception as error:
            answer = (False, str(error) or type(error).__name__)
        del arguments
        connection.send(answer)


class _Desk:
    """The verbs that the child understands."""

    def __init__(self, backend: str, threads: int) -> None:
        self._backend, self._threads = backend, threads
        self._session: Session | None = None
        self._call: Any = None
        self._feeds: dict[str, Array] = {}

    def compile(self, model: bytes | Path) -> float:
        self._drop()  # two sessions would disturb each other
        start = time.perf_counter()
        self._session = backends.find(self._backend).compile(model, threads=self._threads)
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
        began, own, busy = time.perf_counter(), time.process_time(), busy_seconds()
        samples, waited = self._samples(seconds, 1)
        samples = samples[1:] if len(samples) > 4 else samples  # the first finds another's data in the caches
        wall, own, after = time.perf_counter() - began, time.process_time() - own, busy_seconds()
        others = 0.0 if busy is None or after is None else after - busy - own
        return samples, max(waited, others / (wall * len(allowed_cores())))

    def measure(
        self, model: bytes | Path, feeds: dict[str, Array], seconds: float, runs: int
    ) -> tuple[float, bool]:
        try:
            self.compile(model)
            self.feed(feeds)
            for _ in range(2):
                self._call()
            attempts = []
            for _ in range(1 + REPEATS):
                samples, waited = self._samples(seconds, runs)
                attempts.append((waited, median(samples)))
                if waited <= DISTURBED:
                    break
            waited, middle = min(attempts)
            return middle, waited > DISTURBED
        finally:
            self._drop()

    def profile(
        self, model: bytes | Path, feeds: dict[str, Array], seconds: float
    ) -> list[tuple[frozenset[str], float]] | None:
        self._drop()
        backend = backends.find(self._backend)
        if not isinstance(backend, Profiling):
            return None
        return backend.profile(model, feeds, threads=self._threads, seconds=seconds)

    def _samples(self, seconds: float, runs: int) -> tuple[tuple[float, ...], float]:
        """Seconds of each run, for `seconds` and `runs` times; three are enough after 5 * `seconds`.

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
            while now - start < seconds or len(samples) < (
                runs if now - start < 5 * seconds else min(3, runs)
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
