"""Find numbers at which a computation turns: meets a constant, or leaves the range of its type.

An equality that is wrong only for 71 <= |x| <= 99 is refuted by no other numbers, and where x * 3 + 5 is
compared with 100, only by those around 31.  Some functions *turn* at a number: comparisons, max, divisions,
roundings, conversions, sums of integers that wrap.  `GapRecorder` records the *gaps*, the distances of their
arguments from such numbers.  A tensor that is filled with one number makes each gap a function of that
number, and secants find where the gap is zero, without knowing how it is computed.

    x * 3 + 5 < 100      its gap at x is 3*x - 95, zero at 31.7      ->      31, 32, 30, 33  for integers

`rules/test/draw_elements` and `check/program/meeting_numbers` then draw inputs around these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from math import floor, inf, isfinite
from typing import TypeAlias

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Array, Reals
from tensaurus.expr.ir.integer_types import RING_FUNCTIONS, integer_limits, is_integer, to_native
from tensaurus.expr.ir.scalar_functions import cast_target

__all__ = ["GapRecorder", "turning_points"]

MAX_RECORDED_ELEMENTS = 64  # elements of one result whose gaps are recorded
MAX_PROBES = 24  # evaluations with one tensor filled with a number
ZEROS_PER_ROUND = 4  # zeros of secants that are probed before secants are computed again
NEIGHBOUR_DISTANCE = 2.0**-12  # relative: a second probe this close gives the slope
MAX_POINTS = 96  # numbers that are returned for one tensor
# the first probes: two make a secant, a third tells whether a gap is linear; gaps of x / 1000 need large ones
START_NUMBERS = 0.0, 1.0, 3.0, 4099.0, 1048583.0
LINEAR_TOLERANCE = 1e-9  # relative: the rounding error of a linear gap
LARGEST_EXACT_INTEGER = {"float16": 2048, "bfloat16": 256, "float32": 2**24, "float64": 2**53}
LARGEST_FINITE = {"float16": 65504.0}  # a narrowing conversion turns there

Number: TypeAlias = float


class GapRecorder(Reals):
    """The field float64, which also records how far arguments are from where functions turn."""

    def __init__(self) -> None:
        super().__init__()
        self._gaps: list[Array] = []

    @property
    def gaps(self) -> Array:
        """The gaps of all functions so far, in one row."""
        return np.concatenate([np.zeros(0), *self._gaps])

    def call(self, fn: str, args: Sequence[Array], dtype: str = "int64") -> Array:
        """Apply the function and record the gaps of its arguments."""
        result = super().call(fn, args, dtype)
        with np.errstate(all="ignore"):
            self._gaps += [_sample_elements(gap) for gap in _gaps(fn, args, result, dtype)]
        return result


def _sample_elements(gap: Array) -> Array:
    flat = np.ravel(gap)
    return flat[:: -(-flat.size // MAX_RECORDED_ELEMENTS)] if flat.size > MAX_RECORDED_ELEMENTS else flat


def _gaps(fn: str, args: Sequence[Array], result: Array, dtype: str) -> Iterator[Array]:
    """Yield the distances of the arguments from each number at which the function turns."""
    numbers = [np.asarray(to_native(a, dtype) if a.dtype.kind == "i" else a) for a in args]
    if any(a.dtype.kind not in "iuf" for a in numbers):
        return
    floats = [a.astype(np.float64) for a in numbers]
    match fn:
        case "lt" | "le" | "eq" | "max" | "min":
            yield floats[0] - floats[1]
        case "div" | "mod" | "fmod":
            yield from (floats[1], floats[0], floats[0] - floats[1], floats[0] + floats[1])
        case "abs" | "sign" | "sqrt" | "log":
            yield floats[0]
        case "floor" | "ceil" | "round":
            yield from (floats[0] - step for step in (-1, -0.5, 0, 0.5, 1))
    target = cast_target(fn)
    if target is not None:
        turning_numbers: Sequence[float] = (0, -1, 1)
        if is_integer(target):
            turning_numbers = (*turning_numbers, *integer_limits(target))
        elif target != "bool":
            limits = LARGEST_EXACT_INTEGER if numbers[0].dtype.kind in "iu" else LARGEST_FINITE
            largest = limits.get(target, inf)
            turning_numbers = (-largest, largest)
        yield from (floats[0] - end for end in turning_numbers if isfinite(end))
    if fn in RING_FUNCTIONS and result.dtype.kind == "i":
        yield from (result.astype(np.float64) - end for end in integer_limits(dtype))


def turning_points(
    gaps_at: Callable[[Number], Array | None], low: Number = -inf, high: Number = inf, whole: bool = False
) -> list[Number]:
    """Return numbers between `low` and `high` at which a gap is zero, or nearly so.

    `gaps_at` evaluates all gaps at one number; None where that is impossible.  With `whole` (for a tensor of
    integers), the two nearest whole numbers on both sides of each zero are returned.
    """
    gaps_by_number: dict[Number, Array] = {}

    def probe(number: Number) -> bool:
        """Evaluate the gaps at a number; return whether that was new and possible."""
        if not low <= number <= high or number in gaps_by_number or len(gaps_by_number) >= MAX_PROBES:
            return False
        gaps = gaps_at(number)
        if gaps is None or gaps_by_number and gaps.size != next(iter(gaps_by_number.values())).size:
            return False
        gaps_by_number[number] = gaps
        return True

    # First probe a few numbers.  Where all gaps are linear, their zeros are known already.
    for number in START_NUMBERS:
        probe(number)
    if len(gaps_by_number) < 2:
        return []
    is_linear = _are_linear(gaps_by_number)
    for number in () if is_linear else START_NUMBERS:
        probe(-number)
    while not is_linear:  # probe the zeros of secants and the middles, until no new probe is possible
        candidates = [*islice(_zeros(gaps_by_number), ZEROS_PER_ROUND), *_middles(gaps_by_number)]
        numbers = [float(floor(n)) if whole else n for n in candidates if low <= n <= high]
        # a close neighbour of each gives the slope there
        pairs = [
            (n, n + (1 if whole else NEIGHBOUR_DISTANCE * max(1, abs(n)))) for n in dict.fromkeys(numbers)
        ]
        if not sum(probe(one) + probe(other) for one, other in pairs):
            break
    # the zeros of the last secants are the result
    zeros = [n for n in _zeros(gaps_by_number) if low - 1 <= n <= high + 1]
    if not whole:
        return list(dict.fromkeys(zeros))[:MAX_POINTS]
    near: dict[Number, None] = dict.fromkeys(floor(n) + step for step in (0, 1, -1, 2) for n in zeros)
    return [n for n in near if low <= n <= high][:MAX_POINTS]


def _are_linear(gaps_by_number: dict[Number, Array]) -> bool:
    """Return whether all gaps are linear as far as these numbers tell: then no more probes are needed."""
    numbers = sorted(gaps_by_number)
    first, last = gaps_by_number[numbers[0]], gaps_by_number[numbers[-1]]
    for number in numbers[1:-1]:
        with np.errstate(all="ignore"):
            fraction = (number - numbers[0]) / (numbers[-1] - numbers[0])
            deviation = np.abs(first + (last - first) * fraction - gaps_by_number[number])
            if not (deviation <= LINEAR_TOLERANCE * np.maximum(np.abs(first), np.abs(last))).all():
                return False
    return True


def _zeros(gaps_by_number: dict[Number, Array]) -> Iterator[Number]:
    """Yield the zeros of secants through neighbours a < b among the probed numbers.

    First all between a and b, then those from the probed number before a to the one after b.
    """
    numbers = sorted(gaps_by_number)
    ends = [-inf, *numbers, inf]
    beyond: list[Array] = []
    for k, (a, b) in enumerate(pairwise(numbers)):
        with np.errstate(all="ignore"):
            slope = (gaps_by_number[b] - gaps_by_number[a]) / (b - a)
            zeros = a - gaps_by_number[a] / slope
        is_finite = np.isfinite(zeros) & (slope != 0)
        between = is_finite & (zeros >= a) & (zeros <= b)
        yield from map(float, np.unique(zeros[between]))
        beyond.append(zeros[is_finite & ~between & (zeros >= ends[k]) & (zeros <= ends[k + 3])])
    yield from map(float, np.unique(np.concatenate([np.zeros(0), *beyond])))


def _middles(gaps_by_number: dict[Number, Array]) -> Iterator[Number]:
    """Yield the (geometric) means of neighbours between which a gap changes its sign."""
    for a, b in pairwise(sorted(gaps_by_number)):
        if b - a > 2 and (np.sign(gaps_by_number[a]) * np.sign(gaps_by_number[b]) < 0).any():
            yield (a * b) ** 0.5 if a > 0 else -((a * b) ** 0.5) if b < 0 else (a + b) / 2
