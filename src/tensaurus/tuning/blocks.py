"""Register blocks of a reduction with the loops around them, and about how long each takes.

A register block is as many vectors times as many of other axes as registers hold; each step of its reduction
takes as long as its multiplications or its loads, whichever is longer (ETO section 5.1, for one core).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from math import ceil, prod

from tensaurus.algebra.size import Axis
from tensaurus.codegen.sketch import Block
from tensaurus.codegen.stage import Stage, extent
from tensaurus.tuning.access import Operand, conditional, operands, windowed
from tensaurus.tuning.core import Core, Shape, share

__all__ = ["L2", "WASTE", "blocks", "parallel_loops"]

WASTE = 1.2  # how much more than its extent the blocks of an axis may cover
UNROLLED = 450  # multiplications in one straight line: beyond, compiling takes long
GUARDED = 1000  # the same, where conditions are decided by unrolling
L1, L2 = 32 << 10, 512 << 10  # bytes: what a block reads of an operand comes from there
STRIPS = (16, 32, 64, 128, 256, 512)  # places along a band in a tile
PANELS = (1, 2, 4, 8, 16)  # vectors along their axis in a tile
BETWEEN = 4  # results between those of a vector, at most
BLOCKS, FEW = 160, 40  # register blocks that are looked at more closely


def blocks(main: Stage, core: Core, lanes: int) -> Iterator[tuple[float, Block]]:
    read = operands(main)
    slide = windowed(main, read)
    inner: list[tuple[float, int, int, tuple[tuple[int, int], ...], tuple[str, ...]]] = []
    for place, v in enumerate(main.axes):
        if extent(v) < min(lanes // 4, 4) and len(main.axes) > 1:
            continue
        for vectors in (1, 2, 3, 4, 6):
            if vectors > 1 and vectors * lanes > extent(v) * WASTE:
                continue
            copies = _copies(read, v, extent(v) < vectors * lanes and extent(v) % lanes != 0)
            if copies is None:
                continue
            for block in _register_blocks(main, place, vectors, core):
                step = _step(main, core, lanes, place, vectors, block, read, slide, main.reduced)
                inner.append((step, place, vectors, block, copies))
    inner.sort(key=lambda item: item[0])
    kept = [item for n, item in enumerate(inner) if n < FEW or item[0] < 1.3 * inner[0][0]][:BLOCKS]
    for _, place, vectors, block, copies in kept:
        yield from _tiled(main, core, lanes, place, vectors, block, copies, read)


def _copies(read: Sequence[Operand], v: Axis, narrow: bool) -> tuple[str, ...] | None:
    """The operands that are copied for vectors along the axis; None where these cannot lie along it."""
    found = []
    for operand in read:
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


def _register_blocks(
    main: Stage, place: int, vectors: int, core: Core
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Which other axes are unrolled, and how far."""
    most = core.registers - 4
    guarded = conditional(main)
    others = [a for a in range(len(main.axes)) if a != place and extent(main.axes[a]) > 1]
    # results that lie between those of a vector are stored with it
    between = prod(extent(a) for a in main.axes[place + 1 :]) <= BETWEEN
    fixed = tuple(
        (a, extent(main.axes[a])) for a in others if (a > place and between) or main.axes[a] in guarded
    )
    held = vectors * prod(n for _, n in fixed)
    if held > most:
        return
    free = [a for a in others if a not in dict(fixed)]
    factors = {a: [f for f in _factors(extent(main.axes[a])) if f * held <= most] for a in free}
    yield fixed
    for a in free:
        yield from (((a, f), *fixed) for f in factors[a])
    for a, b in combinations(free, 2):
        for f, g in product(factors[a], factors[b]):
            if f * g * held <= most:
                yield ((a, f), (b, g), *fixed)


def _factors(size: int) -> list[int]:
    found = {f for f in range(2, min(size, 28) + 1) if ceil(size / f) * f <= size * WASTE}
    return sorted(found)


