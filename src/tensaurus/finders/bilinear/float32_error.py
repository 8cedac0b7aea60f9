"""Measures the float32 error of a fast algorithm beside that of the direct sum, on a sample of tiles.

`optimizer/run/fast_algorithm_accuracy` decides by such samples which algorithms a model may use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.finders.bilinear.bilinear_algorithm import BilinearAlgorithm, Matrix
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.kernels.stages.chain_layout import CHANNEL_GROUP

__all__ = ["ErrorSample", "draw_sample"]

SAMPLE_OUTPUTS = 1024  # outputs of each filter in a sample, about: enough for a mean square
SAMPLE_FILTERS = 4  # filters in a sample


@dataclass(frozen=True)
class ErrorSample:
    """Random tiles and weights on which the fast algorithm and the direct sum are compared.

    algorithms  one for each fast dimension
    data        [tiles, depth, elements...] in float32; depth counts the added products (`Convolution.depth`),
                here all of different channels
    weights     [filters, depth, taps...] in float32
    """

    algorithms: tuple[BilinearAlgorithm, ...]
    data: NDArray[Any]
    weights: NDArray[Any]

    def direct(self, data: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """Returns the direct sum [tiles, filters, outputs...], computed in the arguments' element type."""
        flat = weights.reshape(len(weights), -1).T
        outputs = [algorithm.outputs for algorithm in self.algorithms]
        sums = np.empty((len(data), len(weights), *outputs), data.dtype)
        for place in np.ndindex(*outputs):
            starts = ((k * a.step, a.taps) for k, a in zip(place, self.algorithms, strict=True))
            window: Any = (slice(None), slice(None), *(slice(i, i + n) for i, n in starts))
            sums[(..., *place)] = data[window].reshape(len(data), -1) @ flat
        return sums

    @cached_property
    def exact(self) -> NDArray[Any]:
        """The direct sum in float64."""
        return self.direct(self.data.astype(np.float64), self.weights.astype(np.float64))

    @cached_property
    def fast(self) -> NDArray[Any]:
        """The result of the fast algorithm, rounded as a kernel rounds.

        Weights are transformed in float64 and rounded once; the products of a group of channels are added up
        one after the other, each sum rounded once, and so are the sums of groups.
        """
        weights, data = self.weights.astype(np.float64), self.data
        for place, algorithm in enumerate(self.algorithms, 2):
            weights = _apply_matrix(algorithm.weights, weights, place)
            data = _apply_matrix(algorithm.data, data, place)
        data64, weights64 = data.astype(np.float64), weights.astype(data.dtype).astype(np.float64)
        sums = np.zeros((len(data), len(weights), *data.shape[2:]), data.dtype)
        for start in range(0, data.shape[1], CHANNEL_GROUP):
            group = np.zeros_like(sums)
            for c in range(start, min(start + CHANNEL_GROUP, data.shape[1])):
                group = (group + data64[:, None, c] * weights64[None, :, c]).astype(data.dtype)
            sums = sums + group
        for place, algorithm in enumerate(self.algorithms, 2):
            sums = _apply_matrix(algorithm.output, sums, place)
        return np.asarray(sums)

    @property
    def error_growth(self) -> float:
        """The root mean square error, as a multiple of that of the direct sum in float32."""
        direct = self.direct(self.data, self.weights)
        fast, plain = (np.sqrt(np.mean((y - self.exact) ** 2)) for y in (self.fast, direct))
        return float(fast / plain)


def draw_sample(algorithms: Algorithms, depth: int, seed: int = 0) -> ErrorSample:
    """Draws a sample with this depth: nonnegative data, as after a Relu, and normal weights."""
    used = tuple(a for a in algorithms if a)
    tiles = ceil(SAMPLE_OUTPUTS / prod(a.outputs for a in used))
    rng = np.random.default_rng(seed)
    data = np.maximum(rng.standard_normal((tiles, depth, *(a.elements for a in used))), 0)
    weights = rng.standard_normal((SAMPLE_FILTERS, depth, *(a.taps for a in used))) / np.sqrt(depth)
    return ErrorSample(used, data.astype(np.float32), weights.astype(np.float32))


def _apply_matrix(matrix: Matrix, values: NDArray[Any], dimension: int) -> NDArray[Any]:
    """Multiplies the matrix by the values along this dimension, in the values' type."""
    numbers = np.array(matrix, np.float64).astype(values.dtype)
    return np.asarray(np.moveaxis(np.moveaxis(values, dimension, -1) @ numbers.T, -1, dimension))
