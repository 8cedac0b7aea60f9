"""The schedules that a nest may have, the most promising first, by an analysis of its index maps.

A register block is as many vectors times as many of other axes as registers hold; each step of its reduction
takes as long as its multiplications or its loads, whichever is longer (ETO section 5.1, for one core).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil, log, prod

from tensaurus.algebra.expr import Scope, axis
from tensaurus.algebra.size import Axis, polynomial
from tensaurus.algebra.walk import replace_axes
from tensaurus.codegen.band import skews
from tensaurus.codegen.nest import Nest, nests, rows
from tensaurus.codegen.phase import phased
from tensaurus.codegen.sketch import Band, Block, Flat, Pack, Row, Sketch, Transform
from tensaurus.codegen.stage import Stage, extent, staged
from tensaurus.ops import TensorType
from tensaurus.tuning.access import Operand, conditional, operands, windowed

__all__ = ["Core", "Shape", "bands_of", "packs_of", "share", "sketches"]

WASTE = 1.2  # how much more than its extent the blocks of an axis may cover
UNROLLED = 450  # multiplications in one straight line: beyond, compiling takes long
GUARDED = 1000  # the same, where conditions are decided by unrolling
L1, L2 = 32 << 10, 512 << 10  # bytes: what a block reads of an operand comes from there
BAND = (8, 16, 32)  # rows of a band in a block
STRIPS = (16, 32, 64, 128, 256, 512)  # places along a band in a tile
PANELS = (1, 2, 4, 8, 16)  # vectors along their axis in a tile
BETWEEN = 4  # results between those of a vector, at most
CHUNKS, CHUNK = (2, 4, 8, 16, 24, 32, 64), 16  # places of what nests have in common, in one turn
BLOCKS, FEW = 160, 40  # register blocks that are looked at more closely


@dataclass(frozen=True)
class Core:
    """What a schedule is made for: bits of a vector, how many registers of them, threads."""

    bits: int
    registers: int
    threads: int

    def lanes(self, dtype: str) -> int:
        """Elements of a vector."""
        size = 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))
        return self.bits // max(size, 32)


@dataclass(frozen=True)
class Shape:
    """Of a nest: the extents of its output, and how many points it computes."""

    extents: tuple[int, ...]
    points: int


def share(sketch: Sketch, shape: Shape, threads: int) -> float:
    """The part of a nest that the busiest of the threads computes."""
    if isinstance(sketch, Transform):
        tiled = [-(-n // t) for n, t in zip(shape.extents, sketch.tile, strict=False)]
        counts = [1, prod(tiled), shape.extents[-1]][sketch.parallel :][:1]
        return -(-counts[0] // threads) / counts[0] if sketch.parallel else 1.0
    if isinstance(sketch, Block):
        counts = [-(-shape.extents[a] // n) for a, n in sketch.tile if n < shape.extents[a]]
    else:
        counts = list(shape.extents)
    tasks = prod(counts[: sketch.parallel])
    return -(-tasks // threads) / tasks


def sketches(stages: Sequence[Stage], core: Core) -> list[list[Sketch]]:
    """For each nest its sketches, the most promising first."""
    found = nests(stages)
    inside = rows(stages, found) if len(found) > 1 else 0
    if not inside:
        return [_ranked(nest, core) for nest in found]
    return [*(_inner(nest, core, inside) for nest in found[:-1]), _around(found, core, inside)]


def packs_of(
    scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool], core: Core
) -> list[Pack]:
    """Constants that a reduction reads by an axis that moves along a dimension before their last.

    Packed, that dimension's blocks are vectors.
    """
    stages = staged(scope)
    found: dict[Pack, None] = {}
    for stage in stages:
        for operand in operands(stage) if stage.reduced else ():
            place = int(operand.name[1:]) if operand.name.startswith("x") else -1
            if not (0 <= place < len(fixed) and fixed[place]) or operand.repeated:
                continue
            kind, lanes = types[place], core.lanes(types[place].dtype)
            sizes = [n if isinstance(n, int) else 0 for n in kind.shape]
            wide = [d for d, n in enumerate(sizes) if n != 1]
            for d, form in zip(wide, operand.forms, strict=True):
                steps = [a for a in form or () if a in stage.axes]
                if len(form or ()) == len(steps) == 1 and d != wide[-1] and sizes[d] % lanes == 0:
                    found[Pack(operand.name, d, lanes)] = None
    return list(found)


def bands_of(scope: Scope) -> list[Band]:
    """Banded products in blocks of a few numbers of rows."""
    stages = phased(staged(scope))
    found: list[Band] = []
    for skew in skews(stages):
        stage = next(s for s in stages if s.tensor.name == skew.stage)
        count, left = divmod(extent(stage.axes[skew.row]), skew.step)
        sizes = [] if left else [n for n in range(2, BAND[-1] + 1) if count % n == 0]
        nearest = dict.fromkeys(min(sizes, key=lambda n: abs(n - wanted)) for wanted in BAND if sizes)
        found += [Band(skew.stage, skew.row, n) for n in nearest]
    return found


def _ranked(nest: Nest, core: Core) -> list[Sketch]:
    """The sketches of a nest in no other's loops."""
    lanes = core.lanes(nest.output.tensor.dtype)
    parallel = _parallel([extent(a) for a in nest.output.axes], core.threads)
    if nest.main is None:
        return [*_flat(nest, lanes, parallel)]
    found = _sorted(_blocks(nest.main, core, lanes))
    # along the output vectors are independent of each other; along the reduction they must be put together
    return [*found, *_rows(nest.main, lanes, parallel)]


