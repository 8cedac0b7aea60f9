"""Enumerates the sketches that nests may have, the most promising first, by an analysis of their index maps.

`tune` asks for the changes of nests to try (packed inputs, blocked bands) and for the sketches of each nest.
Nests are scheduled in one of two ways (`halide/pipeline`): each by itself; or, where they share leading axes,
all inside the loops of the last nest over these axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, log, prod

from tensaurus.expr.ir.scope import Call, Read, Scope, axis
from tensaurus.expr.ir.walk import axes_in, bodies, replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial, product
from tensaurus.kernels.stages.band_blocks import find_banded_products
from tensaurus.kernels.stages.loop_nest import Nest, count_shared_axes, find_nests
from tensaurus.kernels.stages.sketch import (
    BlockedBand,
    BlockSketch,
    FlatSketch,
    PackedInput,
    RowSketch,
    Sketch,
)
from tensaurus.kernels.stages.split_phases import split_phases
from tensaurus.kernels.stages.stage import Stage, build_stages, extent
from tensaurus.kernels.tune.operand_access import operand_accesses
from tensaurus.kernels.tune.register_blocks import MAX_WASTE, count_parallel_loops, rank_blocks
from tensaurus.kernels.tune.target_core import ELEMENT_BYTES, TargetCore
from tensaurus.ops import TensorType
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["candidate_bands", "candidate_packs", "is_hopeless", "rank_sketches"]

BAND_BLOCK_ROWS = (8, 16, 32)  # rows of a block of a banded product
PACK_VECTORS = (2, 3, 4, 1)  # vectors in a block of a constant whose last dimension is packed
CHUNK_SIZES = (2, 4, 8, 16, 24, 32, 64)  # rows of a shared axis that all nests compute before the next rows
TYPICAL_CHUNK = 16  # the chunk for which inner nests are ranked
MIN_PARALLEL_POINTS = 1 << 13  # points of a nest below which waking other threads takes longer than the nest
MIN_HOPELESS_POINTS = 1 << 24  # kernels of fewer multiplications are always tried, as one trial is short
MAX_INTENSITY = 16  # operations for each element moved from which on a nest needs register blocks
MAX_OUTER_BLOCKS = 160  # register blocks of the last nest, each of which is combined with all chunk sizes


def rank_sketches(stages: Sequence[Stage], core: TargetCore) -> list[list[Sketch]]:
    """Returns the sketches of each nest, the most promising first."""
    nests = find_nests(stages)
    shared = count_shared_axes(stages, nests) if len(nests) > 1 else 0
    if not shared:
        stored = {stage.tensor.name for nest in nests for stage in (nest.output, nest.main) if stage}
        # operations for each element of a stage that is inlined, and so computed again at each read
        computed = {
            stage.tensor.name: sum(isinstance(body, Read | Call) for body in bodies(stage.body))
            for stage in stages
            if stage.tensor.name not in stored
        }
        return [_sketch_separate_nest(nest, core, computed) for nest in nests]
    inner = [_sketch_inner_nest(nest, core, shared) for nest in nests[:-1]]
    return [*inner, _sketch_outer_nest(nests, core, shared)]


def candidate_packs(
    scope: Scope, types: Sequence[TensorType], is_constant: Sequence[bool], core: TargetCore
) -> list[PackedInput]:
    """Returns constant inputs that may be packed along a dimension that one axis of a reduction moves along.

    Blocks of that dimension are vectors then, and the weights of a register block lie side by side.
    """
    stages = build_stages(scope)
    packs: dict[PackedInput, None] = {}
    for stage in stages:
        for operand in operand_accesses(stage) if stage.reduced else ():
            place = int(operand.name[1:]) if operand.name.startswith("x") else -1
            if not (0 <= place < len(is_constant) and is_constant[place]) or operand.is_repeated:
                continue
            kind, lanes = types[place], core.lanes(types[place].dtype)
            sizes = [n if isinstance(n, int) else 0 for n in kind.shape]
            wide = [d for d, n in enumerate(sizes) if n != 1]  # stages have no dimensions of size 1
            for d, form in zip(wide, operand.coefficients, strict=True):
                digits = _pack_digits(form or {}, stage)
                if not digits or len(wide) < 2:
                    continue
                # blocks of vectors; where an index n * i + j is in blocks already, blocks of n
                widths = (lanes * n for n in (PACK_VECTORS if d == wide[-1] else (1,)))
                for width in widths if digits == (1,) else digits[1:]:
                    # one block of the last dimension is the tensor as it is
                    if sizes[d] % width == 0 and (d != wide[-1] or sizes[d] > width):
                        packs[PackedInput(operand.name, d, width)] = None
    return list(packs)


def _pack_digits(form: Mapping[Axis, int], stage: Stage) -> tuple[int, ...]:
    """Returns (1,) for an index i of one output axis, (1, n) for an index n * i + j of two, else ()."""
    steps = sorted((n, a.extent if isinstance(a.extent, int) else 0) for a, n in form.items())
    if any(a not in stage.axes for a in form) or [n for n, _ in steps[:1]] != [1]:
        return ()
    if len(steps) == 2 and steps[0][1] == steps[1][0]:
        return 1, steps[1][0]
    return (1,) if len(steps) == 1 else ()


def candidate_bands(scope: Scope) -> list[BlockedBand]:
    """Returns the banded products of a scope in blocks of about 8, 16 and 32 rows."""
    stages = split_phases(build_stages(scope))
    candidates: list[BlockedBand] = []
    for band in find_banded_products(stages):
        stage = next(s for s in stages if s.tensor.name == band.stage)
        count, remainder = divmod(extent(stage.axes[band.row]), band.step)
        sizes = [] if remainder else [n for n in range(2, BAND_BLOCK_ROWS[-1] + 1) if count % n == 0]
        wanted = BAND_BLOCK_ROWS if sizes else ()
        nearest = dict.fromkeys(min(sizes, key=lambda n: abs(n - rows)) for rows in wanted)
        candidates += [BlockedBand(band.stage, band.row, n) for n in nearest]
    return candidates


def _sketch_separate_nest(nest: Nest, core: TargetCore, computed: Mapping[str, int]) -> list[Sketch]:
    """Returns the sketches of a nest that is computed in no other nest's loops."""
    if (nest.main or nest.output).points < MIN_PARALLEL_POINTS:
        core = replace(core, threads=1)
    lanes = core.lanes(nest.output.tensor.dtype)
    parallel = count_parallel_loops([extent(a) for a in nest.output.axes], core.threads)
    if nest.main is None:
        return [*_gathering_sketches(nest, lanes, core.threads), *_flat_sketches(nest, lanes, parallel)]
    blocks = rank_blocks(nest.main, core, lanes, computed=computed)
    # vectors along the output come first: vectors along the reduction must be combined at the end
    return [*blocks, *_row_sketches(nest.main, lanes, parallel)]


