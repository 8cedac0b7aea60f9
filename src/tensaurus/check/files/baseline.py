"""Runs the original on every input, in float64 and on a runtime, to measure the errors that are allowed.

`verdict.verify` makes a `Baseline`, and `CandidateTrial` judges a candidate by its rows.  Copies of the
original with weights and inputs one rounding away (perturbed copies) run on the runtime, too: a candidate may
differ from the original as much as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from time import monotonic
from typing import Any, Self

from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.comparison_row import PRECISE_KINDS, ComparisonRow
from tensaurus.check.files.judge import OriginalOutput, are_identical
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.files.settle_disagreement import settle_disagreements
from tensaurus.check.files.unfused_run import UnfusedRunner
from tensaurus.check.inputs.draw_inputs import (
    GIVEN,
    Feed,
    InputValues,
    count_untried_constants,
    draw_feeds,
    draw_offset_feeds,
    is_integer,
)
from tensaurus.check.inputs.integer_uses import IntegerUses
from tensaurus.check.inputs.model_constants import collect_constants, find_differing_rows, shared_numbers
from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.check.inputs.try_shapes import (
    Shape,
    input_remedy,
    shape_assignments,
    shapes_near_constants,
    small_shapes,
)
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.measure.worker import RUN_LIMIT, Worker, WorkerError, start_worker
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import Stage, report_nothing
from tensaurus.system.scratch import temporary_folder

PERTURBED_COPIES = 4  # copies of the original one rounding away that run on the runtime
MAX_NEAR_CONSTANTS = 36  # shapes with sizes near constants of the models that are tried, at most
NEAR_CONSTANTS_SECONDS = 10.0  # time for all of these shapes together


class Baseline:
    """Holds the original's outputs on all inputs of a comparison; a candidate is judged by them."""

    def __init__(
        self,
        original: ComparedModel,
        candidate: ComparedModel,
        shapes: Mapping[str, Sequence[int]],
        kinds: Sequence[str],
        *,
        seed: int,
        backend: str,
        threads: int,
        ranges: Mapping[str, tuple[int, int]],
        limit: float = RUN_LIMIT,
        stage: Stage = report_nothing,
        given: Mapping[str, Any] | None = None,
        answers: ReferenceAnswers | None = None,
        rows: Sequence[tuple[Feed, Mapping[str, Sequence[int]]]] = (),
    ):
        """Run the original on drawn inputs of these kinds (`draw_inputs.KINDS`) and on the caller's, `given`.

        With `rows` (pairs of inputs and their shapes: those of pinned models) no other inputs are tried; for
        all other arguments see `verdict.verify`.  Raises TensaurusError where the original does not run.
        """
        self.limit = limit
        self.original, self.candidate, self.seed, self.fixed_shapes = original, candidate, seed, shapes
        self.backend, self.threads, self.stage = backend, threads, stage
        self.names = [output.name for output in original.proto.graph.output]
        self.notes: list[str] = []
        self.faults: list[str] = []  # errors of the runtime or of the reference
        self.rows: list[ComparisonRow] = []
        self.random: dict[str, tuple[Any, Any]] = {}  # random outputs by name, in two runs
        self.shared_numbers = shared_numbers(original.proto, candidate.proto)  # perturbed copies keep them
        self._perturbed_builds: dict[int, Build] = {}
        self.reference = Reference(threads, limit, answers)
        self.unfused_runner = UnfusedRunner(backend, threads, limit)
        both = original.proto, candidate.proto
        self.values = InputValues(
            ranges, self._integer_uses(), collect_constants(both), find_differing_rows(*both)
        )
        try:
            self._worker = self.start_worker(original)
        except WorkerError as error:
            raise TensaurusError(f"the original does not run: {error}") from error
        try:
            for feed, sizes in rows:
                self._add_input(feed, sizes)
            if not rows:
                self._add_user_inputs(given or {})
                self._add_drawn_inputs(kinds)
                self._reach_branches()
            settle_disagreements(self)
        except BaseException:
            self._worker.close()
            raise
        if not rows:
            self._note_constant_outputs()
            self._note_untried_values("edges" in kinds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        self.reference.__exit__(*given)
        self.unfused_runner.close()
        self._worker.close()

    def start_worker(self, model: ComparedModel) -> Worker:
        """Start a worker that holds the model.  Raises WorkerError."""
        return start_worker(model.build, self.backend, threads=self.threads, limit=self.limit)

    def _integer_uses(self) -> IntegerUses:
        try:
            if not any(is_integer(value) for value in required_inputs(self.original.proto)):
                return IntegerUses()
            return self.reference.facts(self.original.build, self.fixed_shapes).integer_uses
        except TensaurusError:  # the reference does not run either, about which there is a note
            return IntegerUses()

    def _add_user_inputs(self, arrays: Mapping[str, Any]) -> None:
        if arrays:
            try:
                self._add_input(Feed(GIVEN, arrays), {name: array.shape for name, array in arrays.items()})
            except WorkerError as error:
                reason = f"the original does not run on the inputs given: {error.reason}"
                remedy = error.remedy or "Give arrays that the model accepts."
                raise TensaurusError(reason, remedy=remedy) from error

    def _add_drawn_inputs(self, kinds: Sequence[str]) -> None:
        """Add inputs of all kinds at the first sizes that run; at guessed sizes, one kind at others, too."""
        given = len(self.rows)  # rows of the caller's inputs
        first: WorkerError | None = None  # why the original refused the first shapes that it refused
        guessed: list[str] = []  # the guessed sizes at which it ran, in words
        tried_sizes: list[Mapping[str, Shape]] = []  # the shapes at which it ran
        # `words` are "" where no size is a guess; after the first shapes that run, one more guess must run
        for shapes, words in shape_assignments(self.original.proto, self.fixed_shapes):
            before = len(self.rows)  # equal to `given` until the original runs on some drawn input
            feeds = list(draw_feeds(self.original.proto, shapes, kinds, self.seed, self.values))
            sizes = shapes if words else self.fixed_shapes  # the reference must be told the guesses
            if before == given:
                self.reference.plan_runs(self.original.build, [(item.arrays, sizes) for item in feeds])
            for number, item in enumerate(feeds if before == given else feeds[:1], 1):
                total = len(feeds) if before == given else 1
                self.stage("original and its float64 reference, input", number, total)
                try:
                    self._add_input(item, sizes, words if before > given else "")
                except WorkerError as error:
                    if number == 1:
                        if not self._worker.is_alive and not given:
                            raise TensaurusError(f"the original does not run: {error}") from error
                        first = first or error  # the sizes may not fit each other
                        self._restart_worker()
                        break
                    self.note(f"the original does not run on {item.kind} inputs: {error}")
                    self._restart_worker()
            if len(self.rows) > before:
                guessed += [words] if words else []
                tried_sizes.append(shapes)
                if before > given or not words:  # two guesses are enough; known sizes are the only ones
                    break
        if not tried_sizes:
            failure = f"the original does not run on generated inputs: {first}"
            if not given:
                raise TensaurusError(failure, remedy=input_remedy(self.original.proto, self.fixed_shapes))
            return self.note(failure)
        small, refused = self._add_small_sizes(kinds[:1], tried_sizes)
        if guessed:
            self.note(f"sizes that were not given were chosen: {', then '.join([*guessed, *small])}")
        if refused:
            self.note(f"the original does not run on {', nor on '.join(refused)}")

    def _add_small_sizes(
        self, kinds: Sequence[str], before: Sequence[Mapping[str, Shape]]
    ) -> tuple[list[str], list[str]]:
        """Add inputs of small sizes, and near constants; return where the original runs, and where not."""
        plans = list(small_shapes(self.original.proto, self.fixed_shapes, before[0]))
        plans = [(shapes, words) for shapes, words in plans if shapes not in before]
        ran: list[str] = []
        refused: list[str] = []
        for number, (shapes, words) in enumerate(plans, 1):
            self.stage("original at small sizes,", number, len(plans))
            (item, *_) = draw_feeds(self.original.proto, shapes, kinds, self.seed, self.values)
            try:
                self._add_input(item, shapes, words)
                ran.append(words)
            except WorkerError:
                refused.append(words)
                self._restart_worker()
        if count := self._add_sizes_near_constants(kinds, before[0]):
            ran.append(f"{count} around constants of the models")
        return ran, refused

    def _add_sizes_near_constants(self, kinds: Sequence[str], first: Mapping[str, Shape]) -> int:
        """Add inputs whose sizes are near constants of the models; return on how many the original runs."""
        count, until = 0, monotonic() + NEAR_CONSTANTS_SECONDS
        plans = shapes_near_constants(
            self.original.proto, self.fixed_shapes, first, self.values.constants.integral_numbers
        )
        for shapes in islice(plans, MAX_NEAR_CONSTANTS):
            if monotonic() > until:
                self.note("no time was left to try all sizes near the models' constants")
                break
            (item, *_) = draw_feeds(self.original.proto, shapes, kinds, self.seed, self.values)
            try:
                self._add_input(
                    item, shapes, " ".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items())
                )
                count += 1
            except WorkerError:
                self._restart_worker()
        return count

    def _restart_worker(self) -> None:
        """Start a worker for the original again if a run has ended it."""
        if not self._worker.is_alive:
            self._worker = self.start_worker(self.original)

    def _add_input(self, item: Feed, shapes: Mapping[str, Sequence[int]], words: str = "") -> None:
        """Add one input, described by `words`.  Raises WorkerError where the original does not run on it."""
        named = Feed(f"{item.kind} {words}", item.arrays) if words else item
        if item.is_nonfinite:  # compared in float64 alone: kernels may do as they like with NaN
            if (reference_outputs := self._run_reference(item, shapes)) is not None:
                self.rows.append(ComparisonRow(named, shapes, [], reference_outputs))
            return
        results = run_inputs(self._worker, item.arrays)
        if not self.rows:
            self._note_random(results, run_inputs(self._worker, item.arrays))
        reference_outputs = self._run_reference(item, shapes)
        pairs = zip(results if reference_outputs is None else reference_outputs, results, strict=True)
        self.rows.append(
            ComparisonRow(named, shapes, [OriginalOutput(e, r) for e, r in pairs], reference_outputs)
        )

    def _run_reference(self, item: Feed, shapes: Mapping[str, Sequence[int]]) -> list[Any] | None:
        try:
            return self.reference.run(self.original.build, item.arrays, shapes)
        except TensaurusError as error:
            if item.is_nonfinite:
                self.note(f"not compared on {item.kind} inputs: {error}")
            else:
                self.note(f"no float64 reference, so the original's own results are the reference: {error}")
        return None

    def _reach_branches(self) -> None:
        """Look for inputs that reach every branch of both models, and name those never reached."""
        for model, whose in ((self.original, "the original"), (self.candidate, "the result")):
            if not model.has_branches:
                continue
            try:
                around = self.reference.facts(model.build, self.fixed_shapes).branches
                missed = dict.fromkeys(around)  # all branches; `around` has the branch around each of them
                for row in list(self.rows) if missed else []:
                    self._remove_reached(model, row.feed, missed)
                self._search_branches(model, missed)
            except TensaurusError as error:
                self.note(f"it is not known which branches of {whose} were taken: {error}")
                continue
            # a missed branch within a missed branch is not named
            if outer := [text for text in missed if around[text] not in missed]:
                self.note(f"branches of {whose} that no input took were not compared: {', '.join(outer)}")

    def _search_branches(self, model: ComparedModel, missed: dict[str, None]) -> None:
        """Add inputs that reach branches among `missed`, and remove these branches."""
        shapes = {name: array.shape for name, array in self.rows[0].feed.arrays.items()}
        for item in draw_offset_feeds(self.original.proto, shapes, self.seed, self.values):
            if not missed:
                return
            if self._remove_reached(model, item, dict(missed)):  # a copy: the original may not run on them
                try:
                    self._add_input(item, self.rows[0].shapes)
                    self._remove_reached(model, item, missed)
                except WorkerError as error:
                    self.note(f"the original does not run on inputs {item.kind}: {error}")
                    self._restart_worker()

    def _remove_reached(self, model: ComparedModel, item: Feed, missed: dict[str, None]) -> bool:
        """Remove from `missed` the branches that these inputs reach; return whether any was removed."""
        taken = self.reference.branches_taken(model.build, item.arrays, self.fixed_shapes)
        reached = [branch for branch in taken if branch in missed]
        for branch in reached:
            del missed[branch]
        return bool(reached)

    def perturbed(self, seed: int) -> Build:
        """Return the build of a copy of the original one rounding away."""
        if seed not in self._perturbed_builds:
            self._perturbed_builds[seed] = self.original.perturbed(
                seed, self.shared_numbers, self.original.folder
            )
        return self._perturbed_builds[seed]

    def run_perturbed(self, rows: Iterable[ComparisonRow]) -> None:
        """Run copies one rounding away on rows where they have not run, and allow their distances.

        Copies only ever allow more, so they run only where this may decide.
        """
        wanted = [row for row in rows if row.results and not row.is_perturbed]
        if not wanted:
            return
        if self.original.is_large:
            self.note("the original is too large for perturbed copies: its own errors set the tolerance")
            return
        for row in wanted:
            row.is_perturbed = True
        self.run_tie_neighbours(wanted)
        for number in range(PERTURBED_COPIES):
            self.stage("perturbed copy", number + 1, PERTURBED_COPIES)
            seed = self.seed * 1_000_003 + number
            try:
                self._restart_worker()
                with temporary_folder() as folder:  # a compiled model needs its files no more
                    self._worker.compile(self.original.perturbed(seed, self.shared_numbers, folder))
                for row in wanted:
                    results = run_inputs(self._worker, row.feed.perturb(seed))
                    for original, result in zip(row.results, results, strict=True):
                        original.add_perturbed(result)
            except WorkerError as error:
                self.note(f"a perturbed copy of the original does not run: {error}")
                if not self._worker.is_alive:
                    return

    def run_tie_neighbours(self, rows: Iterable[ComparisonRow]) -> None:
        """Allow the reference's outputs on the other side of ties of conversions to narrower floats."""
        for row in rows:
            if row.tie_neighbours is not None or row.reference_outputs is None:
                continue
            row.tie_neighbours = []
            with suppress(TensaurusError):
                build, arrays = self.original.build, row.feed.arrays
                row.tie_neighbours = self.reference.tie_neighbours(build, arrays, row.shapes)
            for outputs in row.tie_neighbours:
                for original, output in zip(row.results, outputs, strict=False):
                    original.add_tie_neighbour(output)

    @cached_property
    def digits(self) -> int:
        """Return the binary digits of the narrowest float type in which the original computes."""
        try:
            return self.reference.facts(self.original.build, self.fixed_shapes).digits
        except TensaurusError:  # the reference does not run either
            return 53

    def run_unfused(self, whose: str, model: ComparedModel, row: ComparisonRow) -> list[Any] | None:
        """Return the outputs of an unfused run of the model; None where this fails."""
        try:
            return self.unfused_runner.outputs(whose, model, row.feed.arrays)
        except WorkerError as error:
            refusal = f"{self.unfused_runner.name} does not run the {whose} without graph optimizations"
            self.note(f"{refusal}: {error}")
            return None

    def note(self, text: str) -> None:
        """Add a line to the notes, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _note_random(self, once: Sequence[Any], again: Sequence[Any]) -> None:
        for name, one, other in zip(self.names, once, again, strict=True):
            if not are_identical(one, other):
                self.random[name] = one, other
                self.note(f"output {name} is random: only its type, shape and distribution were compared")

    def _note_constant_outputs(self) -> None:
        rows = [row for row in self.rows if row.feed.kind in PRECISE_KINDS]
        if len(rows) < 2 or not rows[0].feed.arrays:
            return
        for index, name in enumerate(self.names):
            one, other = (row.results[index].own for row in rows)
            if name not in self.random and are_identical(one, other):
                self.note(f"output {name} is the same on two random inputs: comparing it shows little")

    def _note_untried_values(self, edges: bool) -> None:
        """Note integer inputs that were only 0 and 1; with `edges`, how many constants no input was near."""
        given = {name for row in self.rows if row.feed.kind == GIVEN for name in row.feed.arrays}
        names = [v.name for v in required_inputs(self.original.proto) if is_integer(v)]
        for name in self.values.only_zero_or_one(name for name in names if name not in given):
            values = f"give it other values with --range {name}=LOW,HIGH"
            self.note(f"integer input {name} was only 0 and 1: {values}")
        shapes = {name: array.shape for name, array in self.rows[0].feed.arrays.items()}
        if edges and (left := count_untried_constants(self.original.proto, shapes, self.values)):
            self.note(f"{left} constants of the models were not tried: no input values are near them")


def run_inputs(worker: Worker, arrays: Mapping[str, Any]) -> list[Any]:
    worker.feed(arrays)
    return worker.run()
