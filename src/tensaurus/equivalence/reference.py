"""Models in float64, in a process of its own: what they hold may be more than there is memory for, and nodes
that have no expression are run one by one, with whatever they do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from tensaurus.backends.reference import Session
from tensaurus.child import Child, ChildError

__all__ = ["Reference", "NoReference"]

SLOWER = 4.0  # times as long as on a runtime a run may take


class NoReference(ChildError):
    """There is no reference; one line that says why."""


class _Evaluator(Child):
    error = NoReference
    resting = True


class Desk:
    """What the child does."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def load(self, model: bytes | Path, shapes: Mapping[str, Sequence[int]]) -> None:
        """Replace the model."""
        from tensaurus.graph.inlining import inlined
        from tensaurus.graph.onnx_import import import_model

        self._session = None
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        self._session = Session(import_model(inlined(proto), shapes))

    def run(self, arrays: Mapping[str, Any]) -> list[Any]:
        """All outputs."""
        assert self._session is not None
        return self._session.run(None, arrays)

    def drop(self) -> None:
        """Forget the model."""
        self._session = None


class Reference:
    """The reference for one comparison; use it in a `with`.

    The process stays for the next one.
    """

    def __init__(self, threads: int, limit: float) -> None:
        """A run on a runtime may take `limit` seconds."""
        self._threads, self._limit = threads, SLOWER * limit
        self._loaded: object = None

    def run(
        self,
        model: bytes | Path,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> list[Any]:
        """All outputs of a model whose inputs have these shapes.  Raises NoReference."""
        child = _evaluator(os.getpid(), self._threads)
        if not child.alive:
            _evaluator.cache_clear()
            child, self._loaded = _evaluator(os.getpid(), self._threads), None
        child.timeout = self._limit
        key = (model, tuple(shapes.items()))
        if self._loaded != key:
            child.ask("load", model, dict(shapes))
            self._loaded = key
        found: list[Any] = child.ask("run", dict(arrays))
        return found

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        child = _evaluator(os.getpid(), self._threads)
        if child.alive:
            child.ask("drop")


@cache
def _evaluator(pid: int, threads: int) -> _Evaluator:
    """One for each process that asks."""
    environment = {"OPENBLAS_NUM_THREADS": str(threads)}
    return _Evaluator("reference", f"{__name__}:Desk", timeout=60.0, environment=environment)
