"""Measures each kernel within a whole program, by the runtime's own clock.

An operator takes another time among its neighbours than alone: its inputs may be in the cache or not, may
need another layout, or may be computed by the same kernel.
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
from typing import NamedTuple, TypeAlias

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measure import compare_timings, time_in_turns, warm_up
from tensaurus.runtimes.measure.runtime_kernels import charge_kernels, conversion_seconds, fused_pieces
from tensaurus.runtimes.measure.worker import Worker
from tensaurus.system.errors import TensaurusError

__all__ = ["PROFILE", "Observation", "Observer"]

ROUNDS = 6  # rounds in which a program and the first program each have a turn
RUNS_PER_TURN = 40  # more or fewer where a turn would else not take between the two times below
MIN_TURN_SECONDS, MAX_TURN_SECONDS = 0.02, 0.1
PROFILE = "kernels (3) of model"  # how database keys of observations begin; 3 is the version of the method
CONVERSIONS = "conversions"  # the end of the key of the seconds of all layout conversions in an observed run
TIME_SHARE = 0.3  # share of the time left for the rounds of one program
PLACE_DIGITS = 6  # digits of a kernel's place in a workload's text

_Kernels: TypeAlias = Sequence[tuple[frozenset[str], float]]  # of each kernel: its tensors, its seconds


class _FirstProgram(NamedTuple):
    """The program that was observed first: others run in turns with it.

    seconds             of a run
    conversion_seconds  of the layout conversions in a run under the profiler
    """

    build: Build
    seconds: float
    conversion_seconds: float


@dataclass(frozen=True)
class Observation:
    """One run of a program: its seconds, and for each kernel the nodes that it computes and its seconds.

    The kernels' seconds add up to those of the run; the time between kernels is shared out evenly.  A kernel
    without nodes could not be traced to the program.
    """

    seconds: float
    kernels: tuple[tuple[frozenset[Node], float], ...]


class Observer:
    """Observes whole programs, each in turns with the first, so that drift of the machine cancels out."""

    def __init__(
        self,
        feeds: Mapping[str, Array],
        backend: str,
        machine: Machine,
        database: Database,
        builds: BuildCache,
        deadline: float = inf,
    ):
        """After the `deadline` (of `time.monotonic`) fewer rounds are run, and none is repeated."""
        self._feeds, self._backend, self._machine = feeds, backend, machine
        self._database, self._builds = database, builds
        self.deadline = deadline
        self._workers = ExitStack()
        self._worker: Worker | None = None
        self._first: _FirstProgram | None = None
        self._first_worker: Worker | None = None  # holds the first program
        self.runs = 0  # programs that were run

    def __call__(self, program: Program) -> Observation | None:
        """Run a program; None where the backend refuses it or cannot tell where its time goes."""
        try:
            build = self._builds(program)
            kernels = self._stored_kernels(build) or self._profile(build)
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

    def find_fused(self, program: Program) -> list[Piece]:
        """Return the pieces that the backend runs as one kernel; [] where it cannot tell."""
        try:
            build = self._builds(program)
            return fused_pieces(build.tensors.written, self._live_worker().kernels(build))
        except TensaurusError:
            return []

    def _workload_prefix(self, build: Build) -> str:
        """Return how the workloads of a build's kernels begin; a kernel's place and tensors follow."""
        sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in self._feeds.items())
        return f"{PROFILE} {build.digest} on {sizes}: "

    def _stored_kernels(self, build: Build) -> _Kernels:
        """Return the kernels that the database has of a build, one row each; [] where it has none."""
        text = self._workload_prefix(build)
        rows = self._database.beginning(text, self._machine.backend_key(self._backend), self._machine.key)
        kernels = [(row.workload[len(text) + PLACE_DIGITS :], row.seconds) for row in rows]
        conversions = sum(seconds for names, seconds in kernels if names == CONVERSIONS)
        kernels = [pair for pair in kernels if pair[0] != CONVERSIONS]
        if kernels and self._first is None:
            self._first = _FirstProgram(build, sum(seconds for _, seconds in kernels), conversions)
        return [(frozenset(json.loads(names)), seconds) for names, seconds in kernels]

    def _profile(self, build: Build) -> _Kernels:
        """Time a run, then the kernels in it, scale these to the run, and store them."""
        self.runs += 1
        worker = self._live_worker()
        warm_up(worker, build, self._feeds, MIN_TURN_SECONDS)
        run = median(worker.time(MIN_TURN_SECONDS).samples)
        turn = min(MAX_TURN_SECONDS, max(MIN_TURN_SECONDS, RUNS_PER_TURN * run))
        seconds = self._time_beside_first(build, worker, turn, run)
        profile = worker.profile(build, self._feeds, 3 * turn) or []
        conversions = conversion_seconds(profile)
        if self._first is None:
            self._first = _FirstProgram(build, seconds, conversions)
        charges = charge_kernels(profile, self._first.conversion_seconds)
        if not charges:  # the program may take less than the runtime's clock resolves
            return ()
        kernels = _scale_to_run(charges, seconds)
        key, text = self._machine.backend_key(self._backend), self._workload_prefix(build)
        rows = [(json.dumps(sorted(names)), spent) for names, spent in kernels]
        self._database.put_many(
            Measurement(f"{text}{place:0{PLACE_DIGITS}}{names}", key, self._machine.key, "", spent)
            for place, (names, spent) in enumerate([*rows, (CONVERSIONS, conversions)])
        )
        return kernels

    def _live_worker(self) -> Worker:
        if self._worker is None or not self._worker.is_alive:
            self._worker = self._start_worker()
        return self._worker

    def _start_worker(self) -> Worker:
        return self._workers.enter_context(Worker(self._backend, threads=self._machine.threads))

    def _time_beside_first(self, build: Build, worker: Worker, turn: float, run: float) -> float:
        """Return the seconds of one run, as if it had run when the first program did.

        The program runs in turns of `turn` seconds, at least once in each; `run` are the seconds of one run.
        """
        if self._first is None:
            rounds = self._affordable_rounds(max(turn, run))
            (timing,) = time_in_turns(["the program"], [worker], rounds, turn, self.deadline)
            return timing.median
        first, base, _ = self._first
        if self._first_worker is None or not self._first_worker.is_alive:
            self._first_worker = self._start_worker()
            warm_up(self._first_worker, first, self._feeds, turn)
        names = ["the first program", "the program"]
        rounds = self._affordable_rounds(max(turn, base) + max(turn, run))
        before, after = time_in_turns(names, [self._first_worker, worker], rounds, turn, self.deadline)
        return base / compare_timings(before, after).median

    def _affordable_rounds(self, seconds: float) -> int:
        """Return for how many rounds of so many seconds there is time."""
        left = TIME_SHARE * (self.deadline - monotonic())
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


def _scale_to_run(kernels: _Kernels, seconds: float) -> _Kernels:
    """Scale the kernels' times so that they add up to the seconds of a run without the profiler."""
    spent = sum(taken for _, taken in kernels)
    if spent > seconds:  # the profiler takes time itself
        return [(names, taken * seconds / spent) for names, taken in kernels]
    rest = (seconds - spent) / len(kernels)
    return [(names, taken + rest) for names, taken in kernels]
