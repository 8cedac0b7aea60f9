"""Is one output of a candidate right?  Its error beside those of the original and its perturbed copies.

    |b - ref|  <=  K * max(own, like) + C * u * |ref| + tiny          for every element

own    the largest error at this element of the original and of its perturbed copies (one rounding away)
like   the 0.9-quantile of `own` over the elements of like magnitude (within a factor of two, where there are
       64 such; else over as many powers of two as hold 64, but eight at most)
u      half the spacing of the output's type at 1; tiny is its smallest normal number

Nothing is averaged over the tensor: a wrong pixel is judged by the original's errors at that pixel and at
others of its size, however large errors are elsewhere.

An own error is *implausible* where it exceeds

    K * max(spread, like) + sqrt(u) * scale + tiny

spread  the largest distance of a perturbed copy's result from the original's own, and of the reference from
        itself where the result of every operator is rounded to its type
scale   the largest element of the output, on these inputs or on plausible ones: kernels know a function's
        values (0 to 1 of a sigmoid), not its tails

Rounding that moves a result so far from the exact one moves those of perturbed copies as well, and kernels
that approximate a function (exp, erf) keep half of the digits of their type.  Beyond that a witness is asked:
the runtime on the model as it is written.  If it is right, the runtime is not; else, from the fourth root of
u on (which no sum in another order loses), the runtime or the reference is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tensaurus.check.inputs.draw_inputs import Feed
from tensaurus.runtimes.backends import Array

K = 8.0
C = 16.0
GROUP = 64  # elements of like magnitude at least, if there are as many
SPAN = 8  # powers of two that they span at most
QUANTILE = 0.9


@dataclass
class Finding:
    """What one output on one input showed.  `worst` is the largest error over what is allowed."""

    passed: bool = True
    worst: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    own_abs: float = 0.0
    own_rel: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Sight:
    """A finding and where it was made."""

    output: str
    feed: Feed
    exact: bool
    finding: Finding

    def __str__(self) -> str:
        way = ", both in float64," if self.exact else ""
        return f"output {self.output} on {self.feed.kind} inputs{way} {self.finding.reason}"


@dataclass
class Original:
    """One output of the original on one input: the reference, its own result, and its perturbed copies'.

    `unit` is the type whose rounding is allowed for, the output's own by default; `unreal` where infinities
    came in: which of infinities and NaN goes out is the order of computing there.  `scale` is the output's
    largest element on plausible inputs, `reach` the largest that there may be (0: not known).
    """

    reference: Any
    own: Any
    unit: np.dtype[Any] | None = None
    unreal: bool = False
    scale: float = 0.0
    reach: float = 0.0
    error: Any = None  # float64: the largest so far
    spread: Any = None  # float64: the largest distance of a perturbed copy from the original's own
    strange: Any = None  # where a perturbed copy is not finite
    seen: list[Any] = field(default_factory=list)  # integers that a perturbed copy or the reference has there
    miscomputed: Any = None  # where the runtime computes the original wrong
    truth: Any = None  # the float64 reference, whatever the runtime makes of it

    def __post_init__(self) -> None:
        if _shape(self.reference) != _shape(self.own):
            self.reference = self.own
        self.truth = self.reference
        if _real(self.own):
            self.reference = self.truth = np.asarray(self.reference, np.float64)
            self.error, self.spread = np.zeros(self.own.shape), np.zeros(self.own.shape)
            self.strange = np.zeros(self.own.shape, bool)
            self.add(self.own)
        elif isinstance(self.own, np.ndarray) and self.own.dtype.kind in "iub":
            self.seen = [self.reference]

    def add(self, sample: Any) -> None:
        """What a perturbed copy computed."""
        if _shape(sample) != _shape(self.own):
            return
        if self.error is not None:
            finite = np.isfinite(sample)
            self.error = _larger(self.error, _distance(sample, self.reference))
            self.spread = _larger(self.spread, _distance(sample, self.own))
            self.strange |= ~finite
        elif self.seen:
            self.seen.append(sample)

    def shake(self, rounded: Any) -> None:
        """What the reference has where every operator's result is rounded: so far may rounding lead."""
        if _shape(rounded) != _shape(self.own):
            return
        if self.error is not None:
            self.spread = _larger(self.spread, _distance(rounded, self.reference))
            self.strange |= ~np.isfinite(rounded) & np.isfinite(self.reference)
        elif self.seen:
            self.seen.append(rounded)

    def lean(self, neighbour: Any) -> None:
        """What the reference has where its conversions to narrower types meet the other side of a tie."""
        if _shape(neighbour) != _shape(self.own):
            return
        if self.error is not None:
            self.error = _larger(self.error, _distance(neighbour, self.reference))
            self.strange |= np.isfinite(neighbour) != np.isfinite(self.reference)
        elif self.seen:
            self.seen.append(neighbour)

    # --------------------------------------------------------------------------- is the original's own right?

    @property
    def implausible(self) -> Array:
        """Where no rounding explains that the original's own result differs from the reference."""
        return self._implausible(self.own)

    def _implausible(self, result: Any, root: float = 2.0) -> Array:
        """`root` of u is what may be lost beyond the spread."""
        if self.error is None:
            if not self.seen or _shape(result) != _shape(self.own):
                return np.zeros((), bool)
            differs = np.asarray(result != self.reference)
            for sample in self.seen[1:]:  # rounding decides where perturbed copies differ
                differs &= sample == self.own
            return differs
        finite = np.isfinite(self.reference)
        size = np.abs(np.where(finite, self.reference, 0.0))
        digits = (float(_limits(self.own.dtype).eps) / 2) ** (1 / root)
        floor = digits * max(self.largest, self.scale) + float(_limits(self.own.dtype).tiny)
        steady = np.isfinite(result) & ~self.strange
        edge = size > 0.99 * float(_limits(self.own.dtype).max)
        far = (
            _distance(result, self.reference)
            > K * np.maximum(self.spread, typical(size, self.spread)) + floor
        )
        # a number where the exact value is none, and no rounding leads there
        with np.errstate(all="ignore"):
            calm = self.spread <= digits * np.abs(result.astype(np.float64))
        return np.asarray(steady & ~edge & np.where(finite, far, calm))

    def settle(self, witness: Any) -> tuple[float, float]:
        """Let the runtime's result on the model as it is written (None: there is none) be the witness.

        Where the witness has what the reference has, the runtime computes the original wrong, and the
        witness is its own result from now on.  Elsewhere, where more than three quarters of the digits are
        lost, one of the runtime and the reference is wrong: nobody can tell which, and the runtime's result
        is the reference.
        Returns how far off the runtime is in the one case and in the other, relative to the largest element.
        """
        wrong = self.implausible
        if witness is None or _shape(witness) != _shape(self.own) or witness.dtype != self.own.dtype:
            witness = self.own
        cleared = wrong & ~self._implausible(witness) & self._agrees(witness)
        doubtful = self._implausible(self.own, 4.0) & ~cleared
        sizes = self._relative(cleared), self._relative(doubtful)
        if self.error is None:
            if doubtful.any():
                self.reference = np.where(doubtful, self.own, self.reference)
            old, kept = self.own, self.seen[1:]
            self.own = np.where(cleared, self.reference, self.own)
            # what the runtime made of perturbed copies is wrong there, too
            self.seen = [self.reference, *(np.where(cleared & (n == old), self.own, n) for n in kept)]
            self.miscomputed = cleared if cleared.any() else None
            return sizes
        if doubtful.any():
            self.reference = np.where(doubtful, self.own.astype(np.float64), self.reference)
            beside = _larger(self.spread, _distance(witness, self.own))
            self.error = np.where(doubtful, beside, self.error)
        if cleared.any():
            old, self.own = self.own, np.where(doubtful, self.own, witness)
            right = _larger(self.spread, _distance(self.own, self.reference))
            self.error = np.where(doubtful, self.error, right)
            with np.errstate(all="ignore"):
                self.miscomputed = cleared | (_distance(old, self.reference) > self.allowed())
        return sizes

    @property
    def largest(self) -> float:
        """Of the reference's finite elements."""
        if self.error is None:
            return 0.0
        return float(np.max(np.abs(self.reference), where=np.isfinite(self.reference), initial=0.0))

    def negligible(self, result: Any) -> Array:
        """Where a result differs from the reference by at most K roundings of the output's largest element on
        plausible inputs, or that there may be: a function's tail.

        A sigmoid of one kernel is 2**-22 where 1e-14 would be right, and of a detector on noise 1e-5 at most.
        """
        if self.error is None or _shape(result) != _shape(self.own):
            return np.zeros((), bool)
        rounding = float(_limits(self.unit or self.own.dtype).eps) / 2 * max(self.scale, self.reach)
        near = _distance(result, self.reference) <= K * rounding
        return np.asarray(near & np.isfinite(result) & np.isfinite(self.reference))

    def _agrees(self, witness: Any) -> Array:
        """Whether a number is one in the reference, too."""
        if self.error is None:
            return np.asarray(witness == self.reference)
        return np.asarray(np.isfinite(witness) == np.isfinite(self.reference))

    def _relative(self, places: Array) -> float:
        if not places.any():
            return 0.0
        if self.error is None:
            return float(np.mean(places))
        distance = np.max(_distance(self.own, self.reference), where=places, initial=0.0)
        return float(distance / max(self.largest, self.scale, float(_limits(self.own.dtype).tiny)))

    # ------------------------------------------------------------------------------------------ a candidate

    def judge(self, candidate: Any, margin: float = 1.0) -> Finding:
        """Whether the candidate's output is as good as the original's; or this many times worse at most."""
        if isinstance(self.own, list):
            return _listwise(self.reference, self.own, candidate, margin)
        if not isinstance(self.own, np.ndarray) or not isinstance(candidate, np.ndarray):
            same = self.own is None and candidate is None
            return Finding(same, reason="" if same else f"is {type(candidate).__name__}")
        if candidate.dtype != self.own.dtype or candidate.shape != self.own.shape:
            words = f"is {candidate.dtype}{list(candidate.shape)}, not {self.own.dtype}{list(self.own.shape)}"
            return Finding(False, reason=words)
        if self.error is None:
            return self._discrete(candidate)
        return self._real(candidate, margin)

    def _discrete(self, candidate: Array) -> Finding:
        """Equal to the original, or to the reference or a perturbed copy where these differ from it."""
        right = np.asarray(candidate == self.own)
        for sample in self.seen:
            right |= candidate == sample
        if right.all():
            return Finding()
        place = tuple(int(i) for i in np.argwhere(~right)[0])
        difference = f"differs at {int((~right).sum())} of {right.size} elements, first at {list(place)}: "
        return Finding(False, np.inf, reason=f"{difference}{candidate[place]}, not {self.own[place]}")

    def _real(self, candidate: Array, margin: float) -> Finding:
        reference = self.reference
        finite = np.isfinite(reference)
        own_fine, fine = np.isfinite(self.own), np.isfinite(candidate)
        limits = _limits(self.unit or self.own.dtype)
        # near the largest number, rounding decides between it and infinity
        edge = self.strange | (np.abs(reference) > 0.99 * limits.max)
        broken = ~fine & own_fine & ~edge
        other = ~_same(candidate, self.own)
        if self.unreal:  # infinity less infinity, and zero times infinity
            other &= ~np.isnan(candidate) & ~np.isnan(self.own)
        settled = (fine & ~own_fine & ~finite) | (~fine & ~own_fine & ~finite & other)
        if (wrong := broken | settled).any():
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
            mine = "" if self.unit is not None else f" and the original's {self.own[place]:.9g}"
            reason = f"{difference}{mine}, at {list(place)}"
        return Finding(worst <= 1, worst, max_abs, max_abs / scale, own_abs, own_abs / scale, reason)

    def allowed(self) -> Array:
        """The error that a candidate may have, by element."""
        limits = _limits(self.unit or self.own.dtype)
        size = np.abs(np.where(np.isfinite(self.reference), self.reference, 0.0))
        floor = C * float(limits.eps) / 2 * size + float(limits.tiny)
        return np.asarray(K * np.maximum(self.error, typical(size, self.error)) + floor)


