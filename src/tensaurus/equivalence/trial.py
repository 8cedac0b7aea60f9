"""The original on every input, twice over: in float64, and on a runtime beside models one rounding away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto

from tensaurus.cost.worker import RUN_LIMIT, Worker, WorkerError, tried
from tensaurus.equivalence.inputs import Feed, Shape, assignments, edges, feed
from tensaurus.equivalence.judge import Finding, Original
from tensaurus.equivalence.neighbours import moved_feed, neighbour
from tensaurus.equivalence.reference import Reference
from tensaurus.errors import TensaurusError

NEIGHBOURS = 4  # on the runtime
EXACT = ("random", "blocks")  # inputs on which the candidate runs in float64 too
EXACT_NEIGHBOURS = 2
LARGE = 2**31 - 2**20  # bytes that a model may have to be sent to a runtime without a file


Stage: TypeAlias = Callable[[str, int, int], None]  # what begins, and which of how many


def silent(name: str, done: int, total: int) -> None:
    """Nobody is told."""


@dataclass
class Model:
    """A model, and how a runtime gets it."""

    name: str
    proto: ModelProto
    source: bytes | Path

    @classmethod
    def read(cls, given: Path | str | ModelProto, shapes: Mapping[str, Sequence[int]], spare: Path) -> Model:
        """Load it and fix sizes in `proto`; `spare` is a free path for a model too large for one message."""
        from tensaurus.graph.inference import fix_shapes
        from tensaurus.graph.model_file import load_model, save_model

        if isinstance(given, ModelProto):
            name, proto = "the model", ModelProto()
            proto.CopyFrom(given)
            fix_shapes(proto, shapes)
            if given.ByteSize() < LARGE:
                return cls(name, proto, given.SerializeToString())
            save_model(given, spare)
            return cls(name, proto, spare)
        proto = load_model(given)
        fix_shapes(proto, shapes, given)
        return cls(str(given), proto, Path(given))


@dataclass(frozen=True)
class Sight:
    """A finding and where it was made."""

    output: str
    feed: Feed
    exact: bool
    finding: Finding

    def __str__(self) -> str:
        way = ", both in float64," if self.exact else ""
        return f"output {self.output} on {self.feed.kind} inputs{way} {self.finding.reason}"


@dataclass
class _Row:
    """One feed: the original's outputs on the runtime and, where the candidate runs so too, in float64."""

    feed: Feed
    shapes: Mapping[str, Shape]
    results: list[Original]
    exact: list[Original] = field(default_factory=list)


