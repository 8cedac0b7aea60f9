"""A process of its own for what may crash, hang, or take more memory than there is.

It answers calls of one object's methods, one after the other, cannot outlive the process that started it, and
is ended when an answer takes too long.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import environment as inherited
from tensaurus.system.scratch import spool
from tensaurus.system.signals import adopt, disown

__all__ = ["Child", "ChildError", "available_memory", "tied"]

RESERVE = 0.05  # of the memory that is available, a child leaves to others
SLICE = 0.1  # seconds of one wait for an answer in a thread beside the main one


class ChildError(TensaurusError):
    """A child refused, died or did not answer in time; one line."""


class Child:
    """One process with one object. Used by one thread at a time; `close` it or use it in a `with`."""

    error: ClassVar[type[ChildError]] = ChildError  # what is raised
    resting: ClassVar[bool] = False  # whether it is stopped (SIGSTOP) while nobody waits for it

    def __init__(
        self,
        name: str,
        factory: str,
        *arguments: str | int,
        timeout: float,
        memory: int | None = None,
        environment: Mapping[str, str] | None = None,
        remedy: str | None = None,
    ) -> None:
        """Start it.

        name         for messages
        factory      MODULE:CALLABLE, called there with `arguments`, makes the object that answers
        timeout      seconds, for each answer
        memory       bytes that it may allocate; nearly all that is available now where None
        environment  variables that differ from this process's
        remedy       what helps where an answer takes too long
        """
        self.name, self.timeout, self.remedy = name, timeout, remedy
        limit = int((1 - RESERVE) * available_memory()) if memory is None else memory
        command = (
            "from tensaurus.system.child import serve; "
            f"serve({os.getpid()}, {{}}, {limit}, {factory!r}, {', '.join(map(repr, arguments))})"
        )
        here, there = Pipe()
        self._connection = here
        self._asked = False  # an answer is on its way, or may be
        self._errors = spool()
        order = _Order(here, self._errors)
        try:
            job = partial(_start, command, there, self._errors, environment or {})
            self._process = _nursery(os.getpid()).submit(order.fill, job).result()
        except BaseException:
            order.cancel()
            raise
        self.close = weakref.finalize(self, _end, os.getpid(), self._process, here, self._errors)

    @property
    def alive(self) -> bool:
        """Whether it can be asked: not where an answer was never taken, which the next question would get."""
        return self.close.alive and not self._asked and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, *arguments: object, patience: float = 0.0) -> Any:
        """What the object's method of that name returns; `patience` seconds are added to the time-out.

        Raises what `error` says where the method raised, the process died or did not answer in time; after
        the latter two, and after an interrupt, it is closed.
        """
        try:
            self.begin(verb, *arguments)
            return self.finish(patience)
        finally:
            if self._asked:  # what was raised came between the two
                self.close()

    def begin(self, verb: str, *arguments: object) -> None:
        """Ask, and do not wait: `finish` has the answer, and must come before anything else is asked.

        Raises as `ask` does; closes it where the answer before was not taken.
        """
        if self._asked:
            self.close()
        if not self.close.alive:
            raise self.error(f"{self.name}: the worker is closed")
        self._asked = True
        try:
            if self.resting:
                self._process.send_signal(signal.SIGCONT)
            self._connection.send((verb, *arguments))
        except (EOFError, OSError):
            raise self.error(f"{self.name}: {self._last_words()}") from None
        except BaseException:
            self.close()
            raise

    def finish(self, patience: float = 0.0) -> Any:
        """The answer to what was asked last.  Raises as `ask` does."""
        if not self.close.alive:
            raise self.error(f"{self.name}: the worker is closed")
        try:
            if not self._answered(self.timeout + patience):
                self.close()
                late = f"{self.name}: no answer within {self.timeout + patience:g} s"
                raise self.error(late, remedy=self.remedy)
            fine, value = self._connection.recv()
            self._asked = False
            if self.resting:
                self._process.send_signal(signal.SIGSTOP)
        except (EOFError, OSError):
            raise self.error(f"{self.name}: {self._last_words()}") from None
        except BaseException:  # an answer may be on its way: it must not be taken for the next one
            self.close()
            raise
        if not fine:
            raise self.error(str(value))
        return value

    def _answered(self, seconds: float) -> bool:
        """Return whether there is an answer within so many seconds.

        In a thread beside the main one nothing ends a wait in C: it is cut into slices, so that a deadline
        (`deadline.Bounded`) ends it between two of them.
        """
        if threading.current_thread() is threading.main_thread():
            return self._connection.poll(seconds)
        end = monotonic() + seconds
        while not self._connection.poll(max(0.0, min(SLICE, end - monotonic()))):
            if monotonic() >= end:
                return False
        return True

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Order:
    """A child to be started by another thread; an interrupt of the one that waits does not end that."""

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
    """The thread that starts children: PR_SET_PDEATHSIG fires when the *thread* that forked ends, so one that
    lives as long as the process forks them all. A forked process (another pid) needs its own."""
    return ThreadPoolExecutor(1, f"children-of-{pid}")


def _start(
    command: str, connection: Connection, errors: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with connection:
        descriptor = connection.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", command.format(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C reaches the parent alone, which closes its children
            env={
                **inherited(),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **environment,
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


def tied(parent: int) -> bool:
    """End this process with its parent, however that ends; False where it is gone already."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG, Linux
    return os.getppid() == parent


def serve(parent: int, descriptor: int, memory: int, factory: str, *arguments: Any) -> None:
    """The child's side: answer (verb, *arguments) with (True, value) or (False, one line) until the end."""
    if not tied(parent):
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    connection = Connection(descriptor)
    module, _, name = factory.partition(":")
    desk = getattr(import_module(module), name)(*arguments)
    while True:
        try:
            verb, *given = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(desk, verb)(*given))
        except MemoryError:
            answer = (False, "there is not enough memory")
        except (AttributeError, NameError, AssertionError) as error:  # no model is to blame for these
            answer = (False, f"a fault, please report it: {type(error).__name__}: {error}")
        except Exception as error:
            answer = (False, str(error) or type(error).__name__)
        del given
        connection.send(answer)


def available_memory() -> int:
    """Bytes that can be allocated without swapping; within a container, of its share."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, max(0, most - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    return free