def _inner(nest: Nest, core: Core, inside: int) -> list[Sketch]:
    """The sketches of a nest that is computed where the last one has a few places of its first axes."""
    lanes = core.lanes(nest.output.tensor.dtype)
    if nest.main is None:
        return [*_flat(nest, lanes, 0)]
    some = _some(nest.main, inside)
    along = [*_rows(nest.main, lanes, 0)]
    across = [s for s in _sorted(_blocks(some, replace(core, threads=1), lanes)) if s.vector >= inside]
    return [*across, *along] if len(operands(nest.main)) > 1 else [*along, *across]


def _around(found: Sequence[Nest], core: Core, inside: int) -> list[Sketch]:
    """The sketches of the last nest, with the others in its loops over the first axes."""
    last = found[-1]
    lanes = core.lanes(last.output.tensor.dtype)
    sizes = [extent(a) for a in last.output.axes[:inside]]
    plain: list[Sketch] = []
    for count in range(inside, 0, -1):
        if sizes[count - 1] > 1:
            flat = _flat(last, lanes, _parallel(sizes[:count], core.threads))
            plain += [replace(sketch, around=0 if count == inside else count) for sketch in flat]
    if last.main is None:
        return plain
    place = max(range(inside), key=lambda k: (sizes[k] > 1, k))
    kept = sum(4 * prod(extent(a) for a in nest.output.axes[inside:]) for nest in found[:-1])
    chunks = [n for n in CHUNKS if n < sizes[place] and ceil(sizes[place] / n) * n <= sizes[place] * WASTE]
    chunks += [sizes[place]] if sizes[place] <= CHUNKS[-1] else []
    chunks.sort(key=lambda n: abs(log(n * kept / (L2 / 2))))
    made: list[Sketch] = []
    inner = _sorted(_blocks(_some(last.main, inside), replace(core, threads=1), lanes))
    for sketch in [sketch for sketch in inner if sketch.vector >= inside][:BLOCKS]:
        for chunk in chunks:
            tiles = ((k, chunk if k == place else 1) for k in range(inside))
            first = tuple((k, n) for k, n in tiles if n < sizes[k])
            parallel = _parallel([-(-sizes[k] // n) for k, n in first], core.threads)
            copies = tuple((name, level + len(first)) for name, level in sketch.copies)
            made.append(replace(sketch, tile=(*first, *sketch.tile), copies=copies, parallel=parallel))
    return [*made, *plain]


def _some(main: Stage, inside: int) -> Stage:
    """A few places of the last of its first axes that are more than one place, and one of those before."""
    kept = [extent(a) > 1 for a in main.axes[:inside]]
    last = max(range(inside), key=lambda k: (kept[k], k))
    sizes = [min(CHUNK, extent(a)) if k == last else 1 for k, a in enumerate(main.axes[:inside])]
    own = tuple(axis(n) for n in sizes)
    body = replace_axes(main.body, {a: polynomial(b) for a, b in zip(main.axes, own, strict=False)})
    return replace(main, axes=(*own, *main.axes[inside:]), body=body)


def _flat(nest: Nest, lanes: int, parallel: int) -> list[Flat]:
    size = extent(nest.output.axes[-1]) if nest.output.axes else 1
    return [Flat(lanes, u, parallel) for u in (4, 2, 1, 8) if u == 1 or u * lanes <= size]


def _sorted(scored: Iterable[tuple[float, Block]]) -> list[Block]:
    """The lowest scores first."""
    return [sketch for _, sketch in sorted(scored, key=lambda pair: pair[0])]


def _parallel(sizes: Sequence[int], threads: int) -> int:
    """How many of the outermost loops make enough tasks."""
    if threads == 1:
        return 0
    tasks = 1
    for count, size in enumerate(sizes, 1):
        tasks *= size
        if tasks >= 4 * threads:
            return count
    return len(sizes) if tasks > 1 else 0


def _rows(main: Stage, lanes: int, parallel: int) -> Iterator[Row]:
    if not main.reduced:
        return
    last = main.reduced[-1]
    for times in (4, 2, 8, 1):
        if times == 1 or times * lanes <= extent(last):
            yield Row(lanes, times * lanes, parallel)


def _blocks(main: Stage, core: Core, lanes: int) -> Iterator[tuple[float, Block]]:
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
                parallel = max(1, _parallel(sizes, core.threads))
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
