"""Schedules the loops of a bilinear chain, which is a fast convolution such as Winograd's in one kernel.

`halide/pipeline` calls `schedule_chain` with the stages of `lay_out_chain`, lowered to Halide functions; a
`ChainSketch` has the sizes of all blocks. A tile is the part of the output that the algorithm computes at
once, a point one of the algorithm's products, a result an output channel (`stages/bilinear_chain` has the
formulas). A row is a few tiles side by side along the output's last axis; a line of it holds the output
elements of these tiles at one index of each other axis.

    for blocks of tiles:
        input combinations, for all channels
        for blocks of results:
            products, point by point, in registers
            for rows of tiles, for vectors of results:
                output combinations
                for lines of the row of tiles: transposed results, and the output
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import halide as hl

from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.halide.lower import LoweredStages
from tensaurus.kernels.halide.schedule import EnclosingLoops, FuncLoops, schedule_accumulators, schedule_copy
from tensaurus.kernels.stages.bilinear_chain import BilinearChain
from tensaurus.kernels.stages.chain_layout import ChainLayout
from tensaurus.kernels.stages.register_transpose import shuffle_radix
from tensaurus.kernels.stages.sketch import ChainSketch
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["schedule_chain"]

# where a block does not divide an axis: an `if` around each step, or masked vectors
GUARDED_TAIL, MASKED_TAIL = hl.TailStrategy.GuardWithIf, hl.TailStrategy.Predicate
STACK = hl.MemoryType.Stack
CACHE_SET_BYTES = 1024  # rows that lie a multiple of this apart evict each other from a cache


def schedule_chain(
    chain: BilinearChain, layout: ChainLayout, sketch: ChainSketch, lowered: LoweredStages
) -> None:
    """Schedules all stages of the chain inside the loops of its output."""
    _ChainScheduler(chain, layout, sketch, lowered).schedule_all()


class _OutputLoops(NamedTuple):
    """Loops of the output, outermost first.

    tile_blocks    over blocks of tiles; None where one block holds all
    result_blocks  over blocks of results
    vectors        over vectors of results in a row of tiles
    lines          over the lines of that row, each of which is transposed at once
    """

    tile_blocks: Any
    result_blocks: Any
    vectors: Any
    lines: Any


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
        loops = self.schedule_output()
        self.schedule_output_combinations(loops)
        self.schedule_products(loops)
        self.schedule_input_combinations(loops.tile_blocks)

    def schedule_output(self) -> _OutputLoops:
        """Schedules the output, and returns the loops in which other stages are computed.

        For y[f, i, k] with results f, all loops are, outermost first: blocks of i and of k, blocks of f;
        tiles of i, rows of k; vectors of f; lines i of a tile; f in a vector (unrolled), k in a row (one
        vector).
        """
        chain, sketch, stage = self.chain, self.sketch, self.layout.output
        out = self.func(stage)
        loops = FuncLoops(out, self.variables(stage), [extent(a) for a in stage.axes])
        axis_numbers = {a: k for k, a in enumerate(stage.axes)}  # `f`, `last`, `place`: numbers of axes
        f = axis_numbers[chain.result_axis]
        last = len(stage.axes) - 1
        tile_block_loops: list[Any] = []
        tile_loops: list[Any] = []
        row = chain.row_elements
        # axes of tiles: loops over blocks of tiles, inside these over tiles, or along the last axis over rows
        for tile, count in zip(chain.tiles, sketch.tile, strict=True):
            place = axis_numbers[tile.axis]
            # along the last axis a block is a whole number of rows, which are transposed at once
            size = -(-count * tile.size // row) * row if place == last else count * tile.size
            tile_block_loops += loops.split(place, size, GUARDED_TAIL)
            if place != last:
                tile_loops += loops.split(place, tile.size, GUARDED_TAIL)
        tile_loops += loops.split(last, row, MASKED_TAIL)
        block_loops = loops.split(f, sketch.lanes * sketch.vectors, GUARDED_TAIL)
        # where one vector holds the results, a loop of one step in which transposed stages are computed
        (vectors_loop,) = loops.split(f, sketch.lanes, GUARDED_TAIL) or [self.unit_loop(loops, f)]
        # the output's other axes over results: groups of a convolution, or blocks of results
        indices = [chain.output_read.indices[k] for k in chain.result_places]
        group_axes = [a for i in indices for a in stage.axes if i == polynomial(a)]
        group_axes = [a for a in group_axes if a is not chain.result_axis]
        group_loops = [loops.axes[axis_numbers[a]] for a in group_axes[-1:]]
        (result_block_loop,) = block_loops or group_loops or [self.unit_loop(loops, f)]
        # what is left of other axes: the lines of a tile
        inner = [loops.axes[k] for k in range(last) if k != f and stage.axes[k] not in group_axes]
        order = [loops.axes[last], loops.axes[f], *reversed(inner), vectors_loop, *reversed(tile_loops)]
        out.reorder(*order, result_block_loop, *reversed(tile_block_loops))
        out.unroll(loops.axes[f])
        if loops.sizes[last] > 1:
            out.vectorize(loops.axes[last])
        tile_block_loop = tile_block_loops[-1] if tile_block_loops else None
        if sketch.parallel == 1 and tile_block_loops:
            (fused,) = loops.fuse(list(reversed(tile_block_loops)))
            out.parallel(fused)
            tile_block_loop = fused
        elif sketch.parallel == 2:
            out.parallel(result_block_loop)
        lines_loop = inner[-1] if inner else vectors_loop
        return _OutputLoops(tile_block_loop, result_block_loop, vectors_loop, lines_loop)

    def unit_loop(self, loops: FuncLoops, place: int) -> Any:
        """Returns a new loop of one step around an axis."""
        outer, inner = loops.new_variable(), loops.new_variable()
        loops.func.split(loops.axes[place], outer, inner, loops.sizes[place], hl.TailStrategy.RoundUp)
        loops.axes[place] = inner
        return outer

    def schedule_output_combinations(self, loops: _OutputLoops) -> None:
        """Schedules the stages between the products and the output, for a row of tiles."""
        out, lanes = self.func(self.layout.output), self.sketch.lanes
        first, *shuffles = self.layout.transposed
        for stage in self.layout.transposed:
            func = self.func(stage)
            func.compute_at(out, loops.lines).store_in(STACK)
            func.reorder(*reversed(self.variables(stage)))
        self.schedule_transposition(first, shuffles, lanes)
        reader, level = out, loops.vectors
        for place, stage in reversed([*enumerate(self.layout.output_combinations)]):
            func = self.func(stage)
            *variables, f = self.variables(stage)
            count = len(self.chain.tiles)
            end = count + len(self.chain.phase_places) + len(self.chain.point_places)
            tiles, unrolled, blocks = variables[:count], variables[count:end], variables[end:]
            func.compute_at(reader, level).store_in(STACK)
            func.reorder(f, *reversed(unrolled), *reversed(tiles), *reversed(blocks)).vectorize(f, lanes)
            for variable in unrolled:  # phases and points
                func.unroll(variable)
            # the last combination goes over a row of tiles; those before it are computed for one tile of it
            if place == len(self.layout.output_combinations) - 1:
                last = self.layout.output.axes[-1]
                for variable, tile in zip(tiles, self.chain.tiles, strict=True):
                    in_row = self.chain.row_elements // tile.size if tile.axis is last else 1
                    func.bound_extent(variable, in_row)
                reader, level = (func, tiles[-1]) if tiles else (reader, level)

    def schedule_transposition(self, first: Stage, shuffles: Sequence[Stage], row: int) -> None:
        """Vectorizes the stages that transpose rows of `row` elements.

        A shuffle that interleaves n vectors of `row` elements writes one vector of n * `row` elements.
        """
        width = row
        for stage in (first, *shuffles):
            func, element = self.func(stage), self.variables(stage)[-1]
            func.bound_extent(element, extent(stage.axes[-1]))
            if stage is not first:
                width = row * shuffle_radix(stage)
            func.vectorize(element, width).unroll(element)

    def product_variables(self, stage: Stage) -> tuple[list[Any], list[Any], Any]:
        """Returns the loop variables of products: around all register blocks, of tiles, and of a vector.

        The first are those of groups of channels, if the stage sums groups, of points, blocks of results and
        phases.
        """
        *variables, lane = self.variables(stage)
        end = len(variables) - len(self.chain.tiles)
        return variables[:end], variables[end:], lane

    def schedule_products(self, output_loops: _OutputLoops) -> None:
        """Schedules the products: a register block of tiles and results inside loops over points."""
        sketch, stage = self.sketch, self.layout.products[-1]
        func, sums = self.func(stage), self.lowered.accumulators[stage.tensor.name]
        around, tiles, lane = self.product_variables(stage)
        if sketch.by_points:
            self.place_in_tile_blocks(func, output_loops.tile_blocks)
        else:
            func.compute_at(self.func(self.layout.output), output_loops.result_blocks)
        loops = FuncLoops(func, self.variables(stage), [extent(a) for a in stage.axes])
        outer: list[Any] = []
        for place, size in enumerate(sketch.block, len(around)):
            outer += loops.split(place, size)
        inner = loops.axes[len(around) : -1]  # tiles of one register block
        func.reorder(lane, *reversed(inner), *reversed(outer), *reversed(around))
        func.vectorize(lane, sketch.lanes).unroll(lane)
        for variable in inner:
            func.unroll(variable)
        sums.compute_at(func, (around + outer)[-1]).store_in(hl.MemoryType.Register)
        if sketch.by_points and sketch.parallel == 2:
            (fused,) = loops.fuse(around[: len(self.chain.point_places)][::-1])
            func.parallel(fused)
        reduction_loop = self.schedule_sums(stage)
        for group in self.layout.products[:-1]:  # where channels are in groups, each group is summed inside
            group_sums = self.lowered.accumulators[group.tensor.name]
            group_sums.compute_at(sums, reduction_loop).store_in(hl.MemoryType.Register)
            self.schedule_sums(group)
        innermost = self.layout.products[0]
        self.lowered.accumulators[innermost.tensor.name].update().unroll(
            self.lowered.variables[innermost.reduced[-1]], sketch.unrolled
        )
        point_bytes = prod(sketch.tile) * sketch.lanes * sketch.vectors * 4  # of one point's products
        if tiles and point_bytes % CACHE_SET_BYTES == 0:  # pad, so that points fall into different sets
            func.align_storage(tiles[0], sketch.tile[0] + 1)

    def place_in_tile_blocks(self, func: Any, tile_block_loop: Any) -> None:
        """Computes a function for each block of tiles."""
        if tile_block_loop is None:
            func.compute_root()
        else:
            func.compute_at(self.func(self.layout.output), tile_block_loop)

    def schedule_sums(self, stage: Stage) -> Any:
        """Schedules the accumulators of a register block; returns the innermost loop of the reduction."""
        around, tiles, lane = self.product_variables(stage)
        sums = self.lowered.accumulators[stage.tensor.name]
        reduced = [self.lowered.variables[a] for a in reversed(stage.reduced)]
        schedule_accumulators(sums, lane, self.sketch.lanes, tiles[::-1], reduced, around[::-1])
        return reduced[0]

    def schedule_input_combinations(self, tile_block_loop: Any) -> None:
        """Schedules the input combinations, in vectors of channels, and the copies that they read.

        The last combination is stored for a whole block of tiles; those before it for one tile at a time.
        """
        last = self.layout.input_combinations[-1]
        func = self.func(last)
        count = len(self.chain.input_combinations)
        *variables, lane = self.variables(last)
        # the order of axes is that of `ChainLayout.input_combinations`: `block` goes over blocks of channels
        points, block, others = variables[:count], variables[count], variables[count + 1 :]
        self.place_in_tile_blocks(func, tile_block_loop)
        func.reorder(lane, *reversed(points), *reversed(others), block).vectorize(lane)
        for variable in points:
            func.unroll(variable)
        # points lie one block of channels further apart in memory, as in `schedule_products`
        func.align_storage(block, extent(last.axes[count]) + 1)
        if self.sketch.parallel == 2:
            func.parallel(block)
        innermost = others[-1] if others else block
        for stage in self.layout.input_combinations[:-1]:
            inner = self.func(stage)
            *variables, lane = self.variables(stage)
            points, others = variables[:count], variables[count:]
            inner.compute_at(func, innermost).store_in(STACK)
            inner.reorder(lane, *reversed(points), *reversed(others)).vectorize(lane)
            for variable in points:
                inner.unroll(variable)
        for padded, *transposed in self.layout.copies:
            copy = self.func(transposed[-1])
            variables = self.variables(transposed[-1])  # block of channels, rows, parts of a row, elements
            copy.compute_at(func, block).reorder(*reversed(variables))
            # a row at a time, so that the transposition reads the padded copy from the first-level cache
            schedule_copy(padded, self.lowered, self.sketch.lanes, EnclosingLoops(copy, variables[-3]))
            for stage in transposed[:-1]:
                self.func(stage).compute_at(copy, variables[-2]).store_in(STACK)
            self.schedule_transposition(transposed[0], transposed[1:], self.sketch.lanes)
