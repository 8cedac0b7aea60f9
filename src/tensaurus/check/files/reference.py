"""Runs models in float64 in child processes: the reference with which results are compared.

`Baseline` and `CandidateTrial` ask a `Reference` for outputs; it passes each request to a `ReferenceServer`
in a child process.  A model may need more memory than there is, and its nodes without an expression run other
code, which may crash or hang: that ends a child process, and the search goes on.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from types import MappingProxyType
from typing import Any, TypeAlias

from tensaurus.check.files.reference_answers import ReferenceAnswers, hash_of
from tensaurus.check.inputs.integer_uses import IntegerUses, find_integer_uses
from tensaurus.check.program.meeting_numbers import find_meeting_numbers
from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS, is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.graph.ir.node import OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.ops import Op, TensorType
from tensaurus.runtimes.backends.reference import Session
from tensaurus.system.child import Child, ChildError, available_memory

__all__ = ["ModelFacts", "NoReference", "Reference"]

TIMEOUT_FACTOR = 4.0  # a run in float64 may take this many times the limit of a run on a runtime
LONG_RUN_SECONDS = 0.3  # runs that take longer are computed in several processes at once
# Large tensors stay in the heap of glibc: fetching zeroed pages for each of them takes half of a run's time.
HEAP_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
BYTES_PER_MODEL_BYTE = 8  # about how much memory a process takes for each byte of a model


class NoReference(ChildError):
    """The model has no reference; the message says why in one line."""


class _Evaluator(Child):
    """A child process with a `ReferenceServer`."""

    error_type = NoReference
    pauses_when_idle = True


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that need no run.

    integer_uses  how its operators use its integer inputs
    branches      each branch of an If in words, with the branch around it ("" where there is none)
    digits        binary digits of the narrowest floating-point type that it computes in
    """

    integer_uses: IntegerUses
    branches: dict[str, str]
    digits: int


# By the node of an If and its condition: the name of the branch in words, and that of the branch around it.
Branches: TypeAlias = dict[tuple[Node, bool], tuple[str, str]]


class ReferenceServer:
    """Answers requests in the child process; `Reference` calls these methods by name."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._branches: Branches = {}

    def load(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> None:
        """Replace the model that is held by this one, with these sizes of its inputs."""
        from tensaurus.graph.onnx.onnx_import import import_build

        self._session = None
        program = import_build(build, shapes)
        self._session, self._branches = Session(program), name_branches(program)

    def run(self, arrays: Mapping[str, Any], rounded: bool) -> list[Any]:
        """Return all outputs; `rounded`: every operator's result is rounded to its type."""
        assert self._session is not None
        return self._session.run(None, arrays, rounded=rounded)

    def facts(self) -> ModelFacts:
        """Return the facts of the model."""
        assert self._session is not None
        program = self._session.program
        uses = find_integer_uses(program)
        turning = find_meeting_numbers([program], sorted(uses.unrestricted)) if uses.unrestricted else {}
        branches = dict(self._branches.values())
        return ModelFacts(replace(uses, turning_numbers=turning), branches, narrowest_digits(program))

    def tie_neighbours(self, arrays: Mapping[str, Any]) -> list[list[Any]]:
        """Return the outputs on the other sides of ties, see `tie_neighbours`."""
        from tensaurus.check.files.tie_neighbours import tie_neighbours

        assert self._session is not None
        return tie_neighbours(self._session, arrays)

    def branches_taken(self, arrays: Mapping[str, Any]) -> list[str]:
        """Return the branches that these inputs reach, in words."""
        assert self._session is not None
        reached: set[tuple[Node, bool]] = set()
        self._session.run(None, arrays, taken=reached)
        return [text for branch, (text, _) in self._branches.items() if branch in reached]

    def drop(self) -> None:
        """Forget the model and return its memory to the system."""
        self._session, self._branches = None, {}
        with suppress(AttributeError, OSError):  # where the C library has no such function
            ctypes.CDLL(None).malloc_trim(0)


def name_branches(program: Program) -> Branches:
    """Return every branch of an If, nested branches too, by its node and condition (see `Branches`)."""
    branches: Branches = {}
    programs = [(program, "")]
    while programs:
        inner, around = programs.pop(0)
        for node in inner.nodes:
            if node.op is not OPAQUE or not (form := node.attribute("form")).bodies:
                continue
            if form.operator != "If":
                programs += [(body, around) for _, body in form.bodies]
                continue
            name = inner.names.get(node) or f"number {len(branches) // 2 + 1}"
            bodies = dict(form.bodies)
            for holds, word in ((True, "then"), (False, "else")):
                text = f"the {word} branch of {name}"
                branches.setdefault((node, holds), (text, around))
                programs.append((bodies[f"{word}_branch"], text))
    return branches