def typical(size: Array, error: Array) -> Array:
    """The QUANTILE of the errors of elements of like size; zeros are like the smallest others."""
    flat, errors = size.ravel(), error.ravel()
    exponents = np.frexp(flat)[1]
    some = np.flatnonzero(flat > 0)
    result = np.zeros(flat.shape)
    if not some.size:
        return result.reshape(size.shape)
    order = some[np.argsort(exponents[some], kind="stable")]
    starts = np.flatnonzero(np.diff(exponents[order], prepend=np.iinfo(np.int32).min))
    groups: list[tuple[int, int]] = []
    begin = 0
    for end in (*starts[1:], order.size):
        last = end == order.size
        if last or end - begin >= GROUP or exponents[order[end]] - exponents[order[begin]] >= SPAN:
            groups.append((begin, int(end)))
            begin = int(end)
    if len(groups) > 1 and groups[-1][1] - groups[-1][0] < GROUP:
        first, end = groups[-2][0], groups[-1][1]
        if exponents[order[end - 1]] - exponents[order[first]] < SPAN:
            groups[-2:] = [(first, end)]
    for begin, end in groups:
        members = order[begin:end]
        result[members] = np.quantile(errors[members], QUANTILE)
    result[flat == 0] = result[order[0]]
    return result.reshape(size.shape)


