"""A runtime that runs a model as it is written, nothing fused: who is wrong, the backend or the reference?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensaurus.check.files.compared_model import Model
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.worker import Worker, tried

WITNESS = "onnxruntime"  # for a backend that cannot run a model as it is written


class Witness:
    """The backend itself where it can, in processes of their own, one for each model; `close` it."""

    def __init__(self, backend: str, threads: int, limit: float) -> None:
        """A run may take `limit` seconds."""
        self.name = backend if isinstance(backends.find(backend), backends.Plain) else WITNESS
        self._threads, self._limit = threads, limit
        self._workers: dict[str, Worker] = {}

    def outputs(self, whose: str, model: Model, arrays: Mapping[str, Any]) -> list[Any]:
        """All outputs of a model, which is always the same for `whose`.  Raises WorkerError."""
        worker = self._workers.get(whose)
        if worker is None or not worker.alive:
            worker = tried(model.build, self.name, threads=self._threads, limit=self._limit, plain=True)
            self._workers[whose] = worker
        worker.feed(arrays)
        return list(worker.run())

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.close()
