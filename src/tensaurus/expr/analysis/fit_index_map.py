"""Fits an index expression to its values: finds what a chain of reshapes, slices and concatenations reads.

    i:  0 1 2 3 4 5          i:  0 1 2 3 4 5
        3 4 5 6 7 8              0 5 10 1 6 11
        i + 3                    i // 3 + 5*(i % 3)

A place is a tuple of indices, one for each axis.  In large boxes the values at a sample of places are used;
the replay of the equation checks the rest.  `fold_move_chains` gives the values: which element of a tensor is
at a place after all moves; it is "known" where an element is there, and no constant such as padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensaurus.expr.sizes.size import Atom, Axis, Size, evaluate, polynomial

__all__ = [
    *("Booleans", "IndexFunction", "Integers", "evaluate_at", "fit_index", "places_between", "sample_places"),
]

Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]

IndexFunction = Callable[[Sequence[Integers]], tuple[Integers, Booleans]]
"""Maps places to the index at each place, and to whether that index is known."""

MAX_PLACES = 1 << 16  # places of a box that are looked at: all of a small box, else a random sample
LINES = 32  # lines along each axis on which values are looked at


def sample_places(shape: Sequence[int], seed: int = 0) -> list[Integers]:
    """Return all places of a small box, else a sample with the corners, as one array for each axis."""
    if prod(shape) <= MAX_PLACES:
        return [part.ravel() for part in np.indices(shape, np.int64)]
    rng = np.random.default_rng(seed)
    corners = np.indices((2,) * len(shape)).reshape(len(shape), -1) if len(shape) <= 12 else np.zeros((0, 0))
    places = [rng.integers(0, n, MAX_PLACES) for n in shape]
    ends = zip(places, corners * (np.array(shape)[:, None] - 1), strict=True) if corners.size else ()
    return [np.concatenate(pair) for pair in ends] or places


def places_between(
    forms: Sequence[Size], axes: Sequence[Axis], places: Sequence[Integers], known: Booleans
) -> list[Integers] | None:
    """Return further places, which show where the range of each form's values at known places ends, or None.

    The caller tries each form as a guard: the index is known where low <= form <= high.  A sample tells only
    that the range ends between two sampled values: if i + r is known at 3..40, and 1 is the sampled value
    before 3, then places where i + r is 2 decide.
    """
    found: list[Integers] = []
    shape = [a.extent for a in axes if isinstance(a.extent, int)]
    for form in forms:
        values = evaluate_at(form, axes, places)
        if not known.any():
            continue
        # known values of the form reach from low to high; look below low, then above high
        low, high = values[known].min(), values[known].max()
        for beyond, end in ((values[values < low], low), (values[values > high], high)):
            if not beyond.size:
                continue
            # between this end and the sampled value next to it the form has values that no place showed
            other = beyond.max() if end == low else beyond.min()
            first, last = sorted((int(other), int(end)))
            if last - first < 2:
                continue
            distance = np.minimum(np.abs(values - first), np.abs(values - last))
            near = np.argsort(distance, kind="stable")[:LINES]  # lines through these are looked at
            for d, extent in enumerate(shape):
                lines = _lines_through([place[near] for place in places], d, extent)
                at = evaluate_at(form, axes, lines)
                between = np.flatnonzero((at > first) & (at < last))[:MAX_PLACES]
                found.append(np.stack([line[between] for line in lines]))
    together = np.concatenate(found, axis=1) if found else np.zeros((len(axes), 0), np.int64)
    return list(np.unique(together, axis=1)) if together.size else None


def evaluate_at(size: Size, axes: Sequence[Axis], places: Sequence[Integers]) -> Integers:
    """Return the size's value at each place."""
    at: dict[Atom, Any] = dict(zip(axes, places, strict=True))
    shape = places[0].shape if places else ()
    return np.broadcast_to(np.asarray(evaluate(size, at.__getitem__), np.int64), shape)


def fit_index(function: IndexFunction, axes: Sequence[Axis], seed: int = 0) -> Size | None:
    """Return the index expression that has the function's known values, None where none fits.

    It is a sum of linear forms in the mixed-radix digits of each axis.
    """
    shape = [a.extent for a in axes if isinstance(a.extent, int)]
    places = sample_places(shape, seed)
    values, known = function(places)
    if not known.any():
        return None
    # one form for each axis, from the differences along lines through known places
    chosen = np.flatnonzero(known)
    chosen = chosen[np.linspace(0, len(chosen) - 1, LINES).astype(int)]
    bases = [place[chosen] for place in places]
    form: Size = 0
    for d, a in enumerate(axes):
        axis_form = _fit_digits(*_differences(function, bases, d, shape[d]), polynomial(a))
        if axis_form is None:
            return None
        form = form + axis_form
    # the offset makes the sum right at the first known place; then it must be right at all of them
    first = slice(int(np.argmax(known)), int(np.argmax(known)) + 1)
    value = evaluate_at(form, axes, [place[first] for place in places])
    form = form + int(values[first][0]) - int(value[0])
    return form if bool((evaluate_at(form, axes, places) == values)[known].all()) else None


def _differences(
    function: IndexFunction, bases: Sequence[Integers], d: int, extent: int
) -> tuple[Integers, Booleans]:
    """Return value(i + 1) - value(i) for each i along an axis, and where that is known on some line.

    Where lines disagree no form fits: the caller compares the fitted form with all known values.
    """
    values, known = function(_lines_through(bases, d, extent))
    values, known = values.reshape(-1, extent), known.reshape(-1, extent)
    both = known[:, 1:] & known[:, :-1]
    differences = np.max(np.diff(values, axis=1), axis=0, where=both, initial=np.iinfo(np.int64).min)
    is_known: Booleans = np.asarray(both.any(axis=0), np.bool_)
    return np.where(is_known, differences, 0), is_known


def _lines_through(bases: Sequence[Integers], d: int, extent: int) -> list[Integers]:
    """Return all places on the lines along axis d through the base places."""
    lines = [np.repeat(base[:, None], extent, axis=1) for base in bases]
    lines[d] = np.broadcast_to(np.arange(extent), lines[d].shape)
    return [line.ravel() for line in lines]


def _fit_digits(differences: Integers, is_known: Booleans, a: Size) -> Size | None:
    """Return the form in digits of `a` with these differences, None where there is none.

    The lowest digit's slope is the first difference.  Where the differences are others at multiples of a
    period only, the next digit is a // period, and its form is fitted in the same way.
    """
    if not is_known.any():
        return 0
    if not is_known[0]:  # the known range begins later: extend its first difference to the left
        first = int(np.argmax(is_known))
        differences = np.where(is_known, differences, differences[first])
        is_known = is_known | (np.arange(len(is_known)) < first)
    slope = int(differences[0])
    others = np.flatnonzero(is_known & (differences != slope))
    if not others.size:
        return a * slope
    period = int(others[0]) + 1
    carries = np.arange(1, len(differences) + 1) % period == 0
    if period == 1 or bool((is_known & (differences != slope) & ~carries).any()):
        return None
    # from one multiple of the period to the next: period - 1 steps of the lower digit, then its carry
    higher = _fit_digits(differences[carries] + slope * (period - 1), is_known[carries], a // period)
    return None if higher is None else (a % period) * slope + higher
