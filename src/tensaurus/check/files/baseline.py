"""The original on every input, twice over: in float64, and on a runtime beside models one rounding away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from time import monotonic
from typing import Any, Self

from tensaurus.check.files.compared_model import Model
from tensaurus.check.files.comparison_row import FINE, Row
from tensaurus.check.files.judge import Original, identical
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import Answers
from tensaurus.check.files.settle_disagreement import settle
from tensaurus.check.files.unfused_run import Witness
from tensaurus.check.inputs.draw_inputs import GIVEN, Feed, Values, feeds, is_integer, offsets, unmet
from tensaurus.check.inputs.integer_uses import Indices
from tensaurus.check.inputs.model_constants import constants_of, differing_rows, shared
from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.check.inputs.try_shapes import Shape, around_constants, assignments, give_sizes, variations
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.measure.worker import RUN_LIMIT, Worker, WorkerError, tried
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import Stage, silent
from tensaurus.system.scratch import temporary

PERTURBED = 4  # on the runtime
AROUND, SECONDS = 36, 10.0  # sizes around constants, and the time that the original may take on all of them


class Baseline:
    """What a candidate is judged by.  Raises TensaurusError where the original does not run."""

    def __init__(
        self,
        original: Model,
        candidate: Model,
        shapes: Mapping[str, Sequence[int]],
        kinds: Sequence[str],
        *,
        seed: int,
        backend: str,
        threads: int,
        ranges: Mapping[str, tuple[int, int]],
        limit: float = RUN_LIMIT,
        stage: Stage = silent,
        given: Mapping[str, Any] | None = None,
        answers: Answers | None = None,
        rows: Sequence[tuple[Feed, Mapping[str, Sequence[int]]]] = (),
    ):
        """A run may take `limit` seconds; inputs that are `given` are tried beside those of the kinds.

        Where there are `rows` of inputs, and their shapes, they are all that is tried.
        """
        self.limit = limit
        self.original, self.candidate, self.seed, self.given = original, candidate, seed, shapes
        self.backend, self.threads, self.stage = backend, threads, stage
        self.names = [output.name for output in original.proto.graph.output]
        self.notes: list[str] = []
        self.faults: list[str] = []  # of the runtime or of the reference
        self.rows: list[Row] = []
        self.random: dict[str, tuple[Any, Any]] = {}  # by name, of two runs
        self.kept = shared(original.proto, candidate.proto)
        self._beside: dict[int, Build] = {}
        self.reference = Reference(threads, limit, answers)
        self.witness = Witness(backend, threads, limit)
        both = original.proto, candidate.proto
        self.values = Values(ranges, self._indices(), constants_of(both), differing_rows(*both))
        try:
            self._worker = self.tried(original)
        except WorkerError as error:
            raise TensaurusError(f"the original does not run: {error}") from error
        try:
            for feed, sizes in rows:
                self._add(feed, sizes)
            if not rows:
                self._run_given(given or {})
                self._run_original(kinds)
                self._reach_branches()
            settle(self)
        except BaseException:
            self._worker.close()
            raise
        if not rows:
            self._note_constants()
            self._note_unmet("edges" in kinds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        self.reference.__exit__(*given)
        self.witness.close()
        self._worker.close()

    def tried(self, model: Model) -> Worker:
        """A worker that holds the model.  Raises WorkerError."""
        return tried(model.build, self.backend, threads=self.threads, limit=self.limit)

    def _indices(self) -> Indices:
        try:
            if not any(is_integer(value) for value in required_inputs(self.original.proto)):
                return Indices()
            return self.reference.facts(self.original.build, self.given).indices
        except TensaurusError:  # then there is no reference either, and a note says so
            return Indices()

    def _run_given(self, arrays: Mapping[str, Any]) -> None:
        if arrays:
            try:
                self._add(Feed(GIVEN, arrays), {name: array.shape for name, array in arrays.items()})
            except WorkerError as error:
                raise TensaurusError(f"the original does not run on the inputs given: {error}") from error

    def _run_original(self, kinds: Sequence[str]) -> None:
        own = len(self.rows)  # given by the caller
        first: WorkerError | None = None
        guessed: list[str] = []
        tried_sizes: list[Mapping[str, Shape]] = []
        for shapes, words in assignments(self.original.proto, self.given):
            before = len(self.rows)
            made = list(feeds(self.original.proto, shapes, kinds, self.seed, self.values))
            sizes = shapes if words else self.given
            if before == own:
                self.reference.ahead(self.original.build, [(item.arrays, sizes) for item in made])
            for place, item in enumerate(made if before == own else made[:1], 1):
                total = len(made) if before == own else 1
                self.stage("original and its float64 reference, input", place, total)
                try:
                    self._add(item, sizes, words if before > own else "")
                except WorkerError as error:
                    if place == 1:
                        if not self._worker.alive and not own:
                            raise TensaurusError(f"the original does not run: {error}") from error
                        first = first or error  # sizes that do not fit each other
                        self._revive()
                        break
                    self.note(f"the original does not run on {item.kind} inputs: {error}")
                    self._revive()
            if len(self.rows) > before:
                guessed += [words] if words else []
                tried_sizes.append(shapes)
                if before > own or not words:
                    break
        if not tried_sizes:
            failure = f"the original does not run on inputs made up for it: {first}"
            if not own:
                raise TensaurusError(failure, remedy=give_sizes(self.original.proto, self.given))
            return self.note(failure)
        small, refused = self._run_small(kinds[:1], tried_sizes)
        if guessed:
            self.note(f"sizes that were not given are made up: {', then '.join([*guessed, *small])}")
        if refused:
            self.note(f"the original does not run on {', nor on '.join(refused)}")

    def _run_small(
        self, kinds: Sequence[str], before: Sequence[Mapping[str, Shape]]
    ) -> tuple[list[str], list[str]]:
        """Sizes where much is an edge; those that the original runs on and the others, in words."""
        plans = list(variations(self.original.proto, self.given, before[0]))
        plans = [(shapes, words) for shapes, words in plans if shapes not in before]
        ran: list[str] = []
        refused: list[str] = []
        for place, (shapes, words) in enumerate(plans, 1):
            self.stage("original at small sizes,", place, len(plans))
            (item, *_) = feeds(self.original.proto, shapes, kinds, self.seed, self.values)
            try:
                self._add(item, shapes, words)
                ran.append(words)
            except WorkerError:
                refused.append(words)
                self._revive()
        if count := self._run_around_constants(kinds, before[0]):
            ran.append(f"{count} around constants of the models")
        return ran, refused

    def _run_around_constants(self, kinds: Sequence[str], first: Mapping[str, Shape]) -> int:
        """Add inputs whose sizes are near constants; how many the original runs on."""
        count, until = 0, monotonic() + SECONDS
        plans = around_constants(self.original.proto, self.given, first, self.values.constants.whole)
        for shapes in islice(plans, AROUND):
            if monotonic() > until:
                self.note("not all sizes around the models' constants were tried, for want of time")
                break
            (item, *_) = feeds(self.original.proto, shapes, kinds, self.seed, self.values)
            try:
                self._add(item, shapes, " ".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items()))
                count += 1
            except WorkerError:
                self._revive()
        return count

    def _revive(self) -> None:
        """The original's session again, where a run has ended it."""
        if not self._worker.alive:
            self._worker = self.tried(self.original)

    def _add(self, item: Feed, shapes: Mapping[str, Sequence[int]], words: str = "") -> None:
        """One more input.  Raises WorkerError where the original does not run on it."""
        named = Feed(f"{item.kind} {words}", item.arrays) if words else item
        if item.unreal:
            if (truth := self._referred(item, shapes)) is not None:
                self.rows.append(Row(named, shapes, [], truth))
            return
        results = run(self._worker, item.arrays)
        if not self.rows:
            self._note_random(results, run(self._worker, item.arrays))
        truth = self._referred(item, shapes)
        pairs = zip(results if truth is None else truth, results, strict=True)
        self.rows.append(Row(named, shapes, [Original(e, r) for e, r in pairs], truth))

    def _referred(self, item: Feed, shapes: Mapping[str, Sequence[int]]) -> list[Any] | None:
        try:
            return self.reference.run(self.original.build, item.arrays, shapes)
        except TensaurusError as error:
            if item.unreal:
                self.note(f"not compared on {item.kind} inputs: {error}")
            else:
                self.note(f"there is no float64 reference, the original's own results stand in: {error}")
        return None

    def _reach_branches(self) -> None:
        """Look for inputs that reach every branch of both models, and name those never reached."""
        for model, whose in ((self.original, "the original"), (self.candidate, "the result")):
            if not model.branches:
                continue
            try:
                around = self.reference.facts(model.build, self.given).branches
                left = dict.fromkeys(around)
                for row in list(self.rows) if left else []:
                    self._reached(model, row.feed, left)
                self._look_for(model, left)
            except TensaurusError as error:
                self.note(f"which branches of {whose} were taken is not known: {error}")
                continue
            if outer := [text for text in left if around[text] not in left]:
                self.note(f"never taken in {whose}, so not compared: {', '.join(outer)}")

    def _look_for(self, model: Model, left: dict[str, None]) -> None:
        """Add inputs that reach branches that are left."""
        shapes = {name: array.shape for name, array in self.rows[0].feed.arrays.items()}
        for item in offsets(self.original.proto, shapes, self.seed, self.values):
            if not left:
                return
            if self._reached(model, item, dict(left)):
                try:
                    self._add(item, self.rows[0].shapes)
                    self._reached(model, item, left)
                except WorkerError as error:
                    self.note(f"the original does not run on inputs {item.kind}: {error}")
                    self._revive()

    def _reached(self, model: Model, item: Feed, left: dict[str, None]) -> bool:
        """Whether these inputs reach branches that are left; takes them out."""
        new = [t for t in self.reference.taken(model.build, item.arrays, self.given) if t in left]
        for text in new:
            del left[text]
        return bool(new)

    def perturbed(self, seed: int) -> Build:
        """The original one rounding away."""
        if seed not in self._beside:
            self._beside[seed] = self.original.perturbed(seed, self.kept, self.original.folder)
        return self._beside[seed]

    def run_perturbed(self, rows: Iterable[Row]) -> None:
        """Models one rounding away, on rows where they have not run: what differs among them is allowed.

        They only ever allow more, so they run where that may decide.
        """
        wanted = [row for row in rows if row.results and not row.perturbed]
        if not wanted:
            return
        if self.original.large:
            self.note("too large for perturbed copies: the original's own errors alone are the measure")
            return
        for row in wanted:
            row.perturbed = True
        self.run_neighbours(wanted)
        for number in range(PERTURBED):
            self.stage("model one rounding away", number + 1, PERTURBED)
            seed = self.seed * 1_000_003 + number
            try:
                self._revive()
                with temporary() as folder:  # a runtime has what it needs when it is ready
                    self._worker.compile(self.original.perturbed(seed, self.kept, folder))
                for row in wanted:
                    results = run(self._worker, row.feed.beside(seed))
                    for original, result in zip(row.results, results, strict=True):
                        original.add(result)
            except WorkerError as error:
                self.note(f"a model one rounding away from the original does not run: {error}")
                if not self._worker.alive:
                    return

    def run_neighbours(self, rows: Iterable[Row]) -> None:
        """Allow what the reference has where conversions to narrower floats meet the other side of a tie."""
        for row in rows:
            if row.neighbours is not None or row.truth is None:
                continue
            row.neighbours = []
            with suppress(TensaurusError):  # it has run in float64
                build, arrays = self.original.build, row.feed.arrays
                row.neighbours = self.reference.neighbours(build, arrays, row.shapes)
            for outputs in row.neighbours:
                for original, output in zip(row.results, outputs, strict=False):
                    original.lean(output)

    @cached_property
    def digits(self) -> int:
        """Of the narrowest type in which the original computes."""
        try:
            return self.reference.facts(self.original.build, self.given).digits
        except TensaurusError:  # then there is no reference either
            return 53

    def witnessed(self, whose: str, model: Model, row: Row) -> list[Any] | None:
        """What the runtime computes of the model as it is written; None where it does not run."""
        try:
            return self.witness.outputs(whose, model, row.feed.arrays)
        except WorkerError as error:
            self.note(f"{self.witness.name} does not run the {whose} without graph optimizations: {error}")
            return None

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _note_random(self, once: Sequence[Any], again: Sequence[Any]) -> None:
        for name, one, other in zip(self.names, once, again, strict=True):
            if not identical(one, other):
                self.random[name] = one, other
                self.note(f"output {name} is random: only its type, shape and distribution were compared")

    def _note_constants(self) -> None:
        rows = [row for row in self.rows if row.feed.kind in FINE]
        if len(rows) < 2 or not rows[0].feed.arrays:
            return
        for place, name in enumerate(self.names):
            one, other = (row.results[place].own for row in rows)
            if name not in self.random and identical(one, other):
                self.note(f"output {name} is the same on two random inputs: it shows little")

    def _note_unmet(self, edges: bool) -> None:
        given = {name for row in self.rows if row.feed.kind == GIVEN for name in row.feed.arrays}
        names = [v.name for v in required_inputs(self.original.proto) if is_integer(v)]
        for name in self.values.narrow(name for name in names if name not in given):
            self.note(
                f"integer input {name} was never anything but 0 and 1: --range {name}=LOW,HIGH gives it more"
            )
        shapes = {name: array.shape for name, array in self.rows[0].feed.arrays.items()}
        if edges and (left := unmet(self.original.proto, shapes, self.values)):
            self.note(f"{left} constants of the models have no inputs near them")


def run(worker: Worker, arrays: Mapping[str, Any]) -> list[Any]:
    worker.feed(arrays)
    return worker.run()
