"""The schedules that a chain may have (`kernels.stages.bilinear_chain`), the most promising first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, prod
from operator import itemgetter

from tensaurus.expr.ir.scope import Scope
from tensaurus.kernels.halide.compile import operands, tensors
from tensaurus.kernels.halide.pipeline import prepared
from tensaurus.kernels.stages.bilinear_chain import Chain, Tile, chain
from tensaurus.kernels.stages.chain_layout import part_of
from tensaurus.kernels.stages.sketch import Pack, Sketch, Transform
from tensaurus.kernels.stages.stage import extent
from tensaurus.kernels.tune.register_blocks import WASTE
from tensaurus.kernels.tune.target_core import BYTES, L2, Core, Shape, exchanged, share
from tensaurus.ops import TensorType

__all__ = ["transforms"]

VECTORS = (2, 4, 1, 3, 6)  # of results in one block
SPARE = 4  # registers that hold no results
BLOCK_ROWS = 8  # tiles of a register block along one axis but the last, at most
NEAR, FAR = 1 / 32, 1 / 8  # cycles for a byte from the second cache, and from behind it
FULL = 0.5  # of a vector are channels, at least
HERTZ = 3.5e9  # cycles in a second, about
GATHERED = 2.0  # cycles for an element that is turned


def transforms(
    scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool], core: Core
) -> Iterator[tuple[tuple[Pack, ...], list[Sketch], Shape]]:
    """What is packed, its sketches and its shape, the most promising first; nothing where it is no chain.

    The shape's extents are those of the tiles, then the number of blocks of results.
    """
    found = sorted(_scored(scope, types, fixed, core), key=lambda one: one[1][0][0])
    for pack, scored, shape in found:
        yield (pack,), [sketch for _, sketch in scored], shape


def _scored(
    scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool], core: Core
) -> Iterator[tuple[Pack, list[tuple[float, Transform]], Shape]]:
    """What may be packed, its sketches with the cycles that they take, the fewest first, and its shape."""
    for place, kind in enumerate(types):
        if not (place < len(fixed) and fixed[place]):
            continue
        for dimension in range(len(kind.shape) - 1):
            size = kind.shape[dimension]
            if not isinstance(size, int):
                continue
            for lanes, vectors in _widths(size, core.lanes(kind.dtype)):
                pack = Pack(f"x{place}", dimension, lanes * vectors)
                packed_types, own, _ = operands(scope, types, (pack,))
                stages, _ = prepared(own, tensors(packed_types), (pack,))
                found = chain(stages)
                if found is None or found.weights.source.name != pack.tensor:  # type: ignore[union-attr]
                    continue  # some fit in a group of results, and others do not
                blocks = prod(extent(found.products.axes[k]) for k in found.results if k != found.lane)
                counts = tuple(map(_count, found.tiles))
                data = _points(found) * _read(found) * prod(counts) * _phases(found) * BYTES
                weights = BYTES * prod(n for n in kind.shape if isinstance(n, int))
                shape = Shape((*counts, blocks), found.products.points, {"": data}, weights)
                scored = [(_cycles(found, s, shape, core), s) for s in _sketches(found, lanes, vectors, core)]
                if scored:
                    yield pack, sorted(scored, key=itemgetter(0)), shape


def _widths(size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Lanes and vectors of blocks that divide so many results, or reach beyond by less than a vector: of 21
    results one block of 24 is done by three half vectors, of which many processors do two at once.
    """
    narrow = lanes
    while narrow >= 4 and size % narrow:
        narrow //= 2
    for vectors in VECTORS:
        if narrow >= 4 and size % (narrow * vectors) == 0:
            yield narrow, vectors
        for whole in (lanes, lanes // 2):
            width = whole * vectors
            if whole > narrow and ceil(size / width) * width - size < whole:
                yield whole, vectors


def _count(tile: Tile) -> int:
    """How many tiles an axis has."""
    return ceil(extent(tile.axis) / tile.size)


def _sketches(found: Chain, lanes: int, vectors: int, core: Core) -> Iterator[Transform]:
    counts = [*map(_count, found.tiles)]
    channels = extent(found.channel)
    widths = [n for n in (lanes, 8, 4) if n <= lanes]
    deep = next((n for n in widths if channels % n == 0), 0)
    if not deep and extent(found.before[0].stage.axes[found.dimension]) == channels:  # of one group
        deep = max(widths, key=lambda n: part_of(channels, n) / n)
    if not deep or part_of(channels, deep) < FULL * deep:  # combinations before would lie along no vector
        return
    unrolled = next(n for n in (4, 3, 2, 1) if part_of(channels, deep) % n == 0)
    held = (core.registers - SPARE) // vectors
    for tile in product(*(_blocks_of(found, tile) for tile in found.tiles)):
        for block in _blocks(tile, held):
            for parallel in _parallel(counts, tile, core.threads):
                yield Transform(lanes, vectors, block, tile, deep, unrolled, parallel)


def _blocks_of(found: Chain, tile: Tile) -> list[int]:
    """How many of an axis's tiles are done at once: of the output's last one, whole rows that are turned."""
    count = _count(tile)
    if tile.axis is not found.output.axes[-1]:
        return _even(count)
    row = found.row // tile.size
    rounded = {min(ceil(n / row) * row, count) for n in _even(count)}
    return [n for n in sorted(rounded) if ceil(count / n) * n <= count * WASTE]


def _even(count: int) -> list[int]:
    """How many of so many are done at once, so that the last are nearly as many."""
    sizes = {ceil(count / parts) for parts in range(1, count + 1)}
    return [n for n in sorted(sizes) if ceil(count / n) * n <= count * WASTE]


def _blocks(tile: Sequence[int], held: int) -> list[tuple[int, ...]]:
    """Register blocks of a block of tiles: rows that are whole before there are several."""
    if not tile:
        return [()]
    *outer, last = tile
    found = [
        (*(1 for _ in outer), n) for n in range(1, min(last, held) + 1) if ceil(last / n) * n <= last * WASTE
    ]
    if outer and last <= held:
        found += [
            (*(1 for _ in outer[:-1]), n, last)
            for n in range(2, min(outer[-1], BLOCK_ROWS) + 1)
            if n * last <= held and ceil(outer[-1] / n) * n <= outer[-1] * WASTE
        ]
    return found


def _parallel(counts: Sequence[int], tile: Sequence[int], threads: int) -> list[int]:
    if threads == 1:
        return [0]
    return [1, 2] if tuple(counts) != tuple(tile) else [2]


def _cycles(found: Chain, sketch: Transform, shape: Shape, core: Core) -> float:
    """Cycles of the whole, about: multiplications or loads, weights and operands from their caches, what is
    turned.
    """
    counts = shape.extents[:-1]
    points, read = _points(found), _read(found)
    reduced = prod(extent(r) for r in found.products.reduced)
    results = shape.extents[-1] * sketch.lanes * sketch.vectors
    rounds = prod(ceil(n / t) for n, t in zip(counts, sketch.tile, strict=True))
    tiles = rounds * prod(ceil(t / b) * b for t, b in zip(sketch.tile, sketch.block, strict=True))
    tiles *= _phases(found)
    held = prod(sketch.block)
    step = max(held * sketch.vectors, (held + sketch.vectors) / 2, 8.0) / held  # for a tile's vectors
    if sketch.lanes * BYTES * 8 < core.bits:
        step *= 0.75  # narrow vectors are no slower, two at once
    cycles = tiles * points * reduced * (results / sketch.lanes / sketch.vectors) * step
    weights = points * reduced * results * BYTES
    moved = points * read * prod(sketch.tile) * BYTES
    cycles += rounds * weights * (NEAR if weights + moved <= L2 else FAR)
    if moved > L2:
        cycles += rounds * shape.extents[-1] * moved * FAR
    # the edges of a block are turned again for each
    edge = prod((t * tile.size + 2) for t, tile in zip(sketch.tile, found.tiles, strict=True))
    cycles += rounds * read * edge * GATHERED
    cycles += tiles * points * (read + results) / sketch.lanes * 2.0
    return cycles * share(sketch, shape, core.threads) + HERTZ * exchanged(sketch, shape, core.threads)


def _points(found: Chain) -> int:
    return prod(extent(found.products.axes[k]) for k in found.points)


def _phases(found: Chain) -> int:
    return prod(extent(found.products.axes[k]) for k in found.phases)


def _read(found: Chain) -> int:
    """Elements of the transformed data at each point of a tile, of all groups."""
    groups = extent(found.before[0].stage.axes[found.dimension]) // extent(found.channel)
    return groups * prod(extent(r) for r in found.products.reduced)
