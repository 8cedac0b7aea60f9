"""Sketches put to work: the loops of Halide functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import halide as hl

from tensaurus.expr.ir.scope import Read
from tensaurus.expr.sizes.size import Axis, atoms
from tensaurus.kernels.halide.lower import Lowered
from tensaurus.kernels.stages.loop_nest import Nest
from tensaurus.kernels.stages.sketch import Block, Flat
from tensaurus.kernels.stages.split_row_reduction import Partial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["NOTHING", "Around", "Loops", "block", "copy", "flat", "row"]

EXACT = hl.TailStrategy.RoundUp
INWARDS = hl.TailStrategy.ShiftInwards
LARGE = 1 << 16  # elements of a copy, at least, that several threads make
TASKS = 64  # of one parallel loop, at most: what is left over when they are done is one of them


@dataclass(frozen=True)
class Around:
    """Loops in which a nest is computed.

    func    whose they are; None where a nest is computed in no other
    loop    the innermost of them
    sizes   of the nest's first axes, inside
    """

    func: Any | None = None
    loop: Any | None = None
    sizes: tuple[int, ...] = ()

    def computes(self, func: Any) -> Any:
        """Computes a function there."""
        return func.compute_root() if self.func is None else func.compute_at(self.func, self.loop)

    def within(self, stage: Stage) -> list[int]:
        """The sizes of the stage's axes inside."""
        inner = self.sizes[: len(stage.axes)]
        return [*inner, *(extent(a) for a in stage.axes[len(inner) :])]


NOTHING = Around()


def tail(size: int, factor: int) -> Any:
    """How a loop of steps that do not divide it ends: its last step begins earlier, where there is room."""
    if size % factor == 0:
        return EXACT
    return INWARDS if size >= factor else hl.TailStrategy.GuardWithIf


