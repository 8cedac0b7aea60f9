"""The loops of a chain: blocks of tiles, in them blocks of results, in these the products at each point.

    for blocks of tiles:
        combinations before, for all channels
        for blocks of results:
            products, point by point, in registers
            combinations after, turned, and the output
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import halide as hl

from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.halide.lower import Lowered
from tensaurus.kernels.halide.schedule import Around, Loops, copy
from tensaurus.kernels.stages.bilinear_chain import Chain
from tensaurus.kernels.stages.chain_layout import Transformed
from tensaurus.kernels.stages.register_transpose import radix
from tensaurus.kernels.stages.sketch import Transform
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["transform"]

GUARDED, MASKED = hl.TailStrategy.GuardWithIf, hl.TailStrategy.Predicate
STACK = hl.MemoryType.Stack
SETS = 1024  # bytes: rows at multiples of these meet in few places of a cache


def transform(chain: Chain, made: Transformed, sketch: Transform, lowered: Lowered) -> None:
    """Schedules all stages of the chain around its output."""
    _Loops(chain, made, sketch, lowered).whole()


class _Loops:
    def __init__(self, chain: Chain, made: Transformed, sketch: Transform, lowered: Lowered):
        self.chain, self.made, self.sketch, self.lowered = chain, made, sketch, lowered

    def func(self, stage: Stage) -> Any:
        return self.lowered.funcs[stage.tensor.name]

    def variables(self, stage: Stage) -> list[Any]:
        return [self.lowered.variables[a] for a in stage.axes]

    def whole(self) -> None:
        around, results, turn, line = self.output()
        self.finished(turn, line)
        self.products(results)
        self.before(around)

    def output(self) -> tuple[Any, Any, Any, Any]:
        """The loops around a block of tiles (None where there is one), of results, of a row of tiles and of
        one line of them, that is turned.
        """
        chain, sketch, stage = self.chain, self.sketch, self.made.output
        out = self.func(stage)
        loops = Loops(out, self.variables(stage), [extent(a) for a in stage.axes])
        places = {a: k for k, a in enumerate(stage.axes)}
        f = places[chain.along]
        last = len(stage.axes) - 1
        blocks: list[Any] = []
        tiles: list[Any] = []
        row = chain.row
        for tile, count in zip(chain.tiles, sketch.tile, strict=True):
            place = places[tile.axis]
            size = -(-count * tile.size // row) * row if place == last else count * tile.size
            outer = loops.split(place, size, GUARDED)
            blocks += [] if outer is None else [outer]
            if place != last:
                within = loops.split(place, tile.size, GUARDED)
                tiles += [] if within is None else [within]
        tiles += [] if (outer := loops.split(last, row, MASKED)) is None else [outer]
        some_blocks = loops.split(f, sketch.lanes * sketch.vectors, GUARDED)
        some = loops.split(f, sketch.lanes, GUARDED)
        # a loop of one step, where everything that is turned is computed
        turn = some if some is not None else self.single(loops, f)
        of = [a for k in chain.results for a in stage.axes if chain.read.indices[k] == polynomial(a)]
        of = [a for a in of if a is not chain.along]
        if some_blocks is not None:
            results = some_blocks
        else:
            results = loops.axes[places[of[-1]]] if of else self.single(loops, f)
        inner = [loops.axes[k] for k in range(last) if k != f and stage.axes[k] not in of]
        order = [loops.axes[last], loops.axes[f], *reversed(inner), turn, *reversed(tiles), results]
        out.reorder(*order, *reversed(blocks))
        out.unroll(loops.axes[f])
        size = loops.sizes[last]
        if size > 1:
            out.vectorize(loops.axes[last])
        around = blocks[-1] if blocks else None
        if sketch.parallel == 1 and blocks:
            (one,) = loops.fused(list(reversed(blocks)))
            out.parallel(one)
            around = one
        elif sketch.parallel == 2:
            out.parallel(results)
        return around, results, turn, inner[-1] if inner else turn

    def single(self, loops: Loops, place: int) -> Any:
        """A loop of one step around an axis."""
        outer, inner = loops.fresh(), loops.fresh()
        loops.func.split(loops.axes[place], outer, inner, loops.sizes[place], hl.TailStrategy.RoundUp)
        loops.axes[place] = inner
        return outer

    def finished(self, turn: Any, line: Any) -> None:
        """What is computed of the products for a row of tiles."""
        out, lanes = self.func(self.made.output), self.sketch.lanes
        first, *shuffles = self.made.turned
        for stage in self.made.turned:
            func = self.func(stage)
            func.compute_at(out, line).store_in(STACK)
            func.reorder(*reversed(self.variables(stage)))
        self.shuffled(first, shuffles, lanes)
        reader, level = out, turn
        for place, stage in reversed([*enumerate(self.made.after)]):
            func = self.func(stage)
            *own, f = self.variables(stage)
            count = len(self.chain.tiles)
            end = count + len(self.chain.phases) + len(self.chain.points)
            tiles, points, blocks = own[:count], own[count:end], own[end:]
            func.compute_at(reader, level).store_in(STACK)
            func.reorder(f, *reversed(points), *reversed(tiles), *reversed(blocks)).vectorize(f, lanes)
            for variable in points:
                func.unroll(variable)
            if place == len(self.made.after) - 1:
                last = self.made.output.axes[-1]
                for variable, tile in zip(tiles, self.chain.tiles, strict=True):
                    func.bound_extent(variable, self.chain.row // tile.size if tile.axis is last else 1)
                reader, level = (func, tiles[-1]) if tiles else (reader, level)

    def shuffled(self, first: Stage, shuffles: Sequence[Stage], row: int) -> None:
        """Vectors of stages that turn rows: these hold interleaved ones whole."""
        width = row
        for stage in (first, *shuffles):
            func, element = self.func(stage), self.variables(stage)[-1]
            func.bound_extent(element, extent(stage.axes[-1]))
            if stage is not first:
                width = row * radix(stage)
            func.vectorize(element, width).unroll(element)

    def products(self, results: Any) -> None:
        sketch, stage = self.sketch, self.made.products[-1]
        func, sums = self.func(stage), self.lowered.accumulators[stage.tensor.name]
        own = self.variables(stage)
        count = len(self.chain.points)
        end = len(own) - 1 - len(self.chain.tiles)
        points, blocks, tiles, lane = own[:count], own[count:end], own[end:-1], own[-1]
        fixed = [*reversed(blocks), *reversed(points)]
        func.compute_at(self.func(self.made.output), results)
        loops = Loops(func, own, [extent(a) for a in stage.axes])
        outer = []
        for place, size in enumerate(sketch.block, end):
            loop = loops.split(place, size)
            outer += [] if loop is None else [loop]
        inner = [loops.axes[k] for k in range(end, len(own) - 1)]
        func.reorder(lane, *reversed(inner), *reversed(outer), *fixed)
        func.vectorize(lane, sketch.lanes).unroll(lane)
        for variable in inner:
            func.unroll(variable)
        sums.compute_at(func, outer[-1] if outer else fixed[0]).store_in(hl.MemoryType.Register)
        last = self.summed(stage, sums, 0)
        for group in self.made.products[:-1]:
            inner = self.lowered.accumulators[group.tensor.name]
            inner.compute_at(sums, last).store_in(hl.MemoryType.Register)
            self.summed(group, inner, len(group.axes) - len(own))
        inmost = self.made.products[0]
        self.lowered.accumulators[inmost.tensor.name].update().unroll(
            self.lowered.variables[inmost.reduced[-1]], sketch.unrolled
        )
        held = prod(sketch.tile) * sketch.lanes * sketch.vectors * 4
        if tiles and held % SETS == 0:
            func.align_storage(tiles[0], sketch.tile[0] + 1)

    def summed(self, stage: Stage, sums: Any, groups: int) -> Any:
        """A register block of sums, of so many axes of groups; the innermost loop that it adds up over."""
        own = self.variables(stage)
        end = len(own) - 1 - len(self.chain.tiles)
        tiles, lane = own[end:-1], own[-1]
        fixed = [*reversed(own[groups:end]), *reversed(own[:groups])]
        reduced = [self.lowered.variables[a] for a in reversed(stage.reduced)]
        update = sums.update()
        sums.reorder(lane, *reversed(tiles), *fixed)
        update.reorder(lane, *reversed(tiles), *reduced, *fixed)
        for each in (sums, update):
            each.vectorize(lane, self.sketch.lanes).unroll(lane)
            for variable in tiles:
                each.unroll(variable)
        return reduced[0]

    def before(self, around: Any) -> None:
        out = self.func(self.made.output)
        last = self.made.before[-1]
        func = self.func(last)
        count = len(self.chain.before)
        own = self.variables(last)
        points, block, others, lane = own[:count], own[count], own[count + 1 : -1], own[-1]
        if around is None:
            func.compute_root()
        else:
            func.compute_at(out, around)
        func.reorder(lane, *reversed(points), *reversed(others), block).vectorize(lane)
        for variable in points:
            func.unroll(variable)
        func.align_storage(block, extent(last.axes[count]) + 1)
        if self.sketch.parallel == 2:
            func.parallel(block)
        innermost = others[-1] if others else block
        for stage in self.made.before[:-1]:
            inner = self.func(stage)
            *places, lane = self.variables(stage)
            points, others = places[:count], places[count:]
            inner.compute_at(func, innermost).store_in(STACK)
            inner.reorder(lane, *reversed(points), *reversed(others)).vectorize(lane)
            for variable in points:
                inner.unroll(variable)
        for padded, *turned in self.made.copies:
            whole = self.func(turned[-1])
            own = self.variables(turned[-1])
            whole.compute_at(func, block).reorder(*reversed(own))
            # a row at a time: what is filled and copied is read from the first cache
            copy(padded, self.lowered, self.sketch.lanes, Around(whole, own[-3]))
            for stage in turned[:-1]:
                self.func(stage).compute_at(whole, own[-2]).store_in(STACK)
            self.shuffled(turned[0], turned[1:], self.sketch.lanes)
