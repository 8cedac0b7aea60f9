"""Splits a reduction along a row into a vector of partial results, which is then reduced by halves.

    s[i] = sum[r:768] x[i, r]
 -> a[i, l:64] = sum[q:12] x[i, 64*q + l],  b[i, l:32] = a[i, l] + a[i, l + 32],  ...  s[i] = z[i, 0]

This changes the order in which a sum is added up, as every runtime does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensaurus.expr.ir.scalar_functions import MONOID_FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Read, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial
from tensaurus.kernels.stages.stage import Stage, define_stage, extent

__all__ = ["SplitReduction", "split_row_reduction"]


@dataclass(frozen=True)
class SplitReduction:
    """The stages of a split reduction.

    sums    the vector of partial results; None where the row is shorter than the vector
    rest    the reduction of the last elements, which fill no vector; None where there are none
    halves  the reduction of the partial results, by half in each stage
    result  combines the last half with the rest
    """

    sums: Stage | None
    rest: Stage | None
    halves: tuple[Stage, ...]
    result: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(s for s in (self.sums, self.rest, *self.halves, self.result) if s is not None)


def split_row_reduction(stage: Stage, along: Axis, width: int) -> SplitReduction:
    """Splits a reduction into `width` (a power of two) partial results along one of its reduced axes."""
    name, dtype, count = stage.tensor.name, stage.tensor.dtype, extent(along)
    others = tuple(a for a in stage.reduced if a is not along)
    blocks, remaining = divmod(count, width)

    # the reduction with index `place` along the axis, for each point of `axes`, over `reduced` and the others
    def sum_along(place: Size, axes: tuple[Axis, ...], reduced: tuple[Axis, ...], suffix: str) -> Stage:
        own = tuple(axis(extent(a)) for a in stage.axes)
        inner = tuple(axis(extent(a), "r") for a in others)
        values: dict[Atom, Any] = dict(
            zip((*stage.axes, *others), map(polynomial, (*own, *inner)), strict=True)
        )
        body = replace_axes(stage.body, {**values, along: place})
        return define_stage(f"{name}_{suffix}", dtype, (*own, *axes), body, (*inner, *reduced), stage.monoid)

    sums = rest = None
    halves: list[Stage] = []
    parts: list[Body] = []
    if blocks:
        lane, block = axis(width, "l"), axis(blocks, "q")
        sums = sum_along(polynomial(block) * width + polynomial(lane), (lane,), (block,), "lanes")
        source, size = sums.tensor, width
        while size > 1:
            size //= 2
            own = tuple(axis(extent(a)) for a in stage.axes)
            lane = axis(size, "l")
            place = tuple(map(polynomial, own))
            pair = tuple(Read(source, (*place, polynomial(lane) + shift)) for shift in (0, size))
            body = Call(MONOID_FUNCTIONS[stage.monoid], pair)
            halves.append(define_stage(f"{name}_{size}", dtype, (*own, lane), body))
            source = halves[-1].tensor
        parts.append(Read(source, (*map(polynomial, stage.axes), 0)))
    if remaining:
        step = axis(remaining, "r")
        rest = sum_along(polynomial(step) + blocks * width, (), (step,), "rest")
        parts.append(Read(rest.tensor, tuple(map(polynomial, stage.axes))))
    result = parts[0] if len(parts) == 1 else Call(MONOID_FUNCTIONS[stage.monoid], tuple(parts))
    return SplitReduction(sums, rest, tuple(halves), Stage(stage.tensor, stage.axes, result))
