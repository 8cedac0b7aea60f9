"""Judges one output of a candidate: its error beside those of the original and of its perturbed copies.

    |b - ref|  <=  K * max(error, like) + C * u * |ref| + tiny          for every element

b      the candidate's element; ref is the element that it must agree with (`OriginalOutput.reference`)
error  the largest error at this element of the original and of its perturbed copies (one rounding away)
like   the 0.9-quantile of `error` over the elements of like magnitude (within a factor of two, where there
       are 64 such; else over as many powers of two as hold 64, but eight at most)
u      half the spacing of the output's type at 1; tiny is its smallest normal number
K, C   ALLOWED_SPREADS and ALLOWED_ROUNDINGS

`Baseline` makes an `OriginalOutput` for each output and input, and `CandidateTrial` calls its `judge`.
Nothing is averaged over the tensor: a wrong pixel is judged by the original's errors at that pixel and at
others of its magnitude, however large errors are elsewhere.

The original's own error is *implausible*, more than rounding explains, where it exceeds

    K * max(spread, like) + sqrt(u) * scale + tiny

spread  the largest distance of a perturbed copy's result from the original's own, and of the reference from
        itself where the result of every operator is rounded to its type
scale   the largest element of the output, on these inputs or on plausible ones: kernels know a function's
        values (0 to 1 of a sigmoid), not its tails

Rounding that moves a result so far from the exact one moves those of perturbed copies as well, and kernels
that approximate a function (exp, erf) keep half of the digits of their type.  Beyond that the model is run
without graph optimizations, unfused.  If the unfused result is plausible, the runtime computes the original
wrong.  If it is not, and the error exceeds u^(1/4) (three quarters of the digits, more than any order of
summation loses), either the runtime or the reference is wrong, and nobody can tell which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tensaurus.check.files.typical_errors import typical_errors
from tensaurus.check.inputs.draw_inputs import Feed
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
    """A finding with the output and the input to which it belongs; `exact`: both models ran in float64."""

    output: str
    feed: Feed
    exact: bool
    finding: Finding

    def __str__(self) -> str:
        way = ", both in float64," if self.exact else ""
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
    error                 of floats, by element: the largest distance from `reference` of the original and its
                          perturbed copies
    spread                of floats, by element: how far rounding alone moves the result: the largest distance
                          of a perturbed copy from `own`, or of the rounded reference from `reference`
    unsteady              by element: whether rounding may turn the number into an infinity or NaN; nothing is
                          judged there
    accepted              of integer outputs: results of the reference and of perturbed copies, all right
    miscomputed           by element: whether the runtime computes the original wrong; None: nowhere
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
        if _array_shape(self.reference) != _array_shape(self.own):
            self.reference = self.own
        if _is_float_array(self.own):
            self.reference = np.asarray(self.reference, np.float64)
            self.error, self.spread = np.zeros(self.own.shape), np.zeros(self.own.shape)
            self.unsteady = np.zeros(self.own.shape, bool)
            self.add_perturbed(self.own)
        elif isinstance(self.own, np.ndarray) and self.own.dtype.kind in "iub":
            self.accepted = [self.reference]

    def add_perturbed(self, sample: Any) -> None:
        """Allow a candidate the distance of a perturbed copy's result."""
        if _array_shape(sample) != _array_shape(self.own):
            return
        if self.error is not None:
            finite = np.isfinite(sample)
            self.error = _elementwise_max(self.error, _distance(sample, self.reference))
            self.spread = _elementwise_max(self.spread, _distance(sample, self.own))
            self.unsteady |= ~finite
        elif self.accepted:
            self.accepted.append(sample)

    def add_rounded(self, rounded: Any) -> None:
        """Count the reference with every operator's result rounded as a distance that rounding explains."""
        if _array_shape(rounded) != _array_shape(self.own):
            return
        if self.error is not None:
            self.spread = _elementwise_max(self.spread, _distance(rounded, self.reference))
            self.unsteady |= ~np.isfinite(rounded) & np.isfinite(self.reference)
        elif self.accepted:
            self.accepted.append(rounded)

    def add_tie_neighbour(self, neighbour: Any) -> None:
        """Allow what the reference returns if each conversion that meets a tie rounds the other way."""
        if _array_shape(neighbour) != _array_shape(self.own):
            return
        if self.error is not None:
            self.error = _elementwise_max(self.error, _distance(neighbour, self.reference))
            self.unsteady |= np.isfinite(neighbour) != np.isfinite(self.reference)
        elif self.accepted:
            self.accepted.append(neighbour)

    # -------------------------------------------------------------------- is the original's own result right?

    @property
    def implausible(self) -> Array:
        """Return where the original's own result is further from the reference than rounding explains."""
        return self._implausible(self.own)

    def _implausible(self, result: Any, root: float = 2.0) -> Array:
        """Return where a result is implausible: the module's formula with u ** (1 / root) for sqrt(u)."""
        if self.error is None:  # integers and bools; strings and sequences have no `accepted`
            if not self.accepted or _array_shape(result) != _array_shape(self.own):
                return np.zeros((), bool)
            differs = np.asarray(result != self.reference)
            for sample in self.accepted[1:]:  # where a perturbed copy has another integer, rounding decides
                differs &= sample == self.own
            return differs
        finite = np.isfinite(self.reference)
        size = np.abs(np.where(finite, self.reference, 0.0))
        share = (float(_float_limits(self.own.dtype).eps) / 2) ** (1 / root)  # u ** (1 / root)
        floor = share * max(self.largest, self.scale) + float(_float_limits(self.own.dtype).tiny)
        steady = np.isfinite(result) & ~self.unsteady
        edge = size > 0.99 * float(_float_limits(self.own.dtype).max)  # may round to infinity
        far = (
            _distance(result, self.reference)
            > ALLOWED_SPREADS * np.maximum(self.spread, typical_errors(size, self.spread)) + floor
        )
        # the exact value is infinite or NaN, the result is a number, and no perturbed copy strays from it
        with np.errstate(all="ignore"):
            is_stable = self.spread <= share * np.abs(result.astype(np.float64))
        return np.asarray(steady & ~edge & np.where(finite, far, is_stable))

    def compare_with_unfused(self, unfused: Any) -> tuple[float, float]:
        """Settle the implausible elements of the original with an unfused run's result (None: there is none).

        cleared   the unfused result is plausible: the runtime computes the original wrong there.  If there
                  are such elements, the unfused result replaces `own` wherever it is not doubtful (of
                  integers: the reference replaces it at the cleared elements alone)
        doubtful  not cleared, and more than three quarters of the digits are lost: nobody can tell whether
                  the runtime or the reference is wrong, and the runtime's result becomes the reference

        All other elements keep their reference.  Returns the largest error of the cleared and of the doubtful
        elements, relative to the output's largest element (of integers: the share of such elements).
        """
        wrong = self.implausible
        # without an unfused result of this type and shape nothing is cleared
        if (
            unfused is None
            or _array_shape(unfused) != _array_shape(self.own)
            or unfused.dtype != self.own.dtype
        ):
            unfused = self.own
        cleared = wrong & ~self._implausible(unfused) & self._agrees(unfused)
        doubtful = self._implausible(self.own, 4.0) & ~cleared
        sizes = self._relative(cleared), self._relative(doubtful)
        if self.error is None:  # integers
            if doubtful.any():
                self.reference = np.where(doubtful, self.own, self.reference)
            old, kept = self.own, self.accepted[1:]
            self.own = np.where(cleared, self.reference, self.own)
            # the runtime computes perturbed copies wrong there, too
            self.accepted = [self.reference, *(np.where(cleared & (n == old), self.own, n) for n in kept)]
            self.miscomputed = cleared if cleared.any() else None
            return sizes
        if doubtful.any():  # errors there may be as large as the distance between both runs
            self.reference = np.where(doubtful, self.own.astype(np.float64), self.reference)
            wider = _elementwise_max(self.spread, _distance(unfused, self.own))
            self.error = np.where(doubtful, wider, self.error)
        if cleared.any():  # allow the unfused run's errors, and note where the usual run exceeds them
            old, self.own = self.own, np.where(doubtful, self.own, unfused)
            right = _elementwise_max(self.spread, _distance(self.own, self.reference))
            self.error = np.where(doubtful, self.error, right)
            with np.errstate(all="ignore"):
                self.miscomputed = cleared | (_distance(old, self.reference) > self.allowed())
        return sizes

    @property
    def largest(self) -> float:
        """Return the largest magnitude of the reference's finite elements."""
        if self.error is None:
            return 0.0
        return float(np.max(np.abs(self.reference), where=np.isfinite(self.reference), initial=0.0))

    def negligible(self, result: Any) -> Array:
        """Return where a result differs from the reference in the tail of a function only.

        The distance is at most ALLOWED_SPREADS roundings of the output's largest element: the largest on
        plausible inputs, or the largest possible (a detector's sigmoids may stay below 1e-5 on noise).  One
        kernel's sigmoid is 2**-22 where 1e-14 is right.
        """
        if self.error is None or _array_shape(result) != _array_shape(self.own):
            return np.zeros((), bool)
        limits = _float_limits(self.rounding_type or self.own.dtype)
        rounding = float(limits.eps) / 2 * max(self.scale, self.possible_largest)
        near = _distance(result, self.reference) <= ALLOWED_SPREADS * rounding
        return np.asarray(near & np.isfinite(result) & np.isfinite(self.reference))

    def _agrees(self, unfused: Any) -> Array:
        """Return where integers are equal to the reference's, or floats finite where the reference is."""
        if self.error is None:
            return np.asarray(unfused == self.reference)
        return np.asarray(np.isfinite(unfused) == np.isfinite(self.reference))

    def _relative(self, mask: Array) -> float:
        """Return how far the own result is off at these elements: of integers, the share of such elements."""
        if not mask.any():
            return 0.0
        if self.error is None:
            return float(np.mean(mask))
        distance = np.max(_distance(self.own, self.reference), where=mask, initial=0.0)
        return float(distance / max(self.largest, self.scale, float(_float_limits(self.own.dtype).tiny)))

    # ------------------------------------------------------------------------------------------ a candidate

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
        if self.error is None:
            return self._judge_discrete(candidate)
        return self._judge_floats(candidate, margin)

    def _judge_discrete(self, candidate: Array) -> Finding:
        """Accept elements that equal those of the original, of the reference or of a perturbed copy."""
        right = np.asarray(candidate == self.own)
        for sample in self.accepted:
            right |= candidate == sample
        if right.all():
            return Finding()
        place = tuple(int(i) for i in np.argwhere(~right)[0])
        difference = f"differs at {int((~right).sum())} of {right.size} elements, first at {list(place)}: "
        return Finding(False, np.inf, reason=f"{difference}{candidate[place]}, not {self.own[place]}")

    def _judge_floats(self, candidate: Array, margin: float) -> Finding:
        reference = self.reference
        finite = np.isfinite(reference)
        own_fine, fine = np.isfinite(self.own), np.isfinite(candidate)  # `fine` is the candidate's
        limits = _float_limits(self.rounding_type or self.own.dtype)
        # near the largest number, rounding decides between it and infinity
        edge = self.unsteady | (np.abs(reference) > 0.99 * limits.max)
        broken = ~fine & own_fine & ~edge  # the original has a number, the candidate has none
        is_other = ~_are_equal_or_nan(candidate, self.own)
        if self.has_nonfinite_inputs:  # infinity less infinity, and zero times infinity
            is_other &= ~np.isnan(candidate) & ~np.isnan(self.own)
        # the exact value and the original's are infinite or NaN, the candidate's is finite or not the same
        is_other_nonfinite = ~own_fine & ~finite & (fine | is_other)
        if (wrong := broken | is_other_nonfinite).any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            difference = f"has {candidate[place]} where the original has {self.own[place]}"
            return Finding(False, np.inf, reason=f"{difference}, at {list(place)}")
        both = fine & finite
        if not both.any():
            return Finding()
        with np.errstate(all="ignore"):
            error = np.where(both, np.abs(candidate.astype(np.float64) - reference), 0.0)
            allowed = margin * self.allowed()
            ratio = np.where(error > 0, error / allowed, 0.0)
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        worst = float(ratio[place]) if ratio.size else 0.0
        scale = max(float(np.max(np.abs(reference), where=finite, initial=0.0)), float(limits.tiny))
        compared = both & own_fine
        with np.errstate(all="ignore"):
            own_error = np.abs(self.own.astype(np.float64) - reference)
        own_abs = float(np.max(own_error, where=compared, initial=0.0))
        max_abs = float(error.max())
        reason = ""
        if worst > 1:
            difference = f"is {candidate[place]:.9g} where the exact value is {reference[place]:.9g}"
            mine = "" if self.rounding_type is not None else f" and the original's {self.own[place]:.9g}"
            reason = f"{difference}{mine}, at {list(place)}"
        return Finding(worst <= 1, worst, max_abs, max_abs / scale, own_abs, own_abs / scale, reason)

    def allowed(self) -> Array:
        """Return the error that a candidate may have, by element: the formula at the top of this module."""
        limits = _float_limits(self.rounding_type or self.own.dtype)
        size = np.abs(np.where(np.isfinite(self.reference), self.reference, 0.0))
        floor = ALLOWED_ROUNDINGS * float(limits.eps) / 2 * size + float(limits.tiny)
        # the original overflows: its own error has no bound, but a third of the digits must be right
        floor = np.where(np.isfinite(self.own), floor, (float(limits.eps) / 2) ** (1 / 3) * size + floor)
        return np.asarray(ALLOWED_SPREADS * np.maximum(self.error, typical_errors(size, self.error)) + floor)


