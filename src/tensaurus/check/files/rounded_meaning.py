"""Finds the outputs that rely on float32 rounding: there the results do not approximate real numbers.

    (x + 12582912) - 12582912       over the reals x, in float32 x rounded to an integer
    x - (x / 3) * 3                 over the reals 0, in float32 what the quotient lost

Two computations show it: the run of the model without the runtime's graph optimizations (unfused), and the
reference with every operator's result rounded to its type.  Where both have the same result, far from the
exact one, rounding has led both to this result, and users of the model see it.  A candidate is compared with
this result if

- changing every weight of the original by one rounding (a perturbed copy) changes the result far less than
  its distance from the exact one: so the distance cannot come from inaccurate kernels or weights;
- or its error is so large beside the output's largest element that no digit of the exact result is left: then
  nothing else can be compared with.  On plausible inputs an infinite result counts, too.

Integers computed from rounded numbers (a quantizer's) are compared with the original's own where perturbed
copies, the unfused run and the rounded reference all have the same integers.

Sums of many terms that cancel (a variance as the mean of squares less the square of the mean) are not
compared this way: every order of adding gives another result, so the two computations do not agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensaurus.check.files.judge import ALLOWED_SPREADS, OriginalOutput
from tensaurus.check.files.typical_errors import typical_errors
from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS
from tensaurus.runtimes.backends import Array

__all__ = ["far_from_exact", "adopt_unfused_results"]

MIN_ERROR_ROUNDINGS = 2.0**10  # in roundings of the output's largest element: smaller errors are inaccuracies
AGREEMENT_SHARE = 1 / 16  # share of the distance from the exact result by which both computations may differ
NO_DIGIT_SHARE = 1 / 8  # share of the output's largest element: a larger error leaves no digit


def far_from_exact(original: OriginalOutput, result: Any, digits: int, plausible: bool) -> Array:
    """Return where a result of the original is so far from the exact one that rounding may be its meaning.

    `digits` are the binary digits of the narrowest type that the original computes in.  Infinities count on
    plausible inputs only.  Of integers, every element that differs is returned.
    """
    if not original.has_floats:
        return _differing_integers(original, result)
    known = FLOAT_FORMATS.get(original.own.dtype.name)
    if known is None or np.shape(result) != original.error.shape:
        return np.zeros((), bool)
    own_digits, _, least = known
    floor = (
        MIN_ERROR_ROUNDINGS * 2.0 ** -min(digits, own_digits) * max(original.largest, original.scale)
        + 2.0**least
    )
    far = np.isfinite(original.reference) & (_distance(result, original.reference) > floor)
    return np.asarray(far if plausible else far & np.isfinite(result))


def _differing_integers(original: OriginalOutput, result: Any) -> Array:
    """Return where integers differ from the reference's; nowhere if the result is no array of integers."""
    if not original.accepted or np.shape(result) != np.shape(original.reference):
        return np.zeros((), bool)
    return np.asarray(result != original.reference)


def adopt_unfused_results(
    original: OriginalOutput, unfused: Any, rounded: Any, digits: int, plausible: bool
) -> float:
    """Make the unfused run's results the reference of `original` wherever rounding is their meaning.

    `original.own` is the usual run, `unfused` the run without graph optimizations, `rounded` the reference
    with every operator's result rounded; for `digits` see `far_from_exact`.
    Returns how far off the exact result is, relative to the output's largest element; 0: nothing was adopted.
    """
    is_far = far_from_exact(original, unfused, digits, plausible)
    if not is_far.any() or np.shape(rounded) != is_far.shape:
        return 0.0
    if not original.has_floats:
        return _adopt_own_integers(original, unfused, rounded, is_far)
    # where one of the two reasons in the module's text holds (the first is `is_stable`) and both computations
    # agree
    distance = _distance(unfused, original.reference)
    size = np.abs(np.where(np.isfinite(original.reference), original.reference, 0.0))
    scale = max(original.largest, original.scale)
    spread = np.maximum(original.spread, typical_errors(size, original.spread))
    is_stable = distance > ALLOWED_SPREADS * spread
    qualifies = np.isfinite(original.reference) & (is_stable | (distance >= NO_DIGIT_SHARE * scale))
    largest_difference = np.where(np.isfinite(distance), AGREEMENT_SHARE * distance, 0.0)
    agreed = qualifies & (_distance(unfused, rounded) <= largest_difference)
    if not (is_far & agreed).any():
        return 0.0
    # once one element is far off, every agreeing element adopts the run's result, also those below
    # MIN_ERROR_ROUNDINGS: their neighbours were rounded in the same way
    largest = float(np.max(distance, where=agreed & np.isfinite(distance), initial=0.0))
    # the original's error from now on: its distance from the new reference, and how far copies move it
    own = np.maximum(_distance(unfused, original.own), np.where(is_stable, original.spread, 0.0))
    original.reference = np.where(agreed, np.asarray(unfused, np.float64), original.reference)
    original.error = np.where(agreed, own, original.error)
    return largest / max(scale, largest) if largest else 1.0  # 1: only infinite results were adopted


def _adopt_own_integers(original: OriginalOutput, unfused: Any, rounded: Any, is_far: Array) -> float:
    """Make the original's own integers the reference where they are far off and all computations agree."""
    agreed = is_far
    for sample in (unfused, rounded, *original.accepted[1:]):
        agreed = agreed & np.asarray(sample == original.own)
    distance = _distance(original.own, original.reference)
    original.reference = np.where(agreed, original.own, original.reference)
    original.accepted[0] = original.reference
    largest = np.max(np.abs(original.own.astype(np.float64)), initial=1.0)
    return float(np.max(distance, where=agreed, initial=0.0) / largest)


def _distance(a: Any, b: Any) -> Array:
    """Return the distance by element; infinite where one is infinite or NaN and the other differs from it."""
    with np.errstate(all="ignore"):
        distance = np.abs(np.asarray(a, np.float64) - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
