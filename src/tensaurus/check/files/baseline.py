"""Holds the original's outputs on all inputs of a comparison, with the errors that a candidate may have.

`run_original` makes a `Baseline`, and `CandidateTrial` judges a candidate by its rows, one for each input.
A row holds the outputs in float64 and on a runtime.  Copies of the original with weights and inputs one
rounding away (perturbed copies) run on the runtime, too: a candidate may differ from the original as much as
they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.comparison_row import ComparisonRow
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.output_values import are_identical
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.files.unfused_run import UnfusedRunner
from tensaurus.check.inputs.feed import Feed, InputValues
from tensaurus.check.inputs.integer_uses import IntegerUses
from tensaurus.check.inputs.model_constants import collect_constants, find_differing_rows, shared_numbers
from tensaurus.check.inputs.model_interface import is_integer, required_inputs
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.measure.worker import RUN_LIMIT, Worker, WorkerError, start_worker
from tensaurus.system.errors import TensaurusError
from tensaurus.system.progress import Stage, report_nothing

PERTURBED_COPIES = 4  # most copies of the original one rounding away, on the runtime and in float64


@dataclass(frozen=True)
class ComparisonOptions:
    """How two models are compared.

    shapes   sizes of inputs that are fixed
    ranges   values of integer inputs, both ends included; else 0 and 1
    limit    seconds that a run may take
    stage    is called with the name of each step
    answers  the float64 outputs of the original, shared by the comparisons of several candidates
    """

    backend: str
    threads: int
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    limit: float = RUN_LIMIT
    stage: Stage = report_nothing
    answers: ReferenceAnswers | None = None


class Baseline:
    """The original's outputs on the inputs that were added, and the processes that run both models.

    names           of the outputs
    rows            one for each input
    notes           lines about what was not compared
    faults          lines about errors of the runtime or of the reference
    random_outputs  outputs that differ between two equal runs, by name, as they were in both
    values          the values from which inputs are drawn
    """

    def __init__(self, original: ComparedModel, candidate: ComparedModel, options: ComparisonOptions):
        """Start the processes, without inputs.  Raises TensaurusError where the original cannot be loaded."""
        self.original, self.candidate, self.options = original, candidate, options
        self.names = [output.name for output in original.proto.graph.output]
        self.rows: list[ComparisonRow] = []
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.random_outputs: dict[str, tuple[Any, Any]] = {}
        self._shared_numbers = shared_numbers(original.proto, candidate.proto)  # perturbed copies keep them
        self._perturbed_builds: dict[int, Build] = {}
        self.reference = Reference(options.threads, options.limit, options.answers)
        self.unfused_runner = UnfusedRunner(options.backend, options.threads, options.limit)
        both = original.proto, candidate.proto
        self.values = InputValues(
            options.ranges, self._integer_uses(), collect_constants(both), find_differing_rows(*both)
        )
        try:
            self.worker = self.start_worker(original)
        except WorkerError as error:
            raise TensaurusError(f"the original does not run: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, or make them forget the models."""
        self.reference.__exit__()
        self.unfused_runner.close()
        self.worker.close()

    def start_worker(self, model: ComparedModel) -> Worker:
        """Start a worker that holds the model.  Raises WorkerError."""
        options = self.options
        return start_worker(model.build, options.backend, threads=options.threads, limit=options.limit)

    def restart_worker(self) -> None:
        """Start a worker for the original again if a run has ended it."""
        if not self.worker.is_alive:
            self.worker = self.start_worker(self.original)

    def _integer_uses(self) -> IntegerUses:
        try:
            if not any(is_integer(value) for value in required_inputs(self.original.proto)):
                return IntegerUses()
            return self.reference.facts(self.original.build, self.options.shapes).integer_uses
        except TensaurusError:  # the reference does not run either, about which there is a note
            return IntegerUses()

    def add_input(self, feed: Feed, shapes: Mapping[str, Sequence[int]], words: str = "") -> None:
        """Run the original on one input, which `words` describe beside its kind, and add the row.

        Raises WorkerError where the original does not run on it.
        """
        named = Feed(f"{feed.kind} {words}", feed.arrays) if words else feed
        if feed.is_nonfinite:  # compared in float64 alone: kernels may do as they like with NaN
            if (reference_outputs := self._run_reference(feed, shapes)) is not None:
                self.rows.append(ComparisonRow(named, shapes, [], reference_outputs))
            return
        results = run_inputs(self.worker, feed.arrays)
        if not self.rows:
            self._note_random(results, run_inputs(self.worker, feed.arrays))
        reference_outputs = self._run_reference(feed, shapes)
        pairs = zip(results if reference_outputs is None else reference_outputs, results, strict=True)
        outputs = [OriginalOutput(exact, own) for exact, own in pairs]
        self.rows.append(ComparisonRow(named, shapes, outputs, reference_outputs))

    def _run_reference(self, feed: Feed, shapes: Mapping[str, Sequence[int]]) -> list[Any] | None:
        try:
            return self.reference.run(self.original.build, feed.arrays, shapes)
        except TensaurusError as error:
            if feed.is_nonfinite:
                self.note(f"not compared on {feed.kind} inputs: {error}")
            else:
                self.note(f"no float64 reference, so the original's own results are the reference: {error}")
        return None

    def _note_random(self, once: Sequence[Any], again: Sequence[Any]) -> None:
        for name, one, other in zip(self.names, once, again, strict=True):
            if not are_identical(one, other):
                self.random_outputs[name] = one, other
                self.note(f"output {name} is random: only its type, shape and distribution were compared")

    def copy_seed(self, number: int) -> int:
        """Return the seed of the perturbed copy of this number, on the runtime and in float64."""
        return self.options.seed * 1_000_003 + number

    def perturbed_build(self, seed: int) -> Build:
        """Return the build of a copy of the original one rounding away."""
        if seed not in self._perturbed_builds:
            folder = self.original.folder
            self._perturbed_builds[seed] = self.original.perturbed(seed, self._shared_numbers, folder)
        return self._perturbed_builds[seed]

    def run_perturbed(self, rows: Iterable[ComparisonRow], copies: int = PERTURBED_COPIES) -> None:
        """Run the first perturbed copies of the original on rows where they have not run.

        A candidate's error may then be as large as the distances of these copies: one rounding away.
        Copies only ever allow more, so they run only where this may decide.
        """
        wanted = [row for row in rows if row.results and row.copies_run < copies]
        if not wanted:
            return
        if self.original.is_large:
            self.note("the original is too large for perturbed copies: its own errors set the tolerance")
            return
        self.run_tie_neighbours(wanted)
        for number in range(min(row.copies_run for row in wanted), copies):
            self.options.stage("perturbed copy", number + 1, PERTURBED_COPIES)
            seed = self.copy_seed(number)
            without_it = [row for row in wanted if row.copies_run == number]
            for row in without_it:  # a copy that does not run is not tried again
                row.copies_run += 1
            try:
                self.restart_worker()
                self.worker.compile(self.perturbed_build(seed))
                for row in without_it:
                    results = run_inputs(self.worker, row.feed.perturb(seed))
                    for original, result in zip(row.results, results, strict=True):
                        original.add_perturbed(result)
            except WorkerError as error:
                self.note(f"a perturbed copy of the original does not run: {error}")
                if not self.worker.is_alive:
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

    def run_unfused(self, whose: str, model: ComparedModel, row: ComparisonRow) -> list[Any] | None:
        """Return the outputs of an unfused run of the model; None where this fails."""
        try:
            return self.unfused_runner.outputs(whose, model, row.feed.arrays)
        except WorkerError as error:
            refusal = f"{self.unfused_runner.name} does not run the {whose} without graph optimizations"
            self.note(f"{refusal}: {error}")
            return None

    @cached_property
    def digits(self) -> int:
        """Return the binary digits of the narrowest float type in which the original computes."""
        try:
            return self.reference.facts(self.original.build, self.options.shapes).digits
        except TensaurusError:  # the reference does not run either
            return 53

    def note(self, text: str) -> None:
        """Add a line to the notes, once."""
        if text not in self.notes:
            self.notes.append(text)


def run_inputs(worker: Worker, arrays: Mapping[str, Any]) -> list[Any]:
    """Return all outputs of the model that the worker holds.  Raises WorkerError."""
    worker.feed(arrays)
    return worker.run()
