"""Subnormal numbers: those so close to zero that a float has no more leading digit for them.

Below 2^-126 in float32.  On Intel's processors each takes a multiplication some 150 cycles.
"""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tensaurus.graph.ir.tensor_data import Array, TensorData, numpy_dtype
from tensaurus.ops import TensorType

__all__ = [
    "FLOATS", "MAX_RARITY", "find_subnormals", "float_limits", "is_float", "smallest_magnitude",
    "subnormal_rarity",
]  # fmt: skip

FLOATS = ("float16", "bfloat16", "float32", "float64")
MAX_RARITY = 14  # fewer of them than one in 2^14 are none: they take no time that could be told

_rarities: dict[bytes, int] = {}  # by the digest of a constant
_smallest_magnitudes: dict[bytes, float] = {}  # likewise


def is_float(kind: Any) -> bool:
    """Whether it is a tensor of an element type that has subnormal numbers and is computed with."""
    return isinstance(kind, TensorType) and kind.dtype in FLOATS


def float_limits(dtype: str) -> Any:
    """numpy's (or ml_dtypes') record of an element type of floats."""
    record: Any = ml_dtypes.finfo
    return record(numpy_dtype(dtype))


def find_subnormals(array: Array, dtype: str) -> Array:
    """Which elements are subnormal numbers of their type."""
    return np.asarray((array != 0) & (np.abs(array) < array.dtype.type(float_limits(dtype).smallest_normal)))


def smallest_magnitude(data: TensorData) -> float:
    """The magnitude of the smallest element but for zeros, in units of the smallest normal number."""
    if data.digest not in _smallest_magnitudes:
        sizes = np.abs(data.array)
        least = float(np.min(sizes, where=sizes > 0, initial=float_limits(data.dtype).max))
        _smallest_magnitudes[data.digest] = least / float(float_limits(data.dtype).smallest_normal)
    return _smallest_magnitudes[data.digest]


def subnormal_rarity(data: TensorData) -> int:
    """k where a share of the elements in (2^-(k+1), 2^-k] is subnormal; -1 where hardly any is."""
    if data.dtype not in FLOATS:
        return -1
    if data.digest not in _rarities:
        count = int(find_subnormals(data.array, data.dtype).sum())
        rarity = (prod(data.shape) // count).bit_length() - 1 if count else -1
        _rarities[data.digest] = rarity if rarity <= MAX_RARITY else -1
    return _rarities[data.digest]