def _sketch_inner_nest(nest: Nest, core: TargetCore, shared: int) -> list[Sketch]:
    """Returns the sketches of a nest in the last nest's loops, which compute it a chunk at a time."""
    lanes = core.lanes(nest.output.tensor.dtype)
    if nest.main is None:
        return [*_flat_sketches(nest, lanes, 0)]
    # vectors along the reduction, and vectors along an axis of the output that is not shared
    chunk = _restrict_to_chunk(nest.main, shared)
    along = [*_row_sketches(nest.main, lanes, 0)]
    across = rank_blocks(chunk, replace(core, threads=1), lanes, min_vector=shared)
    return [*across, *along] if len(operand_accesses(nest.main)) > 1 else [*along, *across]


def _sketch_outer_nest(nests: Sequence[Nest], core: TargetCore, shared: int) -> list[Sketch]:
    """Returns the sketches of the last nest, whose loops over the shared axes compute the other nests."""
    last = nests[-1]
    lanes = core.lanes(last.output.tensor.dtype)
    sizes = [extent(a) for a in last.output.axes[:shared]]
    # flat sketches, with the other nests in the loops over fewer and fewer of the shared axes
    plain: list[Sketch] = []
    for count in range(shared, 0, -1):
        if sizes[count - 1] > 1:
            flat = _flat_sketches(last, lanes, count_parallel_loops(sizes[:count], core.threads))
            plain += [replace(sketch, around=0 if count == shared else count) for sketch in flat]
    if last.main is None:
        return plain
    # register blocks in loops over chunks of a shared axis
    chunked_axis = _last_long_axis(sizes)
    row_bytes = sum(ELEMENT_BYTES * prod(map(extent, nest.output.axes[shared:])) for nest in nests[:-1])
    chunks = _chunk_sizes(sizes[chunked_axis], row_bytes, core.l2_bytes)
    tiled: list[Sketch] = []
    one_thread = replace(core, threads=1)
    restricted = _restrict_to_chunk(last.main, shared)
    for sketch in rank_blocks(restricted, one_thread, lanes, MAX_OUTER_BLOCKS, min_vector=shared):
        for chunk in chunks:
            tiles = ((k, chunk if k == chunked_axis else 1) for k in range(shared))
            first = tuple((k, n) for k, n in tiles if n < sizes[k])
            parallel = count_parallel_loops([-(-sizes[k] // n) for k, n in first], core.threads)
            copies = tuple((name, level + len(first)) for name, level in sketch.copies)
            tiled.append(replace(sketch, tile=(*first, *sketch.tile), copies=copies, parallel=parallel))
    return [*tiled, *plain]


def _last_long_axis(sizes: Sequence[int]) -> int:
    """Returns the number of the last axis longer than 1; of the last axis, if none is."""
    return max(range(len(sizes)), key=lambda k: (sizes[k] > 1, k))


def _chunk_sizes(size: int, row_bytes: int, l2_bytes: int) -> list[int]:
    """Returns chunks of an axis, the one first of which the other nests' outputs half fill the L2 cache."""
    chunks = [n for n in CHUNK_SIZES if n < size and ceil(size / n) * n <= size * MAX_WASTE]
    chunks += [size] if size <= CHUNK_SIZES[-1] else []
    return sorted(chunks, key=lambda n: abs(log(n * row_bytes / (l2_bytes / 2))))


def _restrict_to_chunk(main: Stage, shared: int) -> Stage:
    """Restricts the shared axes to a chunk: a few indices of the last long axis, one of each other axis."""
    sizes = [extent(a) for a in main.axes[:shared]]
    chunked_axis = _last_long_axis(sizes)
    fresh = tuple(axis(min(TYPICAL_CHUNK, n) if k == chunked_axis else 1) for k, n in enumerate(sizes))
    body = replace_axes(main.body, {a: polynomial(b) for a, b in zip(main.axes, fresh, strict=False)})
    return replace(main, axes=(*fresh, *main.axes[shared:]), body=body)


def _flat_sketches(nest: Nest, lanes: int, parallel: int) -> list[FlatSketch]:
    size = extent(nest.output.axes[-1]) if nest.output.axes else 1
    return [FlatSketch(lanes, u, parallel) for u in (4, 2, 1, 8) if u == 1 or u * lanes <= size]


def _gathering_sketches(nest: Nest, lanes: int, threads: int) -> Iterator[FlatSketch]:
    """Yields sketches of a nest whose vectors gather an operand that is dense along another axis.

    In x[c, i] -> y[i, c] a vector along c reads 16 cache lines; the next 15 steps along i read the same.
    """
    sizes = [extent(a) for a in nest.output.axes]
    for beside in _axes_beside_vectors(nest.output, lanes):
        counts = dict(beside)
        steps = [-(-n // counts.get(place, 1)) for place, n in enumerate(sizes)]
        for unroll in (1, 2):
            if unroll == 1 or unroll * lanes <= sizes[-1]:
                yield FlatSketch(lanes, unroll, count_parallel_loops(steps, threads), beside=beside)


def _axes_beside_vectors(stage: Stage, lanes: int) -> list[tuple[tuple[int, int], ...]]:
    """Returns for each operand that vectors gather the axes, with counts, that move within its cache lines.

    These move along its last dimensions: in x[i, j, k] -> y[k, i, j:4] 4 steps along j and 4 along i.
    """
    found: dict[tuple[tuple[int, int], ...], None] = {}
    for operand in operand_accesses(stage) if stage.axes else ():
        last = stage.axes[-1]
        moving = [axes_in(index) for index in reversed(operand.read.indices)]
        if not moving or last in moving[0] or not any(last in axes for axes in moving):
            continue
        beside: list[tuple[int, int]] = []
        remaining = lanes
        for axes in moving:  # of one dimension after the other, from the last on
            moved = [place for place, a in enumerate(stage.axes) if a in axes]
            if len(moved) != 1 or last in axes or remaining < 2:
                break
            count = min(remaining, extent(stage.axes[moved[0]]))
            beside += [(moved[0], count)] if count > 1 else []
            remaining //= count
        found |= {tuple(beside): None} if beside else {}
    return [*found]


def _row_sketches(main: Stage, lanes: int, parallel: int) -> Iterator[RowSketch]:
    if not main.reduced:
        return
    last = main.reduced[-1]
    for times in (4, 2, 8, 1):
        if times == 1 or times * lanes <= extent(last):
            yield RowSketch(lanes, times * lanes, parallel)


def is_hopeless(nest: Nest, pool: Sequence[Sketch]) -> bool:
    """Whether arithmetic bounds the nest and no register block fits, so that a trial takes seconds."""
    if nest.main is None or nest.main.points < MIN_HOPELESS_POINTS:
        return False
    if any(isinstance(sketch, BlockSketch) for sketch in pool):
        return False
    read = sum(number_of(product(x.shape)) for x in nest.main.sources)
    moved = read + prod(map(extent, nest.main.axes))
    return 2 * nest.main.points >= MAX_INTENSITY * moved
