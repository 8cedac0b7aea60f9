"""Are the elements of two random outputs distributed alike?"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np

from tensaurus.runtimes.backends import Array

__all__ = ["difference"]

ODDS = 1e-9  # of a difference among outputs of one distribution, whose elements are independent
FEWEST = 64  # elements, below which nothing is said
TIMES = 3.0  # by how much two runs of the original may differ less: elements may depend on each other


def difference(once: Any, again: Any, other: Any) -> str:
    """Return how a random output differs from two runs of the original, "" where it does not.

    The largest distance of the distribution functions of all elements, and of their distances from another
    run, is compared with that of both runs and with the bound of Kolmogorov and Smirnov.
    """
    if not all(isinstance(part, np.ndarray) and part.dtype.kind in "fiub" for part in (once, again, other)):
        return ""
    if other.size < FEWEST or other.shape != once.shape:
        return ""
    first, second, third = (np.ravel(part).astype(np.float64) for part in (once, again, other))
    bound = sqrt(log(2 / ODDS) / first.size)
    with np.errstate(all="ignore"):
        apart = _distance(first - second, first - third)  # noise that is added to what is large
    if max(_distance(second, third), apart) <= max(bound, TIMES * _distance(first, second)):
        return ""
    means = f"a mean of {np.mean(third):.3g} where the original has {np.mean(second):.3g}"
    ends = f"from {third.min():.3g} to {third.max():.3g}, not {second.min():.3g} to {second.max():.3g}"
    return f"is distributed otherwise: {means}, elements {ends}"


def _distance(one: Array, other: Array) -> float:
    """Return the largest distance of two empirical distribution functions."""
    places = np.sort(np.concatenate([one, other]))
    first, second = (np.searchsorted(np.sort(a), places, side="right") / a.size for a in (one, other))
    return float(np.max(np.abs(first - second)))
