"""Ranks the schedules of a bilinear chain (`kernels.stages.bilinear_chain`) by an estimate of their cycles.

A chain has one sketch, `transform(...)`, for all its nests; `tune` asks for these sketches before any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, prod
from operator import itemgetter

from tensaurus.expr.ir.scope import Scope
from tensaurus.kernels.halide.compile import input_tensors, kernel_interface
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.stages.bilinear_chain import BilinearChain, Tile, recognize_chain
from tensaurus.kernels.stages.chain_layout import channels_per_vector
from tensaurus.kernels.stages.sketch import ChainSketch, NestChange, PackedInput, Sketch
from tensaurus.kernels.stages.stage import extent, source_name
from tensaurus.kernels.tune.register_blocks import MAX_WASTE
from tensaurus.kernels.tune.target_core import (
    ELEMENT_BYTES,
    SPARE_REGISTERS,
    NestShape,
    TargetCore,
    busiest_share,
    exchange_seconds,
)
from tensaurus.ops import TensorType

__all__ = ["rank_chain_schedules"]

VECTOR_COUNTS = (2, 4, 1, 3, 6)  # vectors of results in one block
MAX_BLOCK_ROWS = 8  # tiles of a register block along any axis but the last: more take long to compile
L2_CYCLES_PER_BYTE, MEMORY_CYCLES_PER_BYTE = 1 / 32, 1 / 8  # of reads from the L2 cache, and beyond
# Cycles for each byte of transformed data that comes from memory: all of it does where the threads together
# hold so many bytes, of fewer bytes a share.  With 170 MB for 900x161 pixels of 128 channels, blocks
# of 0.8 to 6 MB took 20 to 22 ms, of 17 MB 29 ms, of 34 MB 74 ms, and one block for each thread 91 ms.
MEMORY_DATA_CYCLES_PER_BYTE, MEMORY_DATA_BYTES = 2.5, 64 << 20
MIN_VECTOR_FILL = 0.5  # fraction of a vector that channels must fill
CYCLES_PER_SECOND = 3.5e9  # a typical clock rate, to compare cycles with waiting times
TRANSPOSE_CYCLES = 2.0  # for each element that is transposed


def rank_chain_schedules(
    scope: Scope,
    types: Sequence[TensorType],
    is_constant: Sequence[bool],
    core: TargetCore,
    changes: tuple[NestChange, ...] | None = None,
) -> Iterator[tuple[tuple[PackedInput, ...], list[Sketch], NestShape]]:
    """Yields (packed inputs, sketches, shape), the fastest first by estimate; nothing if this is no chain.

    A chain's weights are packed in blocks of results, so that each width of a block has its own sketches. The
    shape's extents are the numbers of tiles along each axis, then the number of blocks of results. With
    `changes`, only the sketches for this packed input are ranked.
    """
    found: list[tuple[PackedInput, list[tuple[float, ChainSketch]], NestShape]] = []
    for pack, lanes, vectors in _weight_packs(types, is_constant, core):
        if changes is not None and changes != (pack,):
            continue
        packed_types, packed_scope, _ = kernel_interface(scope, types, (pack,))
        stages, _ = schedulable_stages(packed_scope, input_tensors(packed_types), (pack,))
        chain = recognize_chain(stages)
        if chain is None or source_name(chain.weights_read) != pack.tensor:
            continue  # blocks of this width may lie across two groups of the convolution
        weights = types[int(pack.tensor[1:])]
        shape = _chain_shape(chain, prod(n for n in weights.shape if isinstance(n, int)))
        sketches = _chain_sketches(chain, lanes, vectors, core)
        scored = [(_estimate_cycles(chain, sketch, shape, core), sketch) for sketch in sketches]
        if scored:
            found.append((pack, sorted(scored, key=itemgetter(0)), shape))
    # by the cycles of the fastest sketch of each packed input
    for pack, scored, shape in sorted(found, key=lambda one: one[1][0][0]):
        yield (pack,), [sketch for _, sketch in scored], shape


def _weight_packs(
    types: Sequence[TensorType], is_constant: Sequence[bool], core: TargetCore
) -> Iterator[tuple[PackedInput, int, int]]:
    """Yields (packed input, lanes, vectors) for each choice of weights and of blocks of their results.

    Each constant input may be the weights, each dimension but the last that of results.
    """
    for number, (kind, constant) in enumerate(zip(types, is_constant, strict=False)):
        for dimension, size in enumerate(kind.shape[:-1] if constant else ()):
            if isinstance(size, int):
                for lanes, vectors in _block_widths(size, core.lanes(kind.dtype)):
                    yield PackedInput(f"x{number}", dimension, lanes * vectors), lanes, vectors


def _chain_shape(chain: BilinearChain, weight_elements: int) -> NestShape:
    blocks = _extent_of(chain, [k for k in chain.result_places if k != chain.lane_place])
    counts = tuple(map(_tile_count, chain.tiles))
    tiles = prod(counts) * _extent_of(chain, chain.phase_places)
    data = _extent_of(chain, chain.point_places) * _channel_count(chain) * tiles * ELEMENT_BYTES
    products = prod(map(extent, chain.products.axes)) * ELEMENT_BYTES
    weights = weight_elements * ELEMENT_BYTES
    return NestShape((*counts, blocks), chain.products.points, {"": data}, weights, products)


def _block_widths(size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yields (lanes, vectors) of blocks that divide `size` results, or exceed them by less than a vector.

    21 results may be one block of three half vectors, of 8 lanes each: many processors compute two half
    vectors at once.
    """
    dividing = lanes  # the widest of lanes, lanes / 2, ... that divides `size`; below 4 there is none
    while dividing >= 4 and size % dividing:
        dividing //= 2
    for vectors in VECTOR_COUNTS:
        if dividing >= 4 and size % (dividing * vectors) == 0:
            yield dividing, vectors
        for whole in (lanes, lanes // 2):
            width = whole * vectors
            if whole > dividing and ceil(size / width) * width - size < whole:
                yield whole, vectors


def _tile_count(tile: Tile) -> int:
    """Returns the number of tiles along an axis."""
    return ceil(extent(tile.axis) / tile.size)


def _chain_sketches(
    chain: BilinearChain, lanes: int, vectors: int, core: TargetCore
) -> Iterator[ChainSketch]:
    """Yields the sketches of a chain whose weights are packed in blocks of `vectors` vectors of results.

    Yields none where channels would fill less than MIN_VECTOR_FILL of a vector.
    """
    counts = [*map(_tile_count, chain.tiles)]
    channels = extent(chain.channel_axis)
    widths = [n for n in (lanes, 8, 4) if n <= lanes]
    channel_lanes = next((n for n in widths if channels % n == 0), 0)
    # vectors can be partly filled only where all channels are in one group (`lay_out_chain`)
    if not channel_lanes and chain.all_channels == channels:
        channel_lanes = max(widths, key=lambda n: channels_per_vector(channels, n) / n)
    if not channel_lanes or channels_per_vector(channels, channel_lanes) < MIN_VECTOR_FILL * channel_lanes:
        return
    unrolled = next(n for n in (4, 3, 2, 1) if channels_per_vector(channels, channel_lanes) % n == 0)
    accumulators = (core.registers - SPARE_REGISTERS) // vectors
    blocks = _extent_of(chain, [k for k in chain.result_places if k != chain.lane_place])
    for tile in product(*(_tile_block_sizes(chain, tile) for tile in chain.tiles)):
        for block in _register_blocks(tile, accumulators):
            for parallel in _parallel_choices(counts, tile, core.threads):
                for by_points in (False, True) if blocks > 1 else (False,):
                    yield ChainSketch(
                        lanes, vectors, block, tile, channel_lanes, unrolled, parallel, by_points
                    )


def _tile_block_sizes(chain: BilinearChain, tile: Tile) -> list[int]:
    """Returns how many tiles of an axis may be computed at once; along the output's last axis, whole rows."""
    count = _tile_count(tile)
    if tile.axis is not chain.output.axes[-1]:
        return _even_block_sizes(count)
    row = chain.row_elements // tile.size
    rounded = {min(ceil(n / row) * row, count) for n in _even_block_sizes(count)}
    return [n for n in sorted(rounded) if ceil(count / n) * n <= count * MAX_WASTE]


def _even_block_sizes(count: int) -> list[int]:
    """Returns block sizes for which the last block is nearly full."""
    sizes = {ceil(count / parts) for parts in range(1, count + 1)}
    return [n for n in sorted(sizes) if ceil(count / n) * n <= count * MAX_WASTE]


def _register_blocks(tile: Sequence[int], accumulators: int) -> list[tuple[int, ...]]:
    """Returns register blocks of a block of tiles: parts of the last axis, or several whole rows."""
    if not tile:
        return [()]
    *outer, last = tile
    sizes = (n for n in range(1, min(last, accumulators) + 1) if ceil(last / n) * n <= last * MAX_WASTE)
    blocks = [(*(1 for _ in outer), n) for n in sizes]
    if outer and last <= accumulators:
        blocks += [
            (*(1 for _ in outer[:-1]), n, last)
            for n in range(2, min(outer[-1], MAX_BLOCK_ROWS) + 1)
            if n * last <= accumulators and ceil(outer[-1] / n) * n <= outer[-1] * MAX_WASTE
        ]
    return blocks


def _parallel_choices(counts: Sequence[int], tile: Sequence[int], threads: int) -> list[int]:
    """Returns the values of `ChainSketch.parallel` to try; one block of all tiles is no parallel loop."""
    if threads == 1:
        return [0]
    return [1, 2] if tuple(counts) != tuple(tile) else [2]


def _estimate_cycles(chain: BilinearChain, sketch: ChainSketch, shape: NestShape, core: TargetCore) -> float:
    """Estimates a chain's cycles: of arithmetic or loads, reads from caches, and transpositions."""
    # the sizes of the work; blocks of tiles and results that are not full are computed as full ones
    counts = shape.extents[:-1]
    points, channel_count = _extent_of(chain, chain.point_places), _channel_count(chain)
    reduced = prod(extent(r) for r in chain.products.reduced)
    results = shape.extents[-1] * sketch.lanes * sketch.vectors
    tile_blocks = prod(ceil(n / t) for n, t in zip(counts, sketch.tile, strict=True))
    tiles = tile_blocks * prod(ceil(t / b) * b for t, b in zip(sketch.tile, sketch.block, strict=True))
    tiles *= _extent_of(chain, chain.phase_places)
    block_tiles = prod(sketch.block)
    # cycles of one step of the reduction, for each tile: multiplications, or loads, two a cycle; at least 8
    step = max(block_tiles * sketch.vectors, (block_tiles + sketch.vectors) / 2, 8.0) / block_tiles
    if sketch.lanes * ELEMENT_BYTES * 8 < core.bits:
        step *= 0.75  # half vectors are as fast, and processors may compute two at once
    cycles = tiles * points * reduced * (results / sketch.lanes / sketch.vectors) * step
    # reads from caches: each block of tiles reads all weights, and data beyond L2 for each block of results;
    # by points it reads data once, but writes and reads the products of all results
    weights = points * reduced * results * ELEMENT_BYTES
    data_bytes = points * channel_count * prod(sketch.tile) * ELEMENT_BYTES
    product_bytes = points * results * prod(sketch.tile) * ELEMENT_BYTES
    fits = weights + data_bytes <= core.l2_bytes
    cycles += tile_blocks * weights * (L2_CYCLES_PER_BYTE if fits else MEMORY_CYCLES_PER_BYTE)
    if data_bytes > core.l2_bytes:
        rounds = 1 if sketch.by_points else shape.extents[-1]
        cycles += tile_blocks * rounds * data_bytes * MEMORY_CYCLES_PER_BYTE
    if sketch.by_points and product_bytes > core.l2_bytes:
        cycles += tile_blocks * 2 * product_bytes * MEMORY_CYCLES_PER_BYTE
    # blocks of tiles in parallel have data of their own
    held_bytes = data_bytes * (core.threads if sketch.parallel == 1 else 1)
    from_memory = data_bytes * min(held_bytes / MEMORY_DATA_BYTES, 1.0)
    cycles += tile_blocks * from_memory * MEMORY_DATA_CYCLES_PER_BYTE
    # each block of tiles transposes its edges again
    edge = prod((t * tile.size + 2) for t, tile in zip(sketch.tile, chain.tiles, strict=True))
    cycles += tile_blocks * channel_count * edge * TRANSPOSE_CYCLES
    # combinations: two cycles for each vector of transformed data and of products
    cycles += tiles * points * (channel_count + results) / sketch.lanes * 2.0
    waiting = CYCLES_PER_SECOND * exchange_seconds(sketch, shape, core)
    return cycles * busiest_share(sketch, shape, core.threads) + waiting


def _extent_of(chain: BilinearChain, places: Sequence[int]) -> int:
    """Returns the product of the extents of some axes of the products."""
    return prod(extent(chain.products.axes[k]) for k in places)


def _channel_count(chain: BilinearChain) -> int:
    """Returns how many elements of transformed data, of all groups, each point of a tile has."""
    groups = chain.all_channels // extent(chain.channel_axis)
    return groups * prod(extent(r) for r in chain.products.reduced)
