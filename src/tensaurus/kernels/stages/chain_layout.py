"""Rewrites the stages of a bilinear chain so that vectors lie along channels, then along results.

    s[f, l, i, j, p, q]   ->   s[p, q, f, i, j, l]        result 16*f + l of tile (i, j) at point (p, q)

Operands are copied with the channel last, combinations are written out without their tables, products and
sums have the vector's axis last, and the result is transposed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensaurus.expr.ir.scope import Body, Const, Read, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import axes_in, free_axes, reads, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Axis, Size, floordiv, mod, polynomial, substitute
from tensaurus.kernels.stages.bilinear_chain import BilinearChain, Combination
from tensaurus.kernels.stages.copy_operands import index_range, pad_stage, replace_reads
from tensaurus.kernels.stages.group_long_sums import group_long_sum
from tensaurus.kernels.stages.linear_combinations import write_out
from tensaurus.kernels.stages.register_transpose import is_transposable, transpose_rows
from tensaurus.kernels.stages.stage import Stage, define_stage, extent, source_name

CHANNEL_GROUP = 32  # channels of one group: sums of groups lose less to rounding than one long sum

__all__ = ["CHANNEL_GROUP", "ChainLayout", "channels_per_vector", "lay_out_chain"]


@dataclass(frozen=True)
class ChainLayout:
    """The stages of a chain, each with the axis of its vectors last.

    prologue             stages that copies read, unchanged
    copies               of each operand of the first combination: padded, then transposed to channels last
                         (the stages of `transpose_rows`)
    input_combinations   axes: points, blocks of channels, others, channels of one block
    products             axes: points, blocks of results, phases, tiles, results of one block; where there are
                         several groups of channels, the stage of groups comes first
    output_combinations  axes: tiles, phases, points, blocks of results, results of one block
    transposed           the last combination transposed, so that its last axis holds rows of the output
    """

    prologue: tuple[Stage, ...]
    copies: tuple[tuple[Stage, ...], ...]
    input_combinations: tuple[Stage, ...]
    products: tuple[Stage, ...]
    output_combinations: tuple[Stage, ...]
    transposed: tuple[Stage, ...]
    output: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        copies = (stage for copy in self.copies for stage in copy)
        first = *self.prologue, *copies, *self.input_combinations
        return (*first, *self.products, *self.output_combinations, *self.transposed, self.output)


def lay_out_chain(chain: BilinearChain, channel_lanes: int, lanes: int, row_elements: int) -> ChainLayout:
    """Lays out a chain for vectors of `channel_lanes` channels and of `lanes` results, and transposed rows of
    `row_elements` elements of the output.

    Where `channel_lanes` does not divide the channels, vectors hold fewer (`channels_per_vector`). Raises
    ValueError where results do not divide, where channels of partly filled vectors are of several groups or
    are not read one by one, where sizes are no powers of two, or where no output axis lies along rows.
    """
    return _LayoutBuilder(chain, channel_lanes, lanes, row_elements).build()


def channels_per_vector(channels: int, channel_lanes: int) -> int:
    """Returns how many channels each vector holds: the largest divisor of `channels` that fits."""
    return next(n for n in range(channel_lanes, 0, -1) if channels % n == 0)


class _LayoutBuilder:
    """Lays out one chain.

    filled_lanes    channels in each vector of `channel_lanes` elements: block b of channels is in lanes
                    0..filled_lanes-1 of vector b, so that channel filled_lanes * b + l becomes number
                    channel_lanes * b + l; nothing reads the other lanes, which hold the next channels
    product_places  for each new axis of the products the number of the old one
    output_places   the same for output combinations, whose old axes are those of the products
    """

    def __init__(self, chain: BilinearChain, channel_lanes: int, lanes: int, row_elements: int):
        self.chain, self.channel_lanes = chain, channel_lanes
        self.lanes, self.row_elements = lanes, row_elements
        channels = extent(chain.channel_axis)
        self.filled_lanes = channels_per_vector(channels, channel_lanes)
        self.has_unused_lanes = self.filled_lanes < channel_lanes
        has_groups = chain.all_channels > channels
        if self.has_unused_lanes and (has_groups or not is_transposable(channel_lanes)):
            raise ValueError(f"blocks of {channel_lanes} of {channels} channels")
        self.channel_dimension = chain.channel_dimension
        points, phases, lane = chain.point_places, chain.phase_places, chain.lane_place
        blocks, tiles = (k for k in chain.result_places if k != lane), (t.place for t in chain.tiles)
        result_blocks, tile_places = tuple(blocks), tuple(tiles)
        self.product_places = (*points, *result_blocks, *phases, *tile_places, lane)
        self.output_places = (*tile_places, *phases, *points, *result_blocks, lane)

    def build(self) -> ChainLayout:
        # copies and input combinations have vectors of channels, what follows has vectors of results
        chain = self.chain
        copies, first = self.copy_first_operands(chain.input_combinations[0])
        inputs: list[Stage] = []
        for combination in (first, *chain.input_combinations[1:]):
            inputs.append(self.vectorize_channels(write_out(combination), inputs))
        product = self.lay_out_products(inputs[-1])
        products = group_long_sum(product, range(len(product.reduced))[::-1], CHANNEL_GROUP, 1) or (product,)
        outputs: list[Stage] = []
        for combination in chain.output_combinations:
            source = outputs[-1].tensor if outputs else products[-1].tensor
            places = self.output_places if outputs else self.product_places
            outputs.append(self.lay_out_output_combination(write_out(combination), source, places))
        transposed, output = self.transpose_result(outputs[-1])
        parts = tuple(copies), tuple(inputs), products, tuple(outputs)
        return ChainLayout(chain.prologue, *parts, transposed, output)

    def copy_first_operands(self, first: Combination) -> tuple[list[tuple[Stage, ...]], Combination]:
        """Copies the operands that the first combination reads by the channel: padded, channels last."""
        replacements: dict[Read, Body] = {}
        copies: list[tuple[Stage, ...]] = []
        c = first.stage.axes[self.channel_dimension]
        for read in dict.fromkeys(reads(first.body)):
            if isinstance(read.source, Tensor) and c in free_axes(read):
                name = f"{first.stage.tensor.name}_{read.source.name}_{len(copies)}"
                stages, replacements[read] = self.copy_channels_last(read, c, name)
                copies.append(stages)
        others = replace_reads(first.body, dict.fromkeys(replacements, Const(0)))
        if self.has_unused_lanes and c in free_axes(others):
            raise ValueError("vectors that are not full, of channels whose number is used as a value")
        return copies, replace(first, body=replace_reads(first.body, replacements))

    def copy_channels_last(self, read: Read, c: Axis, name: str) -> tuple[tuple[Stage, ...], Read]:
        """Returns the copies of an operand, and the read of the last copy that replaces the given read.

            x[c, i, j]   ->   copy[c // lanes, i, j // row, (j % row) * lanes + c % lanes]
        """
        dimension = next(d for d, index in enumerate(read.indices) if c in axes_in(index))
        last = len(read.indices) - 1
        if dimension == last:
            raise ValueError("channels that are the last dimension already")
        # elements of a vector of channels, how many of them are channels, and elements transposed at once
        lanes, filled, row = self.channel_lanes, self.filled_lanes, self.lanes
        if self.has_unused_lanes and read.indices[dimension] != polynomial(c):
            raise ValueError(f"{filled} channels in a vector of {lanes} that are not read one by one")
        # the padded copy holds the range of each index, and whole rows and vectors of channels
        ranges = [*map(index_range, read.indices)]
        parts, blocks = -(-ranges[last].size // row), -(-ranges[dimension].size // filled)
        ranges[last] = ranges[last]._replace(size=parts * row)
        ranges[dimension] = ranges[dimension]._replace(size=(blocks - 1) * filled + lanes)
        outside = Const(0) if read.outside is None else read.outside
        padded = pad_stage(replace(read, outside=outside), ranges, name)
        # `element` is (channel, place in the row) here, and (place, channel) after the shuffles
        block, part, element = axis(blocks), axis(parts), axis(lanes * row)
        others = {d: axis(ranges[d].size) for d in range(last) if d != dimension}
        moved = {d: polynomial(a) for d, a in others.items()}
        moved[dimension] = polynomial(block) * filled + floordiv(polynomial(element), row)
        moved[last] = polynomial(part) * row + mod(polynomial(element), row)
        axes = (block, *others.values(), part, element)
        body = Read(padded.tensor, tuple(moved[d] for d in range(last + 1)))
        rows = transpose_rows(define_stage(f"{name}_turned", padded.tensor.dtype, axes, body), lanes)
        # where the given read finds its element in the last copy
        inside = [index - low for index, (low, _) in zip(read.indices, ranges, strict=True)]
        channel, along = inside[dimension], inside[last]
        indices = (
            floordiv(channel, lanes),
            *(inside[d] for d in others),
            floordiv(along, row),
            mod(along, row) * lanes + mod(channel, lanes),
        )
        return (padded, *rows), Read(rows[-1].tensor, indices)

    def vectorize_channels(self, stage: Stage, before: Sequence[Stage]) -> Stage:
        """Lays out an input combination with channels in vectors; unused lanes are computed, too.

        `before` are the combinations laid out before: the last one is what this one reads.
        """
        c = stage.axes[self.channel_dimension]
        block, lane = axis(extent(c) // self.filled_lanes), axis(self.channel_lanes)
        body = replace_axes(stage.body, {c: polynomial(block) * self.channel_lanes + polynomial(lane)})
        if before:
            source = before[-1].tensor
            body = _map_reads(body, source, self.split_channel_index)
        return _with_axes(stage, self.input_order(stage.axes, block, lane), body)

    def split_channel_index(self, indices: Sequence[Size]) -> tuple[Size, ...]:
        c = indices[self.channel_dimension]
        return self.input_order(indices, floordiv(c, self.channel_lanes), mod(c, self.channel_lanes))

    def input_order(self, items: Sequence[Any], block: Any, lane: Any) -> tuple[Any, ...]:
        """Reorders items, one for each axis of an input combination, for its new axes."""
        points = [combination.place for combination in self.chain.input_combinations]
        others = [k for k in range(len(items)) if k not in points and k != self.channel_dimension]
        return (*(items[k] for k in points), block, *(items[k] for k in others), lane)

    def lay_out_products(self, last: Stage) -> Stage:
        """Lays out the products, which read the last input combination, with results in vectors."""
        old, c = self.chain.products, self.chain.channel_axis
        block, lane, own = digit_axes(c, self.filled_lanes, "r")
        within: dict[Any, Any] = {c: polynomial(block) * self.channel_lanes + polynomial(lane)}
        others = (i for k, i in enumerate(self.chain.data_read.indices) if k != self.channel_dimension)
        if self.has_unused_lanes and any(c in axes_in(index) for index in others):
            raise ValueError("vectors that are not full, of channels that also shift tiles")

        def split_channels(indices: Sequence[Size]) -> tuple[Size, ...]:
            return self.split_channel_index([substitute(i, within) for i in indices])

        body = replace_axes(_map_reads(old.body, last.tensor, split_channels), {c: own})
        reduced = (*(a for a in old.reduced if a is not c), block, lane)
        return replace(_with_axes(old, _select(old.axes, self.product_places), body), reduced=reduced)

    def lay_out_output_combination(self, stage: Stage, source: Tensor, places: Sequence[int]) -> Stage:
        """Lays out an output combination with the results of a block last; `places` are those of `source`."""
        body = _map_reads(stage.body, source, lambda indices: _select(indices, places))
        return _with_axes(stage, _select(stage.axes, self.output_places), body)

    def transpose_result(self, last: Stage) -> tuple[tuple[Stage, ...], Stage]:
        """Returns the stages that transpose the last combination to rows of the output, and the output.

            z[f, i, x] by tiles   ->   turned[i, f // lanes, x // row, (f % lanes) * row + x % row]
        """
        chain, output, lanes, row = self.chain, self.chain.output, self.lanes, self.row_elements
        f, x = chain.result_axis, output.axes[-1]
        if f is x or x not in free_axes(chain.output_read):
            raise ValueError("an output whose last axis is not one of tiles")
        others = [a for a in output.axes[:-1] if a in free_axes(chain.output_read) and a is not f]
        fresh = {a: axis(a.extent) for a in others}
        # `element` is (place in the row, result) before the shuffles, (result, place) after them; a row that
        # shuffles cannot transpose is (result, place) at once, and is read with a vector's stride
        block, part, element = axis(-(-extent(f) // lanes)), axis(-(-extent(x) // row)), axis(lanes * row)
        place_step, result_step = (lanes, 1) if is_transposable(row) else (1, row)
        place = mod(floordiv(polynomial(element), place_step), row)
        result = mod(floordiv(polynomial(element), result_step), lanes)
        # the output's read, with the results' axis replaced by block and result
        indices = list(chain.output_read.indices)
        vectors = extent(chain.products.axes[chain.lane_place]) // lanes  # in one block of results
        for k in chain.result_places:
            if f in axes_in(indices[k]):
                indices[k] = floordiv(polynomial(block), vectors)
        indices[chain.lane_place] = mod(polynomial(block), vectors) * lanes + result
        values: dict[Any, Any] = {a: polynomial(b) for a, b in fresh.items()}
        values[x] = polynomial(part) * row + place
        moved = replace_axes(Read(last.tensor, _select(indices, self.output_places)), values)
        axes = (*fresh.values(), block, part, element)
        first = define_stage(f"{last.tensor.name}_turned", last.tensor.dtype, axes, moved)
        stages = transpose_rows(first, row if is_transposable(row) else 1)
        own, along = polynomial(f), polynomial(x)
        rows = floordiv(own, lanes), floordiv(along, row), mod(own, lanes) * row + mod(along, row)
        read = Read(stages[-1].tensor, (*map(polynomial, others), *rows))
        return stages, replace(output, body=replace_reads(output.body, {chain.output_read: read}))


def _select(items: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(items[k] for k in places)


def _with_axes(stage: Stage, axes: tuple[Axis, ...], body: Body) -> Stage:
    """Returns the stage with other axes, of which the tensor has the extents."""
    tensor = replace(stage.tensor, shape=tuple(a.extent for a in axes))
    return replace(stage, tensor=tensor, axes=axes, body=body)


def _map_reads(body: Body, source: Tensor, new_indices: Callable[[Sequence[Size]], tuple[Size, ...]]) -> Body:
    """Replaces reads of a tensor of the name of `source` by reads of `source` at new indices."""
    if isinstance(body, Read) and source_name(body) == source.name:
        return Read(source, new_indices(body.indices))
    return rebuild_body(body, lambda inner: _map_reads(inner, source, new_indices), lambda size: size)
