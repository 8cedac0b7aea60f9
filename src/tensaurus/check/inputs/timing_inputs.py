"""Draws inputs on which a model runs, for timing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from onnx import ModelProto

from tensaurus.check.inputs.draw_inputs import draw_feed
from tensaurus.check.inputs.feed import InputValues
from tensaurus.check.inputs.try_shapes import input_remedy, shape_assignments
from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.value_types import symbol_of
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.measure import warm_up_runs
from tensaurus.runtimes.measure.worker import RUN_LIMIT, Worker, WorkerError, start_worker
from tensaurus.system.errors import TensaurusError

__all__ = ["TimingInputs", "draw_timing_inputs", "symbol_sizes", "time_run"]

LONG_RUN_SECONDS = 5.0  # once the runs of a model have taken this long together, it is not run again


class TimingInputs(NamedTuple):
    """Random inputs on which a model runs.

    words    the sizes that were made up for them, "" where the model states all sizes
    seconds  of one run on them, after those that do not count (`warm_up_runs`)
    """

    arrays: dict[str, Array]
    words: str
    seconds: float


def draw_timing_inputs(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    build: Build,
    backend: str,
    threads: int,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    limit: float = RUN_LIMIT,
    given: Mapping[str, Array] | None = None,
) -> TimingInputs:
    """Return random inputs on which the model runs, after running it a few times.

    `build` is the model as the backend takes it; a run may take `limit` seconds; `given` inputs are used as
    they are.  Raises TensaurusError where no values can be drawn, or the model runs on none of them.
    """
    refusal = ""
    try:
        trial = start_worker(build, backend, threads=threads, limit=limit)
    except WorkerError as error:
        raise TensaurusError(f"{backend} does not run the model: {error}") from error
    with trial as worker:
        if given:
            try:
                seconds = time_run(worker, given)
            except WorkerError as error:
                text = f"{backend} does not run the model on the given inputs: {error}"
                raise TensaurusError(text) from error
            return TimingInputs(dict(given), "", seconds)
        for sizes, words in shape_assignments(model, shapes):
            arrays = dict(draw_feed(model, sizes, "random", seed, InputValues(ranges or {})).arrays)
            try:
                seconds = time_run(worker, arrays)
            except WorkerError as error:
                refusal = refusal or str(error)
                if not worker.is_alive:
                    break
                continue
            return TimingInputs(arrays, words, seconds)
    raise TensaurusError(
        f"{backend} does not run the model on generated inputs: {refusal}",
        remedy=input_remedy(model, shapes),
    )


def time_run(worker: Worker, arrays: Mapping[str, Array]) -> float:
    """Run a few times and return the seconds of the last run.  Raises WorkerError."""
    worker.feed(arrays)
    samples: list[float] = []
    while len(samples) <= warm_up_runs(max(samples, default=0.0)) and sum(samples) < LONG_RUN_SECONDS:
        start = monotonic()
        worker.run()
        samples.append(monotonic() - start)
    return samples[-1]


def symbol_sizes(program: Program, feeds: Mapping[str, Array]) -> dict[Symbol, int]:
    """Return the numbers that these inputs give to the program's symbolic sizes."""
    numbers: dict[Symbol, int] = {}
    for node in program.inputs:
        array, kind = feeds.get(node.attribute("name")), node.types[0]
        if array is not None and isinstance(kind, TensorType):
            for size, number in zip(kind.shape, array.shape, strict=True):
                if (symbol := symbol_of(size)) is not None:
                    numbers[symbol] = number
    return numbers
