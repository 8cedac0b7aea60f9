"""Reductions along a row in partial results, a vector of them, and these in halves.

    s[i] = sum[r:768] x[i, r]
 -> a[i, l:64] = sum[q:12] x[i, 64*q + l],  b[i, l:32] = a[i, l] + a[i, l + 32],  ...  s[i] = z[i, 0]

The order of a sum is another one, as it is in every runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.expr.ir.scalar_functions import MONOID_FUNCTIONS
from tensaurus.expr.ir.scope import Body, Call, Read, Tensor, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["Partial", "partial"]


@dataclass(frozen=True)
class Partial:
    """What stands for a reduction: `sums` in vectors, `rest` what no vector fills, then the halves."""

    sums: Stage | None
    rest: Stage | None
    halves: tuple[Stage, ...]
    whole: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(s for s in (self.sums, self.rest, *self.halves, self.whole) if s is not None)


def partial(stage: Stage, along: Axis, width: int) -> Partial:
    """The reduction with `width` partial results along one of its axes."""
    name, count = stage.tensor.name, extent(along)
    others = tuple(a for a in stage.reduced if a is not along)
    blocks, left = divmod(count, width)

    def summed(place: Size, axes: tuple[Axis, ...], reduced: tuple[Axis, ...], suffix: str) -> Stage:
        own = tuple(axis(extent(a)) for a in stage.axes)
        inner = tuple(axis(extent(a), "r") for a in others)
        values: dict[Atom, Any] = dict(
            zip((*stage.axes, *others), map(polynomial, (*own, *inner)), strict=True)
        )
        body = replace_axes(stage.body, {**values, along: place})
        tensor = _tensor(stage, f"{name}_{suffix}", axes)
        return Stage(tensor, (*own, *axes), body, (*inner, *reduced), stage.monoid)

    sums = rest = None
    halves: list[Stage] = []
    parts: list[Body] = []
    if blocks:
        lane, block = axis(width, "l"), axis(blocks, "q")
        sums = summed(polynomial(block) * width + polynomial(lane), (lane,), (block,), "lanes")
        source, size = sums.tensor, width
        while size > 1:
            size //= 2
            own = tuple(axis(extent(a)) for a in stage.axes)
            lane = axis(size, "l")
            place = tuple(map(polynomial, own))
            pair = tuple(Read(source, (*place, polynomial(lane) + shift)) for shift in (0, size))
            tensor = _tensor(stage, f"{name}_{size}", (lane,))
            halves.append(Stage(tensor, (*own, lane), Call(MONOID_FUNCTIONS[stage.monoid], pair)))
            source = tensor
        parts.append(Read(source, (*map(polynomial, stage.axes), 0)))
    if left:
        step = axis(left, "r")
        rest = summed(polynomial(step) + blocks * width, (), (step,), "rest")
        parts.append(Read(rest.tensor, tuple(map(polynomial, stage.axes))))
    body = parts[0] if len(parts) == 1 else Call(MONOID_FUNCTIONS[stage.monoid], tuple(parts))
    return Partial(sums, rest, tuple(halves), Stage(stage.tensor, stage.axes, body))


def _tensor(stage: Stage, name: str, axes: Sequence[Axis]) -> Tensor:
    return Tensor(name, (*stage.tensor.shape, *(extent(a) for a in axes)), stage.tensor.dtype)
