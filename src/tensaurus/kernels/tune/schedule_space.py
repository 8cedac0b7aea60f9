"""The schedules that nests may have, the most promising first, by an analysis of their index maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, log, prod

from tensaurus.expr.ir.scope import Call, Read, Scope, axis
from tensaurus.expr.ir.walk import bodies, replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.kernels.stages.band_blocks import skews
from tensaurus.kernels.stages.loop_nest import Nest, nests, rows
from tensaurus.kernels.stages.sketch import Band, Flat, Pack, Row, Sketch
from tensaurus.kernels.stages.split_phases import phased
from tensaurus.kernels.stages.stage import Stage, extent, staged
from tensaurus.kernels.tune.operand_access import operands
from tensaurus.kernels.tune.register_blocks import WASTE, blocks, parallel_loops
from tensaurus.kernels.tune.target_core import L2, Core
from tensaurus.ops import TensorType

__all__ = ["bands_of", "packs_of", "sketches"]

BAND = (8, 16, 32)  # rows of a band in a block
WIDTHS = (2, 3, 4, 1)  # vectors in a block of a constant whose last dimension is packed
CHUNKS, CHUNK = (2, 4, 8, 16, 24, 32, 64), 16  # places of what nests have in common, in one turn
ALONE = 1 << 13  # points of a nest, below which other threads would be called for longer than it takes
REGISTER_BLOCKS = 160  # of the last nest, that are tried with several chunks


def sketches(stages: Sequence[Stage], core: Core) -> list[list[Sketch]]:
    """For each nest its sketches, the most promising first."""
    found = nests(stages)
    inside = rows(stages, found) if len(found) > 1 else 0
    if not inside:
        stored = {stage.tensor.name for nest in found for stage in (nest.output, nest.main) if stage}
        computed = {
            stage.tensor.name: sum(isinstance(body, Read | Call) for body in bodies(stage.body))
            for stage in stages
            if stage.tensor.name not in stored
        }
        return [_ranked(nest, core, computed) for nest in found]
    return [*(_inner(nest, core, inside) for nest in found[:-1]), _around(found, core, inside)]


def packs_of(
    scope: Scope, types: Sequence[TensorType], fixed: Sequence[bool], core: Core
) -> list[Pack]:
    """Constants that a reduction reads by an axis that moves along one of their dimensions.

    Packed, that dimension's blocks are vectors, and what a block of registers needs lies in one piece.
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
                digits = _digits(form or {}, stage)
                if not digits or len(wide) < 2:
                    continue
                widths = (lanes * n for n in (WIDTHS if d == wide[-1] else (1,)))
                for width in widths if digits == (1,) else digits[1:]:
                    if sizes[d] % width == 0 and (d != wide[-1] or sizes[d] > width):
                        found[Pack(operand.name, d, width)] = None
    return list(found)


def _digits(form: Mapping[Axis, int], stage: Stage) -> tuple[int, ...]:
    """(1,) of one axis of the output, (1, n) of one that goes over the places of another's blocks."""
    steps = sorted((n, a.extent if isinstance(a.extent, int) else 0) for a, n in form.items())
    if any(a not in stage.axes for a in form) or [n for n, _ in steps[:1]] != [1]:
        return ()
    if len(steps) == 2 and steps[0][1] == steps[1][0]:
        return 1, steps[1][0]
    return (1,) if len(steps) == 1 else ()


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


def _ranked(nest: Nest, core: Core, computed: Mapping[str, int]) -> list[Sketch]:
    """The sketches of a nest in no other's loops."""
    if (nest.main or nest.output).points < ALONE:
        core = replace(core, threads=1)
    lanes = core.lanes(nest.output.tensor.dtype)
    parallel = parallel_loops([extent(a) for a in nest.output.axes], core.threads)
    if nest.main is None:
        return [*_flat(nest, lanes, parallel)]
    found = blocks(nest.main, core, lanes, computed=computed)
    # along the output vectors are independent of each other; along the reduction they must be put together
    return [*found, *_rows(nest.main, lanes, parallel)]


def _inner(nest: Nest, core: Core, inside: int) -> list[Sketch]:
    """The sketches of a nest that is computed where the last one has a few places of its first axes."""
    lanes = core.lanes(nest.output.tensor.dtype)
    if nest.main is None:
        return [*_flat(nest, lanes, 0)]
    some = _some(nest.main, inside)
    along = [*_rows(nest.main, lanes, 0)]
    across = blocks(some, replace(core, threads=1), lanes, least=inside)
    return [*across, *along] if len(operands(nest.main)) > 1 else [*along, *across]


def _around(found: Sequence[Nest], core: Core, inside: int) -> list[Sketch]:
    """The sketches of the last nest, with the others in its loops over the first axes."""
    last = found[-1]
    lanes = core.lanes(last.output.tensor.dtype)
    sizes = [extent(a) for a in last.output.axes[:inside]]
    plain: list[Sketch] = []
    for count in range(inside, 0, -1):
        if sizes[count - 1] > 1:
            flat = _flat(last, lanes, parallel_loops(sizes[:count], core.threads))
            plain += [replace(sketch, around=0 if count == inside else count) for sketch in flat]
    if last.main is None:
        return plain
    place = max(range(inside), key=lambda k: (sizes[k] > 1, k))
    kept = sum(4 * prod(extent(a) for a in nest.output.axes[inside:]) for nest in found[:-1])
    chunks = [n for n in CHUNKS if n < sizes[place] and ceil(sizes[place] / n) * n <= sizes[place] * WASTE]
    chunks += [sizes[place]] if sizes[place] <= CHUNKS[-1] else []
    chunks.sort(key=lambda n: abs(log(n * kept / (L2 / 2))))
    made: list[Sketch] = []
    alone = replace(core, threads=1)
    for sketch in blocks(_some(last.main, inside), alone, lanes, REGISTER_BLOCKS, least=inside):
        for chunk in chunks:
            tiles = ((k, chunk if k == place else 1) for k in range(inside))
            first = tuple((k, n) for k, n in tiles if n < sizes[k])
            parallel = parallel_loops([-(-sizes[k] // n) for k, n in first], core.threads)
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


def _rows(main: Stage, lanes: int, parallel: int) -> Iterator[Row]:
    if not main.reduced:
        return
    last = main.reduced[-1]
    for times in (4, 2, 8, 1):
        if times == 1 or times * lanes <= extent(last):
            yield Row(lanes, times * lanes, parallel)
