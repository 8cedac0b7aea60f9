"""Runs an object in a child process, for code that may crash, hang, or take more memory than there is.

The child answers calls of the object's methods, one at a time.  It cannot outlive the process that started
it, and is killed when an answer takes too long.  Runtimes, the float64 reference, and ONNX's shape inference
run like this: a model that crashes one of them must not end the whole optimization.
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
from typing import IO, Any, ClassVar, Self

from tensaurus.system.cleanups import register_child, unregister_child
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import child_environment, open_unnamed_file

__all__ = ["Child", "ChildError", "available_memory", "die_with_parent"]

RESERVED_MEMORY_SHARE = 0.05  # of the available memory, which a child leaves to other processes
POLL_SECONDS = 0.1  # longest uninterrupted wait for an answer in a thread beside the main one


class ChildError(TensaurusError):
    """A child refused, died or did not answer in time; the text is one line."""


class Child:
    """One process with one object.  Used by one thread at a time; `close` it or use it in a `with`."""

    error_type: ClassVar[type[ChildError]] = ChildError  # class of the errors that are raised
    pauses_when_idle: ClassVar[bool] = False  # whether the process is stopped (SIGSTOP) between calls

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
        """Start the process.

        name         names the child in messages
        factory      MODULE:CALLABLE, called in the child with `arguments`, returns the object
        timeout      seconds that one answer may take
        memory       bytes that the child may allocate; None: nearly all that are available now
        environment  variables that differ from this process's
        remedy       what a user can do where an answer takes too long
        """
        self.name, self.timeout, self.remedy = name, timeout, remedy
        limit = int((1 - RESERVED_MEMORY_SHARE) * available_memory()) if memory is None else memory
        # {} becomes the descriptor of the child's end of the pipe (`_start_process`)
        command = (
            "from tensaurus.system.child import serve; "
            f"serve({os.getpid()}, {{}}, {limit}, {factory!r}, {', '.join(map(repr, arguments))})"
        )
        here, there = Pipe()
        self._connection = here
        self._has_pending_answer = False  # whether an answer may be on its way
        self._errors = open_unnamed_file()  # what the child writes on stderr
        pending = _PendingStart(here, self._errors)
        try:
            job = partial(_start_process, command, there, self._errors, environment or {})
            self._process = _starter_thread(os.getpid()).submit(pending.fill, job).result()
        except BaseException:
            pending.cancel()
            raise
        # runs once: when called, when this object is collected, or when Python exits
        self.close = weakref.finalize(self, _end_process, os.getpid(), self._process, here, self._errors)

    @property
    def is_alive(self) -> bool:
        """Whether the child can be asked; not where an earlier answer waits, which would come first."""
        return self.close.alive and not self._has_pending_answer and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, *arguments: object, patience: float = 0.0) -> Any:
        """Call the object's method `verb` and return its result; `patience` is added to the time-out.

        Raises an `error_type` where the method raised, the process died, or did not answer in time.  After
        the latter two, and after an interrupt, the child is closed.
        """
        try:
            self.begin(verb, *arguments)
            return self.finish(patience)
        finally:
            if self._has_pending_answer:  # the exception came between the two calls
                self.close()

    def begin(self, verb: str, *arguments: object) -> None:
        """Begin a call without waiting; `finish` returns its result and must be called before the next call.

        Raises as `ask` does; closes the child where the answer before was not taken.
        """
        if self._has_pending_answer:
            self.close()
        if not self.close.alive:
            raise self.error_type(f"{self.name}: the worker is closed")
        self._has_pending_answer = True
        try:
            if self.pauses_when_idle:
                self._process.send_signal(signal.SIGCONT)
            self._connection.send((verb, *arguments))
        except (EOFError, OSError):
            raise self.error_type(f"{self.name}: {self._explain_death()}") from None
        except BaseException:
            self.close()
            raise

    def finish(self, patience: float = 0.0) -> Any:
        """Return the result of the last call begun.  Raises as `ask` does."""
        if not self.close.alive:
            raise self.error_type(f"{self.name}: the worker is closed")
        try:
            if not self._wait_for_answer(self.timeout + patience):
                self.close()
                late = f"{self.name}: no answer within {self.timeout + patience:g} s"
                raise self.error_type(late, remedy=self.remedy)
            succeeded, value = self._connection.recv()
            self._has_pending_answer = False
            if self.pauses_when_idle:
                self._process.send_signal(signal.SIGSTOP)
        except (EOFError, OSError):
            raise self.error_type(f"{self.name}: {self._explain_death()}") from None
        except BaseException:  # an answer may be on its way; the next call must not take it for its own
            self.close()
            raise
        if not succeeded:
            raise self.error_type(str(value))
        return value

    def _wait_for_answer(self, seconds: float) -> bool:
        """Return whether an answer comes within these seconds.

        In a thread beside the main one no deadline (`deadline.DeadlineBlock`) can end a wait in C, so the
        wait is cut into short ones.
        """
        if threading.current_thread() is threading.main_thread():
            return self._connection.poll(seconds)
        end = monotonic() + seconds
        while not self._connection.poll(max(0.0, min(POLL_SECONDS, end - monotonic()))):
            if monotonic() >= end:
                return False
        return True

    def _explain_death(self) -> str:
        """Return why the process died, with the last line it wrote on stderr; close the child."""
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

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass
class _PendingStart:
    """A child that another thread starts; an interrupt of the waiting thread does not stop the start."""

    connection: Connection
    errors: IO[bytes]
    lock: Lock = field(default_factory=Lock)
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False

    def fill(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start the process, and end it if the waiting thread has cancelled."""
        process = start()
        with self.lock:
            self.process = process
            cancelled = self.cancelled
        if cancelled:
            _end_process(os.getpid(), process, self.connection, self.errors)
        return process

    def cancel(self) -> None:
        """End the process, now or when it has started."""
        with self.lock:
            self.cancelled = True
            process = self.process
        self.connection.close()
        if process is not None:
            _end_process(os.getpid(), process, self.connection, self.errors)


