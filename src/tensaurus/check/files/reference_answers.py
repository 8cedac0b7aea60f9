"""Keeps the outputs of a model's float64 reference, since several candidates are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from tensaurus.graph.onnx.build import Build

__all__ = ["ReferenceAnswers", "hash_of"]

MAX_KEPT_BYTES = 1 << 28  # of outputs in memory; further outputs are computed again whenever they are needed


class ReferenceAnswers:
    """The reference outputs of one model, by its inputs.

    least_seconds  the shortest time that one computation of all outputs took, so far: the optimizer estimates
                   by it how long the check of a result takes
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        self._bytes = 0
        self.least_seconds = inf

    def has(
        self, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], rounded: bool = False
    ) -> bool:
        """Return whether the outputs on these inputs are known."""
        return _key(arrays, shapes, rounded) in self._known

    def get(
        self,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        rounded: bool,
        compute: Callable[[], list[Any]],
    ) -> list[Any]:
        """Return the outputs on these inputs, those of `compute` if they are not known; arrays are read-only.

        With `rounded` they are those of the reference that rounds every operator's result.
        """
        key = _key(arrays, shapes, rounded)
        known = self._known.get(key)
        if known is None:
            began = monotonic()
            known = compute()
            self.least_seconds = min(self.least_seconds, monotonic() - began)
            plain = [value for value in known if isinstance(value, np.ndarray)]
            for value in plain:
                value.setflags(write=False)
            size = sum(value.nbytes for value in plain)
            # outputs that are sequences are not kept
            if len(plain) == len(known) and self._bytes + size <= MAX_KEPT_BYTES:
                self._known[key], self._bytes = known, self._bytes + size
        return list(known)


def _key(arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], rounded: bool) -> tuple[Any, ...]:
    return rounded, tuple((name, tuple(sizes)) for name, sizes in sorted(shapes.items())), hash_of(arrays)


def hash_of(arrays: Mapping[str, Any]) -> str:
    """Return a SHA-256 digest of the names, types, shapes and elements of all arrays."""
    parts = sha256()
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        parts.update(f"{name} {array.dtype} {np.shape(value)} ".encode())
        parts.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return parts.hexdigest()
