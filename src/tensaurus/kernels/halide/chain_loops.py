"""Schedules the loops of a bilinear chain: blocks of tiles, inside them blocks of results.

    for blocks of tiles:
        input combinations, for all channels
        for blocks of results:
            products, point by point, in registers
            output combinations, transposed, and the output
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import halide as hl

from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.halide.lower import LoweredStages
from tensaurus.kernels.halide.schedule import EnclosingLoops, FuncLoops, schedule_copy
from tensaurus.kernels.stages.bilinear_chain import BilinearChain
from tensaurus.kernels.stages.chain_layout import ChainLayout
from tensaurus.kernels.stages.register_transpose import shuffle_radix
from tensaurus.kernels.stages.sketch import ChainSketch
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["schedule_chain"]

GUARDED_TAIL, MASKED_TAIL = hl.TailStrategy.GuardWithIf, hl.TailStrategy.Predicate
STACK = hl.MemoryType.Stack
CACHE_SET_BYTES = 1024  # rows at multiples of this distance fall into few sets of a cache


def schedule_chain(
    chain: BilinearChain, layout: ChainLayout, sketch: ChainSketch, lowered: LoweredStages
) -> None:
    """Schedules all stages of the chain inside the loops of its output."""
    _ChainScheduler(chain, layout, sketch, lowered).schedule_all()


class _ChainScheduler:
    def __init__(
        self, chain: BilinearChain, layout: ChainLayout, sketch: ChainSketch, lowered: LoweredStages
    ):
        self.chain, self.layout, self.sketch, self.lowered = chain, layout, sketch, lowered

    def func(self, stage: Stage) -> Any:
        return self.lowered.funcs[stage.tensor.name]

    def variables(self, stage: Stage) -> list[Any]:
        return [self.lowered.variables[a] for a in stage.axes]

    def schedule_all(self) -> None:
        around, results, turn, line = self.schedule_output()
        self.schedule_output_combinations(turn, line)
        self.schedule_products(results)
        self.schedule_input_combinations(around)

    def schedule_output(self) -> tuple[Any, Any, Any, Any]:
        """Schedules the output; returns its loops over blocks of tiles (None where there is one block),
        blocks of results, rows of tiles, and lines of a row that are transposed.
        """
        chain, sketch, stage = self.chain, self.sketch, self.layout.output
        out = self.func(stage)
        loops = FuncLoops(out, self.variables(stage), [extent(a) for a in stage.axes])
        places = {a: k for k, a in enumerate(stage.axes)}
        f = places[chain.result_axis]
        last = len(stage.axes) - 1
        blocks: list[Any] = []
        tiles: list[Any] = []
        row = chain.row_elements
        for tile, count in zip(chain.tiles, sketch.tile, strict=True):
            place = places[tile.axis]
            size = -(-count * tile.size // row) * row if place == last else count * tile.size
            outer = loops.split(place, size, GUARDED_TAIL)
            blocks += [] if outer is None else [outer]
            if place != last:
                within = loops.split(place, tile.size, GUARDED_TAIL)
                tiles += [] if within is None else [within]
        tiles += [] if (outer := loops.split(last, row, MASKED_TAIL)) is None else [outer]
        block_loop = loops.split(f, sketch.lanes * sketch.vectors, GUARDED_TAIL)
        vector_loop = loops.split(f, sketch.lanes, GUARDED_TAIL)
        # where there is one vector of results: a loop of one step, which computes all transposed stages
        turn = vector_loop if vector_loop is not None else self.unit_loop(loops, f)
        indices = [chain.output_read.indices[k] for k in chain.result_places]
        group_axes = [a for i in indices for a in stage.axes if i == polynomial(a)]
        group_axes = [a for a in group_axes if a is not chain.result_axis]
        if block_loop is not None:
            results = block_loop
        else:
            results = loops.axes[places[group_axes[-1]]] if group_axes else self.unit_loop(loops, f)
        inner = [loops.axes[k] for k in range(last) if k != f and stage.axes[k] not in group_axes]
        order = [loops.axes[last], loops.axes[f], *reversed(inner), turn, *reversed(tiles), results]
        out.reorder(*order, *reversed(blocks))
        out.unroll(loops.axes[f])
        size = loops.sizes[last]
        if size > 1:
            out.vectorize(loops.axes[last])
        around = blocks[-1] if blocks else None
        if sketch.parallel == 1 and blocks:
            (fused,) = loops.fuse(list(reversed(blocks)))
            out.parallel(fused)
            around = fused
        elif sketch.parallel == 2:
            out.parallel(results)
        return around, results, turn, inner[-1] if inner else turn

    def unit_loop(self, loops: FuncLoops, place: int) -> Any:
        """Returns a new loop of one step around an axis."""
        outer, inner = loops.new_variable(), loops.new_variable()
        loops.func.split(loops.axes[place], outer, inner, loops.sizes[place], hl.TailStrategy.RoundUp)
        loops.axes[place] = inner
        return outer

    def schedule_output_combinations(self, turn: Any, line: Any) -> None:
        """Schedules the stages between the products and the output, for a row of tiles."""
        out, lanes = self.func(self.layout.output), self.sketch.lanes
        first, *shuffles = self.layout.transposed
        for stage in self.layout.transposed:
            func = self.func(stage)
            func.compute_at(out, line).store_in(STACK)
            func.reorder(*reversed(self.variables(stage)))
        self.schedule_transposition(first, shuffles, lanes)
        reader, level = out, turn
        for place, stage in reversed([*enumerate(self.layout.output_combinations)]):
            func = self.func(stage)
            *own, f = self.variables(stage)
            count = len(self.chain.tiles)
            end = count + len(self.chain.phase_places) + len(self.chain.point_places)
            tiles, points, blocks = own[:count], own[count:end], own[end:]
            func.compute_at(reader, level).store_in(STACK)
            func.reorder(f, *reversed(points), *reversed(tiles), *reversed(blocks)).vectorize(f, lanes)
            for variable in points:
                func.unroll(variable)
            if place == len(self.layout.output_combinations) - 1:
                last = self.layout.output.axes[-1]
                for variable, tile in zip(tiles, self.chain.tiles, strict=True):
                    in_row = self.chain.row_elements // tile.size if tile.axis is last else 1
                    func.bound_extent(variable, in_row)
                reader, level = (func, tiles[-1]) if tiles else (reader, level)

    def schedule_transposition(self, first: Stage, shuffles: Sequence[Stage], row: int) -> None:
        """Vectorizes the shuffles that transpose rows: a vector is as wide as a shuffle's result."""
        width = row
        for stage in (first, *shuffles):
            func, element = self.func(stage), self.variables(stage)[-1]
            func.bound_extent(element, extent(stage.axes[-1]))
            if stage is not first:
                width = row * shuffle_radix(stage)
            func.vectorize(element, width).unroll(element)

    def schedule_products(self, results: Any) -> None:
        sketch, stage = self.sketch, self.layout.products[-1]
        func, sums = self.func(stage), self.lowered.accumulators[stage.tensor.name]
        own = self.variables(stage)
        count = len(self.chain.point_places)
        end = len(own) - 1 - len(self.chain.tiles)
        points, blocks, tiles, lane = own[:count], own[count:end], own[end:-1], own[-1]
        fixed = [*reversed(blocks), *reversed(points)]
        func.compute_at(self.func(self.layout.output), results)
        loops = FuncLoops(func, own, [extent(a) for a in stage.axes])
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
        last = self.schedule_sums(stage, sums, 0)
        for group in self.layout.products[:-1]:
            inner = self.lowered.accumulators[group.tensor.name]
            inner.compute_at(sums, last).store_in(hl.MemoryType.Register)
            self.schedule_sums(group, inner, len(group.axes) - len(own))
        inmost = self.layout.products[0]
        self.lowered.accumulators[inmost.tensor.name].update().unroll(
            self.lowered.variables[inmost.reduced[-1]], sketch.unrolled
        )
        held = prod(sketch.tile) * sketch.lanes * sketch.vectors * 4
        if tiles and held % CACHE_SET_BYTES == 0:
            func.align_storage(tiles[0], sketch.tile[0] + 1)

    def schedule_sums(self, stage: Stage, sums: Any, groups: int) -> Any:
        """Schedules the accumulators of a register block, whose first `groups` axes are groups of a long sum.

        Returns the innermost loop of the reduction.
        """
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

    def schedule_input_combinations(self, around: Any) -> None:
        out = self.func(self.layout.output)
        last = self.layout.input_combinations[-1]
        func = self.func(last)
        count = len(self.chain.input_combinations)
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
        for stage in self.layout.input_combinations[:-1]:
            inner = self.func(stage)
            *places, lane = self.variables(stage)
            points, others = places[:count], places[count:]
            inner.compute_at(func, innermost).store_in(STACK)
            inner.reorder(lane, *reversed(points), *reversed(others)).vectorize(lane)
            for variable in points:
                inner.unroll(variable)
        for padded, *turned in self.layout.copies:
            whole = self.func(turned[-1])
            own = self.variables(turned[-1])
            whole.compute_at(func, block).reorder(*reversed(own))
            # a row at a time, so that the transposition reads the padded copy from the first-level cache
            schedule_copy(padded, self.lowered, self.sketch.lanes, EnclosingLoops(whole, own[-3]))
            for stage in turned[:-1]:
                self.func(stage).compute_at(whole, own[-2]).store_in(STACK)
            self.schedule_transposition(turned[0], turned[1:], self.sketch.lanes)
