"""Runs a model as it is written, without graph optimizations.

Where a backend and the float64 reference disagree, this run decides which of them is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.runtimes import backends
from tensaurus.runtimes.measure.worker import Worker, start_worker

FALLBACK_RUNTIME = "onnxruntime"  # takes the place of a backend that cannot run a model unfused


class UnfusedRunner:
    """Runs models unfused, on the backend itself where it can, each in a process of its own.

    `close` ends the processes.
    """

    def __init__(self, backend: str, threads: int, limit: float) -> None:
        """Prepare for the backend; a run may take `limit` seconds."""
        self.name = backend if isinstance(backends.find(backend), backends.Plain) else FALLBACK_RUNTIME
        self._threads, self._limit = threads, limit
        self._workers: dict[str, Worker] = {}

    def outputs(self, whose: str, model: ComparedModel, arrays: Mapping[str, Any]) -> list[Any]:
        """Return all outputs of a model, run in the process named `whose` ("original" or "result").

        The process is started by the first call.  Raises WorkerError.
        """
        worker = self._workers.get(whose)
        if worker is None or not worker.is_alive:
            worker = start_worker(
                model.build, self.name, threads=self._threads, limit=self._limit, plain=True
            )
            self._workers[whose] = worker
        worker.feed(arrays)
        return list(worker.run())

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.close()
