"""Compares the distributions of two random outputs, whose elements differ from run to run."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np

from tensaurus.runtimes.backends import Array

__all__ = ["distribution_difference"]

# Probability with which two outputs of one distribution are taken for different, their elements independent.
FALSE_ALARM_PROBABILITY = 1e-9
MIN_ELEMENTS = 64  # smaller outputs are not compared
# A difference must also be this many times that of two runs of the original: elements of an output may depend
# on each other, and then two runs differ by more than the bound for independent elements.
REPEAT_FACTOR = 3.0


def distribution_difference(once: Any, again: Any, other: Any) -> str:
    """Return in words how the output `other` differs from two runs of the original, "" where it does not.

    The largest distance of two empirical distribution functions is compared with the distance between both
    runs of the original and with the bound of Kolmogorov and Smirnov.  Compared are the elements, and their
    differences from another run: these show noise that is added to large numbers.
    """
    if not all(isinstance(part, np.ndarray) and part.dtype.kind in "fiub" for part in (once, again, other)):
        return ""
    if other.size < MIN_ELEMENTS or other.shape != once.shape:
        return ""
    first, second, third = (np.ravel(part).astype(np.float64) for part in (once, again, other))
    # of two samples of n independent elements P(distance > d) is about 2 exp(-n d^2), at most
    bound = sqrt(log(2 / FALSE_ALARM_PROBABILITY) / first.size)
    with np.errstate(all="ignore"):
        noise_distance = _distance(first - second, first - third)
    distance = max(_distance(second, third), noise_distance)
    if distance <= max(bound, REPEAT_FACTOR * _distance(first, second)):
        return ""
    means = f"a mean of {np.mean(third):.3g} where the original has {np.mean(second):.3g}"
    ends = f"from {third.min():.3g} to {third.max():.3g}, not {second.min():.3g} to {second.max():.3g}"
    return f"is distributed otherwise: {means}, elements {ends}"


def _distance(one: Array, other: Array) -> float:
    """Return the largest distance of two empirical distribution functions."""
    points = np.sort(np.concatenate([one, other]))
    first, second = (np.searchsorted(np.sort(a), points, side="right") / a.size for a in (one, other))
    return float(np.max(np.abs(first - second)))
