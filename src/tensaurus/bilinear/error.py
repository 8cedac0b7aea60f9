"""What float32 makes of an algorithm: its errors beside those of the direct sum, on a sample of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.bilinear.algorithm import Matrix
from tensaurus.bilinear.convolution import Convolution
from tensaurus.bilinear.tiling import Algorithms

__all__ = ["Errors", "sampled"]

OUTPUTS = 4096  # of each filter, about
FILTERS = 8
COPIES = 4  # of the direct sum, a rounding away


@dataclass(frozen=True)
class Errors:
    """Outputs [tiles, filters, outputs...] of one sample: exact ones, and those that float32 has.

    beside  direct sums of data and weights that were moved by one unit in the last place at most
    """

    exact: NDArray[Any]
    direct: NDArray[Any]
    beside: tuple[NDArray[Any], ...]
    fast: NDArray[Any]

    @property
    def growth(self) -> float:
        """The root of the mean square of the errors, beside that of the direct sum."""
        fast, direct = (np.sqrt(np.mean((y - self.exact) ** 2)) for y in (self.fast, self.direct))
        return float(fast / direct)


def sampled(of: Convolution, algorithms: Algorithms, seed: int = 0) -> Errors:
    """Of data that a relu may have left, and weights drawn from a normal distribution."""
    lines = of.tilings(algorithms)
    used = [a for a in algorithms if a]
    depth = of.channels // of.groups
    depth *= prod(line.phases if line.fast else line.window.taps for line in lines)
    tiles = ceil(OUTPUTS / prod(a.outputs for a in used))
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.standard_normal((tiles, depth, *(a.products for a in used))), 0)
    w = rng.standard_normal((FILTERS, depth, *(a.taps for a in used))) / np.sqrt(depth)
    data, weights = x.astype(np.float32), w.astype(np.float32)
    outputs = [a.outputs for a in used]
    beside = (_direct(_moved(data, rng), _moved(weights, rng), outputs) for _ in range(COPIES))
    return Errors(
        _direct(data.astype(np.float64), weights.astype(np.float64), outputs),
        _direct(data, weights, outputs),
        tuple(beside),
        _fast(data, weights, algorithms),
    )


def _direct(data: NDArray[Any], weights: NDArray[Any], outputs: Sequence[int]) -> NDArray[Any]:
    flat = weights.reshape(len(weights), -1).T
    found = np.empty((len(data), len(weights), *outputs), data.dtype)
    for place in product(*map(range, outputs)):
        window = tuple(slice(i, i + n) for i, n in zip(place, weights.shape[2:], strict=True))
        found[(..., *place)] = data[(slice(None), slice(None), *window)].reshape(len(data), -1) @ flat
    return found


def _fast(data: NDArray[Any], weights: NDArray[Any], algorithms: Algorithms) -> NDArray[Any]:
    """As a kernel computes it: weights are transformed in float64 and rounded once."""
    used = [a for a in algorithms if a]
    transformed, values = weights.astype(np.float64), data
    for place, algorithm in enumerate(used, 2):
        transformed = _applied(algorithm.weights, transformed, place)
        values = _applied(algorithm.data, values, place)
    points = tuple(range(2, 2 + len(used)))
    products = values.transpose(*points, 0, 1) @ transformed.astype(data.dtype).transpose(*points, 1, 0)
    found = np.moveaxis(products, (-2, -1), (0, 1))
    for place, algorithm in enumerate(used, 2):
        found = _applied(algorithm.output, found, place)
    return np.asarray(found)


def _applied(matrix: Matrix, values: NDArray[Any], place: int) -> NDArray[Any]:
    """The matrix by the values, along this dimension, in their own type."""
    numbers = np.array(matrix, np.float64).astype(values.dtype)
    return np.asarray(np.moveaxis(np.moveaxis(values, place, -1) @ numbers.T, -1, place))


def _moved(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Each by one unit in the last place, up or down, or not at all."""
    ways = rng.integers(-1, 2, values.shape)
    return np.where(ways == 0, values, np.nextafter(values, np.where(ways > 0, np.inf, -np.inf).astype(values.dtype)))
