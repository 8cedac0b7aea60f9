"""Measures how far rounding takes an equal program from the original, before any kernel is generated.

Fast convolution algorithms round more than direct convolution.  Whether a model stays accurate with them is
tried with the fast algorithms written as standard operators, since tuning kernels for a program that the
final check rejects would waste the time limit.

In: a candidate's build, and inputs.  Out: its largest error over the allowed error, such as 0.6.  As in the
check of the result (`check/files/judge`), the allowed error follows from those of the original and of
*perturbed copies* of it, whose weights and inputs are one rounding away.  The copies only allow more, so they
are left out where the error is small beside the original's own.
"""

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
from tensaurus.check.inputs.draw_inputs import draw_feeds
from tensaurus.check.inputs.feed import Feed, InputValues
from tensaurus.check.inputs.model_constants import collect_constants
from tensaurus.check.inputs.model_interface import is_integer, required_inputs
from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.worker import start_worker
from tensaurus.system.errors import TensaurusError
from tensaurus.system.scratch import temporary_folder

__all__ = ["AccuracyProbe"]

# Share of the allowed error up to which that of the original alone decides, without its perturbed copies.
SMALL_ERROR = 0.5
Inputs = Mapping[str, Array]  # by the names of the model's inputs


@dataclass(frozen=True)
class AccuracyProbe:
    """The original (`model`, built as `source`) and the runtime on which candidates are compared with it.

    timed_inputs  inputs on which the model runs; others are drawn at their sizes
    shapes        the user's sizes of inputs (option `shapes`), by name; empty where none are given
    run_limit     seconds that one run may take
    answers       of the float64 reference, kept for the check of the result
    folder        for files of the models that are built here: large weights, or the whole of a large model
    """

    model: ModelProto
    source: Build
    timed_inputs: Inputs
    shapes: Mapping[str, Sequence[int]]
    backend: str
    threads: int
    run_limit: float
    answers: ReferenceAnswers
    folder: Path

    def draw_uneven_inputs(self, ranges: Mapping[str, tuple[int, int]], seed: int) -> list[Inputs]:
        """Return inputs of all magnitudes and near the model's constants, as the check draws them.

        In such inputs large elements have small neighbours, and a fast algorithm's errors at these have the
        size of the large ones.  Returns [] where an input is of integers.
        """
        if any(map(is_integer, required_inputs(self.model))):
            return []
        sizes = {name: array.shape for name, array in self.timed_inputs.items()}
        values = InputValues(ranges, constants=collect_constants([self.model]))
        return [feed.arrays for feed in draw_feeds(self.model, sizes, ("magnitudes", "edges"), seed, values)]

    def measure_error(self, candidate: Build, inputs: Sequence[Inputs]) -> float:
        """Return the candidate's largest error on these inputs as a fraction of the allowed error.

        Infinite where a model does not run.  Where the model sorts scores (TopK), the scores are pinned to
        the original's: near ties may change places without anything being wrong.
        """
        try:
            pair = pin_scores(self.source.proto(), candidate.proto())
            if pair is None:  # no scores are sorted, or not the same in both models: compare them as they are
                feeds = [Feed("timed", arrays) for arrays in inputs]
                return self._error(self.source, candidate, feeds, self.shapes, self.answers)
            # pinned models read their scores from added inputs: those that the original computes
            libraries = self.source.libraries, candidate.libraries
            original = Build.from_model(pair.original, self.folder, libraries[0])
            changed = Build.from_model(pair.candidate, self.folder, libraries[1])
            scores = Build.from_model(pair.scores, self.folder, libraries[0])
            with start_worker(scores, self.backend, threads=self.threads, limit=self.run_limit) as worker:
                pins = [pair.pinned_inputs(run_inputs(worker, arrays)) for arrays in inputs]
            feeds = [
                Feed("timed", {**arrays, **pinned}, frozenset(pinned))
                for arrays, pinned in zip(inputs, pins, strict=True)
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
        """Return the largest error over the allowed one, as the check of the result judges it.

        `shapes` and `answers` are left out for pinned models, which have other inputs.
        """
        original = ComparedModel.read(source, shapes or {}, self.folder)
        rows: list[list[OriginalOutput]] = []  # for each feed its outputs
        with (
            Reference(self.threads, self.run_limit, answers) as reference,
            start_worker(source, self.backend, threads=self.threads, limit=self.run_limit) as worker,
        ):
            # the original: on the float64 reference and on the runtime
            for feed in feeds:
                sizes = {name: array.shape for name, array in feed.arrays.items()} if feed.pinned else shapes
                exact = reference.run(source, feed.arrays, sizes or {})
                rows.append(list(map(OriginalOutput, exact, run_inputs(worker, feed.arrays))))
            worker.compile(candidate)
            results = [run_inputs(worker, feed.arrays) for feed in feeds]
            error = _largest_error(rows, results)
            # each perturbed copy of the original allows larger errors, so copies run until the error is small
            for seed in range(0 if original.is_large else PERTURBED_COPIES):
                if error <= SMALL_ERROR:
                    break
                with temporary_folder() as folder:
                    worker.compile(original.perturbed(seed, (), folder))
                for feed, outputs in zip(feeds, rows, strict=True):
                    copies = run_inputs(worker, feed.perturb(seed))
                    for output, copy in zip(outputs, copies, strict=True):
                        output.add_perturbed(copy)
                error = _largest_error(rows, results)
        return error


def _largest_error(rows: Sequence[Sequence[OriginalOutput]], results: Sequence[Sequence[Array]]) -> float:
    """Return the largest error of a candidate's results over the allowed one."""
    pairs = (pair for row in zip(rows, results, strict=True) for pair in zip(*row, strict=True))
    return max((output.judge(result).worst for output, result in pairs), default=0.0)
