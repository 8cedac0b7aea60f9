"""Describes the machine to which measurements belong, and watches how busy it is."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic

from tensaurus.runtimes import backends

__all__ = [
    "OtherProcesses",
    "Machine",
    "allowed_cores",
    "busy_seconds",
    "default_threads",
    "usable_threads",
    "waited_seconds",
]


@dataclass(frozen=True)
class Machine:
    """A processor, how many of its cores this process may use, how many threads compute, and the runtimes."""

    processor: str
    cores: int
    threads: int
    versions: tuple[tuple[str, str], ...]  # (backend, version), sorted

    @classmethod
    def here(cls, threads: int | None = None) -> Machine:
        """Describe this machine, computing on `threads` threads (`usable_threads`)."""
        versions = tuple((name, backends.find(name).version()) for name in backends.installed())
        return cls(_processor(), len(allowed_cores()), usable_threads(threads), versions)

    @property
    def hardware(self) -> str:
        """The kind of machine: measurements of others of its kind are valid here."""
        return f"{self.processor}, {self.cores} cores"

    @property
    def key(self) -> str:
        """The text that tells devices apart in the database; versions are in the backend's key."""
        return f"{self.hardware}, {self.threads} threads"

    def backend_key(self, name: str) -> str:
        """Return the backend's name and version, its database key.  Raises KeyError if not installed."""
        return f"{name} {dict(self.versions)[name]}"


def default_threads() -> int:
    """Return how many cores this process may use, within the limit of its control group."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(len(allowed_cores()), ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control groups, or the quota is "max"
        return len(allowed_cores())


def usable_threads(asked: int | None = None) -> int:
    """Return how many threads compute: as many as asked for, but no more than there are processors.

    A runtime's threads spin while they wait for one another: with 64 of them on two cores a run of a tiny
    model takes minutes.  A warning says where fewer compute than were asked for.
    """
    most = default_threads()
    if asked is None or asked <= most:
        return asked or most
    cores = f"this process may use {most} processor{'s' * (most != 1)}"
    warnings.warn(f"using {most} threads, not {asked}: {cores}", stacklevel=2)
    return most


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def memory_bytes() -> int:
    """Return the size of this machine's memory, used or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def busy_seconds() -> float | None:
    """Return for how many CPU seconds the allowed cores were busy since the start; None if unknown.

    Time that a hypervisor took away counts as busy.  The resolution is one clock tick (10 ms) per core.
    """
    names = {f"cpu{number}" for number in allowed_cores()}
    ticks = 0
    try:
        with open("/proc/stat") as file:
            for line in file:
                if not line.startswith("cpu"):
                    break
                name, *fields = line.split()
                if name in names:
                    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
                    ticks += user + nice + system + irq + softirq + steal
    except (OSError, ValueError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def waited_seconds() -> float:
    """Return the seconds for which threads of this process waited for a core, summed; 0 where unknown."""
    nanoseconds = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError):  # the thread just ended
            nanoseconds += int(thread.read_text().split()[1])
    return nanoseconds / 1e9


class OtherProcesses:
    """Watches how much of the machine processes of others take, from now on."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Begin to watch; processes with these numbers, and this one, are ours."""
        self._pids = (os.getpid(), *pids)
        self._began, self._busy, self._own = monotonic(), busy_seconds(), self._own_seconds()

    def share(self) -> float:
        """Return the share of the allowed cores' time that others took; 0 where it is unknown."""
        busy, wall = busy_seconds(), monotonic() - self._began
        if busy is None or self._busy is None or not wall:
            return 0.0
        others = busy - self._busy - (self._own_seconds() - self._own)
        return max(0.0, others / (wall * len(allowed_cores())))

    def _own_seconds(self) -> float:
        """Return the CPU seconds of our processes."""
        ticks = 0
        for pid in self._pids:
            with suppress(OSError, ValueError, IndexError):  # the process has just ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    """Return the processor's name with family, model and stepping: virtual machines share names."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        first = ""
    fields = {}
    for line in first.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model", "stepping") if name in fields]
    return ", ".join([fields["model name"], *numbers])
