"""Applies sketches to the loops of Halide functions: splits, reorders, unrolls, vectorizes them.

`halide/pipeline` calls the function of each nest's kind of sketch (`stages/sketch` explains these).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import halide as hl

from tensaurus.expr.ir.scope import Read
from tensaurus.expr.sizes.size import Axis, atoms
from tensaurus.kernels.halide.lower import LoweredStages
from tensaurus.kernels.stages.loop_nest import Nest
from tensaurus.kernels.stages.sketch import BlockSketch, FlatSketch
from tensaurus.kernels.stages.split_row_reduction import SplitReduction
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = [
    "AT_ROOT",
    "EnclosingLoops",
    "FuncLoops",
    "schedule_block",
    "schedule_copy",
    "schedule_flat",
    "schedule_row",
]

EXACT_TAIL = hl.TailStrategy.RoundUp  # for factors that divide the extent
SHIFTED_TAIL = hl.TailStrategy.ShiftInwards  # the last step begins earlier, and overlaps the one before
PARALLEL_COPY_ELEMENTS = 1 << 16  # elements from which on a copy is computed by several threads
MAX_TASKS = 64  # tasks of one parallel loop: starting a task takes as long as some hundred elements


@dataclass(frozen=True)
class EnclosingLoops:
    """The loops of another nest inside which a nest is computed.

    func    the function that has the loops; None where the nest is computed at the root
    loop    the innermost of the loops
    sizes   the sizes that the nest's first axes have inside the loops
    """

    func: Any | None = None
    loop: Any | None = None
    sizes: tuple[int, ...] = ()

    def place_func(self, func: Any) -> Any:
        """Schedules a function to be computed inside these loops."""
        return func.compute_root() if self.func is None else func.compute_at(self.func, self.loop)

    def sizes_inside(self, stage: Stage) -> list[int]:
        """Returns the sizes that the stage's axes have inside these loops."""
        inner = self.sizes[: len(stage.axes)]
        return [*inner, *(extent(a) for a in stage.axes[len(inner) :])]


AT_ROOT = EnclosingLoops()


def tail_strategy(size: int, factor: int) -> Any:
    """Returns how a split ends where the factor does not divide the size.

    The last step begins earlier and recomputes elements, if the loop has room for a whole step.
    """
    if size % factor == 0:
        return EXACT_TAIL
    return SHIFTED_TAIL if size >= factor else hl.TailStrategy.GuardWithIf