def are_identical(one: Any, other: Any) -> bool:
    """Return whether two outputs are the same to the last bit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_identical, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is None and other is None
    if one.dtype.kind in "OSU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _judge_sequence(reference: Any, own: list[Any], candidate: Any, margin: float) -> Finding:
    if not isinstance(candidate, list) or len(candidate) != len(own):
        return Finding(False, np.inf, reason="is a sequence of another length")
    exact = reference if isinstance(reference, list) and len(reference) == len(own) else own
    pairs = zip(exact, own, candidate, strict=True)
    parts = [OriginalOutput(r, o).judge(c, margin) for r, o, c in pairs]
    return max(parts, key=lambda f: (not f.passed, f.worst), default=Finding())


def _distance(a: Array, b: Array) -> Array:
    """Return the distance by element, 0 where one of the two is infinite or NaN."""
    with np.errstate(all="ignore"):
        distance = np.abs(a.astype(np.float64) - b)
    return np.where(np.isfinite(distance), distance, 0.0)


def _elementwise_max(a: Array, b: Array) -> Array:
    return np.asarray(np.maximum(a, b))


def _are_equal_or_nan(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _is_float_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or "float" in value.dtype.name)


def _array_shape(value: Any) -> Any:
    return value.shape if isinstance(value, np.ndarray) else None


def _float_limits(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def float_type_of(elem_type: int) -> np.dtype[Any] | None:
    """Return the numpy type of an ONNX element type if it is a floating-point one, else None."""
    if not elem_type or elem_type == onnx.TensorProto.STRING:
        return None
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return found if "float" in found.name else None
