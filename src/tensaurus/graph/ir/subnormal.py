"""Subnormal numbers: those so close to zero that a float has no more leading digit for them.

Below 2^-126 in float32.  On Intel's processors each takes a multiplication some 150 cycles.
"""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tensaurus.graph.ir.tensor_data import Array, Data, numpy_dtype
from tensaurus.ops import TensorType

__all__ = ["FLOATS", "RAREST", "is_float", "limits", "smallest", "subnormal_share", "subnormals_of"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
RAREST = 14  # fewer of them than one in 2^14 are none: they take no time that could be told

_shares: dict[bytes, int] = {}  # by the digest of a constant
_smallest: dict[bytes, float] = {}  # likewise


def is_float(kind: Any) -> bool:
    """Whether it is a tensor of an element type that has subnormal numbers and is computed with."""
    return isinstance(kind, TensorType) and kind.dtype in FLOATS


def limits(dtype: str) -> Any:
    """numpy's (or ml_dtypes') record of an element type of floats."""
    record: Any = ml_dtypes.finfo
    return record(numpy_dtype(dtype))


def subnormals_of(array: Array, dtype: str) -> Array:
    """Which elements are subnormal numbers of their type."""
    return np.asarray((array != 0) & (np.abs(array) < array.dtype.type(limits(dtype).smallest_normal)))


def smallest(data: Data) -> float:
    """The magnitude of the smallest element but for zeros, in units of the smallest normal number."""
    if data.digest not in _smallest:
        sizes = np.abs(data.array)
        least = float(np.min(sizes, where=sizes > 0, initial=limits(data.dtype).max))
        _smallest[data.digest] = least / float(limits(data.dtype).smallest_normal)
    return _smallest[data.digest]


def subnormal_share(data: Data) -> int:
    """k where a share of the elements in (2^-(k+1), 2^-k] is subnormal; -1 where hardly any is."""
    if data.dtype not in FLOATS:
        return -1
    if data.digest not in _shares:
        count = int(subnormals_of(data.array, data.dtype).sum())
        rarity = (prod(data.shape) // count).bit_length() - 1 if count else -1
        _shares[data.digest] = rarity if rarity <= RAREST else -1
    return _shares[data.digest]
