"""Models in float64, in processes of their own: what they hold may be more than there is memory for, and
nodes that have no expression are run one by one, with whatever they do."""

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

from tensaurus.check.files.reference_answers import Answers, hash_of
from tensaurus.check.inputs.integer_uses import Indices, indices_of
from tensaurus.check.program.meeting_numbers import met
from tensaurus.expr.analysis.work_counts import functions
from tensaurus.expr.ir.float_conversions import FORMATS, is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.graph.ir.node import OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.ops import Op, TensorType
from tensaurus.runtimes.backends.reference import Session
from tensaurus.system.child import Child, ChildError, available_memory

__all__ = ["Facts", "NoReference", "Reference"]

SLOWER = 4.0  # times as long as on a runtime a run may take
LONG = 0.3  # seconds of a run from which on several are computed side by side
# Large tensors stay in the heap: pages that come back zeroed for each of them cost half of a run.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
HELD = 8  # bytes of memory that a process takes for each byte of a model, about


class NoReference(ChildError):
    """There is no reference; one line that says why."""


class _Evaluator(Child):
    error = NoReference
    resting = True


@dataclass(frozen=True)
class Facts:
    """What a model's operators say of its inputs, the branches that it has, with those around them, and the
    binary digits of the narrowest type that it computes in."""

    indices: Indices
    branches: dict[str, str]
    digits: int


Branches: TypeAlias = dict[tuple[Node, bool], tuple[str, str]]


