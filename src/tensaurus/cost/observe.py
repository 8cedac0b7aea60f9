"""Where the time of a whole program goes, by the runtime's own clock, kernel by kernel.

An operator among its neighbours takes another time than alone: what it reads is or is not in the cache, in
the layout that it wants, or computed by the same kernel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TypeAlias

import onnx

from tensaurus.backends import Array
from tensaurus.cost.database import Database, Measurement
from tensaurus.cost.kernels import fused_pieces
from tensaurus.cost.machine import Machine
from tensaurus.cost.measure import in_turns, ratio, warm_up
from tensaurus.cost.whole import digest
from tensaurus.cost.worker import Worker
from tensaurus.errors import TensaurusError
from tensaurus.graph.model_file import packed
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.onnx_export import Expand, export_model
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program

__all__ = ["Observation", "Observer"]

ROUNDS = 6  # in turns with the first program
RUNS = 40  # of a round, where that takes between
SHORTEST, LONGEST = 0.02, 0.1  # seconds
PLACES = 6  # digits of a kernel's place
MARK = "tensaurus."  # begins the names of the tensors of a program that is profiled

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
        folder: Path,
        expand: Expand | None = None,
    ):
        """Models too large for a message are written to the folder."""
        self._feeds, self._backend, self._machine = feeds, backend, machine
        self._database, self._folder, self._expand = database, folder, expand
        self._workers = ExitStack()
        self._worker: Worker | None = None
        self._beside: Worker | None = None  # holds the first program
        self._first: tuple[bytes | Path, float] | None = None  # with the seconds of a run
        self.runs = 0  # programs that were run

    def __call__(self, program: Program) -> Observation | None:
        """None where the backend refuses the program or cannot tell where its time goes."""
        marked, named = _marked(program)
        try:
            exported = export_model(marked, expand=self._expand)
            model = packed(exported, self._folder)
            kernels = self._remembered(model) or self._profiled(model)
        except TensaurusError:
            return None
        if not kernels:
            return None
        nodes = _computed(exported, named)
        found = (
            (frozenset(node for name in names for node in nodes.get(name, ())), spent)
            for names, spent in kernels
        )
        return Observation(sum(spent for _, spent in kernels), tuple(found))

    def fused(self, program: Program) -> list[Piece]:
        """What the backend runs as one kernel; nothing where it cannot tell."""
        exported = export_model(program, expand=self._expand)
        try:
            return fused_pieces(exported, self._running().kernels(packed(exported, self._folder)))
        except TensaurusError:
            return []

    def _text(self, model: bytes | Path) -> str:
        sizes = " ".join(f"{name}:{list(array.shape)}" for name, array in self._feeds.items())
        return f"within model {digest(model)} on {sizes}: "

    def _remembered(self, model: bytes | Path) -> _Kernels:
        text = self._text(model)
        rows = self._database.beginning(text, self._machine.backend_key(self._backend), self._machine.key)
        if rows and self._first is None:
            self._first = (model, sum(row.seconds for row in rows))
        return [(frozenset(json.loads(row.workload[len(text) + PLACES :])), row.seconds) for row in rows]

    def _profiled(self, model: bytes | Path) -> _Kernels:
        self.runs += 1
        worker = self._running()
        warm_up(worker, model, self._feeds, SHORTEST)
        turn = min(LONGEST, max(SHORTEST, RUNS * median(worker.time(SHORTEST).samples)))
        seconds = self._seconds(model, worker, turn)
        profile = worker.profile(model, self._feeds, 3 * turn)
        if not profile:
            return ()
        kernels = _filled(profile, seconds)
        key, text = self._machine.backend_key(self._backend), self._text(model)
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

    def _seconds(self, model: bytes | Path, worker: Worker, turn: float) -> float:
        """Of one run, as it would have taken when the first program was run; in turns of seconds."""
        if self._first is None:
            (timing,) = in_turns(["the program"], [worker], ROUNDS, turn)
            self._first = (model, timing.median)
            return timing.median
        first, base = self._first
        if self._beside is None or not self._beside.alive:
            self._beside = self._started()
            warm_up(self._beside, first, self._feeds, turn)
        names = ["the first program", "the program"]
        before, after = in_turns(names, [self._beside, worker], ROUNDS, turn)
        return base / ratio(before, after).median

    def close(self) -> None:
        """End the workers; the next program starts others."""
        self._workers.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _marked(program: Program) -> tuple[Program, dict[str, Node]]:
    """The program with a name of its own for every tensor, and what these name; ITEMs name what they read."""
    outputs = {node: name for name, node in program.outputs}
    nodes = [node for node in program.nodes if node.op not in (INPUT, CONSTANT)]
    names = {node: f"{MARK}{place}" for place, node in enumerate(nodes)}
    meant = {**names, **outputs}
    tensors = {
        name: node.args[0] if node.op is ITEM and node.args[0] is not None else node
        for node, name in meant.items()
    }
    return replace(program, names=names), tensors


def _computed(model: onnx.ModelProto, named: Mapping[str, Node]) -> dict[str, set[Node]]:
    """Of each tensor, the nodes that it is computed for: itself, or what an expansion has put it under."""
    found: dict[str, set[Node]] = {name: {node} for name, node in named.items()}
    for entry in reversed(model.graph.node):
        meant = set[Node]().union(*(found.get(name, ()) for name in entry.output))
        for name in entry.input:
            if name not in named:
                found.setdefault(name, set()).update(meant)
    return found


def _filled(kernels: _Kernels, seconds: float) -> _Kernels:
    """The kernels' times made to add up to those of a run without the profiler."""
    spent = sum(taken for _, taken in kernels)
    if spent > seconds:  # the profiler's own time
        return [(names, taken * seconds / spent) for names, taken in kernels]
    rest = (seconds - spent) / len(kernels)
    return [(names, taken + rest) for names, taken in kernels]
