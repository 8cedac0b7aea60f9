"""Which points a short convolution is best interpolated at: searched, by predicted error and effort.

Zero and infinity have short rows, and a number and its negative share their even and odd parts: so points are
pairs beside both, or beside one of them; or beside both and a single number.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensaurus.bilinear.algorithm import Algorithm, cook_toom

__all__ = ["best"]

DENOMINATORS = (1, 2, 3, 4, 5, 8)
LARGEST = 3
TOLERATED = 1.1  # predicted error beside the least, for less effort
KEPT = 16  # sets of points that are multiplied out, at most
MOST = 8  # products: beyond them errors grow too far for any use

Points = tuple[Fraction, ...]


@lru_cache(100)
def best(outputs: int, taps: int) -> Algorithm:
    """The algorithm that takes least effort among those whose error grows little more than it must.

    Raises ValueError for more than `MOST` products.
    """
    products = outputs + taps - 1
    if products > MOST:
        raise ValueError(f"F({outputs}, {taps}) takes {products} products, more than {MOST}")
    found = (cook_toom(outputs, taps, points) for points in _steadiest(outputs, taps))
    return min(found, key=lambda algorithm: (algorithm.effort, algorithm.growth, algorithm.points))


@lru_cache(1)
def _numbers() -> list[Fraction]:
    return sorted({Fraction(n, d) for d in DENOMINATORS for n in range(1, LARGEST * d + 1)})


def _sets(products: int) -> Iterator[list[Points]]:
    """Sets of finite points, those of one length together."""
    if products <= 2:
        yield [(Fraction(0), Fraction(1))[:products]]
    for zero, infinity in ((1, 1), (1, 0), (0, 1)):
        pairs, single = divmod(products - zero - infinity, 2)
        if pairs < 0 or single and not (zero and infinity):
            continue
        base = (Fraction(0),) * zero
        found = []
        for chosen in combinations(_numbers(), pairs):
            points = base + tuple(p for number in chosen for p in (number, -number))
            if single:
                found += [(*points, n) for n in _numbers() if n not in chosen]
            else:
                found.append(points)
        yield found


def _steadiest(outputs: int, taps: int) -> list[Points]:
    """Those whose error grows little more than it must."""
    groups = [*_sets(outputs + taps - 1)]
    sets = [points for alike in groups for points in alike]
    growths = (_growth(outputs, taps, np.array(s, float).reshape(len(s), -1)) for s in groups)
    growth = np.concatenate([*growths])
    order = np.argsort(growth, kind="stable")[:KEPT]
    # `_growth` is a square
    return [sets[place] for place in order if growth[place] <= TOLERATED**2 * growth[order[0]]]


def _growth(outputs: int, taps: int, points: NDArray[Any]) -> NDArray[Any]:
    """The square of `Algorithm.growth` times the taps, of many sets of points [sets, points] at once."""
    count = points.shape[1]
    errors = np.zeros((len(points), outputs))
    for place in range(count):
        point = points[:, place : place + 1]
        others = np.delete(points, place, axis=1)
        weights = point ** np.arange(taps) / np.prod(point - others, axis=1, keepdims=True)
        size = np.sum(weights**2, axis=1) * np.sum(_monic(others) ** 2, axis=1)
        errors += (point ** np.arange(outputs)) ** 2 * size[:, None]
    if count < outputs + taps - 1:
        errors[:, -1] += np.sum(_monic(points) ** 2, axis=1)
    return np.asarray(errors.max(axis=1))


def _monic(roots: NDArray[Any]) -> NDArray[Any]:
    """The coefficients of prod(x - root) of each set [sets, roots]."""
    found = np.ones((len(roots), 1))
    for root in roots.T:
        found = np.pad(found, ((0, 0), (1, 0))) - root[:, None] * np.pad(found, ((0, 0), (0, 1)))
    return found
