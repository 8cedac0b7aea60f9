"""Skip the terms of a sum that guards make zero, where the guards leave every s-th term.

    L[i:8](sum[r:4]((x[(i + r) // 2] if (i + r) % 2 == 0 else 0) * w[r]))
 at i = 2*i':        sum[r':2](x[i' + r'] * w[2*r'])
 at i = 2*i' + 1:    sum[r':2](x[i' + r' + 1] * w[2*r' + 1])

The sum is split into *phases*, one for each remainder (modulo s) of the axes on which the guards depend.  A
transposed convolution is such a sum: its source is spread by zeros, and a phase of its result reads one phase
of the kernel (ETO section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from tensaurus.expr.evaluate.field_protocol import Field
from tensaurus.expr.evaluate.labelled_arrays import LabelledArray, length
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

__all__ = ["Phase", "pad_reads", "inline_guarded_read", "split_phases", "merge_phases"]

MAX_PHASES = 256  # a sum is not split by a division that has more combinations of remainders


class AxisSlice(NamedTuple):
    """The indices start, start + step, ... of an axis, which another axis counts."""

    start: int
    step: int
    counter: Axis


@dataclass(frozen=True)
class Phase:
    """A part of a sum: its factors at every `step`-th index of some axes.

    axes    the summed axes
    slices  the elements that the phase computes, for each axis of the result that is split
    """

    factors: Sequence[Body]
    axes: tuple[Axis, ...]
    slices: Mapping[Axis, AxisSlice]


def inline_guarded_read(body: Body) -> Body:
    """Return a read of a scope that is zero outside a guard as a guarded read; any other body unchanged.

        L[j:8](x[j // 2] if j % 2 == 0 else 0)[i + r]     ->     x[(i + r) // 2] if (i + r) % 2 == 0 else 0
    """
    match body:
        case Read(Scope(axes, Select(guard, Read(_, _, None) as then, Const(0) as other)), indices, edges):
            pass
        case _:
            return body
    if edges is not None and edges != other:
        return body
    extents = dict(zip(then.indices, then.source.shape, strict=True))
    for a, index in zip(axes, indices, strict=True):
        # Inlining drops the scope's own bounds check.  So either the index never leaves the scope, or where
        # it does, the inner read leaves its source, too, and gives the same 0.
        if not _stays_within(index, a) and not any(
            _leaves_range_with(part, extents[part], a) for part in extents
        ):
            return body
    values: dict[Atom, Any] = dict(zip(axes, indices, strict=True))
    new_indices = tuple(substitute(index, values) for index in then.indices)
    return Select(tuple(substitute(g, values) for g in guard), Read(then.source, new_indices, other), other)


def _stays_within(index: Size, a: Axis) -> bool:
    low, high = interval(index)
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < length(a)


def _leaves_range_with(index: Size, extent: Size, a: Axis) -> bool:
    """Return whether the index leaves 0..extent exactly where `a` leaves its own range.

    The index then is a // s, and extent * s is the length of `a`; s may be 1.
    """
    if not isinstance(extent, int) or a not in atoms(polynomial(index)) or length(a) % extent:
        return False
    return bool(polynomial(index) == polynomial(floordiv(polynomial(a), length(a) // extent)))


def split_phases(factors: Sequence[Body], axes: tuple[Axis, ...]) -> Iterator[Phase]:
    """Yield the sum over the axes of the product of the factors as phases that are not zero.

    One division in a guard splits the sum; its phases are split again by the divisions that are left.  A sum
    without divisions is one phase, with the factors as given.
    """
    periods = next(_axis_periods(factors), None)
    if periods is None:
        yield Phase(factors, axes, {})
        return
    for remainders in product(*map(range, periods.values())):
        steps = list(zip(periods.items(), remainders, strict=True))
        # each axis is counted in steps: it has ceil((length - start) / step) points in this phase
        fresh = {a: axis(-((start - length(a)) // step), a.name) for (a, step), start in steps}
        if not all(map(length, fresh.values())):
            continue
        values: dict[Atom, Any] = {a: polynomial(fresh[a]) * step + start for (a, step), start in steps}
        parts = [_factor_at(factor, values) for factor in factors]
        nonzero = [part for part in parts if part is not None]
        if len(nonzero) < len(parts):  # a factor is 0, and so is the whole phase
            continue
        for phase in split_phases(nonzero, tuple(fresh.get(a, a) for a in axes)):
            kept_slices = {a: one for a, one in phase.slices.items() if a not in fresh.values()}
            for (a, step), start in steps:
                if a not in axes:  # an axis of the result; summed axes need no slice
                    # where the phase was split again, both strides are composed
                    inner = phase.slices.get(fresh[a], AxisSlice(0, 1, fresh[a]))
                    kept_slices[a] = AxisSlice(start + step * inner.start, step * inner.step, inner.counter)
            yield Phase(phase.factors, phase.axes, kept_slices)


def _axis_periods(factors: Sequence[Body]) -> Iterator[dict[Axis, int]]:
    """Yield, for each division t // s in a guard, {axis: period}.

    The remainder of t depends on the axis modulo this period only.
    """
    guards = (g for f in factors if isinstance(f, Select) and f.other == Const(0) for g in f.guard)
    for atom in (atom for guard in guards for atom in atoms(guard)):
        if not isinstance(atom, Floor) or not isinstance(atom.bottom, int):
            continue
        axes = [a for a in atoms(atom.top) if isinstance(a, Axis)]
        linear = affine_coefficients(atom.top, axes)
        if linear is None or not all(
            isinstance(slope, int) for slope in (linear.rest, *linear.slopes.values())
        ):
            continue
        slopes = {a: slope for a, slope in linear.slopes.items() if isinstance(slope, int)}
        periods = {a: atom.bottom // gcd(slope, atom.bottom) for a, slope in slopes.items()}
        periods = {a: period for a, period in periods.items() if period > 1}
        if periods and prod(periods.values()) <= MAX_PHASES:
            yield periods


def _factor_at(factor: Body, values: Mapping[Atom, Any]) -> Body | None:
    """Return the factor at these values, None where it is zero."""
    if not isinstance(factor, Select) or factor.other != Const(0):
        return replace_axes(factor, values)
    guard = []
    for size in factor.guard:  # the axes' ranges decide most guards of a phase
        guard_size = substitute(size, values)
        low, high = interval(guard_size)
        if isinstance(high, int) and high < 0:
            return None
        if not isinstance(low, int) or low < 0:
            guard.append(guard_size)
    then = replace_axes(factor.then, values)
    return Select(tuple(guard), then, factor.other) if guard else then


def merge_phases(field: Field, phase_results: Sequence[tuple[Phase, LabelledArray]]) -> LabelledArray:
    """Return the results of all phases in one array; those of phases with the same slices are added."""
    # the result's axes: `kept` are split in some phase, `others` in none
    kept = tuple(dict.fromkeys(a for phase, _ in phase_results for a in phase.slices))
    counters = {one.counter for phase, _ in phase_results for one in phase.slices.values()}
    others = tuple(
        dict.fromkeys(a for _, item in phase_results for a in item.axes if a not in (*kept, *counters))
    )
    # of elements and integers, the result has the type of the former
    arrays = sorted((item.data for _, item in phase_results), key=field.has_elements)
    result = np.zeros([length(a) for a in (*kept, *others)], arrays[-1].dtype)
    for phase, item in phase_results:
        slices = [phase.slices.get(a, AxisSlice(0, 1, a)) for a in kept]
        view = result[tuple(slice(one.start, None, one.step) for one in slices)]
        view[...] = field.call("add", [view, item.align([*(one.counter for one in slices), *others])])
    return LabelledArray(result, (*kept, *others))


def pad_reads(body: Body) -> Body:
    """Return the body with 0 beyond the edge of every read: a guard may discard those elements later."""
    return _PaddedReads().body(body)


class _PaddedReads(Rewriting):
    def read(self, read: Read) -> Read:
        return Read(read.source, read.indices, Const(0)) if read.outside is None else read

    def size(self, size: Size) -> Size:
        return size
