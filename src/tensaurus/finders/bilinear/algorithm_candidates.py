"""Chooses fast algorithms that may speed up a convolution, by arithmetic, traffic and rounding errors.

Algorithms are one `BilinearAlgorithm` for each spatial dimension, or None for a dimension that stays a direct
sum: (F(4, 3), None) transforms the rows of an image only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod

import numpy as np

from tensaurus.finders.bilinear.bilinear_algorithm import Matrix
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.interpolation_points import best_algorithm, is_short
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["candidate_algorithms", "error_growth", "estimate_seconds"]

MAX_TILE_OUTPUTS = 6  # outputs of a tile along one dimension: errors of larger tiles grow too far
MAX_TIME_RATIO = 0.9  # estimated time of a candidate, as a fraction of that of the direct sum
MAX_GROWTH_RATIO = 0.7  # error growth of a candidate, as a fraction of that of the faster candidate before
MAX_CANDIDATES = 2  # algorithms proposed for one convolution: each costs seconds of tuning
MAX_TILE_PRODUCTS = 1024  # products of a tile: kernels have unrolled code for each product
TRANSFORM_COST = 3  # one multiply-add of a transform takes as long as this many multiply-adds of the products


def candidate_algorithms(
    convolution: Convolution,
    roofline: Roofline,
    allowed: Callable[[Algorithms], bool] = lambda algorithms: True,
) -> tuple[Algorithms, ...]:
    """Returns the fastest allowed algorithms by estimate, then the fastest ones with much smaller errors."""
    limit = MAX_TIME_RATIO * estimate_seconds(convolution, (None,) * len(convolution.spatial_axes), roofline)
    timed = [(estimate_seconds(convolution, a, roofline), a) for a in _all_algorithms(convolution)]
    chosen: list[Algorithms] = []
    for _, algorithms in sorted((pair for pair in timed if pair[0] < limit), key=lambda pair: pair[0]):
        if chosen and error_growth(algorithms) > MAX_GROWTH_RATIO * error_growth(chosen[-1]):
            continue
        if allowed(algorithms):
            chosen.append(algorithms)
        if len(chosen) == MAX_CANDIDATES:
            break
    return tuple(chosen)


def error_growth(algorithms: Algorithms) -> float:
    """Returns the error growth of algorithms along all dimensions (`BilinearAlgorithm.error_growth`)."""
    return prod(a.error_growth for a in algorithms if a)


def estimate_seconds(convolution: Convolution, algorithms: Algorithms, roofline: Roofline) -> float:
    """Estimates the seconds of a convolution by these algorithms at the machine's peaks."""
    tilings = convolution.tilings(algorithms)
    used = [a for a in algorithms if a]
    # products: each position of each filter multiplies every product, channel and tap of its group
    taps = prod(tiling.axis.taps for tiling in tilings if not tiling.is_fast)
    products = prod(a.products for a in used)
    positions = convolution.batch * prod(tiling.product_positions for tiling in tilings)
    weights = products * convolution.filters * convolution.channels // convolution.groups * taps
    # transforms: of each channel in each data tile, and of each filter at each position
    tiles = convolution.batch * prod(tiling.tiles for tiling in tilings)
    data = tiles * convolution.channels * _transform_work([a.data for a in used])
    output = positions * convolution.filters * _transform_work([a.output for a in used])
    # traffic: elements of the data, of the transformed weights and of the result
    outputs = prod(axis.outputs for axis in convolution.spatial_axes)
    results = convolution.batch * convolution.filters * outputs
    moved = prod(convolution.x.shape) + weights + results
    work = positions * weights + TRANSFORM_COST * (data + output)
    # weights are read before each block's products, so arithmetic hides little of the traffic (measured):
    # the two times are added up
    return roofline.seconds(2 * work, 0) + roofline.seconds(0, np.dtype(convolution.dtype).itemsize * moved)


def _transform_work(matrices: list[Matrix]) -> int:
    """Returns the multiply-adds that transform one tile of one channel, one dimension after the other."""
    work = 0
    for place, matrix in enumerate(matrices):
        transformed = prod(len(rows) for rows in matrices[:place])
        remaining = prod(len(rows[0]) for rows in matrices[place + 1 :])
        work += transformed * remaining * sum(number != 0 for row in matrix for number in row)
    return work


def _all_algorithms(convolution: Convolution) -> Iterator[Algorithms]:
    """Yields every choice of an algorithm or None for each dimension, except None for all dimensions."""
    choices = []
    for axis in convolution.spatial_axes:
        # with one tap for each remainder modulo the step, an algorithm saves no product
        limit = min(MAX_TILE_OUTPUTS, axis.outputs) if axis.taps_per_residue > 1 else 0
        kinds = ((size, axis.taps, axis.step) for size in range(2, limit + 1))
        choices.append((None, *(best_algorithm(*kind) for kind in kinds if is_short(*kind))))
    for chosen in product(*choices):
        if any(chosen) and prod(a.products for a in chosen if a) <= MAX_TILE_PRODUCTS:
            yield chosen
