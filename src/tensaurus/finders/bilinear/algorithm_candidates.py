"""Which algorithms could make a convolution faster, by arithmetic, traffic and the growth of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod

import numpy as np

from tensaurus.finders.bilinear.bilinear_algorithm import Matrix
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.interpolation_points import best, is_short
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["candidates", "growth", "seconds"]

LARGEST = 6  # outputs of a tile along a dimension
FEWER = 0.9  # of the time of the direct sum: what a candidate may be expected to take
STEADIER = 0.7  # of the growth of errors of the candidate before: what the next one may have
COUNT = 2
TILE = 1024  # products of a tile at most: a kernel has code for each
SLOW = 3  # a multiply-add of a transform takes as long as so many of the product


def candidates(
    of: Convolution, roofline: Roofline, allowed: Callable[[Algorithms], bool] = lambda algorithms: True
) -> tuple[Algorithms, ...]:
    """What should be fastest, and after each the fastest of those whose errors grow less."""
    limit = FEWER * seconds(of, (None,) * len(of.windows), roofline)
    timed = [(seconds(of, algorithms, roofline), algorithms) for algorithms in _all(of)]
    found: list[Algorithms] = []
    for _, algorithms in sorted((pair for pair in timed if pair[0] < limit), key=lambda pair: pair[0]):
        if found and growth(algorithms) > STEADIER * growth(found[-1]):
            continue
        if allowed(algorithms):
            found.append(algorithms)
        if len(found) == COUNT:
            break
    return tuple(found)


def growth(algorithms: Algorithms) -> float:
    """The error of an output beside that of a sum of as many products (`Algorithm.growth`)."""
    return prod(a.growth for a in algorithms if a)


def seconds(of: Convolution, algorithms: Algorithms, roofline: Roofline) -> float:
    """At the machine's peaks, with these algorithms."""
    lines = of.tilings(algorithms)
    along = [line for line in lines if line.fast]
    used = [a for a in algorithms if a]
    taps = prod(line.window.taps for line in lines if not line.fast)
    products = prod(line.products for line in along)
    places = of.batch * prod(line.places for line in lines)
    weights = products * of.filters * of.channels // of.groups * taps
    data = of.batch * of.channels * prod(line.tiles for line in lines) * _transform([a.data for a in used])
    output = places * of.filters * _transform([a.output for a in used])
    moved = prod(of.x.shape) + weights + of.batch * of.filters * prod(w.outputs for w in of.windows)
    work = places * weights + SLOW * (data + output)
    # weights come from memory before each block's products: little of one hides behind the other (measured)
    return roofline.seconds(2 * work, 0) + roofline.seconds(0, np.dtype(of.dtype).itemsize * moved)


def _transform(matrices: list[Matrix]) -> int:
    """Multiply-adds for one tile of one channel: one dimension after the other."""
    work = 0
    for place, matrix in enumerate(matrices):
        done = prod(len(rows) for rows in matrices[:place])
        left = prod(len(rows[0]) for rows in matrices[place + 1 :])
        work += done * left * sum(number != 0 for row in matrix for number in row)
    return work


def _all(of: Convolution) -> Iterator[Algorithms]:
    """Every choice of tiles, the direct sum excepted."""
    choices = []
    for window in of.windows:
        most = min(LARGEST, window.outputs) if window.reach > 1 else 0
        kinds = ((size, window.taps, window.step) for size in range(2, most + 1))
        choices.append((None, *(best(*kind) for kind in kinds if is_short(*kind))))
    for chosen in product(*choices):
        if any(chosen) and prod(a.products for a in chosen if a) <= TILE:
            yield chosen
