"""Sketches put to work: the loops of Halide functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import halide as hl

from tensaurus.codegen.lower import Lowered
from tensaurus.codegen.nest import Nest
from tensaurus.codegen.partial import Partial
from tensaurus.codegen.sketch import Block, Flat
from tensaurus.codegen.stage import Stage, extent

__all__ = ["Loops", "block", "copy", "flat", "row"]

EXACT = hl.TailStrategy.RoundUp
INWARDS = hl.TailStrategy.ShiftInwards
TASKS = 64  # of one parallel loop, at most: what is left over when they are done is one of them


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
        return hl.Var(f"{self.func.name().replace('$', '_')}_{self.count}")

    def fused(self, loops: Sequence[Any]) -> list[Any]:
        """These loops, innermost first, as one; none of none."""
        found = list(loops)
        while len(found) > 1:
            whole = self.fresh()
            self.func.fuse(found[0], found[1], whole)
            found[:2] = [whole]
        return found


def block(nest: Nest, sketch: Block, lowered: Lowered, copies: Sequence[tuple[Stage, int]]) -> None:
    """A register block: accumulators in registers inside, tiles outside, copies where they are wanted."""
    assert nest.main is not None
    out = lowered.funcs[nest.output.tensor.name]
    acc = lowered.accumulators[nest.main.tensor.name]
    variables = [lowered.variables[a] for a in nest.output.axes]
    sizes = [extent(a) for a in nest.output.axes]
    loops = Loops(out, variables, sizes)
    tiles = [loop for a, n in sketch.tile if (loop := loops.split(a, n)) is not None]
    rest_in = dict(sketch.block)
    middle = []
    lane = sketch.vector
    width = sketch.lanes * sketch.vectors
    outer = loops.split(lane, width)
    middle += [] if outer is None else [outer]
    wide = loops.split(lane, sketch.lanes) if sketch.vectors > 1 else None
    inside = [] if wide is None else [wide]
    for a, n in sketch.block:
        outer = loops.split(a, n)
        middle += [] if outer is None else [outer]
        inside.append(loops.axes[a])
    tiled = {a for a, _ in sketch.tile}
    free = [a for a in range(len(sizes)) if a != lane and a not in rest_in and sizes[a] > 1]
    whole = [loops.axes[a] for a in reversed(free) if a in tiled]
    outermost = [loops.axes[a] for a in reversed(free) if a not in tiled]
    order = [loops.axes[lane], *inside, *middle, *whole, *reversed(tiles), *outermost]
    out.reorder(*order)
    _vectorize(out, loops.axes[lane], loops.sizes[lane], sketch.lanes)
    for loop in inside:
        out.unroll(loop)
    levels = [*reversed(outermost), *tiles]  # from outside
    level_vars: list[Any] = list(levels)
    if sketch.parallel and levels:
        count = min(sketch.parallel, len(levels))
        (one,) = loops.fused(list(reversed(levels[:count])))
        out.parallel(one)
        level_vars = [one] * count + levels[count:]
    after = [*middle, *whole, *reversed(level_vars)]
    if after:
        acc.compute_at(out, after[0])
    else:  # one block: where it is read each lane would have accumulators of its own
        acc.compute_root()
    own = [lowered.variables[a] for a in nest.main.axes]
    acc.store_in(hl.MemoryType.Register if after else hl.MemoryType.Auto)
    first = own[lane]
    others = [v for v in reversed(own) if v is not first]
    if others:
        acc.reorder_storage(first, *others)
    blocked = [own[a] for a, _ in sketch.block]
    unblocked = [v for v in others if all(v is not b for b in blocked)]
    acc.reorder(first, *blocked, *unblocked)
    acc.vectorize(first, sketch.lanes, EXACT).unroll(first)
    update = acc.update()
    reduced = [lowered.variables[nest.main.reduced[k]] for k in sketch.order]
    update.reorder(first, *blocked, *reduced, *unblocked).vectorize(first, sketch.lanes, EXACT).unroll(first)
    for variable in blocked:
        acc.unroll(variable)
        update.unroll(variable)
    for variable in reduced[: sketch.unrolled]:
        update.unroll(variable)
    for each, level in copies:
        copy(each, lowered, sketch.lanes, out, level_vars[level - 1] if level and level_vars else None)


def copy(stage: Stage, lowered: Lowered, lanes: int, reader: Any, level: Any | None) -> None:
    func = lowered.funcs[stage.tensor.name]
    if level is None:
        func.compute_root()
    else:
        func.compute_at(reader, level)
    variables = [lowered.variables[a] for a in reversed(stage.axes)]
    if not variables:
        return
    filled = lowered.interiors.get(stage.tensor.name)
    if filled is not None:  # it reads nothing beyond
        func.vectorize(variables[0], lanes, EXACT)
    elif level is None:  # all of it, so that as many as there are vectors are
        size = extent(stage.axes[-1])
        func.bound(variables[0], 0, size).vectorize(variables[0], lanes, tail(size, lanes))
    else:
        func.vectorize(variables[0], lanes, hl.TailStrategy.GuardWithIf)
    if filled is not None:
        row, size = filled
        update = func.update()
        update.reorder(row, *variables[1:])
        if size % lanes and size >= lanes:
            update.vectorize(row, lanes, hl.TailStrategy.GuardWithIf)
        elif size >= lanes:
            update.vectorize(row, lanes)


def _vectorize(func: Any, variable: Any, size: int, lanes: int) -> None:
    if size > lanes:
        func.vectorize(variable, lanes)
    elif size > 1:
        func.vectorize(variable)


def flat(nest: Nest, sketch: Flat, lowered: Lowered, rows: int = 0) -> list[Any]:
    """Vectors along the last axis; the outer loops in parallel.  The loops of the first `rows` axes."""
    out = lowered.funcs[nest.output.tensor.name]
    axes = [lowered.variables[a] for a in nest.output.axes]
    sizes = [extent(a) for a in nest.output.axes]
    loops = Loops(out, axes, sizes)
    around = axes[:rows]
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
        out.reorder(*within, *(loop for loop, _ in reversed(inner)), *reversed(around))
        _vectorize(out, loops.axes[last], loops.sizes[last], sketch.lanes)
        if wide is not None:
            out.unroll(wide)
        free = free or inner
    else:
        out.reorder(*reversed(axes))
    if not sketch.parallel or not free:
        return around
    count = min(sketch.parallel, len(free))
    (one,) = loops.fused([loop for loop, _ in reversed(free[:count])])
    turns = prod(size for _, size in free[:count])
    if turns > TASKS:  # a task costs as much as some hundred elements
        task, inside = loops.fresh(), loops.fresh()
        out.split(one, task, inside, -(-turns // TASKS), hl.TailStrategy.GuardWithIf)
        out.parallel(task)
        one = inside
    else:
        out.parallel(one)
    return [*([one] * count), *around[count:]] if around else []


def row(parts: Partial, lowered: Lowered, reader: Any, level: Any | None, lanes: int) -> None:
    """The partial results of a reduction, computed at a loop of their reader."""

    def placed(func: Any) -> Any:
        return func.compute_root() if level is None else func.compute_at(reader, level)

    for stage in (parts.sums, parts.rest):
        if stage is None:
            continue
        sums = placed(lowered.accumulators[stage.tensor.name])
        if level is not None:
            sums.store_in(hl.MemoryType.Register)
        if stage is parts.rest:
            continue
        lane = lowered.variables[stage.axes[-1]]
        reduced = [lowered.variables[a] for a in reversed(stage.reduced)]
        others = [lowered.variables[a] for a in reversed(stage.axes[:-1])]
        sums.vectorize(lane, lanes, EXACT).unroll(lane)
        sums.update().reorder(lane, *reduced, *others).vectorize(lane, lanes, EXACT).unroll(lane)
    for stage in parts.halves:
        func = placed(lowered.funcs[stage.tensor.name])
        size = extent(stage.axes[-1])
        if size > 1:
            lane = lowered.variables[stage.axes[-1]]
            func.vectorize(lane, min(size, lanes), EXACT)
            if level is not None:
                func.store_in(hl.MemoryType.Register).unroll(lane)