def identical(one: Any, other: Any) -> bool:
    """Whether two outputs are the same to the last bit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is None and other is None
    if one.dtype.kind in "OSU":
        return bool(np.array_equal(one, other))
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _listwise(reference: Any, own: list[Any], candidate: Any, margin: float) -> Finding:
    if not isinstance(candidate, list) or len(candidate) != len(own):
        return Finding(False, np.inf, reason="is a sequence of another length")
    exact = reference if isinstance(reference, list) and len(reference) == len(own) else own
    pairs = zip(exact, own, candidate, strict=True)
    parts = [Original(r, o).judge(c, margin) for r, o, c in pairs]
    return max(parts, key=lambda f: (not f.passed, f.worst), default=Finding())


def _distance(a: Array, b: Array) -> Array:
    """By element, 0 where one of them is no number."""
    with np.errstate(all="ignore"):
        distance = np.abs(a.astype(np.float64) - b)
    return np.where(np.isfinite(distance), distance, 0.0)


def _larger(a: Array, b: Array) -> Array:
    return np.asarray(np.maximum(a, b))


def _same(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or "float" in value.dtype.name)


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, np.ndarray) else None


def _limits(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def unit_of(elem_type: int) -> np.dtype[Any] | None:
    """The type of an output if it is a floating-point one."""
    if not elem_type or elem_type == onnx.TensorProto.STRING:
        return None
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return found if "float" in found.name else None