def _tiled(
    main: Stage,
    core: Core,
    lanes: int,
    place: int,
    vectors: int,
    block: tuple[tuple[int, int], ...],
    copies: tuple[str, ...],
    read: Sequence[Operand],
) -> Iterator[tuple[float, Block]]:
    """Loops around a register block, and their score: cycles for each multiplication that is wanted."""
    axes, blocked = main.axes, dict(block)
    slide = windowed(main, read)
    v = axes[place]
    moving = {a for o in read if o.along(v) for a in axes if o.along(a)}
    skewed = {a for o in read for form in o.forms if v in (form or ()) for a in form or ()} - {v}
    outer: list[tuple[tuple[int, int], ...]] = [()]
    inner_whole: list[tuple[int, int]] = []
    for k, a in enumerate(axes):
        if k == place or extent(a) == 1:
            continue
        if a in skewed and not slide[a]:  # of a band j + k: what a strip of it reads overlaps the next one
            strips = _strips(extent(a), blocked.get(k, 1))
            outer = [(*o, *(((k, t),) if t < extent(a) else ())) for o in outer for t in strips]
        elif a in moving and not slide[a] and k not in blocked:
            outer = [(*o, (k, 1)) for o in outer]
        elif a in moving and slide[a]:
            outer = [(*o, (k, t)) for o in outer for t in _tiles(extent(a), blocked.get(k, 1))]
        elif k not in blocked:
            inner_whole.append((k, extent(a)))
    if not copies:
        width = vectors * lanes
        panel = [extent(v), *(w for times in PANELS if (w := times * width) < extent(v))]
        outer = [(*o, *(((place, w),) if w < extent(v) else ())) for o in outer for w in panel]
    taps = [k for k, r in enumerate(main.reduced) if any(r in s for s in slide.values())]
    channels = [k for k in range(len(main.reduced)) if k not in taps]
    size = vectors * prod(blocked.values())
    guarded = conditional(main)
    limit = GUARDED if guarded else UNROLLED
    for tiles in outer:
        tile = (*tiles, *inner_whole)
        for order, unrolled in _orders(main, taps, channels, size, limit, guarded):
            loops = [-(-extent(axes[k]) // n) for k, n in tiles]
            count = prod(loops)
            shared: tuple[tuple[int, int], ...] = ()
            if core.threads > 1 and count < 2 * core.threads:
                shared = _shared(axes, place, vectors * lanes, blocked, tiles, core.threads)
            whole = (*shared, *(t for t in tile if t[0] not in dict(shared)))
            levels = len([1 for k, n in whole if n < extent(axes[k])])
            parallel = 0
            if core.threads > 1 and levels:
                sizes = [-(-extent(axes[k]) // n) for k, n in whole if n < extent(axes[k])]
                parallel = max(1, parallel_loops(sizes, core.threads))
            sketch = Block(
                place,
                lanes,
                vectors,
                block,
                whole,
                order,
                unrolled,
                tuple((name, levels) for name in copies),
                parallel,
            )
            yield _score(main, core, sketch, read, slide), sketch


def _shared(
    axes: Sequence[Axis],
    place: int,
    width: int,
    blocked: dict[int, int],
    tiles: Iterable[tuple[int, int]],
    threads: int,
) -> tuple[tuple[int, int], ...]:
    """An axis in as many tiles as there are threads."""
    taken = {k for k, _ in tiles}
    for k, a in enumerate(axes):
        step = blocked.get(k, 1)
        if k != place and k not in taken and extent(a) >= 2 * threads * step:
            size = -(-extent(a) // (threads * step)) * step
            return ((k, size),)
    if place not in taken and extent(axes[place]) >= 2 * threads * width:
        return ((place, -(-extent(axes[place]) // (threads * width)) * width),)
    return ()


def _tiles(size: int, step: int) -> list[int]:
    found = {t for t in (4, 6, 7, 8, 12, 14, 16, 28, 32, 56) if t < size and t % step == 0}
    return [size, *sorted(t for t in found if ceil(size / t) * t <= size * WASTE)] if step <= size else [size]


def _strips(size: int, step: int) -> list[int]:
    """Multiples of the step near powers of two, and the whole."""
    found = {-(-n // step) * step for n in STRIPS}
    return [size, *sorted(t for t in found if t < size)]


def _orders(
    main: Stage, taps: Sequence[int], channels: Sequence[int], size: int, limit: int, guarded: set[Axis]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Orders of the reduced axes, innermost first, and how many are unrolled."""
    inner = list(reversed(taps))
    outer = list(reversed(channels))
    must = [k for k in inner if main.reduced[k] in guarded]
    inner = must + [k for k in inner if k not in must]
    done = set()
    for count in range(len(inner), len(must) - 1, -1):
        if prod(extent(main.reduced[k]) for k in inner[:count]) * size > limit:
            continue
        for order in ((*inner, *outer), (*inner[:count], *outer, *inner[count:])):
            if (order, count) not in done:
                done.add((order, count))
                yield order, count
    if not done and not must:
        yield (*inner, *outer), 0


def _step(
    main: Stage,
    core: Core,
    lanes: int,
    place: int,
    vectors: int,
    block: tuple[tuple[int, int], ...],
    read: Sequence[Operand],
    slide: dict[Axis, list[Axis]],
    unrolled: Sequence[Axis],
) -> float:
    """Cycles for each vector of wanted results in one step of the reduction."""
    axes, blocked, v = main.axes, dict(block), main.axes[place]
    size = vectors * prod(blocked.values())
    loads = scalars = 0.0
    for operand in read:
        times = prod((n for k, n in blocked.items() if operand.along(axes[k])), start=1.0)
        if operand.along(v):
            # rows that a window shares between taps are loaded once where both are unrolled
            for k, n in blocked.items():
                for r in slide[axes[k]]:
                    if r in unrolled and operand.along(axes[k]):
                        times *= (n + extent(r) - 1) / (n * extent(r))
            panel = vectors * lanes * times * prod(extent(r) for r in main.reduced if operand.along(r)) * 4
            far = 1.0 if panel <= L1 else 1.5 if panel <= L2 else 3.0
            loads += vectors * times * far * (1.5 if slide[v] else 1.0)
        else:
            scalars += times
    cycles = max(size, loads + scalars / 2, 4.0)
    if size + min(loads, scalars) > core.registers:
        cycles *= 1.5
    waste = ceil(extent(v) / (lanes * vectors)) * lanes * vectors / extent(v)
    for k, n in blocked.items():
        waste *= ceil(extent(axes[k]) / n) * n / extent(axes[k])
    return cycles / size * waste


def _score(
    main: Stage, core: Core, sketch: Block, read: Sequence[Operand], slide: dict[Axis, list[Axis]]
) -> float:
    """Cycles of the whole nest, about."""
    axes, v = main.axes, main.axes[sketch.vector]
    unrolled = [main.reduced[k] for k in sketch.order[: sketch.unrolled]]
    step = _step(main, core, sketch.lanes, sketch.vector, sketch.vectors, sketch.block, read, slide, unrolled)
    results = prod(extent(a) for a in axes)
    points = prod(extent(r) for r in main.reduced)
    cycles = results / sketch.lanes * points * step
    # the prologue and the epilogue of each block, and its stores
    inside = all(k in dict(sketch.block) for k in range(sketch.vector + 1, len(axes)))
    dense = all(extent(a) == 1 for a in axes[sketch.vector + 1 :])
    cycles += results * (4 / sketch.lanes if dense else 1.0 if inside else 2.0)
    if sketch.unrolled == 0 and points > 1:
        cycles += results / sketch.lanes * points * 0.05
    tiles = dict(sketch.tile)
    for operand in read:
        if operand.name not in dict(sketch.copies):
            continue
        elements, rounds = 1.0, 1.0
        for index, size in zip(operand.forms, operand.read.source.shape, strict=True):
            assert isinstance(size, int)
            span = 1.0
            for a, factor in (index or {}).items():
                width = min(tiles.get(axes.index(a), extent(a)), extent(a)) if a in axes else extent(a)
                span += (width - 1) * abs(factor)
            elements *= span
        for k, n in sketch.tile:
            rounds *= -(-extent(axes[k]) // n)
        moved = operand.along(v)
        far = bool(moved) and (moved != [len(operand.forms) - 1] or operand.step(v) not in (0, 1))
        # a copy that no cache holds is written to memory and read again
        cycles += elements * rounds * ((2.0 if far else 0.3) + (0.0 if 4 * elements <= L2 else 0.5))
    shape = Shape(tuple(map(extent, axes)), main.points)
    return cycles * share(sketch, shape, core.threads)


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
