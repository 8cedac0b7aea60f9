"""What the float64 reference has answered of one model: several candidates are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from tensaurus.graph.onnx.build import Build

__all__ = ["Answers", "hash_of"]

MOST = 1 << 28  # bytes that are kept


class Answers:
    """Of a model, by its inputs; what there is no room for is computed again.

    quickest  seconds after which an answer was there, of those that were not known, the least so far
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        self._bytes = 0
        self.quickest = inf

    def has(self, arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the outputs on these inputs are known."""
        return _key(arrays, shapes, False) in self._known

    def get(
        self,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        rounded: bool,
        compute: Callable[[], list[Any]],
    ) -> list[Any]:
        """The outputs on these inputs; arrays among them are not to be written."""
        key = _key(arrays, shapes, rounded)
        known = self._known.get(key)
        if known is None:
            began = monotonic()
            known = compute()
            self.quickest = min(self.quickest, monotonic() - began)
            plain = [value for value in known if isinstance(value, np.ndarray)]
            for value in plain:
                value.setflags(write=False)
            size = sum(value.nbytes for value in plain)
            if len(plain) == len(known) and self._bytes + size <= MOST:
                self._known[key], self._bytes = known, self._bytes + size
        return list(known)


def _key(arrays: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], rounded: bool) -> tuple[Any, ...]:
    return rounded, tuple((name, tuple(sizes)) for name, sizes in sorted(shapes.items())), hash_of(arrays)


def hash_of(arrays: Mapping[str, Any]) -> str:
    """Of all elements, their types and shapes."""
    parts = sha256()
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        parts.update(f"{name} {array.dtype} {np.shape(value)} ".encode())
        parts.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return parts.hexdigest()
