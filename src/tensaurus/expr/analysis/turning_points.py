"""Numbers at which what is computed from them turns: is as large as a constant, or leaves its type.

A law that is wrong for 71 <= |x| <= 99 alone is refuted by no other numbers, and where x * 3 + 5 is compared
with 100, by none but those around 31.  So functions that turn somewhere (comparisons, maxima, divisions,
roundings, conversions, sums of integers that wrap) are watched while numbers are computed: `gaps` are how far
their arguments are from there.  A tensor that is filled with one number makes each gap a function of that
number, and secants find where the gap is zero: nothing need be known of how it is computed.
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

__all__ = ["Watched", "turning_points"]

SITES = 64  # elements of one result that are watched
PROBES = 24  # evaluations with one tensor filled
AT_ONCE = 4  # zeros that are asked before the next ones are computed
BESIDE = 2.0**-12  # of a number: the distance to one that is close
MOST = 96  # points of one tensor
# two make a secant, a third says whether it is straight, and of a quotient by 1000 they have to be far apart
STARTS = 0.0, 1.0, 3.0, 4099.0, 1048583.0
STRAIGHT = 1e-9  # of the larger of two gaps: what rounding makes of a straight line
MANTISSA = {"float16": 2048, "bfloat16": 256, "float32": 2**24, "float64": 2**53}
GREATEST = {"float16": 65504.0}

Number: TypeAlias = float


class Watched(Reals):
    """float64 that keeps how far arguments are from where functions turn, in the order of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._gaps: list[Array] = []

    @property
    def gaps(self) -> Array:
        """Of all functions so far, in one row."""
        return np.concatenate([np.zeros(0), *self._gaps])

    def call(self, fn: str, args: Sequence[Array], dtype: str = "int64") -> Array:
        """The function; what it is far from turning is kept."""
        found = super().call(fn, args, dtype)
        with np.errstate(all="ignore"):
            self._gaps += [_thinned(gap) for gap in _gaps(fn, args, found, dtype)]
        return found


def _thinned(gap: Array) -> Array:
    flat = np.ravel(gap)
    return flat[:: -(-flat.size // SITES)] if flat.size > SITES else flat


def _gaps(fn: str, args: Sequence[Array], found: Array, dtype: str) -> Iterator[Array]:
    """How far the arguments are from each number at which the function turns."""
    numbers = [np.asarray(to_native(a, dtype) if a.dtype.kind == "i" else a) for a in args]
    if any(a.dtype.kind not in "iuf" for a in numbers):
        return
    wide = [a.astype(np.float64) for a in numbers]
    match fn:
        case "lt" | "le" | "eq" | "max" | "min":
            yield wide[0] - wide[1]
        case "div" | "mod" | "fmod":
            yield from (wide[1], wide[0], wide[0] - wide[1], wide[0] + wide[1])
        case "abs" | "sign" | "sqrt" | "log":
            yield wide[0]
        case "floor" | "ceil" | "round":
            yield from (wide[0] - step for step in (-1, -0.5, 0, 0.5, 1))
    target = cast_target(fn)
    if target is not None:
        ends: Sequence[float] = (0, -1, 1)
        if is_integer(target):
            ends = (*ends, *integer_limits(target))
        elif target != "bool":
            last = MANTISSA.get(target, inf) if numbers[0].dtype.kind in "iu" else GREATEST.get(target, inf)
            ends = (-last, last)
        yield from (wide[0] - end for end in ends if isfinite(end))
    if fn in RING_FUNCTIONS and found.dtype.kind == "i":
        yield from (found.astype(np.float64) - end for end in integer_limits(dtype))


def turning_points(
    gaps_at: Callable[[Number], Array | None], low: Number = -inf, high: Number = inf, whole: bool = False
) -> list[Number]:
    """Numbers between `low` and `high` at which a gap is zero, or nearly so.

    `gaps_at` evaluates at one number; None where that is impossible.  Of whole numbers those on both sides.
    """
    known: dict[Number, Array] = {}

    def probe(number: Number) -> bool:
        if not low <= number <= high or number in known or len(known) >= PROBES:
            return False
        found = gaps_at(number)
        if found is None or known and found.size != next(iter(known.values())).size:
            return False
        known[number] = found
        return True

    for number in STARTS:
        probe(number)
    if len(known) < 2:
        return []
    straight = _straight(known)
    for number in () if straight else STARTS:
        probe(-number)
    while not straight:
        ahead = [*islice(_zeros(known), AT_ONCE), *_middles(known)]
        new = [float(floor(n)) if whole else n for n in ahead if low <= n <= high]
        # two that are close have the slope there
        pairs = [(n, n + (1 if whole else BESIDE * max(1, abs(n)))) for n in dict.fromkeys(new)]
        if not sum(probe(one) + probe(other) for one, other in pairs):
            break
    zeros = [n for n in _zeros(known) if low - 1 <= n <= high + 1]
    if not whole:
        return list(dict.fromkeys(zeros))[:MOST]
    near: dict[Number, None] = dict.fromkeys(floor(n) + step for step in (0, 1, -1, 2) for n in zeros)
    return [n for n in near if low <= n <= high][:MOST]


def _straight(known: dict[Number, Array]) -> bool:
    """Whether all gaps are straight lines, as far as these numbers tell: then there is no more to ask."""
    numbers = sorted(known)
    first, last = known[numbers[0]], known[numbers[-1]]
    for number in numbers[1:-1]:
        with np.errstate(all="ignore"):
            share = (number - numbers[0]) / (numbers[-1] - numbers[0])
            off = np.abs(first + (last - first) * share - known[number])
            if not (off <= STRAIGHT * np.maximum(np.abs(first), np.abs(last))).all():
                return False
    return True


def _zeros(known: dict[Number, Array]) -> Iterator[Number]:
    """Where the secants of neighbours are zero: between them, then as far as their own neighbours."""
    numbers = sorted(known)
    ends = [-inf, *numbers, inf]
    beyond: list[Array] = []
    for place, (a, b) in enumerate(pairwise(numbers)):
        with np.errstate(all="ignore"):
            slope = (known[b] - known[a]) / (b - a)
            zeros = a - known[a] / slope
        fine = np.isfinite(zeros) & (slope != 0)
        between = fine & (zeros >= a) & (zeros <= b)
        yield from map(float, np.unique(zeros[between]))
        beyond.append(zeros[fine & ~between & (zeros >= ends[place]) & (zeros <= ends[place + 3])])
    yield from map(float, np.unique(np.concatenate([np.zeros(0), *beyond])))


def _middles(known: dict[Number, Array]) -> Iterator[Number]:
    """Between neighbours of which a gap has different signs, in the order of magnitude."""
    for a, b in pairwise(sorted(known)):
        if b - a > 2 and (np.sign(known[a]) * np.sign(known[b]) < 0).any():
            yield (a * b) ** 0.5 if a > 0 else -((a * b) ** 0.5) if b < 0 else (a + b) / 2
