"""The loops of a chain: blocks of tiles, in them blocks of results, in these the products at each point.

    for blocks of tiles:
        combinations before, for all channels
        for blocks of results:
            products, point by point, in registers
            combinations after, turned, and the output
"""

from __future__ import annotations

from math import prod
from typing import Any

import halide as hl

from tensaurus.algebra.size import polynomial
from tensaurus.codegen.chain import Chain
from tensaurus.codegen.lower import Lowered
from tensaurus.codegen.schedule import Loops
from tensaurus.codegen.sketch import Transform
from tensaurus.codegen.stage import Stage, extent, free_axes
from tensaurus.codegen.transform import Transformed

__all__ = ["transform"]

ROW = 16  # elements of the output's last axis that are turned at once, about
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
        around, results, inside = self.output()
        self.finished(inside)
        self.products(results)
        self.before(around)

    def output(self) -> tuple[Any, Any, Any]:
        """The loops around a block of tiles (None where there is one), of results, and of one turn."""
        chain, sketch, stage = self.chain, self.sketch, self.made.output
        out = self.func(stage)
        loops = Loops(out, self.variables(stage), [extent(a) for a in stage.axes])
        places = {a: k for k, a in enumerate(stage.axes)}
        f = next(k for k, a in enumerate(stage.axes) if a is self.axis(chain.lane))
        last = len(stage.axes) - 1
        blocks: list[Any] = []
        tiles: list[Any] = []
        row = self.row()
        for tile, count in zip(chain.tiles, sketch.tile, strict=True):
            place = places[tile.axis]
            outer = loops.split(place, max(count * tile.size, row if place == last else 1))
            blocks += [] if outer is None else [outer]
            if place != last:
                within = loops.split(place, tile.size)
                tiles += [] if within is None else [within]
        tiles += [] if (outer := loops.split(last, row)) is None else [outer]
        some = loops.split(f, sketch.lanes)
        # a loop of one step, where everything that is turned is computed
        turn = some if some is not None else self.single(loops, f)
        of = [self.axis(k) for k in chain.results if k != chain.lane]
        results = loops.axes[places[of[-1]]] if of else self.single(loops, f)
        inner = [loops.axes[k] for k in range(last) if k != f and stage.axes[k] not in of]
        order = [loops.axes[last], loops.axes[f], *reversed(inner), turn, *reversed(tiles), results]
        out.reorder(*order, *reversed(blocks))
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
        return around, results, turn

    def single(self, loops: Loops, place: int) -> Any:
        """A loop of one step around an axis."""
        outer, inner = loops.fresh(), loops.fresh()
        loops.func.split(loops.axes[place], outer, inner, loops.sizes[place], hl.TailStrategy.RoundUp)
        loops.axes[place] = inner
        return outer

    def axis(self, place: int) -> Any:
        """The output's axis that is the one at this place of the products."""
        return next(a for a in self.chain.output.axes if self.chain.read.indices[place] == polynomial(a))

    def row(self) -> int:
        """Elements of the output's last axis that are turned at once: whole tiles."""
        last = self.made.output.axes[-1]
        size = next((t.size for t in self.chain.tiles if t.axis is last), extent(last))
        return min(max(ROW // size, 1) * size, -(-extent(last) // size) * size)

    def finished(self, inside: Any) -> None:
        """What is computed of the products for one turn."""
        out, turned = self.func(self.made.output), self.made.turned
        func, lanes = self.func(turned), self.sketch.lanes
        *outer, f, x = self.variables(turned)
        sizes = {t.axis: t.size for t in self.chain.tiles}
        func.compute_at(out, inside).store_in(STACK).reorder(f, x, *reversed(outer))
        func.bound_extent(f, lanes).bound_extent(x, self.row()).vectorize(f).unroll(x)
        lane = self.axis(self.chain.lane)
        blocks = {self.axis(k) for k in self.chain.results}
        order = [a for a in self.made.output.axes[:-1] if a in free_axes(self.chain.read) and a is not lane]
        for variable, a in zip(outer, order, strict=True):
            if a not in blocks:
                func.bound_extent(variable, sizes.get(a, extent(a))).unroll(variable)
        reader, level = out, inside
        for place, stage in reversed([*enumerate(self.made.after)]):
            func = self.func(stage)
            *own, f = self.variables(stage)
            count, end = len(self.chain.tiles), len(self.chain.tiles) + len(self.chain.points)
            tiles, points, blocks = own[:count], own[count:end], own[end:]
            func.compute_at(reader, level).store_in(STACK)
            func.reorder(f, *reversed(points), *reversed(tiles), *reversed(blocks)).vectorize(f, lanes)
            for variable in points:
                func.unroll(variable)
            if tiles and place == len(self.made.after) - 1:
                reader, level = func, tiles[-1]

    def products(self, results: Any) -> None:
        sketch, stage = self.sketch, self.made.products
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
        update = sums.update()
        reduced = [self.lowered.variables[a] for a in reversed(stage.reduced)]
        sums.reorder(lane, *reversed(tiles), *fixed)
        update.reorder(lane, *reversed(tiles), *reduced, *fixed)
        for each in (sums, update):
            each.vectorize(lane, sketch.lanes).unroll(lane)
            for variable in tiles:
                each.unroll(variable)
        update.unroll(reduced[0], sketch.unrolled)
        held = prod(sketch.tile) * sketch.lanes * sketch.vectors * 4
        if tiles and held % SETS == 0:
            func.align_storage(tiles[0], sketch.tile[0] + 1)

    def before(self, around: Any) -> None:
        out = self.func(self.made.output)
        *first, last = self.made.before
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
        for stage in first:
            inner = self.func(stage)
            *places, lane = self.variables(stage)
            points, others = places[:count], places[count:]
            inner.compute_at(func, innermost).store_in(STACK)
            inner.reorder(lane, *reversed(points), *reversed(others)).vectorize(lane)
            for variable in points:
                inner.unroll(variable)
        for copy in self.made.copies:
            inner = self.func(copy)
            *_, lane = self.variables(copy)
            inner.compute_at(func, block).vectorize(lane)
