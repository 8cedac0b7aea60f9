"""Inputs that a model runs on, for timing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from tensaurus.backends import Array
from tensaurus.cost.worker import RUN_LIMIT, WorkerError, tried
from tensaurus.equivalence.inputs import Values, feed
from tensaurus.equivalence.shapes import assignments
from tensaurus.errors import TensaurusError


def sample_feeds(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    packed: bytes | Path,
    backend: str,
    threads: int,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    limit: float = RUN_LIMIT,
) -> tuple[dict[str, Array], str]:
    """Random inputs on which the model runs, and in words the sizes made up for them ("" where none were).

    `packed` is the model as the backend takes it; a run may take `limit` seconds.
    Raises TensaurusError where no values can be made up, or the model runs on none of them.
    """
    refusal = ""
    try:
        trial = tried(packed, backend, threads=threads, limit=limit)
    except WorkerError as error:
        raise TensaurusError(f"{backend} does not run it: {error}") from error
    with trial as worker:
        for sizes, words in assignments(model, shapes):
            arrays = dict(feed(model, sizes, "random", seed, Values(ranges or {})).arrays)
            try:
                worker.feed(arrays)
                worker.run()
            except WorkerError as error:
                refusal = refusal or str(error)
                if not worker.alive:
                    break
                continue
            return arrays, words
    raise TensaurusError(f"{backend} does not run it on inputs made up for it: {refusal}")
