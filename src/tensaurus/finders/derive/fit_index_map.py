"""Index forms by their values: what a chain of reshapes, slices and concatenations reads, in one expression.

    i:  0 1 2 3 4 5          i:  0 1 2 3 4 5
        3 4 5 6 7 8              0 5 10 1 6 11
        i + 3                    i // 3 + 5*(i % 3)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.sizes.size import Atom, Axis, Size, evaluate, polynomial
from tensaurus.finders.derive.trace_elements import Numbers, Places

__all__ = ["crossings", "fitted", "points", "value_at"]

Sampled = Callable[[Sequence[Numbers]], tuple[Numbers, Places]]
"""The values of a function at places, and where they are known."""

EVERY = 1 << 16  # places of a box that are all looked at
LINES = 32  # along each axis


def points(shape: Sequence[int], seed: int = 0) -> list[Numbers]:
    """All places of a box, or as many of a larger one, with its corners."""
    if prod(shape) <= EVERY:
        return [part.ravel() for part in np.indices(shape, np.int64)]
    rng = np.random.default_rng(seed)
    corners = np.indices((2,) * len(shape)).reshape(len(shape), -1) if len(shape) <= 12 else np.zeros((0, 0))
    places = [rng.integers(0, n, EVERY) for n in shape]
    ends = zip(places, corners * (np.array(shape)[:, None] - 1), strict=True) if corners.size else ()
    return [np.concatenate(pair) for pair in ends] or places


def crossings(
    forms: Sequence[Size], axes: Sequence[Axis], places: Sequence[Numbers], known: Places
) -> list[Numbers] | None:
    """Places where a form has values between those that it has where something is known and those beyond.

    Of a large box some places are looked at, and the end of a range lies between two of these.  None where no
    value is left in between.
    """
    found: list[Numbers] = []
    shape = [a.extent for a in axes if isinstance(a.extent, int)]
    for form in forms:
        values = value_at(form, axes, places)
        if not known.any():
            continue
        low, high = values[known].min(), values[known].max()
        for beyond, end in ((values[values < low], low), (values[values > high], high)):
            if not beyond.size:
                continue
            other = beyond.max() if end == low else beyond.min()
            first, last = sorted((int(other), int(end)))
            if last - first < 2:
                continue
            distance = np.minimum(np.abs(values - first), np.abs(values - last))
            near = np.argsort(distance, kind="stable")[:LINES]
            for d, extent in enumerate(shape):
                lines = _lines([place[near] for place in places], d, extent)
                at = value_at(form, axes, lines)
                between = np.flatnonzero((at > first) & (at < last))[:EVERY]
                found.append(np.stack([line[between] for line in lines]))
    fresh = np.concatenate(found, axis=1) if found else np.zeros((len(axes), 0), np.int64)
    return list(np.unique(fresh, axis=1)) if fresh.size else None


def value_at(size: Size, axes: Sequence[Axis], places: Sequence[Numbers]) -> Numbers:
    """The values of a size at places."""
    at: dict[Atom, Any] = dict(zip(axes, places, strict=True))
    shape = places[0].shape if places else ()
    return np.broadcast_to(np.asarray(evaluate(size, at.__getitem__), np.int64), shape)


def fitted(function: Sampled, axes: Sequence[Axis], seed: int = 0) -> Size | None:
    """The form of the axes that has the function's values wherever these are known, as far as it is looked:
    everywhere in a small box, else at random places; None where there is none.

    It is a sum of forms of one axis each, of its mixed-radix digits.
    """
    shape = [a.extent for a in axes if isinstance(a.extent, int)]
    places = points(shape, seed)
    values, known = function(places)
    if not known.any():
        return None
    chosen = np.flatnonzero(known)
    chosen = chosen[np.linspace(0, len(chosen) - 1, LINES).astype(int)]
    bases = [place[chosen] for place in places]
    form: Size = 0
    for d, a in enumerate(axes):
        part = _of_digits(*_steps(function, bases, d, shape[d]), polynomial(a))
        if part is None:
            return None
        form = form + part
    first = slice(int(np.argmax(known)), int(np.argmax(known)) + 1)
    here = value_at(form, axes, [place[first] for place in places])
    form = form + int(values[first][0]) - int(here[0])
    return form if bool((value_at(form, axes, places) == values)[known].all()) else None


def _steps(function: Sampled, bases: Sequence[Numbers], d: int, extent: int) -> tuple[Numbers, Places]:
    """How far the values go from each place of an axis to the next, and where that is known, on some line."""
    values, known = function(_lines(bases, d, extent))
    values, known = values.reshape(-1, extent), known.reshape(-1, extent)
    both = known[:, 1:] & known[:, :-1]
    moved = np.max(np.diff(values, axis=1), axis=0, where=both, initial=np.iinfo(np.int64).min)
    seen: Places = np.asarray(both.any(axis=0), np.bool_)
    return np.where(seen, moved, 0), seen


def _lines(bases: Sequence[Numbers], d: int, extent: int) -> list[Numbers]:
    """All places along an axis from each of these."""
    lines = [np.repeat(base[:, None], extent, axis=1) for base in bases]
    lines[d] = np.broadcast_to(np.arange(extent), lines[d].shape)
    return [line.ravel() for line in lines]


def _of_digits(steps: Numbers, seen: Places, a: Size) -> Size | None:
    """The form with these steps: the first one repeated, with others at multiples of a number."""
    if not seen.any():
        return 0
    if not seen[0]:  # a range that begins later
        first = int(np.argmax(seen))
        steps, seen = np.where(seen, steps, steps[first]), seen | (np.arange(len(seen)) < first)
    slope = int(steps[0])
    others = np.flatnonzero(seen & (steps != slope))
    if not others.size:
        return a * slope
    period = int(others[0]) + 1
    last = np.arange(1, len(steps) + 1) % period == 0
    if period == 1 or bool((seen & (steps != slope) & ~last).any()):
        return None
    carried = _of_digits(steps[last] + slope * (period - 1), seen[last], a // period)
    return None if carried is None else (a % period) * slope + carried