@cache
def _starter_thread(pid: int) -> ThreadPoolExecutor:
    """Return the thread that starts all children of this process; a fork (another pid) has its own.

    PR_SET_PDEATHSIG fires when the *thread* that forked ends, so children are forked by a thread that lives
    as long as the process.
    """
    return ThreadPoolExecutor(1, f"children-of-{pid}")


def _start_process(
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
            process_group=0,  # Ctrl-C reaches only the parent, which closes its children
            env={
                **child_environment(),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **environment,
            },
        )
    register_child(process.pid)
    return process


def _end_process(
    owner: int, process: subprocess.Popen[bytes], connection: Connection, errors: IO[bytes]
) -> None:
    connection.close()
    errors.close()
    if owner == os.getpid():  # not in a fork of the parent
        process.kill()
        unregister_child(process.pid)
        process.wait()


def die_with_parent(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends; return False if the parent is gone already."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG, Linux
    return os.getppid() == parent


def serve(parent: int, descriptor: int, memory: int, factory: str, *arguments: Any) -> None:
    """Run the child's side: answer each (verb, *arguments) with (True, value) or (False, one line)."""
    if not die_with_parent(parent):
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    connection = Connection(descriptor)
    module, _, name = factory.partition(":")
    served = getattr(import_module(module), name)(*arguments)
    while True:
        try:
            verb, *given = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(served, verb)(*given))
        except MemoryError:
            answer = (False, "there is not enough memory")
        except (AttributeError, NameError, AssertionError) as error:  # no model is to blame for these
            answer = (False, f"a fault, please report it: {type(error).__name__}: {error}")
        except Exception as error:
            answer = (False, str(error) or type(error).__name__)
        del given  # not held while the child waits for the next call
        connection.send(answer)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, within the container's limit."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, max(0, most - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    return free
