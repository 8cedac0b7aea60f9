"""Sums of which guards leave every s-th term, by the remainders of the axes that decide the guards.

    L[i:8](sum[r:4]((x[(i + r) // 2] if (i + r) % 2 == 0 else 0) * w[r]))
 at i = 2*i':        sum[r':2](x[i' + r'] * w[2*r'])
 at i = 2*i' + 1:    sum[r':2](x[i' + r' + 1] * w[2*r' + 1])

A transposed convolution is one: its source is spread by zeros, and a phase of it reads its own phase of the
kernel (ETO section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Field
from tensaurus.expr.evaluate.labelled_arrays import Labelled, length
from tensaurus.expr.ir.scope import Body, Const, Read, Scope, Select, axis
from tensaurus.expr.ir.walk import Rewriting, replace_axes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    floordiv,
    interval,
    polynomial,
    substitute,
)

__all__ = ["Phase", "edged", "opened", "phases", "placed"]

MOST = 256  # combinations of remainders of one division


@dataclass(frozen=True)
class Phase:
    """The factors of a sum at every `step`-th place, from `start` on, of some axes.

    `spots`: (start, step, the axis that counts them) of axes that are kept; `axes` are summed.
    """

    factors: Sequence[Body]
    axes: tuple[Axis, ...]
    spots: Mapping[Axis, tuple[int, int, Axis]]


def opened(body: Body) -> Body:
    """The read of a scope that is zero but where a guard holds, as what is read there; or the body itself."""
    match body:
        case Read(Scope(axes, Select(guard, Read(_, _, None) as then, Const(0) as other)), indices, edges):
            pass
        case _:
            return body
    if edges is not None and edges != other:
        return body
    extents = dict(zip(then.indices, then.source.shape, strict=True))
    for a, index in zip(axes, indices, strict=True):
        # an axis leaves its range where what it is divided to leaves that of what is read
        if not _within(index, a) and not any(_spans(part, extents[part], a) for part in extents):
            return body
    at: dict[Atom, Any] = dict(zip(axes, indices, strict=True))
    moved = tuple(substitute(index, at) for index in then.indices)
    return Select(tuple(substitute(g, at) for g in guard), Read(then.source, moved, other), other)


def _within(index: Size, a: Axis) -> bool:
    low, high = interval(index)
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < length(a)


def _spans(index: Size, extent: Size, a: Axis) -> bool:
    """Whether the index is the axis, or the axis divided by s, and its extent the axis's in steps of s."""
    if not isinstance(extent, int) or a not in atoms(polynomial(index)) or length(a) % extent:
        return False  # of one element the index is 0, wherever the axis is
    return bool(polynomial(index) == polynomial(floordiv(polynomial(a), length(a) // extent)))


def phases(factors: Sequence[Body], axes: tuple[Axis, ...]) -> Iterator[Phase]:
    """The sum over the axes of the product of the factors, by phases that are not zero."""
    periods = next(_divided(factors), None)
    if periods is None:
        yield Phase(factors, axes, {})
        return
    for remainders in product(*map(range, periods.values())):
        steps = list(zip(periods.items(), remainders, strict=True))
        fresh = {a: axis(-((start - length(a)) // step), a.name) for (a, step), start in steps}
        if not all(map(length, fresh.values())):
            continue
        values: dict[Atom, Any] = {a: polynomial(fresh[a]) * step + start for (a, step), start in steps}
        parts = [_at(factor, values) for factor in factors]
        left = [part for part in parts if part is not None]
        if len(left) < len(parts):
            continue
        for phase in phases(left, tuple(fresh.get(a, a) for a in axes)):
            spots = {a: spot for a, spot in phase.spots.items() if a not in fresh.values()}
            for (a, step), start in steps:
                if a not in axes:
                    first, next_one, last = phase.spots.get(fresh[a], (0, 1, fresh[a]))
                    spots[a] = start + step * first, step * next_one, last
            yield Phase(phase.factors, phase.axes, spots)


def _divided(factors: Sequence[Body]) -> Iterator[dict[Axis, int]]:
    """The periods of the axes on which a division in a guard depends, beside which a factor is zero."""
    guards = (g for f in factors if isinstance(f, Select) and f.other == Const(0) for g in f.guard)
    for atom in (atom for guard in guards for atom in atoms(guard)):
        if not isinstance(atom, Floor) or not isinstance(atom.bottom, int):
            continue
        inside = [a for a in atoms(atom.top) if isinstance(a, Axis)]
        found = affine_coefficients(atom.top, inside)
        if found is None or not all(isinstance(slope, int) for slope in (found[1], *found[0].values())):
            continue
        slopes = {a: slope for a, slope in found[0].items() if isinstance(slope, int)}
        periods = {a: atom.bottom // gcd(slope, atom.bottom) for a, slope in slopes.items()}
        periods = {a: period for a, period in periods.items() if period > 1}
        if periods and prod(periods.values()) <= MOST:
            yield periods


def _at(factor: Body, values: Mapping[Atom, Any]) -> Body | None:
    """The factor there; None where it is zero."""
    if not isinstance(factor, Select) or factor.other != Const(0):
        return replace_axes(factor, values)
    guard = []
    for size in factor.guard:
        moved = substitute(size, values)
        low, high = interval(moved)
        if isinstance(high, int) and high < 0:
            return None
        if not isinstance(low, int) or low < 0:
            guard.append(moved)
    then = replace_axes(factor.then, values)
    return Select(tuple(guard), then, factor.other) if guard else then


def placed(field: Field, found: Sequence[tuple[Phase, Labelled]]) -> Labelled:
    """The results of all phases in one array; those of the same places are added."""
    kept = tuple(dict.fromkeys(a for phase, _ in found for a in phase.spots))
    own = {last for phase, _ in found for _, _, last in phase.spots.values()}
    others = tuple(dict.fromkeys(a for _, item in found for a in item.axes if a not in (*kept, *own)))
    arrays = sorted((item.data for _, item in found), key=field.elements)
    whole = np.zeros([length(a) for a in (*kept, *others)], arrays[-1].dtype)
    for phase, item in found:
        spots = [phase.spots.get(a, (0, 1, a)) for a in kept]
        view = whole[tuple(slice(start, None, step) for start, step, _ in spots)]
        view[...] = field.call("add", [view, item.aligned([*(last for _, _, last in spots), *others])])
    return Labelled(whole, (*kept, *others))


def edged(body: Body) -> Body:
    """The body with every read given a value beyond the edge: one that a guard may discard."""
    return _Edged().body(body)


class _Edged(Rewriting):
    def read(self, read: Read) -> Read:
        return Read(read.source, read.indices, Const(0)) if read.outside is None else read

    def size(self, size: Size) -> Size:
        return size
