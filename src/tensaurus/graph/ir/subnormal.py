"""Find subnormal numbers in constants: floats so close to 0 that they have lost leading digits.

In float32 they are below 2^-126.  On Intel processors a multiplication with one takes some 150 cycles.
"""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tensaurus.graph.ir.tensor_data import Array, TensorData, numpy_dtype
from tensaurus.ops import TensorType

FLOATS = ("float16", "bfloat16", "float32", "float64")
MAX_RARITY = 14  # fewer than one subnormal number in 2^14 counts as none: the time is not measurable

_rarities: dict[bytes, int] = {}  # by the digest of a constant
_smallest_magnitudes: dict[bytes, float] = {}  # by the digest of a constant


def is_float(kind: Any) -> bool:
    """Return whether a type is a tensor of one of the FLOATS."""
    return isinstance(kind, TensorType) and kind.dtype in FLOATS


def float_limits(dtype: str) -> Any:
    """Return the limits of a float type (`finfo` of numpy or ml_dtypes)."""
    record: Any = ml_dtypes.finfo
    return record(numpy_dtype(dtype))


def find_subnormals(array: Array, dtype: str) -> Array:
    """Return a mask of the elements that are subnormal numbers of their type."""
    return np.asarray((array != 0) & (np.abs(array) < array.dtype.type(float_limits(dtype).smallest_normal)))


def smallest_magnitude(data: TensorData) -> float:
    """Return the smallest magnitude other than 0, in units of the smallest normal number."""
    if data.digest not in _smallest_magnitudes:
        sizes = np.abs(data.array)
        least = float(np.min(sizes, where=sizes > 0, initial=float_limits(data.dtype).max))
        _smallest_magnitudes[data.digest] = least / float(float_limits(data.dtype).smallest_normal)
    return _smallest_magnitudes[data.digest]


def subnormal_rarity(data: TensorData) -> int:
    """Return k where the subnormal part of the elements is in (2^-(k+1), 2^-k], -1 where it is negligible."""
    if data.dtype not in FLOATS:
        return -1
    if data.digest not in _rarities:
        count = int(find_subnormals(data.array, data.dtype).sum())
        rarity = (prod(data.shape) // count).bit_length() - 1 if count else -1
        _rarities[data.digest] = rarity if rarity <= MAX_RARITY else -1
    return _rarities[data.digest]
