"""Numbers drawn where laws may break: small ones, the ends of a type, around given numbers, and between."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array
from tensaurus.expr.ir.integer_types import integer_limits

__all__ = ["drawn_integers", "integers_near"]

SMALL = 40
BESIDE = 2  # how far from a number those are that are drawn around it


def drawn_integers(
    dtype: str, shape: Sequence[int], rng: np.random.Generator, near: Collection[int] = ()
) -> Array:
    """Integers of a type (or truths), most tensors of one kind, some of several.

    small    up to SMALL, of both signs
    ends     around the ends of the type and the middle of what is above zero
    near     around the numbers given
    between  from all of the type: as likely of each order of magnitude, or between two numbers given
    filled   one number, of any of these kinds, everywhere
    """
    shape = tuple(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if rng.random() < 0.15:
        return np.full(shape, drawn_integers(dtype, (1,), rng, near)[0])
    low, high = integer_limits(dtype)
    inside = sorted({n for n in near if low <= n <= high})
    kinds = [_small(low, high, shape, rng)]
    if (draw := rng.random()) < 0.7:
        kinds.append(_picked([low, low + 1, high - 1, high, high // 2, high // 2 + 1], dtype, shape, rng))
    if inside and draw > 0.3:
        around = {n + step for n in inside for step in range(-BESIDE, BESIDE + 1)}
        kinds.append(_picked(sorted(n for n in around if low <= n <= high), dtype, shape, rng))
    if draw > 0.5:
        kinds.append(_between(sorted({low, 0, *inside, high}), dtype, shape, rng))
    if rng.random() < 0.5:
        kinds = [kinds[int(rng.integers(len(kinds)))]]
    return np.asarray(np.choose(rng.integers(0, len(kinds), shape), [k.astype(dtype) for k in kinds]), dtype)


def integers_near(dtype: str, shape: Sequence[int], rng: np.random.Generator, near: Collection[int]) -> Array:
    """Integers of a type around those given alone, as many different ones as there is room for; any of the
    type where none given is one of them."""
    low, high = integer_limits(dtype)
    every = {n + step for n in near for step in range(-BESIDE, BESIDE + 1)}
    around = sorted(n for n in every if low <= n <= high)
    if not around:
        return drawn_integers(dtype, shape, rng)
    places = np.arange(int(np.prod(shape, dtype=np.int64)))
    return rng.permutation(np.array(around, dtype))[places % len(around)].reshape(tuple(shape))


def _small(low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.integers(max(low, -SMALL), min(high, SMALL) + 1, shape)


def _picked(numbers: Sequence[int], dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(rng.choice(np.array(numbers, dtype), shape))


def _between(ends: Sequence[int], dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """From the whole range of the ends."""
    low, high = ends[0], ends[-1]
    wide = np.uint64 if low >= 0 else np.int64
    if rng.random() < 0.5:
        place = rng.integers(0, len(ends) - 1, shape)
        below, above = (np.array(part, wide)[place] for part in (ends[:-1], ends[1:]))
        return np.asarray(rng.integers(below, above, dtype=wide, endpoint=True)).reshape(shape)
    sizes = np.exp2(rng.uniform(0, np.log2(float(high)), shape)).astype(wide)
    sizes = np.minimum(sizes, wide(high))
    return np.asarray(sizes if low >= 0 else np.where(rng.random(shape) < 0.5, -sizes, sizes))
