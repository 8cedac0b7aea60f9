"""Where rounding is what a model means: its float32 results are no approximation of a real number.

    (x + 12582912) - 12582912       over the reals x, in float32 x rounded to an integer
    x - (x / 3) * 3                 over the reals 0, in float32 what the quotient lost

Two computations tell: the runtime on the model as it is written, and the reference with every operator's
result rounded to its type.  Where both have one result, which is far from the exact one, rounding has led
both to it, and that is what users of the model see.  It is what a candidate is compared with, if

- copies of the original one rounding away have it, too: no inaccuracy of kernels or of weights is that large;
- or no digit of it is right, beside the output's largest element: then there is nothing else to compare with.
  It may be infinite, too, on plausible inputs.

Integers that are made of what is rounded (a quantizer's) are compared with the original's own where copies
one rounding away, the runtime on the model as it is written and the rounded reference all have them.

Sums of many terms that cancel (a variance as the mean of squares less the square of the mean) are neither:
every order of adding makes something else of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensaurus.check.files.judge import K, Original, typical
from tensaurus.expr.ir.float_conversions import FORMATS
from tensaurus.runtimes.backends import Array

__all__ = ["astray", "take_own"]

FAR = 2.0**10  # roundings of the output's largest element that an error has at least: 2^-14 of it in float32
SAME = 1 / 16  # of the distance from the exact result that both computations may be apart
NOTHING = 1 / 8  # of the largest element: an error as large leaves no digit


def astray(original: Original, result: Any, digits: int, plausible: bool) -> Array:
    """Where a result of the original is so far from the exact one that rounding might be its meaning.

    `digits` are those of the narrowest type that the original computes in, binary ones.  Infinities count on
    plausible inputs alone.
    """
    if original.error is None:
        return _differing_integers(original, result)
    known = FORMATS.get(original.own.dtype.name)
    if known is None or np.shape(result) != original.error.shape:
        return np.zeros((), bool)
    own_digits, _, least = known
    floor = FAR * 2.0 ** -min(digits, own_digits) * max(original.largest, original.scale) + 2.0**least
    far = np.isfinite(original.reference) & (_distance(result, original.reference) > floor)
    return np.asarray(far if plausible else far & np.isfinite(result))


def _differing_integers(original: Original, result: Any) -> Array:
    """Where a result of integers is not what the reference has; nowhere where it is no array of integers."""
    if not original.seen or np.shape(result) != np.shape(original.reference):
        return np.zeros((), bool)
    return np.asarray(result != original.reference)


def take_own(original: Original, witness: Any, rounded: Any, digits: int, plausible: bool) -> float:
    """Compare with the runtime's results on the model as it is written wherever they are its meaning.

    `rounded` is what the reference has where every result is rounded; for `digits` see `astray`.  Returns how
    far off the exact result is, relative to the output's largest element; 0 where there is no such place.
    """
    places = astray(original, witness, digits, plausible)
    if not places.any() or np.shape(rounded) != places.shape:
        return 0.0
    if original.error is None:
        return _take_own_integers(original, witness, rounded, places)
    distance = _distance(witness, original.reference)
    size = np.abs(np.where(np.isfinite(original.reference), original.reference, 0.0))
    scale = max(original.largest, original.scale)
    calm = distance > K * np.maximum(original.spread, typical(size, original.spread))
    agreed = np.isfinite(original.reference) & (calm | (distance >= NOTHING * scale))
    agreed &= _distance(witness, rounded) <= np.where(np.isfinite(distance), SAME * distance, 0.0)
    if not (places & agreed).any():
        return 0.0
    places = agreed  # what is nearer to the exact result, too: its error is no measure of the others'
    far = float(np.max(distance, where=places & np.isfinite(distance), initial=0.0))
    own = np.maximum(_distance(witness, original.own), np.where(calm, original.spread, 0.0))
    original.reference = np.where(places, np.asarray(witness, np.float64), original.reference)
    original.error = np.where(places, own, original.error)
    return far / max(scale, far) if far else 1.0


def _take_own_integers(original: Original, witness: Any, rounded: Any, places: Array) -> float:
    """Compare with the original's own integers at those of the places where all computations have them."""
    for sample in (witness, rounded, *original.seen[1:]):
        places = places & np.asarray(sample == original.own)
    distance = _distance(original.own, original.reference)
    original.reference = np.where(places, original.own, original.reference)
    original.seen[0] = original.reference
    largest = np.max(np.abs(original.own.astype(np.float64)), initial=1.0)
    return float(np.max(distance, where=places, initial=0.0) / largest)


def _distance(a: Any, b: Any) -> Array:
    """By element; infinite where one of them is no number, and the other another."""
    with np.errstate(all="ignore"):
        found = np.abs(np.asarray(a, np.float64) - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(found), np.inf, found))
