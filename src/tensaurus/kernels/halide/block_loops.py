"""Schedules the loops of a register block: tiles outside, accumulators in registers inside.

    for axes without tiles, for tiles:            (the levels at which copies of operands are computed)
        for axes of tiles in no block, for blocks:
            accumulators = 0;  for reduced axes: accumulators += product;  output of the block

`halide/pipeline` calls `schedule_block` for each nest with a `BlockSketch`, which has the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import halide as hl

from tensaurus.kernels.halide.lower import LoweredStages
from tensaurus.kernels.halide.schedule import (
    AT_ROOT,
    EnclosingLoops,
    FuncLoops,
    schedule_accumulators,
    schedule_copy,
)
from tensaurus.kernels.stages.loop_nest import Nest
from tensaurus.kernels.stages.sketch import BlockSketch
from tensaurus.kernels.stages.stage import Stage

__all__ = ["schedule_block"]


def schedule_block(
    nest: Nest,
    sketch: BlockSketch,
    lowered: LoweredStages,
    copies: Sequence[tuple[Stage, int]],
    groups: Stage | None,
    shared_axes: int,
    around: EnclosingLoops,
    points: int,
) -> EnclosingLoops:
    """Schedules a nest with a reduction.

    copies       stages that copy operands, each with the number of outer loops that it is computed in
    groups       the stage that sums each group of terms, where the reduction is a long sum split in groups
    shared_axes  number of first axes that the nest shares with other nests
    points       how often the bodies of the nest, and of those inside its loops, are computed

    Returns the loops over the shared axes, if they are outside all others: other nests may be computed there.
    """
    assert nest.main is not None
    loops = _BlockLoops(nest.output, sketch, lowered, around)
    loops.split_tiles(shared_axes)
    loops.split_block()
    loops.arrange()
    loops.parallelize(points)
    loops.place_accumulators(lowered.accumulators[nest.main.tensor.name])
    if groups is None:
        _schedule_accumulators(nest.main, sketch, lowered, sketch.order, sketch.unrolled)
    else:
        _schedule_groups(nest.main, groups, sketch, lowered)
    loops.place_copies(copies)
    return loops.loops_of_shared_axes(shared_axes)


class _BlockLoops:
    """The loops of a nest's output; the methods are called in the order in which they stand here.

    sizes          the sizes of the axes inside `around`
    tile_loops     loops over tiles, outermost first
    tile_steps     the steps of these loops
    shared_tiles   how many of the tile loops, from the outermost, go over shared axes alone, each axis once
    shared_sizes   the sizes of the shared axes inside these loops
    block_loops    loops over register blocks, innermost first
    unrolled       loops of a register block around its vectors, innermost first
    inner_axes     numbers of the axes that are in a tile, but in no block
    inner_loops    their loops inside a tile, innermost first
    untiled        numbers of the axes that are in no block and no tile: their loops are outside all others
    levels         loops over untiled axes and tiles, outermost first; a fused parallel loop stands for each
                   loop that it fuses
    """

    def __init__(self, output: Stage, sketch: BlockSketch, lowered: LoweredStages, around: EnclosingLoops):
        self.sketch, self.lowered, self.around = sketch, lowered, around
        self.func = lowered.funcs[output.tensor.name]
        self.sizes = around.sizes_inside(output)
        self.loops = FuncLoops(self.func, [lowered.variables[a] for a in output.axes], self.sizes)
        width = sketch.lanes * sketch.vectors
        if sketch.vector < len(around.sizes) and self.sizes[sketch.vector] % width:
            raise ValueError("a vector is longer than the chunk that the enclosing loops compute at once")
        tiled, blocked = dict(sketch.tile), dict(sketch.block)
        free = [a for a, n in enumerate(self.sizes) if a != sketch.vector and a not in blocked and n > 1]
        self.untiled = [a for a in free if a not in tiled]
        self.inner_axes = [a for a in free if a in tiled]

    def split_tiles(self, shared_axes: int) -> None:
        loops = self.loops
        self.tile_loops: list[Any] = []
        self.tile_steps: list[int] = []
        self.shared_tiles, self.shared_sizes = 0, self.sizes[:shared_axes]
        for number, (a, size) in enumerate(self.sketch.tile):
            steps = -(-loops.sizes[a] // size)
            if steps > 1:
                self.tile_loops += loops.split(a, size)
                self.tile_steps.append(steps)
            before = [b for b, _ in self.sketch.tile[:number]]
            if a not in before and all(b < shared_axes for b in (*before, a)):
                self.shared_tiles, self.shared_sizes[a] = len(self.tile_loops), loops.sizes[a]

    def split_block(self) -> None:
        loops, sketch = self.loops, self.sketch
        self.block_loops = loops.split(sketch.vector, sketch.lanes * sketch.vectors)
        self.unrolled = loops.split(sketch.vector, sketch.lanes) if sketch.vectors > 1 else []
        for a, count in sketch.block:
            self.block_loops += loops.split(a, count)
            self.unrolled.append(loops.axes[a])

    def arrange(self) -> None:
        """Orders the loops, vectorizes the innermost one, and unrolls those of the register block."""
        loops, lane = self.loops, self.loops.axes[self.sketch.vector]
        self.inner_loops = [loops.axes[a] for a in reversed(self.inner_axes)]
        self.levels = [*(loops.axes[a] for a in self.untiled), *self.tile_loops]
        self.func.reorder(lane, *self.unrolled, *self.block_loops, *self.inner_loops, *reversed(self.levels))
        loops.vectorize(self.sketch.vector, self.sketch.lanes)
        for loop in self.unrolled:
            self.func.unroll(loop)

    def parallelize(self, points: int) -> None:
        """Fuses the outermost loops to one, which is parallel."""
        count = min(self.sketch.parallel, len(self.levels))
        if not count:
            return
        steps = [*(self.sizes[a] for a in self.untiled), *self.tile_steps]
        (fused,) = self.loops.fuse(self.levels[:count][::-1])
        task, fused = self.loops.split_tasks(fused, prod(steps[:count]), points)
        self.func.parallel(task)
        self.levels[:count] = [fused] * count

    def place_accumulators(self, accumulators: Any) -> None:
        """Computes accumulators in the innermost loop around the register block."""
        loops = [*self.block_loops, *self.inner_loops, *reversed(self.levels)]  # innermost first
        if loops:
            accumulators.compute_at(self.func, loops[0]).store_in(hl.MemoryType.Register)
        else:  # one block: inside the output's vector loop each lane would have accumulators of its own
            self.around.place_func(accumulators).store_in(hl.MemoryType.Auto)

    def place_copies(self, copies: Sequence[tuple[Stage, int]]) -> None:
        # copies of inputs can be computed at the root; tensors of other nests may not exist there yet
        available = {param.name() for param in self.lowered.inputs}
        for copy, level in copies:
            inside, parallel = self.around, False
            if loop := self.levels[:level][-1:]:
                inside = EnclosingLoops(self.func, loop[0])
            elif available.issuperset(x.name for x in copy.sources):
                available.add(copy.tensor.name)
                inside, parallel = AT_ROOT, self.sketch.parallel > 0 or self.around.func is not None
            schedule_copy(copy, self.lowered, self.sketch.lanes, inside, parallel)

    def loops_of_shared_axes(self, shared_axes: int) -> EnclosingLoops:
        """Returns the innermost loop over shared axes that has only loops over shared axes around it."""
        count = len(self.untiled) + self.shared_tiles
        if not count or any(a >= shared_axes for a in self.untiled):
            return AT_ROOT
        sizes = (1 if a in self.untiled else n for a, n in enumerate(self.shared_sizes))
        return EnclosingLoops(self.func, self.levels[count - 1], tuple(sizes))


def _schedule_groups(main: Stage, groups: Stage, sketch: BlockSketch, lowered: LoweredStages) -> None:
    """Schedules the sum of groups, and inside its loop over groups the sum of each group."""
    count = len(main.reduced)
    loop = _schedule_accumulators(main, sketch, lowered, range(count)[::-1], 0)
    inner = lowered.accumulators[groups.tensor.name]
    inner.compute_at(lowered.accumulators[main.tensor.name], loop).store_in(hl.MemoryType.Register)
    order = range(len(groups.reduced))[::-1]
    _schedule_accumulators(groups, sketch, lowered, order, sketch.unrolled, count)


def _schedule_accumulators(
    stage: Stage,
    sketch: BlockSketch,
    lowered: LoweredStages,
    order: Sequence[int],
    unrolled: int,
    group_axes: int = 0,
) -> Any:
    """Schedules the loops of accumulators, whose first `group_axes` axes number groups of a long sum.

    Returns the innermost loop of the reduction.
    """
    # the vectors' axis is innermost in memory and in loops; then come the block and the reduction
    accumulators = lowered.accumulators[stage.tensor.name]
    variables = [lowered.variables[a] for a in stage.axes]
    own = variables[group_axes:]
    lane = own[sketch.vector]
    others = [v for v in reversed(variables) if v is not lane]
    if others:
        accumulators.reorder_storage(lane, *others)
    blocked = [own[a] for a, _ in sketch.block]
    unblocked = [v for v in others if all(v is not b for b in blocked)]
    reduced = [lowered.variables[stage.reduced[k]] for k in order]
    schedule_accumulators(accumulators, lane, sketch.lanes, blocked, reduced, unblocked)
    for variable in reduced[:unrolled]:
        accumulators.update().unroll(variable)
    return reduced[0]
