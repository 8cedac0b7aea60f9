"""Searches the interpolation points that give a short convolution the least effort and small errors.

In go the numbers of outputs and taps, out comes the algorithm: 2, 3 -> F(2, 3) at 0, 1, -1, inf.
Zero and infinity give rows with one nonzero coefficient, and a number and its negative share the even and odd
parts of their rows. So the sets of points that are searched consist of such pairs, of zero or infinity or
both, and perhaps of one single number.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.finders.bilinear.bilinear_algorithm import (
    BilinearAlgorithm,
    cook_toom,
    error_growth,
    interleave,
    interpolation_matrices,
    transform_effort,
)

__all__ = ["best_algorithm", "is_short"]

DENOMINATORS = (1, 2, 3, 4, 5, 8)  # of points
MAX_POINT = 3  # magnitude of points: powers of larger ones make large errors
MAX_ERROR_RATIO = 1.1  # predicted error, as a multiple of the least, that is accepted for less effort
MAX_POINT_SETS = 16  # sets of points whose effort is computed
MAX_PRODUCTS = 8  # products for the taps of one remainder modulo the step: with more, errors grow too far
MAX_ROWS = 48  # products in all: transforms are tables of that many rows, and their code is unrolled

PointSet = tuple[Fraction, ...]


@lru_cache(100)
def best_algorithm(outputs: int, taps: int, step: int = 1) -> BilinearAlgorithm:
    """Returns the algorithm of least effort among those with nearly the smallest error growth.

    For a step above 1 the parts are such algorithms. Raises ValueError for sizes that are not short
    (`is_short`).
    """
    if not is_short(outputs, taps, step):
        steps = f" in steps of {step}" if step > 1 else ""
        limits = f"{MAX_PRODUCTS} products, or {MAX_ROWS} in all"
        raise ValueError(f"F({outputs}, {taps}){steps} takes more than {limits}")
    if step > 1:
        part_taps = [len(range(first, taps, step)) for first in range(min(step, taps))]
        return interleave([best_algorithm(outputs, count) for count in part_taps], step)
    if taps == 1:
        return cook_toom(outputs, 1, ())

    def rank(points: PointSet) -> tuple[int, float, PointSet]:
        output, weights, data = interpolation_matrices(outputs, taps, points)
        return transform_effort(*data, *output), error_growth(output, weights, data), points

    return cook_toom(outputs, taps, min(_steadiest_points(outputs, taps), key=rank))


def is_short(outputs: int, taps: int, step: int = 1) -> bool:
    """Whether F(outputs, taps) has at most MAX_PRODUCTS products for each remainder and MAX_ROWS in all.

    The sizes alone decide, as making a long algorithm takes minutes: F(3, 256) in steps of 128 is not short.
    """
    rows = min(step, taps) * (outputs - 1) + taps
    return outputs + ceil(taps / step) - 1 <= MAX_PRODUCTS and rows <= MAX_ROWS


@lru_cache(1)
def _positive_points() -> list[Fraction]:
    return sorted({Fraction(n, d) for d in DENOMINATORS for n in range(1, MAX_POINT * d + 1)})


def _point_sets(products: int) -> Iterator[NDArray[Any]]:
    """Yields arrays [sets, points] of sets of finite points for this number of products.

    A number k stands for the k-th of `_positive_points`, -k for its negative, 0 for zero. Sets with infinity
    have one finite point less than there are products.
    """
    if products <= 2:  # too few for a pair: zero and one
        one = 1 + _positive_points().index(Fraction(1))
        yield np.array([[0, one][:products]])
    # whether zero and infinity are in the set: 1 or 0; the other points are pairs and perhaps a single one
    for zero, infinity in ((1, 1), (1, 0), (0, 1)):
        pairs, single = divmod(products - zero - infinity, 2)
        # zero and infinity take less effort than a single number, which is only added to both of them
        if pairs < 0 or single and not (zero and infinity):
            continue
        places = range(1, len(_positive_points()) + 1)
        # every choice of pairs, as a row k1, -k1, k2, -k2, ...
        chosen_places = [*combinations(places, pairs)]
        chosen = np.array(chosen_places, int).reshape(len(chosen_places), pairs)
        paired = np.stack([chosen, -chosen], axis=2).reshape(len(chosen), 2 * pairs)
        if single:  # beside each choice, every positive point that is in none of its pairs
            singles = np.tile(places, len(chosen))[:, None]
            pair_rows = np.repeat(np.arange(len(chosen)), len(places))
            is_new = ~np.any(chosen[pair_rows] == singles, axis=1)
            paired = np.concatenate([paired[pair_rows], singles], axis=1)[is_new]
        yield np.concatenate([np.zeros((len(paired), zero), int), paired], axis=1)


def _steadiest_points(outputs: int, taps: int) -> list[PointSet]:
    """Returns the sets of points with nearly the smallest error growth."""
    numbers = [Fraction(0), *_positive_points()]
    values = np.array(numbers, float)
    groups = [*_point_sets(outputs + taps - 1)]
    # numbers of points become the points: -3 stands for minus the third positive one
    growths = [_squared_growth(outputs, taps, np.sign(g) * values[np.abs(g)]) for g in groups]
    growth, sets = np.concatenate(growths), [row for group in groups for row in group]
    order = np.argsort(growth, kind="stable")[:MAX_POINT_SETS]
    # the growth here is squared, so the ratio is, too
    chosen = [sets[place] for place in order if growth[place] <= MAX_ERROR_RATIO**2 * growth[order[0]]]
    return [tuple(numbers[abs(n)] * (1 if n > 0 else -1) for n in row.tolist()) for row in chosen]


def _squared_growth(outputs: int, taps: int, points: NDArray[Any]) -> NDArray[Any]:
    """Returns taps * `BilinearAlgorithm.error_growth`^2 for many sets of points [sets, points] at once.

    The rows are those of `interpolation_matrices` before they are scaled, which does not change the growth.
    """
    count = points.shape[1]
    errors = np.zeros((len(points), outputs))
    for place in range(count):
        point = points[:, place]
        others = np.delete(points, place, axis=1)
        size = np.sum(_monic_polynomials(others) ** 2, axis=1) * np.sum(_powers(point, taps) ** 2, axis=1)
        size /= np.prod(point[:, None] - others, axis=1) ** 2
        errors += _powers(point, outputs) ** 2 * size[:, None]
    if count < outputs + taps - 1:
        errors[:, -1] += np.sum(_monic_polynomials(points) ** 2, axis=1)
    return np.asarray(errors.max(axis=1))


def _powers(points: NDArray[Any], count: int) -> NDArray[Any]:
    """Returns the powers 0, 1, ... of each point [points, count]: products, far faster than `**`."""
    return np.vander(points, count, increasing=True)


def _monic_polynomials(roots: NDArray[Any]) -> NDArray[Any]:
    """Returns the coefficients of prod(x - root) for each set [sets, roots]."""
    coefficients = np.zeros((len(roots), roots.shape[1] + 1))
    coefficients[:, 0] = 1.0
    for degree, root in enumerate(roots.T, start=1):
        # from the right, as each column is computed from the one before it
        for place in range(degree, 0, -1):
            coefficients[:, place] -= root * coefficients[:, place - 1]
    return coefficients
