"""Processes that may hang, crash or fill the memory, and are then replaced."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from time import monotonic
from typing import Any

PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE = 3  # seconds waited for one of computing: other processes may have the cores
POLL = 0.02  # seconds between two looks at a process's memory
BACKSTOP = 6 << 30  # bytes that a process can ask for at all


class Fallen(Exception):
    """The servant is gone.  `how` is crash, hang or memory, `trace` is where it was."""

    def __init__(self, how: str, reason: str, phase: str, trace: list[str]):
        super().__init__(reason)
        self.how, self.reason, self.phase, self.trace = how, reason, phase, trace


@dataclass
class Servant:
    """A forked process that answers: `work(message, phase)` in it, where `phase(name)` says what it does.

    It and the processes that it starts are killed when they have computed for `seconds` (or waited `PATIENCE`
    times as long), or hold `memory` bytes beyond what it had.
    """

    work: Callable[[Any, Callable[[str], None]], Any]
    log: Path
    seconds: float
    memory: int
    pid: int = 0
    phase: str = ""
    answers: int = 0
    _connection: Connection | None = field(default=None, repr=False)

    def ask(self, message: Any, more: int = 0) -> Any:
        """The answer; `more` bytes are allowed beyond the limit.  Raises Fallen."""
        if not self.pid:
            self._start()
        assert self._connection is not None
        self.phase = "start"
        allowed, until = _resident(self.pid) + self.memory + more, monotonic() + PATIENCE * self.seconds
        busy = _computed(self.pid) + self.seconds
        try:
            self._connection.send(message)
            while True:
                if self._connection.poll(POLL):
                    done, value = self._connection.recv()
                    if done:
                        self.answers += 1
                        return value
                    self.phase = value
                elif monotonic() > until or _computed(self.pid) > busy:
                    raise self._fallen("hang", f"more than {self.seconds:g} s")
                if _resident(self.pid) > allowed:
                    raise self._fallen("memory", f"more than {(self.memory + more) >> 20} MiB")
        except (EOFError, ConnectionError):
            _, status = os.waitpid(self.pid, 0)
            pid, self.pid = self.pid, 0
            self._forget(pid)
            code = os.waitstatus_to_exitcode(status)
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise Fallen("crash", name, self.phase, self._trace()) from None

    def close(self) -> None:
        if self.pid:
            pid, self.pid = self.pid, 0
            self._forget(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _forget(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self.answers = 0

    def _fallen(self, how: str, reason: str) -> Fallen:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)  # it says where it is
        until = monotonic() + 0.5
        while not self._trace() and monotonic() < until:
            Connection.poll(self._connection, 0.02) if self._connection else None
        trace = self._trace()
        self.close()
        return Fallen(how, reason, self.phase, trace)

    def _trace(self) -> list[str]:
        """Functions on the stack, innermost first."""
        if not self.log.exists():
            return []
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.strip() for line in lines if line.startswith("  File ")]

    def _start(self) -> None:
        here, there = Pipe()
        self.log.write_text("")
        self.pid = os.fork()
        if not self.pid:
            try:
                here.close()
                _serve(self.work, there, self.log)
            finally:
                os._exit(0)
        there.close()
        self._connection = here


def _serve(work: Callable[[Any, Callable[[str], None]], Any], connection: Connection, log: Path) -> None:
    die_with_parent()
    os.setpgid(0, 0)
    file = log.open("a")
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    resource.setrlimit(resource.RLIMIT_DATA, (BACKSTOP, BACKSTOP))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        connection.send((True, work(message, lambda name: connection.send((False, name)))))


def die_with_parent() -> None:
    """Nobody would stop what hangs: Linux does, when the parent ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG


def _computed(pid: int) -> float:
    """Seconds of the processors that a process and those that it started have taken."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_computed(int(child)) for child in children)


def _resident(pid: int) -> int:
    """Bytes in memory of a process and of those that it started; 0 where it is gone."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return own + sum(_resident(int(child)) for child in children)