class Desk:
    """What the child does."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._branches: Branches = {}

    def load(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> None:
        """Replace the model."""
        from tensaurus.graph.onnx.inlining import inlined
        from tensaurus.graph.onnx.onnx_import import import_model

        self._session = None
        program = import_model(inlined(build.proto()), shapes)
        self._session, self._branches = Session(program), branches_of(program)

    def run(self, arrays: Mapping[str, Any], rounded: bool) -> list[Any]:
        """All outputs."""
        assert self._session is not None
        return self._session.run(None, arrays, rounded=rounded)

    def facts(self) -> Facts:
        """Of the model."""
        assert self._session is not None
        program = self._session.program
        indices = indices_of(program)
        met_by = met([program], sorted(indices.free)) if indices.free else {}
        branches = dict(self._branches.values())
        return Facts(replace(indices, meets=met_by), branches, digits_of(program))

    def neighbours(self, arrays: Mapping[str, Any]) -> list[list[Any]]:
        """All outputs twice, see `neighbours`."""
        from tensaurus.check.files.tie_neighbours import neighbours

        assert self._session is not None
        return neighbours(self._session, arrays)

    def taken(self, arrays: Mapping[str, Any]) -> list[str]:
        """The branches that these inputs reach."""
        assert self._session is not None
        found: set[tuple[Node, bool]] = set()
        self._session.run(None, arrays, taken=found)
        return [text for place, (text, _) in self._branches.items() if place in found]

    def drop(self) -> None:
        """Forget the model."""
        self._session, self._branches = None, {}
        with suppress(AttributeError, OSError):  # where the C library has no such function
            ctypes.CDLL(None).malloc_trim(0)


def branches_of(program: Program) -> Branches:
    """Every branch of a condition, those within others too, in words, and the branch around it."""
    found: Branches = {}
    programs = [(program, "")]
    while programs:
        inner, around = programs.pop(0)
        for node in inner.nodes:
            if node.op is not OPAQUE or not (form := node.attribute("form")).bodies:
                continue
            if form.operator != "If":
                programs += [(body, around) for _, body in form.bodies]
                continue
            name = inner.names.get(node) or f"number {len(found) // 2 + 1}"
            bodies = dict(form.bodies)
            for holds, word in ((True, "then"), (False, "else")):
                text = f"the {word} branch of {name}"
                found.setdefault((node, holds), (text, around))
                programs.append((bodies[f"{word}_branch"], text))
    return found


def digits_of(program: Program) -> int:
    """The binary digits of the narrowest type of floats that an operator computes; moves compute nothing."""
    found = [53]
    for node in program.nodes:
        dtypes = [kind.dtype for kind in node.types if isinstance(kind, TensorType)]
        if not isinstance(node.op, Op) or not any(map(is_float, dtypes)):
            continue
        scopes = node.op.scopes(node.kinds(), node.attrs)
        if any(cast_target(fn) is None for scope in scopes for fn in functions(scope)):
            found += [FORMATS[dtype][0] for dtype in dtypes if is_float(dtype)]
    return min(found)


class _Lane:
    """One of the processes: the model that it holds."""

    def __init__(self, number: int, limit: float) -> None:
        self._number, self._limit = number, limit
        self._loaded: object = None

    def holding(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> _Evaluator:
        """The process with this model.  Raises NoReference."""
        child = _evaluator(os.getpid(), self._number)
        if not child.alive:  # or it was asked what is not wanted any more
            child.close()
            _evaluators.pop((os.getpid(), self._number), None)
            child, self._loaded = _evaluator(os.getpid(), self._number), None
        child.timeout = self._limit
        key = (build, tuple(shapes.items()))
        if self._loaded != key:
            self._loaded = None  # until it is known to hold this one
            child.ask("load", build, dict(shapes))
            self._loaded = key
        return child

    def begin(self, build: Build, shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, Any]) -> None:
        """Ask for a run.  Raises NoReference."""
        self.holding(build, shapes).begin("run", dict(arrays), False)

    def finish(self) -> list[Any]:
        """All outputs of the run that was asked for.  Raises NoReference."""
        outputs: list[Any] = _evaluator(os.getpid(), self._number).finish()
        return outputs

    def drop(self) -> None:
        """Forget the model."""
        child = _evaluators.get((os.getpid(), self._number))
        self._loaded = None
        if child is not None and child.alive:
            child.ask("drop")
        elif child is not None:
            child.close()


class Reference:
    """The reference for one comparison; use it in a `with`.

    Its processes stay for the next one.  Each computes on one thread: there are as many as threads, where
    runs are long and there is memory for it.
    """

    def __init__(self, threads: int, limit: float, answers: Answers | None = None) -> None:
        """A run on a runtime may take `limit` seconds; what is among the answers is not computed again."""
        self.answers = answers
        self._lanes = [_Lane(number, SLOWER * limit) for number in range(max(1, threads))]
        self._ahead: deque[_Task] = deque()  # what will be asked for, in this order
        self._begun: deque[tuple[_Lane, _Task]] = deque()
        self._done: dict[str, list[Any] | NoReference] = {}
        self._long = False  # whether runs take long
        self._wide = 1  # how many of them there is room for side by side

    def run(
        self,
        build: Build,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        *,
        rounded: bool = False,
    ) -> list[Any]:
        """All outputs of a model whose inputs have these shapes.  Raises NoReference.

        Where `rounded`, every operator's result is rounded to its own type, as a runtime does.
        """

        def compute() -> list[Any]:
            task = _Task(build, shapes, arrays)
            if not rounded and self._wait_for(task.key):
                outcome = self._done.pop(task.key)
                if isinstance(outcome, NoReference):
                    raise outcome
                return outcome
            outputs: list[Any] = self._holding(build, shapes).ask("run", dict(arrays), rounded)
            return outputs

        if self.answers is None or build != self.answers.build:
            return compute()
        return self.answers.get(arrays, shapes, rounded, compute)

    def lanes(self, build: Build, seconds: float) -> int:
        """How many runs of a model are computed side by side where each takes so long."""
        room = available_memory() // max(1, HELD * build.whole_size)
        return max(1, min(len(self._lanes), room)) if seconds >= LONG else 1

    def ahead(
        self, build: Build, wanted: Iterable[tuple[Mapping[str, Any], Mapping[str, Sequence[int]]]]
    ) -> None:
        """Runs that will be asked for in this order: inputs, and the shapes that they have."""
        self._forget()
        self._wide = self.lanes(build, LONG)
        if self._wide == 1:
            return
        known = self.answers if self.answers is not None and build == self.answers.build else None
        for arrays, shapes in wanted:
            if known is None or not known.has(arrays, shapes):
                self._ahead.append(_Task(build, shapes, arrays))

    def _wait_for(self, key: str) -> bool:
        """Whether this run was foreseen; it is done then."""
        foreseen = (*self._ahead, *(task for _, task in self._begun))
        if key not in self._done and all(task.key != key for task in foreseen):
            return False
        self._fill()
        while key not in self._done:
            lane, task = self._begun.popleft()
            start = monotonic()
            try:
                self._done[task.key] = lane.finish()
            except NoReference as error:
                self._done[task.key] = error
            self._long = self._long or monotonic() - start >= LONG
            self._fill()
        return True

    def _fill(self) -> None:
        """Begin what comes next wherever nothing is being computed; in one process where runs are short."""
        for lane in self._lanes[: self._wide if self._long else 1]:
            while self._ahead and not self._has_begun(lane):
                task = self._ahead.popleft()
                try:
                    lane.begin(task.build, task.shapes, task.arrays)
                    self._begun.append((lane, task))
                except NoReference as error:
                    self._done[task.key] = error

    def _has_begun(self, lane: _Lane) -> bool:
        """Return whether a run that was foreseen is being computed there."""
        return any(lane is other for other, _ in self._begun)

    def _forget(self) -> None:
        """Nothing that was foreseen is wanted any more."""
        for lane, _ in self._begun:
            lane.drop()
        self._ahead.clear()
        self._begun.clear()
        self._done.clear()

    def facts(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> Facts:
        """What is known of a model without running it.  Raises NoReference."""
        known: Facts = self._holding(build, shapes).ask("facts")
        return known

    def neighbours(
        self, build: Build, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[list[Any]]:
        """All outputs twice, see `neighbours`; nothing where nothing is in doubt.  Raises NoReference."""
        outputs: list[list[Any]] = self._holding(build, shapes).ask("neighbours", dict(arrays))
        return outputs

    def taken(
        self, build: Build, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """The branches, as `facts` names them, that these inputs reach.  Raises NoReference."""
        branches: list[str] = self._holding(build, shapes).ask("taken", dict(arrays))
        return branches

    def _holding(self, build: Build, shapes: Mapping[str, Sequence[int]]) -> _Evaluator:
        if self._has_begun(self._lanes[0]):
            self._forget()
        return self._lanes[0].holding(build, shapes)

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()
        for lane in self._lanes:
            lane.drop()


@dataclass(frozen=True)
class _Task:
    """A run of a model on inputs of these shapes."""

    build: Build
    shapes: Mapping[str, Sequence[int]]
    arrays: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        shapes = sorted((name, tuple(sizes)) for name, sizes in self.shapes.items())
        return f"{self.build.digest} {shapes} {hash_of(self.arrays)}"


_evaluators: dict[tuple[int, int], _Evaluator] = {}


def _evaluator(pid: int, number: int) -> _Evaluator:
    """One of each number for each process that asks."""
    found = _evaluators.get((pid, number))
    if found is None:
        environment = {"OPENBLAS_NUM_THREADS": "1", **KEPT}
        found = _Evaluator("reference", f"{__name__}:Desk", timeout=60.0, environment=environment)
        _evaluators[pid, number] = found
    return found
