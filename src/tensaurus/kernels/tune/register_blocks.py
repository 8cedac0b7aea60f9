"""Ranks the register blocks of a reduction, with the loops around them, by an estimate of their cycles.

A register block is some vectors along one axis times some positions along other axes; all its accumulators
fit in registers. A step of its reduction takes as long as its multiplications or its loads, whichever is
longer (ETO section 5.1, here for one core).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import combinations, product
from math import ceil, prod
from types import MappingProxyType

from tensaurus.expr.sizes.size import Axis
from tensaurus.kernels.stages.sketch import BlockSketch
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.operand_access import OperandAccess, condition_axes, operand_accesses, window_axes
from tensaurus.kernels.tune.target_core import L1_BYTES, L2_BYTES, NestShape, TargetCore, busiest_share

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
MAX_POOL = 600  # schedules of one nest that are kept for tuning


def rank_blocks(
    main: Stage,
    core: TargetCore,
    lanes: int,
    limit: int = MAX_POOL,
    least: int = 0,
    computed: Mapping[str, int] = MappingProxyType({}),
) -> list[BlockSketch]:
    """Returns the register blocks with the lowest estimates, at most `limit` of them, the fastest first.

    Vectors lie along one of the axes from number `least` on; axes before it are loops outside. `computed` has
    the operations for each element of an operand that is computed again at each read, unless it is copied.
    """
    nest = _BlockAnalysis(main, core, lanes, computed)
    scored: list[tuple[float, BlockSketch, tuple[int, ...], int]] = []  # (cycles, block, order, unrolled)
    copy_cycles: dict[object, float] = {}
    for registers in nest.rank_registers(least):
        orders = list(nest.reduction_orders(registers))
        work = [nest.compute_cycles(registers, order, unrolled) for order, unrolled in orders]
        for block in nest.enumerate_tilings(registers):
            key = registers.place, block.tile, registers.copies
            if key not in copy_cycles:
                copy_cycles[key] = nest.copy_cycles(registers, block)
            part = busiest_share(block, nest.shape, core.threads)
            for cycles, (order, unrolled) in zip(work, orders, strict=True):
                scored.append(((cycles + copy_cycles[key]) * part, block, order, unrolled))
    best = nsmallest(limit, scored, key=lambda item: item[0])
    return [replace(block, order=order, unrolled=unrolled) for _, block, order, unrolled in best]


@dataclass(frozen=True)
class _RegisterBlock:
    """Vectors along axis number `place`, times a block of other axes; and the operands that are copied."""

    place: int
    vectors: int
    block: tuple[tuple[int, int], ...]
    copies: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of accumulators, each of which is a vector."""
        return self.vectors * prod(n for _, n in self.block)


