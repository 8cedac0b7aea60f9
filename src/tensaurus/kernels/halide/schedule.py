"""Splits, reorders, unrolls and vectorizes the loops of Halide functions.

`halide/pipeline` calls the function of each nest's kind of sketch (`stages/sketch` explains these); those of
register blocks and of bilinear chains are in `halide/block_loops` and `halide/chain_loops`.
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
from tensaurus.kernels.stages.sketch import FlatSketch
from tensaurus.kernels.stages.split_row_reduction import SplitReduction
from tensaurus.kernels.stages.stage import Stage, extent

EXACT_TAIL = hl.TailStrategy.RoundUp  # for factors that divide the extent
SHIFTED_TAIL = hl.TailStrategy.ShiftInwards  # the last step begins earlier, and overlaps the one before
PARALLEL_COPY_ELEMENTS = 1 << 16  # elements from which on a copy is computed by several threads
# Tasks of one parallel loop: starting a task takes as long as some hundred elements, and threads that start
# one at the same time wait for each other. A map of 47,000 elements took 24 us in 64 tasks, and 9 in 16.
MAX_TASKS, MAX_SHORT_TASKS = 64, 16
TASK_POINTS = 1 << 17  # points of a nest for each task beyond MAX_SHORT_TASKS


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

    def split(self, number: int, factor: int, tail: Any = None) -> list[Any]:
        """Splits the loop of an axis into blocks of `factor` steps; returns a list of the loop over blocks.

        The loop inside a block becomes the axis's own. Where one block holds the whole axis, the list is
        empty. `tail` is the tail strategy where blocks do not divide the axis, by default `tail_strategy`.
        """
        if factor >= self.sizes[number]:
            return []
        outer, inner = self.new_variable(), self.new_variable()
        if tail is None or self.sizes[number] % factor == 0:
            tail = tail_strategy(self.sizes[number], factor)
        self.func.split(self.axes[number], outer, inner, factor, tail)
        self.axes[number], self.sizes[number] = inner, factor
        return [outer]

    def vectorize(self, number: int, lanes: int) -> None:
        """Vectorizes the loop of an axis, in one vector where it has fewer steps than `lanes`."""
        if self.sizes[number] > lanes:
            self.func.vectorize(self.axes[number], lanes)
        elif self.sizes[number] > 1:
            self.func.vectorize(self.axes[number])

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

    def split_tasks(self, loop: Any, steps: int, points: int) -> tuple[Any, Any]:
        """Splits a long loop of `steps` steps into a loop over tasks and one inside a task.

        `points` is how often the body of the nest is computed in all steps.
        """
        tasks = min(MAX_TASKS, max(MAX_SHORT_TASKS, points // TASK_POINTS))
        if steps <= tasks:
            return loop, loop
        task, step = self.new_variable(), self.new_variable()
        self.func.split(loop, task, step, -(-steps // tasks), hl.TailStrategy.GuardWithIf)
        return task, step


def schedule_accumulators(
    sums: Any, lane: Any, lanes: int, block: Sequence[Any], reduced: Sequence[Any], others: Sequence[Any]
) -> None:
    """Schedules accumulators and their update: others outside, the reduction, and a block in registers.

    All loops are given innermost first. The block is unrolled, and so are the vectors of `lanes` elements
    along `lane`.
    """
    update = sums.update()
    sums.reorder(lane, *block, *others)
    update.reorder(lane, *block, *reduced, *others)
    for func in (sums, update):
        func.vectorize(lane, lanes, EXACT_TAIL).unroll(lane)
        for variable in block:
            func.unroll(variable)


def schedule_copy(
    stage: Stage, lowered: LoweredStages, lanes: int, around: EnclosingLoops = AT_ROOT, parallel: bool = False
) -> None:
    """Schedules a copy inside the given loops; `parallel` allows several threads where the copy is large."""
    func = around.place_func(lowered.funcs[stage.tensor.name])
    if not stage.axes:
        return
    if stage.tensor.name in lowered.interiors:
        _schedule_filled_copy(stage, lowered, lanes)
        return
    # innermost first
    axes, variables = stage.axes[::-1], [lowered.variables[a] for a in reversed(stage.axes)]
    sizes = [extent(a) for a in axes]
    if around.func is None:  # the whole copy is computed, so that its extent is known
        func.bound(variables[0], 0, sizes[0])
        tail = tail_strategy(sizes[0], lanes)
    else:
        tail = hl.TailStrategy.GuardWithIf
    outer = list(range(1, len(axes)))  # the axes that a parallel loop may go over
    dense = _dense_source_axis(stage)
    if dense is not None and sizes[0] > lanes:
        # columns of vectors: the next vector reads the cache lines that a gathered vector has read
        loops = FuncLoops(func, variables, sizes)
        vectors_loops = loops.split(0, lanes, tail)
        beside = axes.index(dense)
        outer.remove(beside)
        others = [loops.axes[k] for k in outer]
        func.reorder(loops.axes[0], loops.axes[beside], *vectors_loops, *others)
        func.vectorize(loops.axes[0])
    else:
        func.vectorize(variables[0], lanes, tail)
    if parallel and stage.points >= PARALLEL_COPY_ELEMENTS and outer:
        loops = FuncLoops(func, variables, sizes)
        loops.count = len(axes) + 2  # new variables are numbered on from here: objects contain their names
        (fused,) = loops.fuse([variables[k] for k in outer])
        func.parallel(loops.split_tasks(fused, prod(sizes[k] for k in outer), stage.points)[0])


def _schedule_filled_copy(stage: Stage, lowered: LoweredStages, lanes: int) -> None:
    """Schedules a copy that is filled first, which reads no memory, so that whole vectors may be written."""
    func, (row, size) = lowered.funcs[stage.tensor.name], lowered.interiors[stage.tensor.name]
    innermost, *others = [lowered.variables[a] for a in reversed(stage.axes)]
    func.vectorize(innermost, lanes, EXACT_TAIL)
    update = func.update()
    update.reorder(row, *others)
    if size >= lanes:
        tail = hl.TailStrategy.GuardWithIf if size % lanes else hl.TailStrategy.Auto
        update.vectorize(row, lanes, tail)


def _dense_source_axis(stage: Stage) -> Axis | None:
    """Returns the axis that moves along the last dimension of the source, unless it is the copy's last."""
    if not isinstance(stage.body, Read) or not stage.body.indices:
        return None
    found = [a for a in stage.axes if a in atoms(stage.body.indices[-1])]
    return found[0] if len(found) == 1 and found[0] is not stage.axes[-1] else None


