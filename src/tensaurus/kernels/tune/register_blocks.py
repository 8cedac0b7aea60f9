"""Register blocks of a reduction with the loops around them, and about how long each takes.

A register block is as many vectors times as many of other axes as registers hold; each step of its reduction
takes as long as its multiplications or its loads, whichever is longer (ETO section 5.1, for one core).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import combinations, product
from math import ceil, prod
from types import MappingProxyType

from tensaurus.expr.sizes.size import Axis
from tensaurus.kernels.stages.sketch import Block
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.operand_access import Operand, conditional, operands, windowed
from tensaurus.kernels.tune.target_core import L1, L2, Core, Shape, share

__all__ = ["POOL", "WASTE", "blocks", "parallel_loops"]

WASTE = 1.2  # how much more than its extent the blocks of an axis may cover
UNROLLED = 450  # multiplications in one straight line: beyond, compiling takes long
GUARDED = 1000  # the same, where conditions are decided by unrolling
STRIPS = (16, 32, 64, 128, 256, 512)  # places along a band in a tile
PANELS = (1, 2, 4, 8, 16)  # vectors along their axis in a tile
AGAIN = 4  # times at least that each element of an operand is read, for it to be stored before
BETWEEN = 4  # results between those of a vector, at most
BLOCKS, FEW = 160, 40  # register blocks that are looked at more closely
POOL = 600  # schedules of one nest that are looked at


def blocks(
    main: Stage,
    core: Core,
    lanes: int,
    most: int = POOL,
    least: int = 0,
    computed: Mapping[str, int] = MappingProxyType({}),
) -> list[Block]:
    """The blocks that should be fastest, at most so many, the fastest first.

    Vectors lie along the axes from `least` on.  Of tensors that are computed where they are read, unless they
    are copied, `computed` says in how many operations.
    """
    nest = _Reduction(main, core, lanes, computed)
    scored: list[tuple[float, Block, tuple[int, ...], int]] = []
    copied: dict[object, float] = {}
    for registers in nest.registers(least):
        orders = list(nest.orders(registers))
        work = [nest.work(registers, order, unrolled) for order, unrolled in orders]
        for block in nest.tilings(registers):
            key = registers.place, block.tile, registers.copies
            if key not in copied:
                copied[key] = nest.copying(registers, block)
            part = share(block, nest.shape, core.threads)
            for own, (order, unrolled) in zip(work, orders, strict=True):
                scored.append(((own + copied[key]) * part, block, order, unrolled))
    found = nsmallest(most, scored, key=lambda item: item[0])
    return [replace(block, order=order, unrolled=unrolled) for _, block, order, unrolled in found]


@dataclass(frozen=True)
class _Registers:
    """What registers hold: vectors along one axis times a block of others; and what is copied for them."""

    place: int
    vectors: int
    block: tuple[tuple[int, int], ...]
    copies: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.vectors * prod(n for _, n in self.block)


class _Reduction:
    """A reduction, what it reads, and what it is computed on."""

    def __init__(self, main: Stage, core: Core, lanes: int, computed: Mapping[str, int]):
        self.computed = computed
        self.main, self.core, self.lanes, self.axes = main, core, lanes, main.axes
        self.sizes = [extent(a) for a in main.axes]
        self.shape = Shape(tuple(self.sizes), main.points)
        self.read = operands(main)
        self.slide = windowed(main, self.read)
        self.guarded = conditional(main)
        self.taps = [k for k, r in enumerate(main.reduced) if any(r in s for s in self.slide.values())]
        self.channels = [k for k in range(len(main.reduced)) if k not in self.taps]

    def registers(self, least: int) -> list[_Registers]:
        """What registers may hold, the fastest step of the reduction first."""
        found: list[tuple[float, _Registers]] = []
        for place in range(least, len(self.axes)):
            size = self.sizes[place]
            if size < min(self.lanes // 4, 4) and len(self.axes) > 1:
                continue
            for vectors in (1, 2, 3, 4, 6):
                if vectors > 1 and vectors * self.lanes > size * WASTE:
                    continue
                copies = self.copies(place, size < vectors * self.lanes and size % self.lanes != 0)
                if copies is None:
                    continue
                more = self.repeated(place, copies)
                for block in self.unrolled(place, vectors):
                    for each in (copies, (*copies, *more)) if more else (copies,):
                        registers = _Registers(place, vectors, block, each)
                        found.append((self.step(registers, self.main.reduced), registers))
        found.sort(key=lambda item: item[0])
        near = [r for n, (step, r) in enumerate(found) if n < FEW or step < 1.3 * found[0][0]]
        return near[:BLOCKS]

    def copies(self, place: int, narrow: bool) -> tuple[str, ...] | None:
        """The operands that are copied for vectors along the axis; None where these cannot lie along it."""
        found, v = [], self.axes[place]
        for operand in self.read:
            step = operand.step(v)
            edged = operand.read.outside is not None
            if step in (0, 1) and not edged and not (narrow and step):
                continue
            if operand.copyable(v):
                if edged or step != 0:
                    found.append(operand.name)
            elif step not in (0, 1) or narrow and step:
                return None
        return tuple(found)

    def repeated(self, place: int, copies: Collection[str]) -> tuple[str, ...]:
        """Other operands that may be copied, as else their elements would be computed again and again."""
        axes = (*self.axes, *self.main.reduced)
        return tuple(
            operand.name
            for operand in self.read
            if operand.name in self.computed
            and operand.name not in copies
            and operand.copyable(self.axes[place])
            and prod(extent(a) for a in axes if not operand.along(a)) >= AGAIN
        )

    def before(self, operand: Operand, place: int) -> bool:
        """Whether its copy is made before all loops: it is computed, and each vector reads the same of it."""
        return operand.name in self.computed and not operand.along(self.axes[place])

    def unrolled(self, place: int, vectors: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Which other axes are unrolled, and how far."""
        most = self.core.registers - 4
        others = [a for a in range(len(self.axes)) if a != place and self.sizes[a] > 1]
        # results that lie between those of a vector are stored with it
        between = prod(self.sizes[place + 1 :]) <= BETWEEN
        fixed = tuple(
            (a, self.sizes[a]) for a in others if (a > place and between) or self.axes[a] in self.guarded
        )
        held = vectors * prod(n for _, n in fixed)
        if held > most:
            return
        free = [a for a in others if a not in dict(fixed)]
        factors = {a: [f for f in _factors(self.sizes[a]) if f * held <= most] for a in free}
        yield fixed
        for a in free:
            yield from (((a, f), *fixed) for f in factors[a])
        for a, b in combinations(free, 2):
            for f, g in product(factors[a], factors[b]):
                if f * g * held <= most:
                    yield ((a, f), (b, g), *fixed)

    def tilings(self, registers: _Registers) -> Iterator[Block]:
        """Loops around what registers hold; the order of the reduced axes is left open."""
        place, blocked, v = registers.place, dict(registers.block), self.axes[registers.place]
        width = registers.vectors * self.lanes
        moving = {a for o in self.read if o.along(v) for a in self.axes if o.along(a)}
        skewed = {a for o in self.read for form in o.forms for a in _overlapping(form or {}, v)}
        outer: list[tuple[tuple[int, int], ...]] = [()]
        inner_whole: list[tuple[int, int]] = []
        for k, (a, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            if k == place or size == 1:
                continue
            if a in skewed and not self.slide[a]:  # of a band j + k: strips of it overlap
                strips = _strips(size, blocked.get(k, 1))
                outer = [(*o, *(((k, t),) if t < size else ())) for o in outer for t in strips]
            elif a in moving and not self.slide[a] and k not in blocked:
                outer = [(*o, (k, 1)) for o in outer]
            elif a in moving and self.slide[a]:
                outer = [(*o, (k, t)) for o in outer for t in _tiles(size, blocked.get(k, 1))]
            elif k not in blocked:
                inner_whole.append((k, size))
        if all(o.along(v) for o in self.read if o.name in registers.copies):  # each is copied once
            size = self.sizes[place]
            panel = [size, *(w for times in PANELS if (w := times * width) < size)]
            outer = [(*o, *(((place, w),) if w < size else ())) for o in outer for w in panel]
        yield from dict.fromkeys(self.tiled(registers, tiles, inner_whole) for tiles in outer)

    def tiled(
        self, registers: _Registers, tiles: Sequence[tuple[int, int]], whole: Sequence[tuple[int, int]]
    ) -> Block:
        """One of them: some axes in tiles, and those after them as a whole."""
        threads = self.core.threads
        shared: tuple[tuple[int, int], ...] = ()
        if threads > 1 and prod(-(-self.sizes[k] // n) for k, n in tiles) < 2 * threads:
            shared = self.shared(registers, {k for k, _ in tiles})
        tile = (*shared, *(t for t in (*tiles, *whole) if t[0] not in dict(shared)))
        loops = [-(-self.sizes[k] // n) for k, n in tile if n < self.sizes[k]]
        parallel = max(1, parallel_loops(loops, threads)) if threads > 1 and loops else 0
        before = {operand.name for operand in self.read if self.before(operand, registers.place)}
        copies = tuple((name, 0 if name in before else len(loops)) for name in registers.copies)
        return Block(
            registers.place,
            self.lanes,
            registers.vectors,
            registers.block,
            tile,
            copies=copies,
            parallel=parallel,
        )

    def shared(self, registers: _Registers, taken: Container[int]) -> tuple[tuple[int, int], ...]:
        """An axis in as many tiles as there are threads."""
        threads, place, blocked = self.core.threads, registers.place, dict(registers.block)
        for k, size in enumerate(self.sizes):
            step = blocked.get(k, 1)
            if k != place and k not in taken and size >= 2 * threads * step:
                return ((k, -(-size // (threads * step)) * step),)
        width = registers.vectors * self.lanes
        if place not in taken and self.sizes[place] >= 2 * threads * width:
            return ((place, -(-self.sizes[place] // (threads * width)) * width),)
        return ()

    def orders(self, registers: _Registers) -> Iterator[tuple[tuple[int, ...], int]]:
        """Orders of the reduced axes, innermost first, and how many are unrolled.

        One straight line of sums and of stores apart, of several rows, compiles for 2 to 20 seconds (LLVM's
        vectorizer looks at every element of every store), and is no faster than with a loop between them.
        """
        reduced, limit = self.main.reduced, GUARDED if self.guarded else UNROLLED
        apart = any(registers.place < k < len(self.axes) - 1 for k, _ in registers.block)
        inner = list(reversed(self.taps))
        outer = list(reversed(self.channels))
        must = [k for k in inner if reduced[k] in self.guarded]
        inner = must + [k for k in inner if k not in must]
        done = set()
        for count in range(len(inner), len(must) - 1, -1):
            if prod(extent(reduced[k]) for k in inner[:count]) * registers.size > limit:
                continue
            looped = prod(extent(reduced[k]) for k in (*inner[count:], *outer)) > 1
            if apart and count > len(must) and not looped:
                continue
            for order in ((*inner, *outer), (*inner[:count], *outer, *inner[count:])):
                if (order, count) not in done:
                    done.add((order, count))
                    yield order, count
        if not done and not must:
            yield (*inner, *outer), 0

    def step(self, registers: _Registers, unrolled: Sequence[Axis]) -> float:
        """Cycles for each vector of wanted results in one step of the reduction."""
        axes, v, size = self.axes, self.axes[registers.place], registers.size
        loads = scalars = 0.0
        for operand in self.read:
            times = prod((n for k, n in registers.block if operand.along(axes[k])), start=1.0)
            if operand.name not in registers.copies:
                times *= self.computed.get(operand.name, 1)
            if operand.along(v):
                # rows that a window shares between taps are loaded once where both are unrolled
                for k, n in registers.block:
                    for r in self.slide[axes[k]]:
                        if r in unrolled and operand.along(axes[k]):
                            times *= (n + extent(r) - 1) / (n * extent(r))
                along = prod(extent(r) for r in self.main.reduced if operand.along(r))
                panel = registers.vectors * self.lanes * times * along * 4
                far = 1.0 if panel <= L1 else 1.5 if panel <= L2 else 3.0
                loads += registers.vectors * times * far * (1.5 if self.slide[v] else 1.0)
            else:
                scalars += times
        cycles = max(size, loads + scalars / 2, 4.0)
        if size + min(loads, scalars) > self.core.registers:
            cycles *= 1.5
        width, most = self.lanes * registers.vectors, self.sizes[registers.place]
        waste = ceil(most / width) * width / most
        for k, n in registers.block:
            waste *= ceil(self.sizes[k] / n) * n / self.sizes[k]
        return cycles / size * waste

    def work(self, registers: _Registers, order: Sequence[int], unrolled: int) -> float:
        """Cycles of the multiplications and of the stores, about."""
        step = self.step(registers, [self.main.reduced[k] for k in order[:unrolled]])
        results, after = prod(self.sizes), range(registers.place + 1, len(self.axes))
        points = prod(extent(r) for r in self.main.reduced)
        cycles = results / self.lanes * points * step
        # the prologue and the epilogue of each block, and its stores
        inside = all(k in dict(registers.block) for k in after)
        dense = all(self.sizes[k] == 1 for k in after)
        cycles += results * (4 / self.lanes if dense else 1.0 if inside else 2.0)
        if unrolled == 0 and points > 1:
            cycles += results / self.lanes * points * 0.05
        return cycles

    def copying(self, registers: _Registers, block: Block) -> float:
        """Cycles of the copies, about."""
        tiles: Mapping[int, int] = dict(block.tile)
        rounds = prod(-(-self.sizes[k] // n) for k, n in block.tile)
        v, cycles = self.axes[registers.place], 0.0
        for operand in self.read:
            if operand.name not in registers.copies:
                continue
            elements = 1.0
            for index in operand.forms:
                span = 1.0
                for a, factor in (index or {}).items():
                    width = extent(a)
                    if a in self.axes:
                        width = min(tiles.get(self.axes.index(a), width), width)
                    span += (width - 1) * abs(factor)
                elements *= span
            moved = operand.along(v)
            far = bool(moved) and (moved != [len(operand.forms) - 1] or operand.step(v) not in (0, 1))
            times = 1 if self.before(operand, registers.place) else rounds
            # a copy that no cache holds is written to memory and read again
            cycles += elements * times * ((2.0 if far else 0.3) + (0.0 if 4 * elements <= L2 else 0.5))
        return cycles


def _overlapping(form: Mapping[Axis, int], v: Axis) -> set[Axis]:
    """The axes whose next place reads some of what all of `v` reads at this one."""
    if v not in form:
        return set()
    return {a for a, step in form.items() if a is not v and abs(step) < abs(form[v]) * extent(v)}


def _factors(size: int) -> list[int]:
    found = {f for f in range(2, min(size, 28) + 1) if ceil(size / f) * f <= size * WASTE}
    return sorted(found)


def _tiles(size: int, step: int) -> list[int]:
    found = {t for t in (4, 6, 7, 8, 12, 14, 16, 28, 32, 56) if t < size and t % step == 0}
    return [size, *sorted(t for t in found if ceil(size / t) * t <= size * WASTE)] if step <= size else [size]


def _strips(size: int, step: int) -> list[int]:
    """Multiples of the step near powers of two, and the whole."""
    found = {-(-n // step) * step for n in STRIPS}
    return [size, *sorted(t for t in found if t < size)]


def parallel_loops(sizes: Sequence[int], threads: int) -> int:
    """How many of the outermost loops make enough tasks."""
    if threads == 1:
        return 0
    tasks = 1
    for count, size in enumerate(sizes, 1):
        tasks *= size
        if tasks >= 4 * threads:
            return count
    return len(sizes) if tasks > 1 else 0