def narrowest_digits(program: Program) -> int:
    """Return the binary digits of the narrowest float type in which an operator computes, moves left out."""
    digits = [53]
    for node in program.nodes:
        dtypes = [kind.dtype for kind in node.types if isinstance(kind, TensorType)]
        if not isinstance(node.op, Op) or not any(map(is_float, dtypes)):
            continue
        scopes = node.op.scopes(node.arg_types(), node.attrs)
        if any(cast_target(fn) is None for scope in scopes for fn in called_functions(scope)):
            digits += [FLOAT_FORMATS[dtype].digits for dtype in dtypes if is_float(dtype)]
    return min(digits)


class _ReferenceProcess:
    """One child process, by its number, with the model that it holds."""

    def __init__(self, number: int, limit: float) -> None:
        self._number, self._limit = number, limit
        self._loaded: object = None

    def child_with_model(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> _Evaluator:
        """Return the child process, holding this model.  Raises NoReference."""
        child = _evaluator(os.getpid(), self._number)
        if not child.is_alive:  # it died, or computes an answer that nobody wants any more
            child.close()
            _evaluators.pop((os.getpid(), self._number), None)
            child, self._loaded = _evaluator(os.getpid(), self._number), None
        child.timeout = self._limit
        key = (build, tuple(shapes.items()))
        if self._loaded != key:
            self._loaded = None  # loading may fail halfway
            child.ask("load", build, dict(shapes))
            self._loaded = key
        return child

    def begin(self, task: _Task) -> None:
        """Start a run without waiting for it.  Raises NoReference."""
        self.child_with_model(task.build, task.shapes).begin("run", dict(task.arrays), task.rounded)

    def finish(self) -> list[Any]:
        """Wait for the run that was started and return all outputs.  Raises NoReference."""
        outputs: list[Any] = _evaluator(os.getpid(), self._number).finish()
        return outputs

    def drop(self) -> None:
        """Let the process forget its model; end it where it does not answer."""
        child = _evaluators.get((os.getpid(), self._number))
        self._loaded = None
        if child is not None and child.is_alive:
            child.ask("drop")
        elif child is not None:
            child.close()


class Reference:
    """Runs models in float64 for one comparison; use it in a `with`.

    Each child process computes on one thread.  Where runs are long and the memory suffices, as many processes
    as threads compute at once: the caller announces runs (`plan_runs`) and then asks for them one by one
    (`run`); while it waits for one, idle processes compute the next.  The processes stay alive for the next
    comparison.
    """

    def __init__(self, threads: int, limit: float, answers: ReferenceAnswers | None = None) -> None:
        """Prepare for runs that may take `limit` seconds on a runtime; outputs among `answers` are reused."""
        self.answers = answers
        self._processes = [
            _ReferenceProcess(number, TIMEOUT_FACTOR * limit) for number in range(max(1, threads))
        ]
        self._planned: deque[_Task] = deque()  # runs that will be asked for, in this order
        self._running: deque[tuple[_ReferenceProcess, _Task]] = deque()
        self._done: dict[str, list[Any] | NoReference] = {}  # by keys of tasks
        self._runs_are_long = False  # whether some planned run took LONG_RUN_SECONDS
        self._parallel = 1  # processes for which there is memory

    def run(
        self,
        build: Build,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        *,
        rounded: bool = False,
    ) -> list[Any]:
        """Return all outputs of a model whose inputs have these shapes.  Raises NoReference.

        With `rounded` every operator's result is rounded to its own type, as runtimes do.
        """

        def compute() -> list[Any]:
            task = _Task(build, shapes, arrays, rounded)
            if self._wait_for(task.key):
                outcome = self._done.pop(task.key)
                if isinstance(outcome, NoReference):
                    raise outcome
                return outcome
            outputs: list[Any] = self._child_with_model(build, shapes).ask("run", dict(arrays), rounded)
            return outputs

        if self.answers is None or build != self.answers.build:
            return compute()
        return self.answers.get(arrays, shapes, rounded, compute)

    def parallel_runs(self, build: Build, seconds: float) -> int:
        """Return how many runs of a model are computed at once where each takes this many seconds."""
        room = available_memory() // max(1, BYTES_PER_MODEL_BYTE * build.total_bytes)
        return max(1, min(len(self._processes), room)) if seconds >= LONG_RUN_SECONDS else 1

    def plan_runs(
        self,
        build: Build,
        wanted: Iterable[tuple[Mapping[str, Any], Mapping[str, Sequence[int]]]],
        *,
        rounded: bool = False,
    ) -> None:
        """Announce runs that will be asked for in this order: inputs, and the shapes that they have."""
        self._cancel_planned()
        self._parallel = self.parallel_runs(build, LONG_RUN_SECONDS)
        if self._parallel == 1:
            return
        known = self.answers if self.answers is not None and build == self.answers.build else None
        for arrays, shapes in wanted:
            if known is None or not known.has(arrays, shapes, rounded):
                self._planned.append(_Task(build, shapes, arrays, rounded))

    def _wait_for(self, key: str) -> bool:
        """Return whether this run was planned; if so, wait until its outcome is in `_done`."""
        planned = (*self._planned, *(task for _, task in self._running))
        if key not in self._done and all(task.key != key for task in planned):
            return False
        self._start_planned()
        while key not in self._done:  # the oldest run first; its process then takes the next
            process, task = self._running.popleft()
            start = monotonic()
            try:
                self._done[task.key] = process.finish()
            except NoReference as error:
                self._done[task.key] = error
            self._runs_are_long = self._runs_are_long or monotonic() - start >= LONG_RUN_SECONDS
            self._start_planned()
        return True

    def _start_planned(self) -> None:
        """Start planned runs in all idle processes, in one process where runs are short."""
        for process in self._processes[: self._parallel if self._runs_are_long else 1]:
            while self._planned and not self._is_running(process):
                task = self._planned.popleft()
                try:
                    process.begin(task)
                    self._running.append((process, task))
                except NoReference as error:
                    self._done[task.key] = error

    def _is_running(self, process: _ReferenceProcess) -> bool:
        """Return whether the process computes a planned run."""
        return any(process is other for other, _ in self._running)

    def _cancel_planned(self) -> None:
        """Forget all planned runs, and those that are being computed."""
        for process, _ in self._running:
            process.drop()
        self._planned.clear()
        self._running.clear()
        self._done.clear()

    def facts(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> ModelFacts:
        """Return what is known of a model without running it.  Raises NoReference."""
        known: ModelFacts = self._child_with_model(build, shapes).ask("facts")
        return known

    def tie_neighbours(
        self, build: Build, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[list[Any]]:
        """Return the outputs on the other sides of ties, [] without ties.  Raises NoReference."""
        outputs: list[list[Any]] = self._child_with_model(build, shapes).ask("tie_neighbours", dict(arrays))
        return outputs

    def branches_taken(
        self, build: Build, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Return the branches, as `facts` names them, that these inputs reach.  Raises NoReference."""
        branches: list[str] = self._child_with_model(build, shapes).ask("branches_taken", dict(arrays))
        return branches

    def _child_with_model(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> _Evaluator:
        """Return the first child process, holding this model; cancel the planned runs if it computes one."""
        if self._is_running(self._processes[0]):
            self._cancel_planned()
        return self._processes[0].child_with_model(build, shapes)

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel_planned()
        for process in self._processes:
            process.drop()


@dataclass(frozen=True)
class _Task:
    """One planned run of a model."""

    build: Build
    shapes: Mapping[str, Sequence[int]]
    arrays: Mapping[str, Any]
    rounded: bool = False

    @cached_property
    def key(self) -> str:
        shapes = sorted((name, tuple(sizes)) for name, sizes in self.shapes.items())
        return f"{self.build.digest} {shapes} {hash_of(self.arrays)} {self.rounded}"


_evaluators: dict[tuple[int, int], _Evaluator] = {}


def _evaluator(pid: int, number: int) -> _Evaluator:
    """Return the child process of this number, started where there is none.

    `pid` is the calling process: one that was forked starts children of its own instead of sharing them.
    """
    child = _evaluators.get((pid, number))
    if child is None:
        environment = {"OPENBLAS_NUM_THREADS": "1", **HEAP_SETTINGS}
        child = _Evaluator("reference", f"{__name__}:ReferenceServer", timeout=60.0, environment=environment)
        _evaluators[pid, number] = child
    return child
