"""Judges one output of a candidate: its error beside those of the original and of its perturbed copies.

    |b - ref|  <=  K * max(error, typical) + C * u * |ref| + tiny          for every element

b        the candidate's element; ref is the element that it must agree with (`OriginalOutput.reference`)
error    the largest error at this element of the original and of its perturbed copies (one rounding away)
typical  the 0.9-quantile of `error` over the elements of like magnitude (within a factor of two, where there
         are 64 such; else over as many powers of two as hold 64, but eight at most)
u        half the spacing of the output's type at 1; tiny is its smallest normal number
K, C     ALLOWED_SPREADS and ALLOWED_ROUNDINGS

`Baseline` makes an `OriginalOutput` for each output and input, and `CandidateTrial` calls its `judge`.
Nothing is averaged over the tensor: a wrong pixel is judged by the original's errors at that pixel and at
others of its magnitude, however large errors are elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensaurus.check.files.output_values import (
    elementwise_max,
    finite_distance,
    first_place,
    float_limits,
    is_float_array,
    shape_of,
)
from tensaurus.check.files.typical_errors import typical_errors
from tensaurus.check.inputs.feed import Feed
from tensaurus.runtimes.backends import Array

ALLOWED_SPREADS = 8.0  # K above: times the original's own error, which a few perturbed copies only sample
ALLOWED_ROUNDINGS = 16.0  # C above: roundings of the exact value that are allowed besides


@dataclass
class Finding:
    """The judgement of one output on one input.

    `worst` is the largest quotient of an element's error and its allowed error.  `max_*` are the candidate's
    largest errors, absolute and relative to the reference's largest element, `own_*` those of the original.
    """

    passed: bool = True
    worst: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    own_abs: float = 0.0
    own_rel: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class OutputFinding:
    """A finding with its output and input; `in_float64`: both models ran in float64."""

    output: str
    feed: Feed
    in_float64: bool
    finding: Finding

    def __str__(self) -> str:
        way = ", both in float64," if self.in_float64 else ""
        return f"output {self.output} on {self.feed.kind} inputs{way} {self.finding.reason}"


@dataclass
class OriginalOutput:
    """One output of the original on one input, with all that decides which errors a candidate may have.

    reference             what a candidate must agree with: the float64 reference, or the runtime's result
                          where there is no other or `settle_disagreement` decides so
    own                   the original's own result, as the runtime computes it
    rounding_type         type whose rounding is allowed for; the output's own where None
    has_nonfinite_inputs  the input holds infinities: the order of computing decides whether infinities or NaN
                          come out of them
    scale                 largest magnitude of the output on plausible inputs
    possible_largest      largest magnitude that the output can have; 0 where it is not known
    miscomputed           by element: whether the runtime computes the original wrong; None: nowhere

    Of floats, by element:

    error                 the largest distance from `reference` of the original and its perturbed copies
    spread                how far rounding alone moves the result: the largest distance of a perturbed copy
                          from `own`, or of the rounded reference from `reference`
    unsteady              whether rounding may turn the number into an infinity or NaN: it is not judged

    Of integers and bools:

    accepted              results of the reference and of perturbed copies, all right
    """

    reference: Any
    own: Any
    rounding_type: np.dtype[Any] | None = None
    has_nonfinite_inputs: bool = False
    scale: float = 0.0
    possible_largest: float = 0.0
    error: Any = None
    spread: Any = None
    unsteady: Any = None
    accepted: list[Any] = field(default_factory=list)
    miscomputed: Any = None

    def __post_init__(self) -> None:
        # a reference of another shape (sizes may depend on data) tells nothing
        if shape_of(self.reference) != shape_of(self.own):
            self.reference = self.own
        if is_float_array(self.own):
            self.reference = np.asarray(self.reference, np.float64)
            self.error, self.spread = np.zeros(self.own.shape), np.zeros(self.own.shape)
            self.unsteady = np.zeros(self.own.shape, bool)
            self.add_perturbed(self.own)
        elif isinstance(self.own, np.ndarray) and self.own.dtype.kind in "iub":
            self.accepted = [self.reference]

    @property
    def has_floats(self) -> bool:
        """Whether the output is an array of floats."""
        return self.error is not None

    @property
    def largest(self) -> float:
        """Return the largest magnitude of the reference's finite elements; 0 for what is no float."""
        if not self.has_floats:
            return 0.0
        return float(np.max(np.abs(self.reference), where=np.isfinite(self.reference), initial=0.0))

    def add_perturbed(self, sample: Any) -> None:
        """Allow a candidate the distance of a perturbed copy's result."""
        if self._is_float_sample(sample):
            self.error = elementwise_max(self.error, finite_distance(sample, self.reference))
            self.spread = elementwise_max(self.spread, finite_distance(sample, self.own))
            self.unsteady |= ~np.isfinite(sample)

    def add_rounded(self, rounded: Any) -> None:
        """Count the reference with every operator's result rounded as a distance that rounding explains."""
        if self._is_float_sample(rounded):
            self.spread = elementwise_max(self.spread, finite_distance(rounded, self.reference))
            self.unsteady |= ~np.isfinite(rounded) & np.isfinite(self.reference)

    def add_tie_neighbour(self, neighbour: Any) -> None:
        """Allow what the reference returns if each conversion that meets a tie rounds the other way."""
        if self._is_float_sample(neighbour):
            self.error = elementwise_max(self.error, finite_distance(neighbour, self.reference))
            self.unsteady |= np.isfinite(neighbour) != np.isfinite(self.reference)

    def _is_float_sample(self, sample: Any) -> bool:
        """Return whether a sample is comparable by distances; accept one of integers as it is."""
        if shape_of(sample) != shape_of(self.own):
            return False
        if self.accepted:
            self.accepted.append(sample)
        return self.has_floats

    def is_negligible(self, result: Any) -> Array:
        """Return where a result differs from the reference in the tail of a function only.

        The distance is at most ALLOWED_SPREADS roundings of the output's largest element: the largest on
        plausible inputs, or the largest possible (a detector's sigmoids may stay below 1e-5 on noise).  One
        kernel's sigmoid is 2**-22 where 1e-14 is right.
        """
        if not self.has_floats or shape_of(result) != shape_of(self.own):
            return np.zeros((), bool)
        rounding = float(self._limits.eps) / 2 * max(self.scale, self.possible_largest)
        near = finite_distance(result, self.reference) <= ALLOWED_SPREADS * rounding
        return np.asarray(near & np.isfinite(result) & np.isfinite(self.reference))

    def judge(self, candidate: Any, margin: float = 1.0) -> Finding:
        """Judge a candidate's output; its errors may be `margin` times those that are allowed usually."""
        if isinstance(self.own, list):
            return _judge_sequence(self.reference, self.own, candidate, margin)
        if not isinstance(self.own, np.ndarray) or not isinstance(candidate, np.ndarray):
            same = self.own is None and candidate is None
            return Finding(same, reason="" if same else f"is {type(candidate).__name__}")
        if candidate.dtype != self.own.dtype or candidate.shape != self.own.shape:
            words = f"is {candidate.dtype}{list(candidate.shape)}, not {self.own.dtype}{list(self.own.shape)}"
            return Finding(False, reason=words)
        return self._judge_floats(candidate, margin) if self.has_floats else self._judge_discrete(candidate)

    def _judge_discrete(self, candidate: Array) -> Finding:
        """Accept elements that equal those of the original, of the reference or of a perturbed copy."""
        right = np.asarray(candidate == self.own)
        for sample in self.accepted:
            right |= candidate == sample
        if right.all():
            return Finding()
        place = first_place(~right)
        difference = f"differs at {int((~right).sum())} of {right.size} elements, first at {list(place)}: "
        return Finding(False, np.inf, reason=f"{difference}{candidate[place]}, not {self.own[place]}")

    def _judge_floats(self, candidate: Array, margin: float) -> Finding:
        if (wrong := self._differs_in_infinities(candidate)).any():
            place = first_place(wrong)
            difference = f"has {candidate[place]} where the original has {self.own[place]}"
            return Finding(False, np.inf, reason=f"{difference}, at {list(place)}")
        compared = np.isfinite(candidate) & np.isfinite(self.reference)
        if not compared.any():
            return Finding()
        with np.errstate(all="ignore"):
            error = np.where(compared, np.abs(candidate.astype(np.float64) - self.reference), 0.0)
            share_of_allowed = np.where(error > 0, error / (margin * self.allowed_error()), 0.0)
            own_error = np.abs(self.own.astype(np.float64) - self.reference)
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(share_of_allowed)), error.shape))
        worst = float(share_of_allowed[place])
        reason = ""
        if worst > 1:
            difference = f"is {candidate[place]:.9g} where the exact value is {self.reference[place]:.9g}"
            mine = "" if self.rounding_type is not None else f" and the original's {self.own[place]:.9g}"
            reason = f"{difference}{mine}, at {list(place)}"
        max_abs = float(error.max())
        own_abs = float(np.max(own_error, where=compared & np.isfinite(self.own), initial=0.0))
        scale = max(self.largest, float(self._limits.tiny))
        return Finding(worst <= 1, worst, max_abs, max_abs / scale, own_abs, own_abs / scale, reason)

    def _differs_in_infinities(self, candidate: Array) -> Array:
        """Return where an infinity or NaN of the candidate, or of the original, makes the candidate wrong."""
        own_finite, finite = np.isfinite(self.own), np.isfinite(candidate)
        # near the largest number, rounding decides between it and infinity
        may_overflow = self.unsteady | (np.abs(self.reference) > 0.99 * self._limits.max)
        is_broken = ~finite & own_finite & ~may_overflow
        is_same = (candidate == self.own) | (np.isnan(candidate) & np.isnan(self.own))
        if self.has_nonfinite_inputs:  # infinity less infinity, and zero times infinity
            is_same |= np.isnan(candidate) | np.isnan(self.own)
        # the exact value and the original's are infinite or NaN, the candidate's is finite or not the same
        return np.asarray(is_broken | ~own_finite & ~np.isfinite(self.reference) & (finite | ~is_same))

    def allowed_error(self) -> Array:
        """Return the error that a candidate may have, by element: the formula at the top of this module."""
        eps = float(self._limits.eps)
        size = np.abs(np.where(np.isfinite(self.reference), self.reference, 0.0))
        floor = ALLOWED_ROUNDINGS * eps / 2 * size + float(self._limits.tiny)
        # the original overflows: its own error has no bound, but a third of the digits must be right
        floor = np.where(np.isfinite(self.own), floor, (eps / 2) ** (1 / 3) * size + floor)
        return np.asarray(ALLOWED_SPREADS * np.maximum(self.error, typical_errors(size, self.error)) + floor)

    @property
    def _limits(self) -> Any:
        return float_limits(self.rounding_type or self.own.dtype)


def _judge_sequence(reference: Any, own: list[Any], candidate: Any, margin: float) -> Finding:
    if not isinstance(candidate, list) or len(candidate) != len(own):
        return Finding(False, np.inf, reason="is a sequence of another length")
    exact = reference if isinstance(reference, list) and len(reference) == len(own) else own
    pairs = zip(exact, own, candidate, strict=True)
    parts = [OriginalOutput(r, o).judge(c, margin) for r, o, c in pairs]
    return max(parts, key=lambda f: (not f.passed, f.worst), default=Finding())
