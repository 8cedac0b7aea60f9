"""An expression over operands in another order: rows that are read in steps lie one after the other.

        L[h:6, p:2, j:5](sum[c](q[2*h + p, c] * k[2*h + p + 2*j - 4, c] | 0))
     -> L[p:2, h:6, j:5](sum[c](q'[p, h, c] * k'[p, h + j - 2, c] | 0)),  k'[p, t, c] = k[2*t + p, c]

(EINNET, figure 14: a dilated band as a plain one.)
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
    """The scope over tensors in another order, its axes in the order that goes with it, and what these
    tensors are of its own."""

    scope: Scope
    operands: Mapping[Tensor, Scope]


def reordered(scope: Scope) -> Reordered | None:
    """None where no tensor is read in steps of one number alone."""
    steps: dict[Tensor, list[int]] = {}
    for x in tensors(scope):
        own = [read for read in reads(scope, nested=True) if read.source == x]
        found = [_step(own, d) for d in range(len(x.shape))]
        beyond = {read.outside for read in own} - {None}
        if any(step > 1 for step in found) and len(beyond) < 2:
            steps[x] = found
    if not steps:
        return None
    operands = {x: _arranged(x, own, scope) for x, own in steps.items()}
    made = {x: Tensor(f"{x.name}'", layout.shape, x.dtype) for x, layout in operands.items()}
    body = _Reordering(steps, made).body(scope.body)
    first = [a for a in scope.axes if any(_remainder(read, steps, a) for read in reads(scope))]
    axes = (*(a for a in scope.axes if a in first), *(a for a in scope.axes if a not in first))
    return Reordered(Scope(axes, body), {made[x]: layout for x, layout in operands.items()})


def _step(own: Sequence[Read], d: int) -> int:
    """A number by which every index of a dimension falls into a quotient and a remainder; 1 where none."""
    forms = [affine_coefficients(read.indices[d], axes_in(read.indices[d])) for read in own]
    slopes = {slope for form in forms if form for slope in form[0].values() if isinstance(slope, int)}
    able = (s for s in sorted(slopes) if s > 1 and all(_parts(read.indices[d], s) for read in own))
    return next(able, 1)


def _parts(index: Size, step: int) -> tuple[Size, Size] | None:
    """The quotient and the remainder of an index, if its terms tell them."""
    form = affine_coefficients(index, axes_in(index))
    if form is None or not isinstance(form[1], int):
        return None
    quotient: Size = polynomial(form[1] // step)
    rest: Size = polynomial(form[1] % step)
    for a, slope in form[0].items():
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


def _remainder(read: Read, steps: Mapping[Tensor, Sequence[int]], a: Axis) -> bool:
    """Whether an axis tells the remainder of an index."""
    own = steps.get(read.source, ()) if isinstance(read.source, Tensor) else ()
    parts = (_parts(index, step) for index, step in zip(read.indices, own, strict=False) if step > 1)
    return any(a in axes_in(part[1]) for part in parts if part)


def _arranged(x: Tensor, steps: Sequence[int], scope: Scope) -> Scope:
    """The tensor with remainders before quotients, as much larger as its last rows are not full."""
    axes, indices = list[Axis](), list[Size]()
    for extent, step in zip(x.shape, steps, strict=True):
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
    """Reads of tensors at the places that they have in another order."""

    def __init__(self, steps: Mapping[Tensor, Sequence[int]], made: Mapping[Tensor, Tensor]):
        super().__init__()
        self.steps, self.made = steps, made

    def read(self, read: Read) -> Read:
        if not isinstance(read.source, Tensor) or read.source not in self.steps:
            return super().read(read)
        indices = list[Size]()
        for index, step in zip(read.indices, self.steps[read.source], strict=True):
            parts = _parts(index, step) if step > 1 else None
            indices += [index] if parts is None else [parts[1], parts[0]]
        return Read(self.made[read.source], tuple(indices), read.outside)
