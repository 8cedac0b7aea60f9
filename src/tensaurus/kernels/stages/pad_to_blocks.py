"""Widens axes to whole blocks of a packed input, whose last block `pack_weights` filled up with zeros.

    s[i:4, f:24] = sum[c:8] x[i, c] * w[f // 16, c, f % 16]        where w was packed from 24 by blocks of 16
 -> s[i:4, f:32] = ...

No reader uses the elements that are added, which are computed from the zeros; but vectors of whole blocks
need no code for a remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensaurus.expr.ir.scope import Read, Tensor, axis
from tensaurus.expr.ir.walk import axes_in, map_reads, reads, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.kernels.stages.sketch import PackedInput
from tensaurus.kernels.stages.stage import Stage, extent, source_name

__all__ = ["widen_to_blocks"]


def widen_to_blocks(stages: Sequence[Stage], packs: Sequence[PackedInput]) -> tuple[Stage, ...]:
    """Widens axes of reductions that read packed inputs by blocks, and of the readers of these reductions.

    An axis is widened only if no read of another tensor leaves its range; the output, the last stage, stays.
    """
    widened = tuple(stages)
    for pack in packs:
        for stage in stages[:-1]:
            for a, size in _partial_block_axes(stage, pack) if stage.reduced else ():
                widened = _widen_axis(widened, stage.tensor.name, stage.axes.index(a), size, pack) or widened
    return widened


def _partial_block_axes(stage: Stage, pack: PackedInput) -> list[tuple[Axis, int]]:
    """Returns the axes that end within a block of the packed input, with the extents of whole blocks."""
    extents = {a: size for read in reads(stage.body) for a, size in _block_extents(read, pack).items()}
    return [(a, size) for a, size in extents.items() if a in stage.axes and size > extent(a)]


def _block_extents(read: Read, pack: PackedInput) -> dict[Axis, int]:
    """Returns {axis: extent of all blocks} where the axis reads the packed input block by block, else {}.

        w[f // 16, c, f % 16] of shape 2 x 8 x 16   ->   {f: 32}
    """
    if source_name(read) != pack.tensor or not read.indices:
        return {}
    *others, (lane, width) = zip(read.indices, read.source.shape, strict=True)
    if width != pack.width:
        return {}
    for k in range(-1, len(others)):  # the dimension of blocks; -1: a single block, which has no dimension
        block, count = others[k] if k >= 0 else (0, 1)
        element = polynomial(block) * width + lane
        for a in axes_in(lane):
            rest = (i for n, (i, _) in enumerate(others) if n != k)
            if element == polynomial(a) and all(a not in axes_in(index) for index in rest):
                assert isinstance(count, int) and isinstance(width, int)
                return {a: count * width}
    return {}


def _widen_axis(
    stages: Sequence[Stage], name: str, place: int, size: int, pack: PackedInput
) -> tuple[Stage, ...] | None:
    """Widens an axis of one stage to `size`, and the axes of other stages that read it element by element.

    Returns None where a stage would read another tensor beyond its edge.
    """
    places = {name: place}  # the widened dimension of each widened tensor
    tensors: dict[str, Tensor] = {}
    widened: list[Stage] = []
    for stage in stages:
        # the axis to widen: the given one, or, of a reader but the output, the one that reads a widened axis
        wide_place = places.get(stage.tensor.name)
        for read in reads(stage.body) if stage is not stages[-1] else ():
            if wide_place is None and source_name(read) in places:
                index = read.indices[places[source_name(read)]]
                wide_place = next((k for k, a in enumerate(stage.axes) if index == polynomial(a)), None)
        if wide_place is None:
            widened.append(_read_widened_tensors(stage, tensors))
            continue
        old, new = stage.axes[wide_place], axis(size)
        if not all(_stays_in_range(read, old, places, pack) for read in reads(stage.body)):
            return None
        places[stage.tensor.name] = wide_place
        axes = (*stage.axes[:wide_place], new, *stage.axes[wide_place + 1 :])
        tensor = tensors[stage.tensor.name] = replace(stage.tensor, shape=tuple(a.extent for a in axes))
        body = replace_axes(stage.body, {old: polynomial(new)})
        widened.append(_read_widened_tensors(replace(stage, tensor=tensor, axes=axes, body=body), tensors))
    return tuple(widened)


def _stays_in_range(read: Read, a: Axis, places: dict[str, int], pack: PackedInput) -> bool:
    """Whether the read stays in range when the axis is widened.

    It does if it has a value outside, does not move with the axis, reads the packed input by blocks, or reads
    a widened tensor at the axis itself.
    """
    along = [k for k, index in enumerate(read.indices) if a in axes_in(index)]
    if read.outside is not None or not along or a in _block_extents(read, pack):
        return True
    return [places.get(source_name(read))] == along and bool(read.indices[along[0]] == polynomial(a))


def _read_widened_tensors(stage: Stage, tensors: dict[str, Tensor]) -> Stage:
    """Replaces the tensors that the stage reads by their widened forms."""

    def changed(body: Any) -> Any:
        if isinstance(body, Read) and source_name(body) in tensors:
            body = replace(body, source=tensors[source_name(body)])
        return rebuild_body(body, changed, lambda size: map_reads(size, changed))

    return replace(stage, body=changed(stage.body)) if tensors else stage