class Loops:
    """The loops of one function that is stored: axes in tiles, blocks and lanes, then put in order."""

    def __init__(self, func: Any, axes: Sequence[Any], sizes: Sequence[int]):
        """Axes and their sizes, outermost first."""
        self.func = func
        self.axes = list(axes)
        self.sizes = list(sizes)
        self.count = 0

    def split(self, place: int, factor: int, ending: Any = None) -> Any | None:
        """The loop over blocks of an axis, whose own loop is inside one from now on; None for one block.

        `ending` is how it ends where blocks do not divide it, else as `tail` says.
        """
        if factor >= self.sizes[place]:
            return None
        outer, inner = self.fresh(), self.fresh()
        exact = self.sizes[place] % factor == 0
        how = tail(self.sizes[place], factor) if exact or ending is None else ending
        self.func.split(self.axes[place], outer, inner, factor, how)
        self.axes[place], self.sizes[place] = inner, factor
        return outer

    def fresh(self) -> Any:
        self.count += 1
        return hl.Var(f"{self.func.name().replace('$', '_')}_l{self.count}")

    def fused(self, loops: Sequence[Any]) -> list[Any]:
        """These loops, innermost first, as one; none of none."""
        found = list(loops)
        while len(found) > 1:
            whole = self.fresh()
            self.func.fuse(found[0], found[1], whole)
            found[:2] = [whole]
        return found

    def tasks(self, loop: Any, turns: int) -> tuple[Any, Any]:
        """The loop as one over tasks and one inside, which are one where it has no more turns."""
        if turns <= TASKS:  # a task costs as much as some hundred elements
            return loop, loop
        task, inside = self.fresh(), self.fresh()
        self.func.split(loop, task, inside, -(-turns // TASKS), hl.TailStrategy.GuardWithIf)
        return task, inside


def block(
    nest: Nest,
    sketch: Block,
    lowered: Lowered,
    copies: Sequence[tuple[Stage, int]],
    groups: Stage | None = None,
    rows: int = 0,
    around: Around = NOTHING,
) -> Around:
    """A register block: accumulators in registers inside, tiles outside, copies where they are wanted; those
    of `groups` inside of the sum of these, where it is one.

    Returns the loops over the first `rows` axes that are outside of all others, one of each.
    """
    assert nest.main is not None
    out = lowered.funcs[nest.output.tensor.name]
    acc = lowered.accumulators[nest.main.tensor.name]
    variables = [lowered.variables[a] for a in nest.output.axes]
    sizes = around.within(nest.output)
    if sketch.vector < len(around.sizes) and sizes[sketch.vector] % (sketch.lanes * sketch.vectors):
        raise ValueError("a vector beyond what is computed at once")
    loops = Loops(out, variables, sizes)
    tiles: list[Any] = []
    turns: list[int] = []  # of these loops
    shared, inside = 0, sizes[:rows]
    for place, (a, n) in enumerate(sketch.tile):
        whole = loops.sizes[a]
        if (loop := loops.split(a, n)) is not None:
            tiles.append(loop)
            turns.append(-(-whole // n))
        before = [b for b, _ in sketch.tile[:place]]
        if a not in before and all(b < rows for b in (*before, a)):
            shared, inside[a] = len(tiles), loops.sizes[a]
    rest_in = dict(sketch.block)
    middle = []
    lane = sketch.vector
    width = sketch.lanes * sketch.vectors
    outer = loops.split(lane, width)
    middle += [] if outer is None else [outer]
    wide = loops.split(lane, sketch.lanes) if sketch.vectors > 1 else None
    straight = [] if wide is None else [wide]
    for a, n in sketch.block:
        outer = loops.split(a, n)
        middle += [] if outer is None else [outer]
        straight.append(loops.axes[a])
    tiled = {a for a, _ in sketch.tile}
    free = [a for a in range(len(sizes)) if a != lane and a not in rest_in and sizes[a] > 1]
    inner = [loops.axes[a] for a in reversed(free) if a in tiled]
    untiled = [a for a in free if a not in tiled]
    outermost = [loops.axes[a] for a in reversed(untiled)]
    turns = [*(sizes[a] for a in untiled), *turns]
    order = [loops.axes[lane], *straight, *middle, *inner, *reversed(tiles), *outermost]
    out.reorder(*order)
    _vectorize(out, loops.axes[lane], loops.sizes[lane], sketch.lanes)
    for loop in straight:
        out.unroll(loop)
    levels = [*reversed(outermost), *tiles]  # from outside
    level_vars: list[Any] = list(levels)
    if sketch.parallel and levels:
        count = min(sketch.parallel, len(levels))
        (one,) = loops.fused(list(reversed(levels[:count])))
        task, one = loops.tasks(one, prod(turns[:count]))
        out.parallel(task)
        level_vars = [one] * count + levels[count:]
    after = [*middle, *inner, *reversed(level_vars)]
    if after:
        acc.compute_at(out, after[0])
    else:  # one block: where it is read each lane would have accumulators of its own
        around.computes(acc)
    acc.store_in(hl.MemoryType.Register if after else hl.MemoryType.Auto)
    if groups is None:
        _sums(nest.main, sketch, lowered, sketch.order, sketch.unrolled)
    else:
        count = len(nest.main.reduced)
        within = _sums(nest.main, sketch, lowered, range(count)[::-1], 0)
        inner = lowered.accumulators[groups.tensor.name]
        inner.compute_at(acc, within).store_in(hl.MemoryType.Register)
        _sums(groups, sketch, lowered, range(len(groups.reduced))[::-1], sketch.unrolled, count)
    given = {param.name() for param in lowered.inputs}  # what other nests compute is not there at the root
    for each, level in copies:
        within = level_vars[:level][-1:]
        if within:
            copy(each, lowered, sketch.lanes, Around(out, within[0]))
        elif given.issuperset(x.name for x in each.sources):
            given.add(each.tensor.name)
            copy(each, lowered, sketch.lanes, NOTHING, sketch.parallel > 0 or around.func is not None)
        else:
            copy(each, lowered, sketch.lanes, around)
    if not rows or any(a >= rows for a in untiled):
        return NOTHING
    for a in untiled:
        inside[a] = 1
    count = len(untiled) + shared
    return Around(out, level_vars[count - 1], tuple(inside)) if count else NOTHING


def _sums(
    stage: Stage, sketch: Block, lowered: Lowered, order: Sequence[int], unrolled: int, groups: int = 0
) -> Any:
    """The loops of accumulators, whose first axes are those of so many groups; the innermost over what is
    added up."""
    acc = lowered.accumulators[stage.tensor.name]
    variables = [lowered.variables[a] for a in stage.axes]
    own, outer = variables[groups:], variables[:groups]
    first = own[sketch.vector]
    others = [*(v for v in reversed(own) if v is not first), *reversed(outer)]
    if others:
        acc.reorder_storage(first, *others)
    blocked = [own[a] for a, _ in sketch.block]
    unblocked = [v for v in others if all(v is not b for b in blocked)]
    acc.reorder(first, *blocked, *unblocked)
    acc.vectorize(first, sketch.lanes, EXACT).unroll(first)
    update = acc.update()
    reduced = [lowered.variables[stage.reduced[k]] for k in order]
    update.reorder(first, *blocked, *reduced, *unblocked).vectorize(first, sketch.lanes, EXACT).unroll(first)
    for variable in blocked:
        acc.unroll(variable)
        update.unroll(variable)
    for variable in reduced[:unrolled]:
        update.unroll(variable)
    return reduced[0]


def copy(
    stage: Stage, lowered: Lowered, lanes: int, around: Around = NOTHING, parallel: bool = False
) -> None:
    """The loops of a copy, which is computed there; in parallel where it is large."""
    func = around.computes(lowered.funcs[stage.tensor.name])
    axes, variables = stage.axes[::-1], [lowered.variables[a] for a in reversed(stage.axes)]
    if not variables:
        return
    filled = lowered.interiors.get(stage.tensor.name)
    if filled is not None:  # it reads nothing beyond
        func.vectorize(variables[0], lanes, EXACT)
        row, size = filled
        update = func.update()
        update.reorder(row, *variables[1:])
        if size % lanes and size >= lanes:
            update.vectorize(row, lanes, hl.TailStrategy.GuardWithIf)
        elif size >= lanes:
            update.vectorize(row, lanes)
        return
    size = extent(axes[0])
    if around.func is None:  # all of it, so that as many as there are vectors are
        func.bound(variables[0], 0, size)
        how = tail(size, lanes)
    else:
        how = hl.TailStrategy.GuardWithIf
    dense = _dense(stage)
    if dense is not None and size > lanes:
        # columns of vectors: the lines that a gathered vector reads are those of the next one
        loops = Loops(func, variables, [extent(a) for a in axes])
        outer = loops.split(0, lanes, how)
        beside = loops.axes.pop(axes.index(dense))
        func.reorder(loops.axes[0], beside, outer, *loops.axes[1:])
        func.vectorize(loops.axes[0])
        rest = [v for v in variables if v is not variables[0] and v is not beside]
        sizes = [extent(a) for a in axes[1:] if a is not dense]
    else:
        func.vectorize(variables[0], lanes, how)
        rest, sizes = variables[1:], [extent(a) for a in axes[1:]]
    if parallel and stage.points >= LARGE and rest:
        loops = Loops(func, rest, sizes)
        loops.count = len(axes) + 2  # names of its own
        (one,) = loops.fused(rest)
        func.parallel(loops.tasks(one, prod(sizes))[0])


def _dense(stage: Stage) -> Axis | None:
    """The axis along which a copy's source is stored, unless it is the copy's own last."""
    if not isinstance(stage.body, Read) or not stage.body.indices:
        return None
    found = [a for a in stage.axes if a in atoms(stage.body.indices[-1])]
    return found[0] if len(found) == 1 and found[0] is not stage.axes[-1] else None


def _vectorize(func: Any, variable: Any, size: int, lanes: int) -> None:
    if size > lanes:
        func.vectorize(variable, lanes)
    elif size > 1:
        func.vectorize(variable)


def flat(
    nest: Nest, sketch: Flat, lowered: Lowered, rows: int = 0, around: Around = NOTHING
) -> list[Any]:
    """Vectors along the last axis; the outer loops in parallel.  The loops of the first `rows` axes."""
    out = lowered.funcs[nest.output.tensor.name]
    axes = [lowered.variables[a] for a in nest.output.axes]
    sizes = around.within(nest.output)
    loops = Loops(out, axes, sizes)
    outside = axes[:rows]
    free = list(zip(axes, sizes, strict=True))[:rows]
    if rows < len(axes):
        last = len(axes) - 1
        width = sketch.lanes * sketch.unroll
        if width > sizes[last]:
            width = sketch.lanes
        outer = loops.split(last, width)
        wide = loops.split(last, sketch.lanes) if width > sketch.lanes else None
        blocks = [] if outer is None else [(outer, -(-sizes[last] // width))]
        inner = [*zip(axes[rows:-1], sizes[rows:-1], strict=True), *blocks]
        within = [loops.axes[last], *([] if wide is None else [wide])]
        out.reorder(*within, *(loop for loop, _ in reversed(inner)), *reversed(outside))
        _vectorize(out, loops.axes[last], loops.sizes[last], sketch.lanes)
        if wide is not None:
            out.unroll(wide)
        free = free or inner
    else:
        out.reorder(*reversed(axes))
    if not sketch.parallel or not free:
        return outside
    count = min(sketch.parallel, len(free))
    (one,) = loops.fused([loop for loop, _ in reversed(free[:count])])
    task, one = loops.tasks(one, prod(size for _, size in free[:count]))
    out.parallel(task)
    return [*([one] * count), *outside[count:]] if outside else []


def row(parts: Partial, lowered: Lowered, around: Around, lanes: int) -> None:
    """The partial results of a reduction, computed at a loop of their reader."""
    for stage in (parts.sums, parts.rest):
        if stage is None:
            continue
        sums = around.computes(lowered.accumulators[stage.tensor.name])
        if around.func is not None:
            sums.store_in(hl.MemoryType.Register)
        if stage is parts.rest:
            continue
        lane = lowered.variables[stage.axes[-1]]
        reduced = [lowered.variables[a] for a in reversed(stage.reduced)]
        others = [lowered.variables[a] for a in reversed(stage.axes[:-1])]
        sums.vectorize(lane, lanes, EXACT).unroll(lane)
        sums.update().reorder(lane, *reduced, *others).vectorize(lane, lanes, EXACT).unroll(lane)
    for stage in parts.halves:
        func = around.computes(lowered.funcs[stage.tensor.name])
        size = extent(stage.axes[-1])
        if size > 1:
            lane = lowered.variables[stage.axes[-1]]
            func.vectorize(lane, min(size, lanes), EXACT)
            if around.func is not None:
                func.store_in(hl.MemoryType.Register).unroll(lane)
