"""Draw integers at which a wrong equality of two expressions is likely to break.

Such integers are small, or at the ends of their type, or around the constants of the expressions (`near`), or
anywhere between those.  `check/program` and `rules/test` give them to integer inputs of the programs that
they compare: x < 71 and x <= 71 differ at 71 alone, the constant of both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.ir.integer_types import integer_limits

__all__ = ["draw_integers", "draw_integers_near"]

SMALL_MAGNITUDE = 40  # largest magnitude of a number of the kind "small"
NEIGHBOUR_DISTANCE = 2  # numbers "around" n are those from n - 2 to n + 2


def draw_integers(
    dtype: str, shape: Sequence[int], rng: np.random.Generator, near: Collection[int] = ()
) -> Array:
    """Return a tensor of integers of a type, or of bools; half of the tensors mix several of these kinds.

    small    up to SMALL_MAGNITUDE, of both signs
    ends     around the ends of the type and the middle of its positive numbers
    near     around the numbers in `near`
    between  from the whole type, log-uniform, or uniform between two neighbours in `near`
    filled   one number, of any of these kinds, everywhere
    """
    shape = tuple(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if rng.random() < 0.15:
        return np.full(shape, draw_integers(dtype, (1,), rng, near)[0])
    low, high = integer_limits(dtype)
    given = sorted({n for n in near if low <= n <= high})
    # One tensor for each kind that is mixed: small numbers and, by `chance`, ends (up to 0.3), ends and near
    # (to 0.5), all three other kinds (to 0.7), or near and between.
    draws = [_small(low, high, shape, rng)]
    if (chance := rng.random()) < 0.7:
        draws.append(_draw_from([low, low + 1, high - 1, high, high // 2, high // 2 + 1], dtype, shape, rng))
    if given and chance > 0.3:
        draws.append(_draw_from(_neighbours(given, low, high), dtype, shape, rng))
    if chance > 0.5:
        draws.append(_between(sorted({low, 0, *given, high}), dtype, shape, rng))
    if rng.random() < 0.5:  # one kind alone
        draws = [draws[int(rng.integers(len(draws)))]]
    return np.asarray(np.choose(rng.integers(0, len(draws), shape), [k.astype(dtype) for k in draws]), dtype)


def draw_integers_near(
    dtype: str, shape: Sequence[int], rng: np.random.Generator, near: Collection[int]
) -> Array:
    """Return a tensor of integers around those in `near`, as many different ones as fit.

    Where the type has no such integers, any of its integers are returned.
    """
    low, high = integer_limits(dtype)
    neighbours = _neighbours(near, low, high)
    if not neighbours:
        return draw_integers(dtype, shape, rng)
    positions = np.arange(int(np.prod(shape, dtype=np.int64)))
    return rng.permutation(np.array(neighbours, dtype))[positions % len(neighbours)].reshape(tuple(shape))


def _neighbours(numbers: Collection[int], low: int, high: int) -> list[int]:
    """Return the numbers "around" these within the limits."""
    around = {n + step for n in numbers for step in range(-NEIGHBOUR_DISTANCE, NEIGHBOUR_DISTANCE + 1)}
    return sorted(n for n in around if low <= n <= high)


def _small(low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.integers(max(low, -SMALL_MAGNITUDE), min(high, SMALL_MAGNITUDE) + 1, shape)


def _draw_from(numbers: Sequence[int], dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(rng.choice(np.array(numbers, dtype), shape))


def _between(ends: Sequence[int], dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw from the whole range of the sorted `ends`: uniformly between two neighbours, or log-uniformly."""
    low, high = ends[0], ends[-1]  # the limits of the type: `low` is 0 for unsigned types
    wide = np.uint64 if low >= 0 else np.int64
    if rng.random() < 0.5:
        intervals = rng.integers(0, len(ends) - 1, shape)
        below, above = (np.array(part, wide)[intervals] for part in (ends[:-1], ends[1:]))
        return np.asarray(rng.integers(below, above, dtype=wide, endpoint=True)).reshape(shape)
    magnitudes = np.exp2(rng.uniform(0, np.log2(float(high)), shape)).astype(wide)
    magnitudes = np.minimum(magnitudes, wide(high))
    return np.asarray(magnitudes if low >= 0 else np.where(rng.random(shape) < 0.5, -magnitudes, magnitudes))
