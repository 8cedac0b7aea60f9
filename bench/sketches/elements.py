"""Elements of every type: plain ones, and those at which laws and kernels break."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.analysis.breaking_values import draw_integers
from tensaurus.expr.ir.integer_types import integer_limits
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType

Array: TypeAlias = np.ndarray[Any, Any]
Random: TypeAlias = np.random.Generator

FLOATS = ("float32", "float64", "float16", "bfloat16")
NEAR = (3, 6, 71, 99, 127, 255, 1000)  # integers that laws and models compare with
STRANGE = (np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, np.nan)


def elements(kind: TensorType, rng: Random, sign: str = "", bounds: tuple[float, ...] = ()) -> Array:
    """Elements of a type of known sizes; `sign` and `bounds` are what an example says of them."""
    shape = tuple(int(n) for n in kind.shape)  # type: ignore[arg-type]
    if kind.dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if kind.dtype in FLOATS:
        return np.asarray(_floats(shape, rng, sign, bounds)).astype(numpy_dtype(kind.dtype))
    return np.asarray(_integers(kind.dtype, shape, rng, sign, bounds)).astype(numpy_dtype(kind.dtype))


def strange(kind: TensorType, rng: Random, nan: bool) -> Array:
    """Elements with infinities and zeros of both signs among them, and with NaN where it is asked for."""
    found = elements(kind, rng)
    if kind.dtype not in FLOATS or not found.size:
        return found
    spots = rng.random(found.shape) < 0.3
    return np.where(
        spots, rng.choice(STRANGE if nan else STRANGE[:-1], found.shape).astype(found.dtype), found
    ).astype(found.dtype)


def _floats(shape: tuple[int, ...], rng: Random, sign: str, bounds: tuple[float, ...]) -> Any:
    if sign == "<":
        return rng.uniform(-bounds[0], bounds[0], shape)
    if sign == ">":
        return bounds[0] + rng.uniform(0.1, 3.0, shape)
    if sign == "=" and rng.random() < 0.5:
        return rng.choice(bounds, shape)
    match rng.integers(7):
        case 0 | 1:
            return rng.standard_normal(shape)
        case 2:
            return rng.integers(-3, 4, shape)
        case 3:
            return rng.integers(-40, 41, shape) / 8
        case 4:
            return rng.uniform(0.1, 2.0, shape)
        case 5:
            return np.where(rng.random(shape) < 0.5, 0, rng.standard_normal(shape))
    return rng.choice([-1, 1], shape) * 10 ** rng.uniform(-3, 3, shape)


def _integers(dtype: str, shape: tuple[int, ...], rng: Random, sign: str, bounds: tuple[float, ...]) -> Any:
    low, high = integer_limits(dtype)
    if sign == "<":
        return rng.integers(0, max(int(bounds[0]), 1), shape)
    if sign == ">":
        least = max(int(bounds[0]) + 1, low)
        return rng.integers(least, least + 9, shape)
    listed = [min(max(int(b), low), high) for b in bounds if np.isfinite(b)]
    if sign == "=" and listed and rng.random() < 0.7:
        return rng.choice(listed, shape)
    if rng.random() < 0.6:
        return rng.integers(max(low, -9), 10, shape)
    return draw_integers(dtype, shape, rng, [*listed, *NEAR])