class Trial:
    """What a candidate is judged by.  Raises TensaurusError where the original does not run."""

    def __init__(
        self,
        original: Model,
        shapes: Mapping[str, Sequence[int]],
        kinds: Sequence[str],
        *,
        seed: int,
        backend: str,
        threads: int,
        ranges: Mapping[str, tuple[int, int]],
        limit: float = RUN_LIMIT,
        stage: Stage = silent,
    ):
        """A run may take `limit` seconds."""
        self.limit = limit
        self.original, self.seed, self.ranges = original, seed, ranges
        self.backend, self.threads, self.stage = backend, threads, stage
        self.names = [output.name for output in original.proto.graph.output]
        self.notes: list[str] = []
        self.rows: list[_Row] = []
        self.random: set[str] = set()
        self._reference = Reference(threads, limit)
        try:
            worker = tried(original.source, backend, threads=threads, limit=limit)
        except WorkerError as error:
            raise TensaurusError(f"the original does not run: {error}") from error
        with worker:
            self._run_original(worker, shapes, kinds)
            self._run_edges(shapes, kinds[0])
            self._run_neighbours(worker)
        self._run_exact()
        self._note_constants()

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *given: object) -> None:
        self._reference.__exit__(*given)

    # -------------------------------------------------------------------------------------- a candidate

    def judge(self, candidate: Model) -> list[Sight]:
        """Every output on every input.  Raises WorkerError where the candidate does not run."""
        found: list[Sight] = []
        with tried(candidate.source, self.backend, threads=self.threads, limit=self.limit) as worker:
            for number, row in enumerate(self.rows, 1):
                self.stage("result, input", number, len(self.rows))
                results = _run(worker, row.feed.arrays)
                if len(results) != len(self.names):
                    raise WorkerError(f"it has {len(results)} outputs, not {len(self.names)}")
                found += self._judged(row, row.results, results, exact=False)
        exact = [row for row in self.rows if row.exact]
        for number, row in enumerate(exact, 1):
            self.stage("result in float64, input", number, len(exact))
            try:
                results = self._reference.run(candidate.source, row.feed.arrays, row.shapes)
            except TensaurusError as error:
                self._note(f"not compared in float64: {error}")
                break
            found += self._judged(row, row.exact, results, exact=True)
        return found

    def _judged(
        self, row: _Row, originals: Sequence[Original], results: Sequence[Any], exact: bool
    ) -> list[Sight]:
        sights = []
        for name, original, result in zip(self.names, originals, results, strict=True):
            if name not in self.random:
                finding = original.judge(result)
            elif _kind(result) == _kind(original.own) or exact:
                finding = Finding()
            else:
                finding = Finding(False, reason=f"is {_kind(result)}, not {_kind(original.own)}")
            sights.append(Sight(name, row.feed, exact, finding))
        return sights

    # ------------------------------------------------------------------------------------- the original

    def _run_original(self, worker: Worker, given: Mapping[str, Sequence[int]], kinds: Sequence[str]) -> None:
        first: WorkerError | None = None
        guessed: list[str] = []
        try:
            for shapes, words in assignments(self.original.proto, given):
                before = len(self.rows)
                wanted = kinds if not self.rows else kinds[:1]
                for place, kind in enumerate(wanted, 1):
                    self.stage("original and its float64 reference, input", place, len(wanted))
                    item = feed(self.original.proto, shapes, kind, self.seed, self.ranges)
                    try:
                        results = _run(worker, item.arrays)
                    except WorkerError as error:
                        if not worker.alive:
                            raise
                        first = first or error
                        if kind == kinds[0]:  # sizes that do not fit each other
                            break
                        self._note(f"the original does not run on {kind} inputs: {error}")
                        continue
                    if not self.rows:
                        self._note_random(results, _run(worker, item.arrays))
                    named = item if not before else Feed(f"{kind} {words}", item.arrays)
                    self.rows.append(_Row(named, shapes, self._referred(item, shapes, results)))
                if len(self.rows) > before:
                    guessed += [words] if words else []
                    if before:
                        break
        except WorkerError as error:
            raise TensaurusError(f"the original does not run: {error}") from error
        if not self.rows:
            raise TensaurusError(f"the original does not run on inputs made up for it: {first}")
        if guessed:
            self._note(f"sizes that were not given are made up: {', then '.join(guessed)}")

    def _run_edges(self, given: Mapping[str, Sequence[int]], kind: str) -> None:
        """Sizes beside those that ran, where the model runs at them, in a process that they may end."""
        beside = list(edges(self.original.proto, given, self.rows[0].shapes))
        if not beside:
            return
        with tried(self.original.source, self.backend, threads=self.threads, limit=self.limit) as worker:
            for place, (shapes, words) in enumerate(beside, 1):
                self.stage("original at other sizes", place, len(beside))
                item = feed(self.original.proto, shapes, kind, self.seed, self.ranges)
                try:
                    results = _run(worker, item.arrays)
                except WorkerError:
                    if not worker.alive:
                        self._note(f"the original ends at {words}")
                        return
                    continue
                try:
                    exact = self._reference.run(self.original.source, item.arrays, shapes)
                except TensaurusError:  # at these very sizes the model has no meaning, and runs
                    exact = list(results)
                originals = [Original(r, o) for r, o in zip(exact, results, strict=True)]
                self.rows.append(_Row(Feed(f"{kind} {words}", item.arrays), shapes, originals))

    def _referred(self, item: Feed, shapes: Mapping[str, Shape], results: Sequence[Any]) -> list[Original]:
        try:
            exact = self._reference.run(self.original.source, item.arrays, shapes)
        except TensaurusError as error:
            self._note(f"there is no float64 reference, the original's own results stand in: {error}")
            exact = list(results)
        return [Original(r, o) for r, o in zip(exact, results, strict=True)]

    def _run_neighbours(self, worker: Worker) -> None:
        if self.original.proto.ByteSize() > LARGE // 2:
            self._note("too large for neighbours: the original's own errors alone are the measure")
            return
        for number in range(NEIGHBOURS):
            self.stage("model one rounding away", number + 1, NEIGHBOURS)
            seed = self.seed * 1_000_003 + number
            try:
                worker.compile(neighbour(self.original.proto, seed).SerializeToString())
                for row in self.rows:
                    results = _run(worker, moved_feed(row.feed.arrays, seed))
                    for original, result in zip(row.results, results, strict=True):
                        original.add(result)
            except WorkerError as error:
                if not worker.alive:
                    self._note(f"a neighbour of the original crashed: {error}")
                    return

    def _run_exact(self) -> None:
        if any("float64 reference" in note for note in self.notes):
            return
        rows = [row for row in self.rows if row.feed.kind in EXACT]
        kinds = [output.type.tensor_type.elem_type for output in self.original.proto.graph.output]
        for row in rows:
            row.exact = [
                Original(original.reference, original.reference, _unit(kind))
                for original, kind in zip(row.results, kinds, strict=True)
            ]
        if not rows or self.original.proto.ByteSize() > LARGE // 2:
            return
        for number in range(EXACT_NEIGHBOURS):
            self.stage("model one rounding away in float64", number + 1, EXACT_NEIGHBOURS)
            seed = self.seed * 1_000_003 + NEIGHBOURS + number
            beside = neighbour(self.original.proto, seed).SerializeToString()
            for row in rows:
                moved = moved_feed(row.feed.arrays, seed)
                try:
                    results = self._reference.run(beside, moved, rows[0].shapes)
                except TensaurusError as error:
                    self._note(f"not compared with a neighbour in float64: {error}")
                    return
                for original, result in zip(row.exact, results, strict=True):
                    original.add(result)

    # -------------------------------------------------------------------------------------------- notes

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _note_random(self, once: Sequence[Any], again: Sequence[Any]) -> None:
        for name, one, other in zip(self.names, once, again, strict=True):
            if not _identical(one, other):
                self.random.add(name)
                self._note(f"output {name} is random: only its type and shape were compared")

    def _note_constants(self) -> None:
        rows = [row for row in self.rows if row.feed.kind in EXACT]
        if len(rows) < 2 or not rows[0].feed.arrays:
            return
        for place, name in enumerate(self.names):
            one, other = (row.results[place].own for row in rows)
            if name not in self.random and _identical(one, other):
                self._note(f"output {name} is the same on two random inputs: it shows little")


def _unit(elem_type: int) -> np.dtype[Any] | None:
    """The type of an output if it is a floating-point one."""
    if not elem_type or elem_type == onnx.TensorProto.STRING:
        return None
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return found if "float" in found.name else None


def _run(worker: Worker, arrays: Mapping[str, Any]) -> list[Any]:
    worker.feed(arrays)
    return worker.run()


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_identical, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is None and other is None
    if one.dtype.kind in "OSU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()