def schedule_flat(
    nest: Nest,
    sketch: FlatSketch,
    lowered: LoweredStages,
    outer_axes: int,
    around: EnclosingLoops,
    points: int,
) -> list[Any]:
    """Schedules vectors along the last axis, and returns the loops of the first `outer_axes` axes.

    They come outermost first; where some are fused to a parallel one, the fused loop stands for each of them.
    `points` is how often the bodies of the nest, and of those inside its loops, are computed.
    """
    func = lowered.funcs[nest.output.tensor.name]
    axes = [lowered.variables[a] for a in nest.output.axes]
    sizes = around.sizes_inside(nest.output)
    loops = FuncLoops(func, axes, sizes)
    outside = list(zip(axes, sizes, strict=True))[:outer_axes]  # loops with their steps, outermost first
    inside: list[tuple[Any, int]] = []
    if outer_axes < len(axes):  # the last axis in vectors, `unroll` of them side by side
        last = len(axes) - 1
        width = sketch.lanes * sketch.unroll
        if width > sizes[last]:
            width = sketch.lanes
        block_loops = loops.split(last, width)
        vector_loops = loops.split(last, sketch.lanes) if width > sketch.lanes else []
        counts = dict(sketch.beside)
        if not all(outer_axes <= place < last for place in counts):
            raise ValueError("an axis beside the vectors is a loop of another nest")
        for place in range(outer_axes, last):
            if place in counts:
                blocks = loops.split(place, counts[place])
                inside += [(loop, -(-sizes[place] // counts[place])) for loop in blocks]
            else:
                inside.append((axes[place], sizes[place]))
        beside = [loops.axes[place] for place in counts]
        inside += [(loop, -(-sizes[last] // width)) for loop in block_loops]
        around_vectors = [*vector_loops, *beside, *(loop for loop, _ in reversed([*outside, *inside]))]
        func.reorder(loops.axes[last], *around_vectors)
        loops.vectorize(last, sketch.lanes)
        for loop in (*vector_loops, *beside):
            func.unroll(loop)
    else:
        func.reorder(*reversed(axes))
    outer_loops = [loop for loop, _ in outside]
    candidates = outside or inside  # the loops that may be parallel
    count = min(sketch.parallel, len(candidates))
    if count:
        (fused,) = loops.fuse([loop for loop, _ in reversed(candidates[:count])])
        steps = prod(steps for _, steps in candidates[:count])
        task, fused = loops.split_tasks(fused, steps, points)
        func.parallel(task)
        if outside:
            outer_loops[:count] = [fused] * count
    return outer_loops


def schedule_row_reduction(
    split: SplitReduction, lowered: LoweredStages, around: EnclosingLoops, lanes: int
) -> None:
    """Schedules the stages of a split reduction inside the loops of their reader."""
    for stage in (split.sums, split.rest):
        if stage is not None:
            sums = around.place_func(lowered.accumulators[stage.tensor.name])
            if around.func is not None:
                sums.store_in(hl.MemoryType.Register)
    if split.sums is not None:
        *others, lane = (lowered.variables[a] for a in split.sums.axes)
        reduced = [lowered.variables[a] for a in reversed(split.sums.reduced)]
        sums = lowered.accumulators[split.sums.tensor.name]
        schedule_accumulators(sums, lane, lanes, [], reduced, others[::-1])
    for stage in split.halves:
        func = around.place_func(lowered.funcs[stage.tensor.name])
        size = extent(stage.axes[-1])
        if size > 1:
            lane = lowered.variables[stage.axes[-1]]
            func.vectorize(lane, min(size, lanes), EXACT_TAIL)
            if around.func is not None:
                func.store_in(hl.MemoryType.Register).unroll(lane)
