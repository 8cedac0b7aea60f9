"""Finds errors of the original that rounding does not explain, and decides whether the runtime is wrong.

The original's own error is *implausible* where it exceeds

    K * max(spread, typical) + sqrt(u) * scale + tiny

K, u, tiny  as in `judge`, and `typical` of `spread`
spread      the largest distance of a perturbed copy's result from the original's own, and of the reference
            from itself where the result of every operator is rounded to its type
scale       the largest element of the output, on these inputs or on plausible ones: kernels know a function's
            values (0 to 1 of a sigmoid), not its tails

Rounding that moves a result so far from the exact one moves those of perturbed copies as well, and kernels
that approximate a function (exp, erf) keep half of the digits of their type.  Beyond that the model is run
without graph optimizations, unfused.  If the unfused result is plausible, the runtime computes the original
wrong.  If it is not, and the error exceeds u^(1/4) (three quarters of the digits, more than any order of
summation loses), either the runtime or the reference is wrong, and nobody can tell which.

`settle_disagreement` calls these functions, which change an `OriginalOutput` of `judge`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensaurus.check.files.judge import ALLOWED_SPREADS, OriginalOutput
from tensaurus.check.files.output_values import (
    describe_value,
    elementwise_max,
    finite_distance,
    float_limits,
    shape_of,
)
from tensaurus.check.files.typical_errors import typical_errors
from tensaurus.runtimes.backends import Array

__all__ = ["Disagreement", "compare_with_unfused", "find_implausible"]


class Disagreement(NamedTuple):
    """The largest implausible errors, relative to the output's largest element (of integers: their share).

    runtime_wrong  at elements that the runtime computes wrong
    undecided      at elements where the runtime or the reference is wrong
    """

    runtime_wrong: float
    undecided: float


def find_implausible(output: OriginalOutput) -> Array:
    """Return where the original's own result is further from the reference than rounding explains."""
    return _find_implausible(output, output.own)


def compare_with_unfused(output: OriginalOutput, unfused: Any) -> Disagreement:
    """Settle the implausible elements of the original with an unfused run's result (None: there is none).

    runtime_wrong  the unfused result is plausible: the runtime computes the original wrong there.  If there
                   are such elements, the unfused result replaces `own` wherever it is not undecided (of
                   integers: the reference replaces it at these elements alone)
    undecided      not so, and more than three quarters of the digits are lost: nobody can tell whether the
                   runtime or the reference is wrong, and the runtime's result becomes the reference

    All other elements keep their reference.
    """
    if describe_value(unfused) != describe_value(output.own):
        unfused = output.own  # the runtime is found wrong nowhere
    if output.has_floats:
        agrees = np.isfinite(unfused) == np.isfinite(output.reference)
    else:
        agrees = unfused == output.reference
    is_plausible = ~_find_implausible(output, unfused) & np.asarray(agrees)
    runtime_wrong = find_implausible(output) & is_plausible
    undecided = _find_implausible(output, output.own, root=4.0) & ~runtime_wrong
    errors = Disagreement(_relative_error(output, runtime_wrong), _relative_error(output, undecided))
    settle = _settle_floats if output.has_floats else _settle_integers
    settle(output, unfused, runtime_wrong, undecided)
    return errors


def _settle_floats(output: OriginalOutput, unfused: Array, runtime_wrong: Array, undecided: Array) -> None:
    if undecided.any():  # errors there may be as large as the distance between both runs
        output.reference = np.where(undecided, output.own.astype(np.float64), output.reference)
        wider = elementwise_max(output.spread, finite_distance(unfused, output.own))
        output.error = np.where(undecided, wider, output.error)
    if runtime_wrong.any():  # allow the unfused run's errors, and note where the usual run exceeds them
        usual, output.own = output.own, np.where(undecided, output.own, unfused)
        right = elementwise_max(output.spread, finite_distance(output.own, output.reference))
        output.error = np.where(undecided, output.error, right)
        with np.errstate(all="ignore"):
            exceeds = finite_distance(usual, output.reference) > output.allowed_error()
        output.miscomputed = runtime_wrong | exceeds


def _settle_integers(output: OriginalOutput, unfused: Array, runtime_wrong: Array, undecided: Array) -> None:
    if undecided.any():
        output.reference = np.where(undecided, output.own, output.reference)
    usual, copies = output.own, output.accepted[1:]
    output.own = np.where(runtime_wrong, output.reference, usual)
    # the runtime computes perturbed copies wrong there, too
    copies = [np.where(runtime_wrong & (copy == usual), output.own, copy) for copy in copies]
    output.accepted = [output.reference, *copies]
    output.miscomputed = runtime_wrong if runtime_wrong.any() else None


def _find_implausible(output: OriginalOutput, result: Any, root: float = 2.0) -> Array:
    """Return where a result is implausible: the module's formula with u ** (1 / root) for sqrt(u)."""
    if not output.has_floats:
        return _find_implausible_integers(output, result)
    limits = float_limits(output.own.dtype)
    finite = np.isfinite(output.reference)
    size = np.abs(np.where(finite, output.reference, 0.0))
    share = (float(limits.eps) / 2) ** (1 / root)  # u ** (1 / root)
    floor = share * max(output.largest, output.scale) + float(limits.tiny)
    spread = np.maximum(output.spread, typical_errors(size, output.spread))
    is_far = finite_distance(result, output.reference) > ALLOWED_SPREADS * spread + floor
    # the exact value is infinite or NaN, the result is a number, and no perturbed copy strays from it
    with np.errstate(all="ignore"):
        is_stable = output.spread <= share * np.abs(result.astype(np.float64))
    may_overflow = output.unsteady | (size > 0.99 * float(limits.max))
    return np.asarray(np.isfinite(result) & ~may_overflow & np.where(finite, is_far, is_stable))


def _find_implausible_integers(output: OriginalOutput, result: Any) -> Array:
    """Return where integers or bools differ from the reference, and those of perturbed copies do as well."""
    if not output.accepted or shape_of(result) != shape_of(output.own):  # strings and sequences
        return np.zeros((), bool)
    differs = np.asarray(result != output.reference)
    for copy in output.accepted[1:]:  # where a perturbed copy has another integer, rounding decides
        differs &= copy == output.own
    return differs


def _relative_error(output: OriginalOutput, mask: Array) -> float:
    """Return how far the own result is off at these elements: of integers, the share of such elements."""
    if not mask.any():
        return 0.0
    if not output.has_floats:
        return float(np.mean(mask))
    distance = np.max(finite_distance(output.own, output.reference), where=mask, initial=0.0)
    return float(distance / max(output.largest, output.scale, float(float_limits(output.own.dtype).tiny)))
