"""Rearranges operands so that rows that are read with a stride lie one after the other.

        L[h:6, p:2, j:5](sum[c](q[2*h + p, c] * k[2*h + p + 2*j - 4, c] | 0))
     -> L[p:2, h:6, j:5](sum[c](q'[p, h, c] * k'[p, h + j - 2, c] | 0)),  k'[p, t, c] = k[2*t + p, c]

A dilated band, as in sliding-window attention, becomes a plain one for each remainder (EINNET, figure 14).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensaurus.expr.ir.scope import Const, Read, Scope, Tensor, axis
from tensaurus.expr.ir.walk import Rewriting, reads, tensors
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Size, floordiv, interval, polynomial
from tensaurus.finders.derive.rewrite_step import axes_in

__all__ = ["Reordered", "reordered"]


class Reordered(NamedTuple):
    """A scope over rearranged tensors with its axes reordered alike, and how each new tensor is computed."""

    scope: Scope
    operands: Mapping[Tensor, Scope]


def reordered(scope: Scope) -> Reordered | None:
    """Return the scope over rearranged operands, None where no tensor is read with one stride alone."""
    strides: dict[Tensor, list[int]] = {}
    for x in tensors(scope):
        reads_of_x = [read for read in reads(scope, nested=True) if read.source == x]
        strides_of_x = [_common_stride(reads_of_x, d) for d in range(len(x.shape))]
        outside_values = {read.outside for read in reads_of_x} - {None}
        if any(stride > 1 for stride in strides_of_x) and len(outside_values) < 2:
            strides[x] = strides_of_x
    if not strides:
        return None
    layouts = {x: _rearrange(x, strides_of_x, scope) for x, strides_of_x in strides.items()}
    new = {x: Tensor(f"{x.name}'", layout.shape, x.dtype) for x, layout in layouts.items()}
    body = _Reordering(strides, new).body(scope.body)
    # axes that choose the remainder come first, as in the rearranged operands
    first = [a for a in scope.axes if any(_is_in_remainder(read, strides, a) for read in reads(scope))]
    axes = (*(a for a in scope.axes if a in first), *(a for a in scope.axes if a not in first))
    return Reordered(Scope(axes, body), {new[x]: layout for x, layout in layouts.items()})


def _common_stride(reads_of_x: Sequence[Read], d: int) -> int:
    """Return a number that divides every index of a dimension into quotient and remainder, 1 for none."""
    forms = [affine_coefficients(read.indices[d], axes_in(read.indices[d])) for read in reads_of_x]
    slopes = {slope for form in forms if form for slope in form.slopes.values() if isinstance(slope, int)}
    strides = (s for s in sorted(slopes) if s > 1 and all(_divide(r.indices[d], s) for r in reads_of_x))
    return next(strides, 1)


def _divide(index: Size, step: int) -> tuple[Size, Size] | None:
    """Return quotient and remainder of an affine index, where each term belongs to one of the two."""
    form = affine_coefficients(index, axes_in(index))
    if form is None or not isinstance(form.rest, int):
        return None
    quotient: Size = polynomial(form.rest // step)
    rest: Size = polynomial(form.rest % step)
    for a, slope in form.slopes.items():
        if not isinstance(slope, int):
            return None
        if slope % step:
            rest = rest + polynomial(a) * slope
        else:
            quotient = quotient + polynomial(a) * (slope // step)
    low, high = interval(rest)
    if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high >= step:
        return None
    return quotient, rest


def _is_in_remainder(read: Read, strides: Mapping[Tensor, Sequence[int]], a: Axis) -> bool:
    """Return whether the remainder of an index depends on the axis."""
    own_strides = strides.get(read.source, ()) if isinstance(read.source, Tensor) else ()
    pairs = zip(read.indices, own_strides, strict=False)
    divisions = (_divide(index, step) for index, step in pairs if step > 1)
    return any(a in axes_in(remainder) for _, remainder in filter(None, divisions))


def _rearrange(x: Tensor, strides: Sequence[int], scope: Scope) -> Scope:
    """Return the tensor with the remainder of each strided index before its quotient, padded to full rows."""
    axes, indices = list[Axis](), list[Size]()
    for extent, step in zip(x.shape, strides, strict=True):
        if step == 1:
            axes.append(axis(extent))
            indices.append(polynomial(axes[-1]))
            continue
        low, high = axis(step, "p"), axis(0 - floordiv(0 - extent, step), "t")
        axes += [low, high]
        indices.append(polynomial(high) * step + polynomial(low))
    outside = next((r.outside for r in reads(scope, nested=True) if r.source == x and r.outside), Const(0))
    return Scope(tuple(axes), Read(x, tuple(indices), outside))


class _Reordering(Rewriting):
    """Reads the rearranged tensors in place of the old ones."""

    def __init__(self, strides: Mapping[Tensor, Sequence[int]], new: Mapping[Tensor, Tensor]):
        super().__init__()
        self.strides, self.new = strides, new

    def read(self, read: Read) -> Read:
        if not isinstance(read.source, Tensor) or read.source not in self.strides:
            return super().read(read)
        indices = list[Size]()
        for index, step in zip(read.indices, self.strides[read.source], strict=True):
            pair = _divide(index, step) if step > 1 else None
            if pair is None:
                indices.append(index)
            else:
                quotient, remainder = pair
                indices += [remainder, quotient]
        return Read(self.new[read.source], tuple(indices), read.outside)
