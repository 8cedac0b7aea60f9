"""An equal program tried beside the original before any kernel is made: how far rounding leads there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from onnx import ModelProto

from tensaurus.check.files.baseline import PERTURBED_COPIES, run_inputs
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.files.near_ties import pin_scores
from tensaurus.check.files.reference import Reference
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.check.inputs.draw_inputs import Feed, InputValues, draw_feeds, is_integer
from tensaurus.check.inputs.model_constants import collect_constants
from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.worker import start_worker
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import temporary_folder

__all__ = ["Trial"]


@dataclass(frozen=True)
class Trial:
    """The original, and where it runs; `answers` of the float64 reference are kept for the check."""

    proto: ModelProto
    source: Build
    given: Mapping[str, Array]
    shapes: Mapping[str, Sequence[int]]
    backend: str
    threads: int
    limit: float
    answers: ReferenceAnswers
    folder: Path

    def uneven(self, ranges: Mapping[str, tuple[int, int]], seed: int) -> list[Mapping[str, Array]]:
        """Inputs of all magnitudes, and beside the model's constants, as the check makes them, where all of
        them are floats: large elements have small ones as neighbours there, to whose size a fast algorithm's
        errors do not keep."""
        if any(map(is_integer, required_inputs(self.proto))):
            return []
        sizes = {name: array.shape for name, array in self.given.items()}
        values = InputValues(ranges, constants=collect_constants([self.proto]))
        return [feed.arrays for feed in draw_feeds(self.proto, sizes, ("magnitudes", "edges"), seed, values)]

    def error(self, candidate: Build, inputs: Sequence[Mapping[str, Array]]) -> float:
        """The largest error on these inputs beside what is allowed; infinite where something does not run.

        Where scores are put in order, it is the error with these scores pinned: near ties change places.
        """
        try:
            pair = pin_scores(self.source.proto(), candidate.proto())
            if pair is None:
                feeds = [Feed("timed", arrays) for arrays in inputs]
                return self._error(self.source, candidate, feeds, self.shapes, self.answers)
            libraries = self.source.libraries, candidate.libraries
            original = Build.from_model(pair.original, self.folder, libraries[0])
            changed = Build.from_model(pair.candidate, self.folder, libraries[1])
            scores = Build.from_model(pair.scores, self.folder, libraries[0])
            with start_worker(scores, self.backend, threads=self.threads, limit=self.limit) as worker:
                pins = [pair.pinned_inputs(run_inputs(worker, arrays)) for arrays in inputs]
            feeds = [
                Feed("timed", {**arrays, **own}, frozenset(own))
                for arrays, own in zip(inputs, pins, strict=True)
            ]
            return self._error(original, changed, feeds)
        except (TensaurusError, MemoryError):
            return inf

    def _error(
        self,
        source: Build,
        candidate: Build,
        feeds: Sequence[Feed],
        shapes: Mapping[str, Sequence[int]] | None = None,
        answers: ReferenceAnswers | None = None,
    ) -> float:
        original = ComparedModel.read(source, shapes or {}, self.folder)
        rows: list[list[OriginalOutput]] = []
        with (
            Reference(self.threads, self.limit, answers) as reference,
            start_worker(source, self.backend, threads=self.threads, limit=self.limit) as worker,
        ):
            for feed in feeds:
                sizes = {name: array.shape for name, array in feed.arrays.items()} if feed.pinned else shapes
                exact = reference.run(source, feed.arrays, sizes or {})
                rows.append(list(map(OriginalOutput, exact, run_inputs(worker, feed.arrays))))
            for seed in () if original.large else range(PERTURBED_COPIES):
                with temporary_folder() as folder:
                    worker.compile(original.perturbed(seed, (), folder))
                for feed, outputs in zip(feeds, rows, strict=True):
                    copies = run_inputs(worker, feed.perturb(seed))
                    for output, copy in zip(outputs, copies, strict=True):
                        output.add_perturbed(copy)
            worker.compile(candidate)
            made = [run_inputs(worker, feed.arrays) for feed in feeds]
        pairs = (pair for row in zip(rows, made, strict=True) for pair in zip(*row, strict=True))
        return max((output.judge(result).worst for output, result in pairs), default=0.0)
