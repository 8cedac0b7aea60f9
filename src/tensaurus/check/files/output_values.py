"""Small functions on the values of a model's outputs: arrays, lists of arrays (sequences), or None."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tensaurus.runtimes.backends import Array


def are_identical(one: Any, other: Any) -> bool:
    """Return whether two outputs are the same to the last bit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_identical, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is None and other is None
    if one.dtype.kind in "OSU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def describe_value(value: Any) -> str:
    """Return type and shape in words, such as float32[2, 3]."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, None for other values."""
    return value.shape if isinstance(value, np.ndarray) else None


def is_float_array(value: Any) -> bool:
    """Return whether a value is an array of floats, bfloat16 and float8 among them."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or "float" in value.dtype.name)


def finite_distance(a: Array, b: Array) -> Array:
    """Return the distance by element, 0 where one of the two is infinite or NaN."""
    with np.errstate(all="ignore"):
        distance = np.abs(a.astype(np.float64) - b)
    return np.where(np.isfinite(distance), distance, 0.0)


def elementwise_max(a: Array, b: Array) -> Array:
    """Return the larger of two elements at each place."""
    return np.asarray(np.maximum(a, b))


def first_place(mask: Array) -> tuple[int, ...]:
    """Return the index of the first true element."""
    return tuple(int(i) for i in np.argwhere(mask)[0])


def float_limits(dtype: np.dtype[Any]) -> Any:
    """Return what `np.finfo` says of a float type, also of bfloat16 and the float8 types."""
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def float_type_of(elem_type: int) -> np.dtype[Any] | None:
    """Return the numpy type of an ONNX element type if it is a floating-point one, else None."""
    if not elem_type or elem_type == onnx.TensorProto.STRING:
        return None
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return found if "float" in found.name else None
