"""Which points a short convolution is best interpolated at: searched, by predicted error and effort.

Zero and infinity have short rows, and a number and its negative share their even and odd parts: so points are
pairs beside both, or beside one of them; or beside both and a single number.
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
    Algorithm,
    cook_toom,
    effort,
    growth,
    interleaved,
    interpolation,
)

__all__ = ["best", "is_short"]

DENOMINATORS = (1, 2, 3, 4, 5, 8)
LARGEST = 3
TOLERATED = 1.1  # predicted error beside the least, for less effort
KEPT = 16  # sets of points that are multiplied out, at most
MOST = 8  # products: beyond them errors grow too far for any use
WHOLE = 48  # products of all phases of one in steps: its transforms are tables of as many rows, written out

Points = tuple[Fraction, ...]


@lru_cache(100)
def best(outputs: int, taps: int, step: int = 1) -> Algorithm:
    """The algorithm that takes least effort among those whose error grows little more than it must; one in
    steps is made of such.

    Raises ValueError for one that is not short (`is_short`).
    """
    if not is_short(outputs, taps, step):
        steps = f" in steps of {step}" if step > 1 else ""
        raise ValueError(f"F({outputs}, {taps}){steps} takes more than {MOST} products, or {WHOLE} in all")
    if step > 1:
        return interleaved([best(outputs, len(range(p, taps, step))) for p in range(min(step, taps))], step)
    if taps == 1:
        return cook_toom(outputs, 1, ())

    def rank(points: Points) -> tuple[int, float, Points]:
        output, weights, data = interpolation(outputs, taps, points)
        return effort(*data, *output), growth(output, weights, data), points

    return cook_toom(outputs, taps, min(_steadiest(outputs, taps), key=rank))


def is_short(outputs: int, taps: int, step: int = 1) -> bool:
    """Return whether F(outputs, taps) in this step has at most MOST products a phase, WHOLE in all.

    Only sizes are asked, as making a long algorithm takes minutes: F(3, 256) in steps of 128 is not short.
    """
    return outputs + ceil(taps / step) - 1 <= MOST and min(step, taps) * (outputs - 1) + taps <= WHOLE


@lru_cache(1)
def _numbers() -> list[Fraction]:
    return sorted({Fraction(n, d) for d in DENOMINATORS for n in range(1, LARGEST * d + 1)})


def _sets(products: int) -> Iterator[NDArray[Any]]:
    """Sets of finite points [sets, points], those of one length together: places in `_numbers` from 1 on,
    negative where the number is; 0 is zero.
    """
    if products <= 2:
        one = 1 + _numbers().index(Fraction(1))
        yield np.array([[0, one][:products]])
    for zero, infinity in ((1, 1), (1, 0), (0, 1)):
        pairs, single = divmod(products - zero - infinity, 2)
        if pairs < 0 or single and not (zero and infinity):
            continue
        places = range(1, len(_numbers()) + 1)
        some = [*combinations(places, pairs)]
        chosen = np.array(some, int).reshape(len(some), pairs)
        paired = np.stack([chosen, -chosen], axis=2).reshape(len(chosen), 2 * pairs)
        if single:
            more = np.tile(places, len(chosen))[:, None]
            several = np.repeat(np.arange(len(chosen)), len(places))
            fresh = ~np.any(chosen[several] == more, axis=1)
            paired = np.concatenate([paired[several], more], axis=1)[fresh]
        yield np.concatenate([np.zeros((len(paired), zero), int), paired], axis=1)


def _steadiest(outputs: int, taps: int) -> list[Points]:
    """Those whose error grows little more than it must."""
    known = [Fraction(0), *_numbers()]
    values = np.array(known, float)
    groups = [*_sets(outputs + taps - 1)]
    growths = [_growth(outputs, taps, np.sign(g) * values[np.abs(g)]) for g in groups]
    growth, sets = np.concatenate(growths), [row for group in groups for row in group]
    order = np.argsort(growth, kind="stable")[:KEPT]
    # `_growth` is a square
    kept = [sets[place] for place in order if growth[place] <= TOLERATED**2 * growth[order[0]]]
    return [tuple(known[abs(n)] * (1 if n > 0 else -1) for n in row.tolist()) for row in kept]


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