class FuncLoops:
    """The loops of one stored function, while its axes are split in tiles, blocks and lanes.

    axes   the innermost loop of each axis so far
    sizes  the steps of these loops
    count  how many loop variables were made, which numbers their names
    """

    def __init__(self, func: Any, axes: Sequence[Any], sizes: Sequence[int]):
        """Begins with one loop for each axis, of the given sizes, outermost first."""
        self.func = func
        self.axes = list(axes)
        self.sizes = list(sizes)
        self.count = 0

    def split(self, number: int, factor: int, tail: Any = None) -> Any | None:
        """Splits the loop of an axis into blocks of `factor` steps, and returns the loop over blocks.

        The loop inside a block becomes the axis's own. Returns None where one block holds the whole axis.
        `tail` is the tail strategy where blocks do not divide the axis; None leaves it to `tail_strategy`.
        """
        if factor >= self.sizes[number]:
            return None
        outer, inner = self.new_variable(), self.new_variable()
        if tail is None or self.sizes[number] % factor == 0:
            tail = tail_strategy(self.sizes[number], factor)
        self.func.split(self.axes[number], outer, inner, factor, tail)
        self.axes[number], self.sizes[number] = inner, factor
        return outer

    def new_variable(self) -> Any:
        self.count += 1
        return hl.Var(f"{self.func.name().replace('$', '_')}_l{self.count}")

    def fuse(self, loops: Sequence[Any]) -> list[Any]:
        """Fuses loops, innermost first, and returns the fused one as a list; no loops give an empty list."""
        remaining = list(loops)
        while len(remaining) > 1:
            fused = self.new_variable()
            self.func.fuse(remaining[0], remaining[1], fused)
            remaining[:2] = [fused]
        return remaining

    def split_tasks(self, loop: Any, steps: int) -> tuple[Any, Any]:
        """Splits a long loop of `steps` steps into a loop over tasks and one inside a task."""
        if steps <= MAX_TASKS:
            return loop, loop
        task, step = self.new_variable(), self.new_variable()
        self.func.split(loop, task, step, -(-steps // MAX_TASKS), hl.TailStrategy.GuardWithIf)
        return task, step


def schedule_block(
    nest: Nest,
    sketch: BlockSketch,
    lowered: LoweredStages,
    copies: Sequence[tuple[Stage, int]],
    groups: Stage | None = None,
    rows: int = 0,
    around: EnclosingLoops = AT_ROOT,
) -> EnclosingLoops:
    """Schedules a register block: tiles outside, accumulators in registers inside, copies at their levels.

        for axes without tiles, for tiles:            (`levels`, in which copies are computed)
            for axes of tiles in no block, for blocks:
                accumulators = 0;  for reduced axes: accumulators += product;  output of the block

    copies  stages that copy operands, each with the number of outer loops that it is computed in
    groups  the stage that sums each group of terms, where the reduction is a long sum split in groups
    rows    number of first axes that the nest shares with other nests

    Returns the loops over the shared axes, if they are outside all others: other nests may be computed there.
    """
    assert nest.main is not None
    func = lowered.funcs[nest.output.tensor.name]
    accumulators = lowered.accumulators[nest.main.tensor.name]
    variables = [lowered.variables[a] for a in nest.output.axes]
    sizes = around.sizes_inside(nest.output)
    if sketch.vector < len(around.sizes) and sizes[sketch.vector] % (sketch.lanes * sketch.vectors):
        raise ValueError("a vector is longer than the chunk that the enclosing loops compute at once")
    # loops over tiles
    loops = FuncLoops(func, variables, sizes)
    tiles: list[Any] = []
    steps: list[int] = []  # steps of the loops over tiles
    # how many tile loops, from the outermost, go over the first `rows` axes alone, each axis once; and the
    # sizes of these axes inside the loops
    row_tile_count, row_sizes = 0, sizes[:rows]
    for number, (a, n) in enumerate(sketch.tile):
        size_before = loops.sizes[a]
        if (loop := loops.split(a, n)) is not None:
            tiles.append(loop)
            steps.append(-(-size_before // n))
        before = [b for b, _ in sketch.tile[:number]]
        if a not in before and all(b < rows for b in (*before, a)):
            row_tile_count, row_sizes[a] = len(tiles), loops.sizes[a]
    # the register block: its vectors and other axes are unrolled inside loops over blocks
    blocked = dict(sketch.block)
    block_loops = []
    lane = sketch.vector
    width = sketch.lanes * sketch.vectors
    outer = loops.split(lane, width)
    block_loops += [] if outer is None else [outer]
    vectors_loop = loops.split(lane, sketch.lanes) if sketch.vectors > 1 else None
    unrolled_loops = [] if vectors_loop is None else [vectors_loop]
    for a, n in sketch.block:
        outer = loops.split(a, n)
        block_loops += [] if outer is None else [outer]
        unrolled_loops.append(loops.axes[a])
    # axes that are in no block: loops inside tiles, or outside all tiles
    tiled = {a for a, _ in sketch.tile}
    free = [a for a in range(len(sizes)) if a != lane and a not in blocked and sizes[a] > 1]
    inner = [loops.axes[a] for a in reversed(free) if a in tiled]
    untiled = [a for a in free if a not in tiled]
    outermost = [loops.axes[a] for a in reversed(untiled)]
    steps = [*(sizes[a] for a in untiled), *steps]
    order = [loops.axes[lane], *unrolled_loops, *block_loops, *inner, *reversed(tiles), *outermost]
    func.reorder(*order)
    _vectorize(func, loops.axes[lane], loops.sizes[lane], sketch.lanes)
    for loop in unrolled_loops:
        func.unroll(loop)
    # the outermost loops are fused to one that is parallel
    levels = [*reversed(outermost), *tiles]  # outermost first
    level_vars: list[Any] = list(levels)
    if sketch.parallel and levels:
        count = min(sketch.parallel, len(levels))
        (fused,) = loops.fuse(list(reversed(levels[:count])))
        task, fused = loops.split_tasks(fused, prod(steps[:count]))
        func.parallel(task)
        level_vars = [fused] * count + levels[count:]  # the fused loop stands for each loop that it fuses
    # accumulators are computed in the innermost loop around the register block
    outer_loops = [*block_loops, *inner, *reversed(level_vars)]  # innermost first
    if outer_loops:
        accumulators.compute_at(func, outer_loops[0])
    else:  # one block: inside the output's vector loop each lane would have accumulators of its own
        around.place_func(accumulators)
    accumulators.store_in(hl.MemoryType.Register if outer_loops else hl.MemoryType.Auto)
    if groups is None:
        _schedule_accumulators(nest.main, sketch, lowered, sketch.order, sketch.unrolled)
    else:  # the main stage adds up groups, and the stage of groups is computed inside its loop over groups
        count = len(nest.main.reduced)
        within = _schedule_accumulators(nest.main, sketch, lowered, range(count)[::-1], 0)
        inner = lowered.accumulators[groups.tensor.name]
        inner.compute_at(accumulators, within).store_in(hl.MemoryType.Register)
        reduction_order = range(len(groups.reduced))[::-1]
        _schedule_accumulators(groups, sketch, lowered, reduction_order, sketch.unrolled, count)
    # copies of inputs can be computed at the root; tensors of other nests may not exist there yet
    available = {param.name() for param in lowered.inputs}
    for each, level in copies:
        within = level_vars[:level][-1:]  # the loop of this level, none at level 0
        if within:
            schedule_copy(each, lowered, sketch.lanes, EnclosingLoops(func, within[0]))
        elif available.issuperset(x.name for x in each.sources):
            available.add(each.tensor.name)
            parallel = sketch.parallel > 0 or around.func is not None
            schedule_copy(each, lowered, sketch.lanes, AT_ROOT, parallel)
        else:
            schedule_copy(each, lowered, sketch.lanes, around)
    # other nests go into the innermost loop over shared axes that has only loops over shared axes around it
    if not rows or any(a >= rows for a in untiled):
        return AT_ROOT
    for a in untiled:
        row_sizes[a] = 1
    count = len(untiled) + row_tile_count
    return EnclosingLoops(func, level_vars[count - 1], tuple(row_sizes)) if count else AT_ROOT


def _schedule_accumulators(
    stage: Stage,
    sketch: BlockSketch,
    lowered: LoweredStages,
    order: Sequence[int],
    unrolled: int,
    groups: int = 0,
) -> Any:
    """Schedules the loops of accumulators, whose first `groups` axes number groups of a long sum.

    Returns the innermost loop of the reduction.
    """
    # `first`, the vectors' axis, is innermost in memory and in loops; then come the block and the reduction
    accumulators = lowered.accumulators[stage.tensor.name]
    variables = [lowered.variables[a] for a in stage.axes]
    own, outer = variables[groups:], variables[:groups]
    first = own[sketch.vector]
    others = [*(v for v in reversed(own) if v is not first), *reversed(outer)]
    if others:
        accumulators.reorder_storage(first, *others)
    blocked = [own[a] for a, _ in sketch.block]
    unblocked = [v for v in others if all(v is not b for b in blocked)]
    accumulators.reorder(first, *blocked, *unblocked)
    accumulators.vectorize(first, sketch.lanes, EXACT_TAIL).unroll(first)
    update = accumulators.update()
    reduced = [lowered.variables[stage.reduced[k]] for k in order]
    update.reorder(first, *blocked, *reduced, *unblocked)
    update.vectorize(first, sketch.lanes, EXACT_TAIL).unroll(first)
    for variable in blocked:
        accumulators.unroll(variable)
        update.unroll(variable)
    for variable in reduced[:unrolled]:
        update.unroll(variable)
    return reduced[0]


def schedule_copy(
    stage: Stage, lowered: LoweredStages, lanes: int, around: EnclosingLoops = AT_ROOT, parallel: bool = False
) -> None:
    """Schedules a copy inside the given loops; `parallel` allows several threads where the copy is large."""
    func = around.place_func(lowered.funcs[stage.tensor.name])
    axes, variables = stage.axes[::-1], [lowered.variables[a] for a in reversed(stage.axes)]
    if not variables:
        return
    interior = lowered.interiors.get(stage.tensor.name)
    if interior is not None:
        # a copy with edges is filled first, which reads no memory, so that whole vectors may be written
        func.vectorize(variables[0], lanes, EXACT_TAIL)
        row, size = interior
        update = func.update()
        update.reorder(row, *variables[1:])
        if size % lanes and size >= lanes:
            update.vectorize(row, lanes, hl.TailStrategy.GuardWithIf)
        elif size >= lanes:
            update.vectorize(row, lanes)
        return
    size = extent(axes[0])
    if around.func is None:  # the whole copy is computed, so that its extent is known
        func.bound(variables[0], 0, size)
        tail = tail_strategy(size, lanes)
    else:
        tail = hl.TailStrategy.GuardWithIf
    dense = _dense_source_axis(stage)
    if dense is not None and size > lanes:
        # columns of vectors: the next vector reads the cache lines that a gathered vector has read
        loops = FuncLoops(func, variables, [extent(a) for a in axes])
        outer = loops.split(0, lanes, tail)
        beside = loops.axes.pop(axes.index(dense))
        func.reorder(loops.axes[0], beside, outer, *loops.axes[1:])
        func.vectorize(loops.axes[0])
        rest = [v for v in variables if v is not variables[0] and v is not beside]
        sizes = [extent(a) for a in axes[1:] if a is not dense]
    else:
        func.vectorize(variables[0], lanes, tail)
        rest, sizes = variables[1:], [extent(a) for a in axes[1:]]
    if parallel and stage.points >= PARALLEL_COPY_ELEMENTS and rest:
        loops = FuncLoops(func, rest, sizes)
        loops.count = len(axes) + 2  # new variables are numbered on from here, so that no name is used twice
        (fused,) = loops.fuse(rest)
        func.parallel(loops.split_tasks(fused, prod(sizes))[0])


def _dense_source_axis(stage: Stage) -> Axis | None:
    """Returns the axis that moves along the last dimension of the source, unless it is the copy's last."""
    if not isinstance(stage.body, Read) or not stage.body.indices:
        return None
    found = [a for a in stage.axes if a in atoms(stage.body.indices[-1])]
    return found[0] if len(found) == 1 and found[0] is not stage.axes[-1] else None


def _vectorize(func: Any, variable: Any, size: int, lanes: int) -> None:
    if size > lanes:
        func.vectorize(variable, lanes)
    elif size > 1:
        func.vectorize(variable)


def schedule_flat(
    nest: Nest, sketch: FlatSketch, lowered: LoweredStages, rows: int = 0, around: EnclosingLoops = AT_ROOT
) -> list[Any]:
    """Schedules vectors along the last axis; returns the loops of the first `rows` axes, outermost first.

    Where such loops are fused to a parallel one, the fused loop stands for each of them.
    """
    func = lowered.funcs[nest.output.tensor.name]
    axes = [lowered.variables[a] for a in nest.output.axes]
    sizes = around.sizes_inside(nest.output)
    loops = FuncLoops(func, axes, sizes)
    outside = axes[:rows]
    free = list(zip(axes, sizes, strict=True))[:rows]  # the loops that may be parallel, outermost first
    if rows < len(axes):  # the last axis in vectors, `unroll` of them side by side
        last = len(axes) - 1
        width = sketch.lanes * sketch.unroll
        if width > sizes[last]:
            width = sketch.lanes
        outer = loops.split(last, width)
        vectors_loop = loops.split(last, sketch.lanes) if width > sketch.lanes else None
        blocks = [] if outer is None else [(outer, -(-sizes[last] // width))]
        inner = [*zip(axes[rows:-1], sizes[rows:-1], strict=True), *blocks]
        within = [loops.axes[last], *([] if vectors_loop is None else [vectors_loop])]
        func.reorder(*within, *(loop for loop, _ in reversed(inner)), *reversed(outside))
        _vectorize(func, loops.axes[last], loops.sizes[last], sketch.lanes)
        if vectors_loop is not None:
            func.unroll(vectors_loop)
        free = free or inner
    else:
        func.reorder(*reversed(axes))
    if not sketch.parallel or not free:
        return outside
    count = min(sketch.parallel, len(free))
    (fused,) = loops.fuse([loop for loop, _ in reversed(free[:count])])
    task, fused = loops.split_tasks(fused, prod(size for _, size in free[:count]))
    func.parallel(task)
    return [*([fused] * count), *outside[count:]] if outside else []


def schedule_row(parts: SplitReduction, lowered: LoweredStages, around: EnclosingLoops, lanes: int) -> None:
    """Schedules the stages of a split reduction inside the loops of their reader."""
    for stage in (parts.sums, parts.rest):
        if stage is None:
            continue
        sums = around.place_func(lowered.accumulators[stage.tensor.name])
        if around.func is not None:
            sums.store_in(hl.MemoryType.Register)
        if stage is parts.rest:
            continue
        lane = lowered.variables[stage.axes[-1]]
        reduced = [lowered.variables[a] for a in reversed(stage.reduced)]
        others = [lowered.variables[a] for a in reversed(stage.axes[:-1])]
        sums.vectorize(lane, lanes, EXACT_TAIL).unroll(lane)
        sums.update().reorder(lane, *reduced, *others).vectorize(lane, lanes, EXACT_TAIL).unroll(lane)
    for stage in parts.halves:
        func = around.place_func(lowered.funcs[stage.tensor.name])
        size = extent(stage.axes[-1])
        if size > 1:
            lane = lowered.variables[stage.axes[-1]]
            func.vectorize(lane, min(size, lanes), EXACT_TAIL)
            if around.func is not None:
                func.store_in(hl.MemoryType.Register).unroll(lane)
