"""Ranks the register blocks of a reduction, with the loops around them, by an estimate of their cycles.

A register block is some vectors along one axis times some positions along other axes; all its accumulators
fit in registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import combinations, product
from math import ceil, prod
from types import MappingProxyType

from tensaurus.expr.sizes.size import Axis
from tensaurus.kernels.stages.sketch import BlockSketch
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.block_cycles import BlockedReduction, RegisterBlock
from tensaurus.kernels.tune.target_core import SPARE_REGISTERS, TargetCore, busiest_share

__all__ = ["MAX_POOL", "MAX_WASTE", "rank_blocks", "count_parallel_loops"]

MAX_WASTE = 1.2  # blocks of an axis may cover this multiple of its extent
MAX_UNROLLED = 450  # multiplications of unrolled code: more take long to compile
MAX_UNROLLED_GUARDED = 1000  # the same where guards are decided by unrolling, which drops some of them
STRIP_SIZES = (16, 32, 64, 128, 256, 512)  # rows in a tile of a banded product
PANEL_VECTORS = (1, 2, 4, 8, 16)  # vectors of a tile along the vectors' axis
MIN_REPEATED_READS = 4  # an inlined operand may be copied instead if each element is read so often
# Vectors along an axis that is not the last have elements apart in memory, by the size of the axes after it.
# Up to this size those axes are unrolled entirely, so that a block is stored without gaps.
MAX_RESULTS_BETWEEN = 4
# Register blocks for which loops are enumerated: the best 40, more up to 160 if within 1.3 times the best.
MAX_REGISTER_BLOCKS, MIN_REGISTER_BLOCKS = 160, 40
# Register blocks that are kept of each axis that vectors may lie along. Vectors along rows of 19 waste lanes,
# but read operands as they are; the copies that other vectors need are priced later, with the loops.
MIN_BLOCKS_OF_AXIS = 10
MAX_POOL = 600  # schedules of one nest that are kept for tuning


def rank_blocks(
    main: Stage,
    core: TargetCore,
    lanes: int,
    limit: int = MAX_POOL,
    min_vector: int = 0,
    computed: Mapping[str, int] = MappingProxyType({}),
) -> list[BlockSketch]:
    """Returns the register blocks with the lowest estimates, at most `limit` of them, the fastest first.

    Vectors lie along one of the axes from number `min_vector` on; axes before it are loops outside.
    `computed` has the operations for each element of an operand that is computed again at each read, unless
    it is copied.
    """
    nest = _BlockEnumeration(main, core, lanes, computed)
    scored: list[tuple[float, BlockSketch, tuple[int, ...], int]] = []  # (cycles, block, order, unrolled)
    copy_cycles: dict[object, float] = {}
    for registers in nest.rank_registers(min_vector):
        orders = list(nest.reduction_orders(registers))
        work = [nest.compute_cycles(registers, order, unrolled) for order, unrolled in orders]
        for block in nest.enumerate_tilings(registers):
            key = registers.vector, block.tile, registers.copies
            if key not in copy_cycles:
                copy_cycles[key] = nest.copy_cycles(registers, block.tile)
            part = busiest_share(block, nest.shape, core.threads)
            for cycles, (order, unrolled) in zip(work, orders, strict=True):
                scored.append(((cycles + copy_cycles[key]) * part, block, order, unrolled))
    best = nsmallest(limit, scored, key=lambda item: item[0])
    return [replace(block, order=order, unrolled=unrolled) for _, block, order, unrolled in best]


class _BlockEnumeration(BlockedReduction):
    """Enumerates the blocks of a reduction, with the loops around them.

    `BlockedReduction` estimates their cycles, and explains taps, channels and guarded axes.
    """

    def rank_registers(self, min_vector: int) -> list[RegisterBlock]:
        """Returns the blocks that registers may hold, the one with the fastest reduction step first."""
        scored: list[tuple[float, RegisterBlock]] = []
        for vector in range(min_vector, len(self.axes)):
            size = self.sizes[vector]
            if size < min(self.lanes // 4, 4) and len(self.axes) > 1:
                continue  # most lanes of a vector would be idle
            for vectors in (1, 2, 3, 4, 6):
                if vectors > 1 and vectors * self.lanes > size * MAX_WASTE:
                    continue
                copies = self.required_copies(vector)
                if copies is None:
                    continue
                more = self.worthwhile_copies(vector, copies)
                for block in self.unrolled_axes(vector, vectors):
                    for copied in (copies, (*copies, *more)) if more else (copies,):
                        registers = RegisterBlock(vector, vectors, block, copied)
                        scored.append((self.step_cycles(registers, self.main.reduced), registers))
        scored.sort(key=lambda item: item[0])
        limit = 1.3 * scored[0][0] if scored else 0.0
        best: list[RegisterBlock] = []
        counts = Counter[int]()  # of the blocks of each vectors' axis
        for number, (step, registers) in enumerate(scored):
            is_near = number < MIN_REGISTER_BLOCKS or step < limit and number < MAX_REGISTER_BLOCKS
            if is_near or counts[registers.vector] < MIN_BLOCKS_OF_AXIS:
                best.append(registers)
                counts[registers.vector] += 1
        return best

    def required_copies(self, vector: int) -> tuple[str, ...] | None:
        """Returns the operands to copy for vectors along the axis; None if vectors cannot lie along it.

        An operand is copied if it has an edge (beyond which the value `outside` is read), or if vectors would
        read it with a stride.
        """
        copied, v = [], self.axes[vector]
        for operand in self.operands:
            is_unreadable = operand.last_dimension_step(v) not in (0, 1)
            if operand.is_copyable(v):
                if is_unreadable or operand.read.outside is not None:
                    copied.append(operand.name)
            elif is_unreadable:  # an edge alone can be read by a select
                return None
        return tuple(copied)

    def worthwhile_copies(self, vector: int, copies: Collection[str]) -> tuple[str, ...]:
        """Returns other operands that may be copied, as they would be computed repeatedly otherwise."""
        axes = (*self.axes, *self.main.reduced)
        return tuple(
            operand.name
            for operand in self.operands
            if operand.name in self.computed
            and operand.name not in copies
            and operand.is_copyable(self.axes[vector])
            and prod(extent(a) for a in axes if not operand.dimensions_moved_by(a)) >= MIN_REPEATED_READS
        )

    def unrolled_axes(self, vector: int, vectors: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yields choices of other axes to unroll, as pairs (number of the axis, how many of its indices)."""
        available = self.core.registers - SPARE_REGISTERS
        others = [a for a in range(len(self.axes)) if a != vector and self.sizes[a] > 1]
        # see MAX_RESULTS_BETWEEN; axes of guards are unrolled, too, which decides the guards when compiling
        has_few_between = prod(self.sizes[vector + 1 :]) <= MAX_RESULTS_BETWEEN
        fixed = tuple(
            (a, self.sizes[a])
            for a in others
            if (a > vector and has_few_between) or self.axes[a] in self.guarded
        )
        used = vectors * prod(n for _, n in fixed)  # accumulators
        if used > available:
            return
        free = [a for a in others if a not in dict(fixed)]
        factors = {a: [f for f in _unroll_factors(self.sizes[a]) if f * used <= available] for a in free}
        yield fixed
        for a in free:
            yield from (((a, f), *fixed) for f in factors[a])
        for a, b in combinations(free, 2):
            for f, g in product(factors[a], factors[b]):
                if f * g * used <= available:
                    yield ((a, f), (b, g), *fixed)

    def enumerate_tilings(self, registers: RegisterBlock) -> Iterator[BlockSketch]:
        """Yields the block with each choice of tiles around it; the order of reduced axes is left open."""
        vector, v = registers.vector, self.axes[registers.vector]
        tilings: list[tuple[tuple[int, int], ...]] = [()]  # each: (number of the axis, size of the tile), ...
        inner_axes: list[tuple[int, int]] = []
        for k, size in enumerate(self.sizes):
            if k == vector or size == 1:
                continue
            if choices := self.tile_choices(k, registers):
                tilings = [(*tiles, *choice) for tiles in tilings for choice in choices]
            elif k not in dict(registers.block):
                inner_axes.append((k, size))
        # the vectors' axis may be cut into panels where each copy moves along it: each part is copied once
        if all(o.dimensions_moved_by(v) for o in self.operands if o.name in registers.copies):
            size, width = self.sizes[vector], registers.vectors * self.lanes
            panel = [size, *(w for times in PANEL_VECTORS if (w := times * width) < size)]
            tilings = [(*o, *(((vector, w),) if w < size else ())) for o in tilings for w in panel]
        yield from dict.fromkeys(self.tiled_block(registers, tiles, inner_axes) for tiles in tilings)

    def tile_choices(self, k: int, registers: RegisterBlock) -> list[tuple[tuple[int, int], ...]]:
        """Returns the choices of tiles along an axis: (k, size), or () for a loop outside all tiles.

        A tile of the whole axis makes no loop outside: all indices run inside the other axes' tiles.  Of an
        axis in the register block, () leaves only the loop over blocks, which is inside all tiles.

        There are none where each index reads the same data of vectors: such a loop runs inside the tiles,
        while the data are in the cache.
        """
        a, v, size = self.axes[k], self.axes[registers.vector], self.sizes[k]
        step = dict(registers.block).get(k, 1)
        has_windows = bool(self.window_axes[a])
        forms = (form for o in self.operands for form in o.coefficients)
        if not has_windows and any(a in _overlapping_axes(form or {}, v) for form in forms):
            # rows of a band, j + k, read overlapping data
            return [((k, t),) if t < size else () for t in _strip_sizes(size, step)]
        if not any(o.dimensions_moved_by(v) and o.dimensions_moved_by(a) for o in self.operands):
            return []
        if has_windows:  # neighbouring windows share rows
            return [((k, t),) for t in _tile_sizes(size, step)]
        return [] if k in dict(registers.block) else [((k, 1),)]  # indices share nothing: tiles of one index

    def tiled_block(
        self,
        registers: RegisterBlock,
        tiles: Sequence[tuple[int, int]],
        inner_axes: Sequence[tuple[int, int]],
    ) -> BlockSketch:
        """Returns the block in loops over `tiles`, then `inner_axes`; the outermost loops are parallel."""
        threads = self.core.threads
        shared: tuple[tuple[int, int], ...] = ()  # a tile for each thread, where tiles give too few tasks
        if threads > 1 and prod(-(-self.sizes[k] // n) for k, n in tiles) < 2 * threads:
            shared = self.split_among_threads(registers, {k for k, _ in tiles})
        tile = (*shared, *(t for t in (*tiles, *inner_axes) if t[0] not in dict(shared)))
        loops = [-(-self.sizes[k] // n) for k, n in tile if n < self.sizes[k]]
        parallel = max(1, count_parallel_loops(loops, threads)) if threads > 1 and loops else 0
        before = {
            operand.name for operand in self.operands if self.is_copied_at_root(operand, registers.vector)
        }
        # level 0: copied before the nest's loops; else inside as many of the outermost loops as `tile` makes
        copies = tuple((name, 0 if name in before else len(loops)) for name in registers.copies)
        return BlockSketch(
            registers.vector,
            self.lanes,
            registers.vectors,
            registers.block,
            tile,
            copies=copies,
            parallel=parallel,
        )

    def split_among_threads(
        self, registers: RegisterBlock, taken: Container[int]
    ) -> tuple[tuple[int, int], ...]:
        """Returns one axis, not of those `taken`, in as many tiles as threads, where one is long enough."""
        threads, vector, blocked = self.core.threads, registers.vector, dict(registers.block)
        for k, size in enumerate(self.sizes):
            step = blocked.get(k, 1)
            if k != vector and k not in taken and size >= 2 * threads * step:
                return ((k, -(-size // (threads * step)) * step),)
        width = registers.vectors * self.lanes
        if vector not in taken and self.sizes[vector] >= 2 * threads * width:
            return ((vector, -(-self.sizes[vector] // (threads * width)) * width),)
        return ()

    def reduction_orders(self, registers: RegisterBlock) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields (order of the reduced axes, innermost first; number of unrolled ones).

        If all reduced axes were unrolled and the stores go to several rows, the code would be one straight
        line. LLVM's vectorizer, which looks at every element of every store, takes 2 to 20 seconds for that,
        and the kernel is no faster than with a loop.
        """
        reduced, limit = self.main.reduced, MAX_UNROLLED_GUARDED if self.guarded else MAX_UNROLLED
        stores_several_rows = any(registers.vector < k < len(self.axes) - 1 for k, _ in registers.block)
        inner = list(reversed(self.taps))
        outer = list(reversed(self.channels))
        guarded_taps = [k for k in inner if reduced[k] in self.guarded]
        inner = guarded_taps + [k for k in inner if k not in guarded_taps]
        done = set()
        # unroll as many taps as the limit allows, at least those that guards depend on; the other taps are
        # loops inside those over channels, or around them
        for count in range(len(inner), len(guarded_taps) - 1, -1):
            if prod(extent(reduced[k]) for k in inner[:count]) * registers.size > limit:
                continue
            looped = prod(extent(reduced[k]) for k in (*inner[count:], *outer)) > 1
            if stores_several_rows and count > len(guarded_taps) and not looped:
                continue
            for order in ((*inner, *outer), (*inner[:count], *outer, *inner[count:])):
                if (order, count) not in done:
                    done.add((order, count))
                    yield order, count
        if not done and not guarded_taps:
            yield (*inner, *outer), 0


def _overlapping_axes(form: Mapping[Axis, int], v: Axis) -> set[Axis]:
    """Returns the axes whose next index reads again elements that some index of `v` reads at this one."""
    if v not in form:
        return set()
    return {a for a, step in form.items() if a is not v and abs(step) < abs(form[v]) * extent(v)}


def _unroll_factors(size: int) -> list[int]:
    return [f for f in range(2, min(size, 28) + 1) if ceil(size / f) * f <= size * MAX_WASTE]


def _tile_sizes(size: int, step: int) -> list[int]:
    candidates = {t for t in (4, 6, 7, 8, 12, 14, 16, 28, 32, 56) if t < size and t % step == 0}
    sizes = sorted(t for t in candidates if ceil(size / t) * t <= size * MAX_WASTE)
    return [size, *sizes] if step <= size else [size]


def _strip_sizes(size: int, step: int) -> list[int]:
    """Returns multiples of the step near powers of two, and the whole size."""
    strips = {-(-n // step) * step for n in STRIP_SIZES}
    return [size, *sorted(t for t in strips if t < size)]


def count_parallel_loops(sizes: Sequence[int], threads: int) -> int:
    """Returns how many of the outermost loops have four tasks for each thread, if they can."""
    if threads == 1:
        return 0
    tasks = 1
    for count, size in enumerate(sizes, 1):
        tasks *= size
        if tasks >= 4 * threads:
            return count
    return len(sizes) if tasks > 1 else 0