class _BlockAnalysis:
    """Enumerates and estimates the blocks of one reduction on one processor.

    taps      numbers of the reduced axes along which a window slides, as r in x[c, 2*i + r]
    channels  numbers of the other reduced axes
    computed  operations for each element of an operand that is computed where it is read
    guarded   axes that guards depend on
    """

    def __init__(self, main: Stage, core: TargetCore, lanes: int, computed: Mapping[str, int]):
        self.computed = computed
        self.main, self.core, self.lanes, self.axes = main, core, lanes, main.axes
        self.sizes = [extent(a) for a in main.axes]
        self.shape = NestShape(tuple(self.sizes), main.points)
        self.operands = operand_accesses(main)
        self.window_axes = window_axes(main, self.operands)
        self.guarded = condition_axes(main)
        self.taps = [k for k, r in enumerate(main.reduced) if any(r in s for s in self.window_axes.values())]
        self.channels = [k for k in range(len(main.reduced)) if k not in self.taps]

    def rank_registers(self, least: int) -> list[_RegisterBlock]:
        """Returns the blocks that registers may hold, the one with the fastest reduction step first."""
        scored: list[tuple[float, _RegisterBlock]] = []
        for place in range(least, len(self.axes)):
            size = self.sizes[place]
            if size < min(self.lanes // 4, 4) and len(self.axes) > 1:
                continue  # most lanes of a vector would be idle
            for vectors in (1, 2, 3, 4, 6):
                if vectors > 1 and vectors * self.lanes > size * MAX_WASTE:
                    continue
                copies = self.required_copies(place, size < vectors * self.lanes and size % self.lanes != 0)
                if copies is None:
                    continue
                more = self.worthwhile_copies(place, copies)
                for block in self.unrolled_axes(place, vectors):
                    for copied in (copies, (*copies, *more)) if more else (copies,):
                        registers = _RegisterBlock(place, vectors, block, copied)
                        scored.append((self.step_cycles(registers, self.main.reduced), registers))
        scored.sort(key=lambda item: item[0])
        limit = 1.3 * scored[0][0] if scored else 0.0
        best = [r for n, (step, r) in enumerate(scored) if n < MIN_REGISTER_BLOCKS or step < limit]
        return best[:MAX_REGISTER_BLOCKS]

    def required_copies(self, place: int, is_narrow: bool) -> tuple[str, ...] | None:
        """Returns the operands to copy for vectors along the axis; None if vectors cannot lie along it.

        An operand is copied if it has an edge, or if vectors would read it with a stride or, where the axis
        `is_narrow` (ends within its only block of vectors), beyond its end.
        """
        copied, v = [], self.axes[place]
        for operand in self.operands:
            step = operand.last_dimension_step(v)
            has_edge = operand.read.outside is not None
            if step in (0, 1) and not has_edge and not (is_narrow and step):
                continue
            if operand.is_copyable(v):
                if has_edge or step != 0:
                    copied.append(operand.name)
            elif step not in (0, 1) or is_narrow and step:  # an edge alone can be read by a select
                return None
        return tuple(copied)

    def worthwhile_copies(self, place: int, copies: Collection[str]) -> tuple[str, ...]:
        """Returns other operands that may be copied, as they would be computed repeatedly otherwise."""
        axes = (*self.axes, *self.main.reduced)
        return tuple(
            operand.name
            for operand in self.operands
            if operand.name in self.computed
            and operand.name not in copies
            and operand.is_copyable(self.axes[place])
            and prod(extent(a) for a in axes if not operand.dimensions_moved_by(a)) >= MIN_REPEATED_READS
        )

    def is_copied_at_root(self, operand: OperandAccess, place: int) -> bool:
        """Whether the copy is made before all loops: the operand is computed, and fixed along vectors."""
        return operand.name in self.computed and not operand.dimensions_moved_by(self.axes[place])

    def unrolled_axes(self, place: int, vectors: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yields choices of other axes to unroll, as pairs (number of the axis, how many of its indices)."""
        available = self.core.registers - 4  # 4 are left for operands
        others = [a for a in range(len(self.axes)) if a != place and self.sizes[a] > 1]
        # see MAX_RESULTS_BETWEEN; axes of guards are unrolled, too, which decides the guards when compiling
        between = prod(self.sizes[place + 1 :]) <= MAX_RESULTS_BETWEEN
        fixed = tuple(
            (a, self.sizes[a]) for a in others if (a > place and between) or self.axes[a] in self.guarded
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

    def enumerate_tilings(self, registers: _RegisterBlock) -> Iterator[BlockSketch]:
        """Yields the block with each choice of tiles around it; the order of reduced axes is left open."""
        place, blocked, v = registers.place, dict(registers.block), self.axes[registers.place]
        width = registers.vectors * self.lanes
        # axes along which the data that vectors read changes: each index needs another panel of it
        panel_axes = {
            a
            for o in self.operands
            if o.dimensions_moved_by(v)
            for a in self.axes
            if o.dimensions_moved_by(a)
        }
        band_axes = {
            a for o in self.operands for form in o.coefficients for a in _overlapping_axes(form or {}, v)
        }
        tilings: list[tuple[tuple[int, int], ...]] = [()]  # each: (number of the axis, size of the tile), ...
        untiled_axes: list[tuple[int, int]] = []
        for k, (a, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            if k == place or size == 1:
                continue
            if a in band_axes and not self.window_axes[a]:  # rows of a band, j + k, read overlapping data
                strips = _strip_sizes(size, blocked.get(k, 1))
                tilings = [(*o, *(((k, t),) if t < size else ())) for o in tilings for t in strips]
            elif a in panel_axes and not self.window_axes[a] and k not in blocked:  # indices share nothing
                tilings = [(*o, (k, 1)) for o in tilings]
            elif a in panel_axes and self.window_axes[a]:  # neighbouring windows share rows
                tilings = [(*o, (k, t)) for o in tilings for t in _tile_sizes(size, blocked.get(k, 1))]
            elif k not in blocked:  # each index reads the same data: a loop inside, while it is in the cache
                untiled_axes.append((k, size))
        # the vectors' axis may be cut into panels where each copy moves along it: each part is copied once
        if all(o.dimensions_moved_by(v) for o in self.operands if o.name in registers.copies):
            size = self.sizes[place]
            panel = [size, *(w for times in PANEL_VECTORS if (w := times * width) < size)]
            tilings = [(*o, *(((place, w),) if w < size else ())) for o in tilings for w in panel]
        yield from dict.fromkeys(self.tiled_block(registers, tiles, untiled_axes) for tiles in tilings)

    def tiled_block(
        self,
        registers: _RegisterBlock,
        tiles: Sequence[tuple[int, int]],
        untiled_axes: Sequence[tuple[int, int]],
    ) -> BlockSketch:
        """Returns the block in loops over `tiles`, then `untiled_axes`; the outermost loops are parallel."""
        threads = self.core.threads
        shared: tuple[tuple[int, int], ...] = ()  # a tile for each thread, where tiles give too few tasks
        if threads > 1 and prod(-(-self.sizes[k] // n) for k, n in tiles) < 2 * threads:
            shared = self.split_among_threads(registers, {k for k, _ in tiles})
        tile = (*shared, *(t for t in (*tiles, *untiled_axes) if t[0] not in dict(shared)))
        loops = [-(-self.sizes[k] // n) for k, n in tile if n < self.sizes[k]]
        parallel = max(1, count_parallel_loops(loops, threads)) if threads > 1 and loops else 0
        before = {
            operand.name for operand in self.operands if self.is_copied_at_root(operand, registers.place)
        }
        copies = tuple((name, 0 if name in before else len(loops)) for name in registers.copies)
        return BlockSketch(
            registers.place,
            self.lanes,
            registers.vectors,
            registers.block,
            tile,
            copies=copies,
            parallel=parallel,
        )

    def split_among_threads(
        self, registers: _RegisterBlock, taken: Container[int]
    ) -> tuple[tuple[int, int], ...]:
        """Returns one axis, not of those `taken`, in as many tiles as threads, where one is long enough."""
        threads, place, blocked = self.core.threads, registers.place, dict(registers.block)
        for k, size in enumerate(self.sizes):
            step = blocked.get(k, 1)
            if k != place and k not in taken and size >= 2 * threads * step:
                return ((k, -(-size // (threads * step)) * step),)
        width = registers.vectors * self.lanes
        if place not in taken and self.sizes[place] >= 2 * threads * width:
            return ((place, -(-self.sizes[place] // (threads * width)) * width),)
        return ()

    def reduction_orders(self, registers: _RegisterBlock) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields (order of the reduced axes, innermost first; number of unrolled ones).

        If all reduced axes were unrolled and the stores go to several rows, the code would be one straight
        line. LLVM's vectorizer, which looks at every element of every store, takes 2 to 20 seconds for that,
        and the kernel is no faster than with a loop.
        """
        reduced, limit = self.main.reduced, MAX_UNROLLED_GUARDED if self.guarded else MAX_UNROLLED
        stores_several_rows = any(registers.place < k < len(self.axes) - 1 for k, _ in registers.block)
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

    def step_cycles(self, registers: _RegisterBlock, unrolled: Sequence[Axis]) -> float:
        """Estimates the cycles of one step of the reduction, divided by the block's vectors.

        The step takes as long as its multiplications, one for each vector, or its loads, whichever is longer.
        Loads of vectors cost more the farther the cache that holds their panel; a scalar costs half a load.
        """
        axes, v, size = self.axes, self.axes[registers.place], registers.size
        loads = scalars = 0.0
        for operand in self.operands:
            times = prod((n for k, n in registers.block if operand.dimensions_moved_by(axes[k])), start=1.0)
            if operand.name not in registers.copies:
                times *= self.computed.get(operand.name, 1)
            if operand.dimensions_moved_by(v):
                # rows that taps of a window share are loaded once if the rows and the taps are unrolled
                for k, n in registers.block:
                    for r in self.window_axes[axes[k]]:
                        if r in unrolled and operand.dimensions_moved_by(axes[k]):
                            times *= (n + extent(r) - 1) / (n * extent(r))
                along = prod(extent(r) for r in self.main.reduced if operand.dimensions_moved_by(r))
                panel = registers.vectors * self.lanes * times * along * 4
                far = 1.0 if panel <= L1_BYTES else 1.5 if panel <= L2_BYTES else 3.0
                loads += registers.vectors * times * far * (1.5 if self.window_axes[v] else 1.0)
            else:
                scalars += times
        cycles = max(size, loads + scalars / 2, 4.0)  # 4: the latency of a multiplication
        # more values than registers: some are stored and loaded again
        if size + min(loads, scalars) > self.core.registers:
            cycles *= 1.5
        # what is computed beyond the ends of axes
        width, axis_size = self.lanes * registers.vectors, self.sizes[registers.place]
        waste = ceil(axis_size / width) * width / axis_size
        for k, n in registers.block:
            waste *= ceil(self.sizes[k] / n) * n / self.sizes[k]
        return cycles / size * waste

    def compute_cycles(self, registers: _RegisterBlock, order: Sequence[int], unrolled: int) -> float:
        """Estimates the cycles of multiplications and stores."""
        step = self.step_cycles(registers, [self.main.reduced[k] for k in order[:unrolled]])
        results, after = prod(self.sizes), range(registers.place + 1, len(self.axes))
        points = prod(extent(r) for r in self.main.reduced)
        cycles = results / self.lanes * points * step
        # stores, and what begins and ends a block: most for blocks that are stored with gaps
        inside = all(k in dict(registers.block) for k in after)
        dense = all(self.sizes[k] == 1 for k in after)
        cycles += results * (4 / self.lanes if dense else 1.0 if inside else 2.0)
        if unrolled == 0 and points > 1:  # the loop's own instructions
            cycles += results / self.lanes * points * 0.05
        return cycles

    def copy_cycles(self, registers: _RegisterBlock, block: BlockSketch) -> float:
        """Estimates the cycles of copying operands."""
        tiles: Mapping[int, int] = dict(block.tile)
        rounds = prod(-(-self.sizes[k] // n) for k, n in block.tile)
        v, cycles = self.axes[registers.place], 0.0
        for operand in self.operands:
            if operand.name not in registers.copies:
                continue
            elements = 1.0  # of the copy inside the tiles: the product of the spans of the indices
            for index in operand.coefficients:
                span = 1.0
                for a, factor in (index or {}).items():
                    width = extent(a)
                    if a in self.axes:
                        width = min(tiles.get(self.axes.index(a), width), width)
                    span += (width - 1) * abs(factor)
                elements *= span
            moved = operand.dimensions_moved_by(v)
            last = [len(operand.coefficients) - 1]
            far = bool(moved) and (moved != last or operand.last_dimension_step(v) not in (0, 1))
            times = 1 if self.is_copied_at_root(operand, registers.place) else rounds
            # a copy larger than the cache is written to memory and read again
            cycles += elements * times * ((2.0 if far else 0.3) + (0.0 if 4 * elements <= L2_BYTES else 0.5))
        return cycles


def _overlapping_axes(form: Mapping[Axis, int], v: Axis) -> set[Axis]:
    """Returns the axes whose next index reads again elements that some index of `v` reads at this one."""
    if v not in form:
        return set()
    return {a for a, step in form.items() if a is not v and abs(step) < abs(form[v]) * extent(v)}


def _unroll_factors(size: int) -> list[int]:
    factors = {f for f in range(2, min(size, 28) + 1) if ceil(size / f) * f <= size * MAX_WASTE}
    return sorted(factors)


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
