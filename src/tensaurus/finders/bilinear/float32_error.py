"""What float32 makes of an algorithm: its errors beside those of the direct sum, on a sample of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.finders.bilinear.bilinear_algorithm import Algorithm, Matrix
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.kernels.stages.chain_layout import CHANNEL_GROUP

__all__ = ["Sample", "sampled"]

OUTPUTS = 1024  # of each filter, about
FILTERS = 4


@dataclass(frozen=True)
class Sample:
    """Data [tiles, depth, elements...] and weights [filters, depth, taps...] in float32."""

    algorithms: tuple[Algorithm, ...]
    data: NDArray[Any]
    weights: NDArray[Any]

    def direct(self, data: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """The direct sum of such data and weights, in their type: [tiles, filters, outputs...]."""
        flat = weights.reshape(len(weights), -1).T
        outputs = [algorithm.outputs for algorithm in self.algorithms]
        found = np.empty((len(data), len(weights), *outputs), data.dtype)
        for place in np.ndindex(*outputs):
            starts = ((k * a.step, a.taps) for k, a in zip(place, self.algorithms, strict=True))
            window: Any = (slice(None), slice(None), *(slice(i, i + n) for i, n in starts))
            found[(..., *place)] = data[window].reshape(len(data), -1) @ flat
        return found

    @cached_property
    def exact(self) -> NDArray[Any]:
        """In float64."""
        return self.direct(self.data.astype(np.float64), self.weights.astype(np.float64))

    @cached_property
    def fast(self) -> NDArray[Any]:
        """As a kernel computes it: weights are transformed in float64 and rounded once; products are added up
        one after the other, each sum rounded once, and so are the sums of groups of channels."""
        weights, data = self.weights.astype(np.float64), self.data
        for place, algorithm in enumerate(self.algorithms, 2):
            weights = _applied(algorithm.weights, weights, place)
            data = _applied(algorithm.data, data, place)
        wide, short = data.astype(np.float64), weights.astype(data.dtype).astype(np.float64)
        found = np.zeros((len(data), len(weights), *data.shape[2:]), data.dtype)
        for start in range(0, data.shape[1], CHANNEL_GROUP):
            group = np.zeros_like(found)
            for c in range(start, min(start + CHANNEL_GROUP, data.shape[1])):
                group = (group + wide[:, None, c] * short[None, :, c]).astype(data.dtype)
            found = found + group
        for place, algorithm in enumerate(self.algorithms, 2):
            found = _applied(algorithm.output, found, place)
        return np.asarray(found)

    @property
    def growth(self) -> float:
        """The root of the mean square of the errors, beside that of the direct sum in float32."""
        direct = self.direct(self.data, self.weights)
        fast, plain = (np.sqrt(np.mean((y - self.exact) ** 2)) for y in (self.fast, direct))
        return float(fast / plain)


def sampled(algorithms: Algorithms, depth: int, seed: int = 0) -> Sample:
    """Of so many products added up for each point: data that a relu may have left, normal weights."""
    used = tuple(a for a in algorithms if a)
    tiles = ceil(OUTPUTS / prod(a.outputs for a in used))
    rng = np.random.default_rng(seed)
    data = np.maximum(rng.standard_normal((tiles, depth, *(a.elements for a in used))), 0)
    weights = rng.standard_normal((FILTERS, depth, *(a.taps for a in used))) / np.sqrt(depth)
    return Sample(used, data.astype(np.float32), weights.astype(np.float32))


def _applied(matrix: Matrix, values: NDArray[Any], place: int) -> NDArray[Any]:
    """The matrix by the values, along this dimension, in their own type."""
    numbers = np.array(matrix, np.float64).astype(values.dtype)
    return np.asarray(np.moveaxis(np.moveaxis(values, place, -1) @ numbers.T, -1, place))
