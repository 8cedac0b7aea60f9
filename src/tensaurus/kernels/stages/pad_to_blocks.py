"""Axes as wide as the blocks of a packed input, where these reach beyond the last of its elements.

    s[i:4, f:24] = sum[c:8] x[i, c] * w[f // 16, c, f % 16]        of w, packed from 24 by blocks of 16
 -> s[i:4, f:32] = ...

What is computed there is of the zeros that blocks are filled with, and read by nobody; vectors of whole
blocks need no remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensaurus.expr.ir.scope import Read, Tensor, axis
from tensaurus.expr.ir.walk import axes_in, map_reads, reads, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.kernels.stages.sketch import Pack
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["widened"]


def widened(stages: Sequence[Stage], packs: Sequence[Pack]) -> tuple[Stage, ...]:
    """The stages with axes of reductions that read packed inputs, and of what reads these, as wide as blocks.

    Only where nothing else is read beyond its edge then; the output, the last stage, keeps its axes.
    """
    found = tuple(stages)
    for pack in packs:
        for stage in stages[:-1]:
            for a, size in _short(stage, pack) if stage.reduced else ():
                found = _wider(found, stage.tensor.name, stage.axes.index(a), size, pack) or found
    return found


def _short(stage: Stage, pack: Pack) -> list[tuple[Axis, int]]:
    """The stage's axes along which it reads less than whole blocks of the packed input, and their size."""
    found = {a: size for read in reads(stage.body) for a, size in _blocked(read, pack).items()}
    return [(a, size) for a, size in found.items() if a in stage.axes and size > extent(a)]


def _blocked(read: Read, pack: Pack) -> dict[Axis, int]:
    """The axis by which it reads the packed input block by block, and the places of these; else nothing."""
    if not isinstance(read.source, Tensor) or read.source.name != pack.tensor or not read.indices:
        return {}
    *others, (lane, width) = zip(read.indices, read.source.shape, strict=True)
    if width != pack.width:
        return {}
    for k in range(-1, len(others)):  # one block has no dimension
        block, count = others[k] if k >= 0 else (0, 1)
        whole = polynomial(block) * width + lane
        for a in axes_in(lane):
            rest = (i for n, (i, _) in enumerate(others) if n != k)
            if whole == polynomial(a) and all(a not in axes_in(index) for index in rest):
                assert isinstance(count, int) and isinstance(width, int)
                return {a: count * width}
    return {}


def _wider(
    stages: Sequence[Stage], name: str, place: int, size: int, pack: Pack
) -> tuple[Stage, ...] | None:
    """The stages with this axis of one of so many places, and those that read it place by place; None where
    one would read something else beyond its edge.
    """
    places = {name: place}  # of the tensors that are wider
    tensors: dict[str, Tensor] = {}
    found: list[Stage] = []
    for stage in stages:
        own = places.get(stage.tensor.name)
        for read in reads(stage.body) if stage is not stages[-1] else ():
            if own is None and isinstance(read.source, Tensor) and read.source.name in places:
                index = read.indices[places[read.source.name]]
                own = next((k for k, a in enumerate(stage.axes) if index == polynomial(a)), None)
        if own is None:
            found.append(_reading(stage, tensors))
            continue
        old, new = stage.axes[own], axis(size)
        if not all(_within(read, old, places, pack) for read in reads(stage.body)):
            return None
        places[stage.tensor.name] = own
        axes = (*stage.axes[:own], new, *stage.axes[own + 1 :])
        tensor = tensors[stage.tensor.name] = replace(stage.tensor, shape=tuple(a.extent for a in axes))
        body = replace_axes(stage.body, {old: polynomial(new)})
        found.append(_reading(replace(stage, tensor=tensor, axes=axes, body=body), tensors))
    return tuple(found)


def _within(read: Read, a: Axis, places: dict[str, int], pack: Pack) -> bool:
    """Whether the read stays in range beyond the end of the axis."""
    along = [k for k, index in enumerate(read.indices) if a in axes_in(index)]
    if read.outside is not None or not along or a in _blocked(read, pack):
        return True
    if not isinstance(read.source, Tensor) or [places.get(read.source.name)] != along:
        return False
    return bool(read.indices[along[0]] == polynomial(a))


def _reading(stage: Stage, tensors: dict[str, Tensor]) -> Stage:
    """The stage over tensors that are wider."""

    def changed(body: Any) -> Any:
        if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source.name in tensors:
            body = replace(body, source=tensors[body.source.name])
        return rebuild_body(body, changed, lambda size: map_reads(size, changed))

    return replace(stage, body=changed(stage.body)) if tensors else stage
