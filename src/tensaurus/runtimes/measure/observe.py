"""Where the time of a whole program goes, by the runtime's own clock, kernel by kernel.

An operator among its neighbours takes another time than alone: what it reads is or is not in the cache, in
the layout that it wants, or computed by the same kernel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from statistics import median
from time import monotonic
from types import TracebackType
from typing import TypeAlias

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.builds import Builds
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import in_turns, ratio, warm_up
from tensaurus.runtimes.measure.runtime_kernels import charged, fused_pieces
from tensaurus.runtimes.measure.worker import Worker
from tensaurus.system.errors import TensaurusError

__all__ = ["PROFILE", "Observation", "Observer"]

ROUNDS = 6  # in turns with the first program
RUNS = 40  # of a round, where that takes between
SHORTEST, LONGEST = 0.02, 0.1  # seconds
PROFILE = "kernels (2) of model"  # begins the rows of this way of telling kernels apart
SHARE = 0.3  # of the time that is left, for these rounds
PLACES = 6  # digits of a kernel's place

_Kernels: TypeAlias = Sequence[tuple[frozenset[str], float]]  # tensors and seconds


@dataclass(frozen=True)
class Observation:
    """Of one run of a program: its seconds, and those of each kernel with the nodes that it computes.

    The kernels' seconds add up to those of the run; what the runtime spends between them is shared out
    evenly.  A kernel without nodes computes what could not be told.
    """

    seconds: float
    kernels: tuple[tuple[frozenset[Node], float], ...]


class Observer:
    """Runs whole programs beside the first one that it is shown, so that drift of the machine cancels out."""

    def __init__(
        self,
        feeds: Mapping[str, Array],
        backend: str,
        machine: Machine,
        database: Database,
        builds: Builds,
        deadline: float = inf,
    ):
        """After the `deadline` (of `time.monotonic`) fewer rounds are run, and none is repeated."""
        self._feeds, self._backend, self._machine = feeds, backend, machine
        self._database, self._builds = database, builds
        self.deadline = deadline
        self._workers = ExitStack()
        self._worker: Worker | None = None
        self._beside: Worker | None = None  # holds the first program
        self._first: tuple[Build, float] | None = None  # with the seconds of a run
        self.runs = 0  # programs that were run

    def __call__(self, program: Program) -> Observation | None:
        """None where the backend refuses the program or cannot tell where its time goes."""
        try:
            build = self._builds(program)
            kernels = self._remembered(build) or self._profiled(build)
        except TensaurusError:
            return None
        if not kernels:
            return None
        nodes = build.tensors.computed
        computed = (
            (frozenset(node for name in names for node in nodes.get(name, ())), spent)
            for names, spent in kernels
        )
        return Observation(sum(spent for _, spent in kernels), tuple(computed))

    def fused(self, program: Program) -> list[Piece]:
        """What the backend runs as one kernel; nothing where it cannot tell."""
        try:
            build = self._builds(program)
            return fused_pieces(build.tensors.written, self._running().kernels(build))
        except TensaurusError:
            return []

    def _text(self, build: Build) -> str:
        sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in self._feeds.items())
        return f"{PROFILE} {build.digest} on {sizes}: "

    def _remembered(self, build: Build) -> _Kernels:
        text = self._text(build)
        rows = self._database.beginning(text, self._machine.backend_key(self._backend), self._machine.key)
        if rows and self._first is None:
            self._first = (build, sum(row.seconds for row in rows))
        return [(frozenset(json.loads(row.workload[len(text) + PLACES :])), row.seconds) for row in rows]

    def _profiled(self, build: Build) -> _Kernels:
        self.runs += 1
        worker = self._running()
        warm_up(worker, build, self._feeds, SHORTEST)
        run = median(worker.time(SHORTEST).samples)
        turn = min(LONGEST, max(SHORTEST, RUNS * run))
        seconds = self._seconds(build, worker, turn, run)
        told = charged(worker.profile(build, self._feeds, 3 * turn) or [])
        if not told:  # of what takes less than the runtime's clock can tell, too
            return ()
        kernels = _filled(told, seconds)
        key, text = self._machine.backend_key(self._backend), self._text(build)
        self._database.put_many(
            Measurement(
                f"{text}{place:0{PLACES}}{json.dumps(sorted(names))}", key, self._machine.key, "", spent
            )
            for place, (names, spent) in enumerate(kernels)
        )
        return kernels

    def _running(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = self._started()
        return self._worker

    def _started(self) -> Worker:
        return self._workers.enter_context(Worker(self._backend, threads=self._machine.threads))

    def _seconds(self, build: Build, worker: Worker, turn: float, run: float) -> float:
        """Of one run, as it would have taken when the first program was run; in turns of seconds, in each of
        which it runs once at least."""
        if self._first is None:
            rounds = self._rounds(max(turn, run))
            (timing,) = in_turns(["the program"], [worker], rounds, turn, self.deadline)
            self._first = (build, timing.median)
            return timing.median
        first, base = self._first
        if self._beside is None or not self._beside.alive:
            self._beside = self._started()
            warm_up(self._beside, first, self._feeds, turn)
        names = ["the first program", "the program"]
        rounds = self._rounds(max(turn, base) + max(turn, run))
        before, after = in_turns(names, [self._beside, worker], rounds, turn, self.deadline)
        return base / ratio(before, after).median

    def _rounds(self, seconds: float) -> int:
        """How many rounds of so many seconds there is time for."""
        left = SHARE * (self.deadline - monotonic())
        return ROUNDS if left >= ROUNDS * seconds else max(1, int(left / seconds))

    def close(self) -> None:
        """End the workers; the next program starts others."""
        self._workers.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _filled(kernels: _Kernels, seconds: float) -> _Kernels:
    """The kernels' times made to add up to those of a run without the profiler."""
    spent = sum(taken for _, taken in kernels)
    if spent > seconds:  # the profiler's own time
        return [(names, taken * seconds / spent) for names, taken in kernels]
    rest = (seconds - spent) / len(kernels)
    return [(names, taken + rest) for names, taken in kernels]
