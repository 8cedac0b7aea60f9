"""Products between linear combinations: what a fast bilinear algorithm computes of two operands.

    t[c, i, p]    = sum[a] B[p, a] * x[c, 4*i + a - 1]         combinations before, by literal tables
    s[f, i, p]    = sum[c] t[c, i, p] * u[p, f, c]             the products, at each point
    z[f, i, j]    = sum[p] A[j, p] * s[f, i, p]                combinations after
    y[f, k]       = z[f, k // 4, k % 4] + b[f]                 the output, tile by tile
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from tensaurus.expr.ir.scope import Body, Call, Read, Table, Tensor
from tensaurus.expr.ir.walk import axes_in, free_axes, reads, replace_axes
from tensaurus.expr.sizes.size import Axis, Size, floordiv, mod, polynomial
from tensaurus.kernels.stages.copy_operands import replaced, slopes
from tensaurus.kernels.stages.register_transpose import turnable
from tensaurus.kernels.stages.stage import Stage, extent, in_digits

ROW = 16  # elements of the output's last axis that are turned at once, about
READS = 32  # that maps computed in their reader may make of one another

__all__ = ["Chain", "Combination", "Tile", "chain", "combined"]


@dataclass(frozen=True)
class Combination:
    """stage[..., p, ...] = sum[a] table[p, a] * body, where p is the axis at `place`."""

    stage: Stage
    table: Table
    place: int
    body: Body


@dataclass(frozen=True)
class Tile:
    """An axis of the products that says which tile: `size` elements each along `axis` of the output."""

    place: int
    axis: Axis
    size: int


@dataclass(frozen=True)
class Chain:
    """The stages of one output.  Places are those in the axes of `products`, which combinations keep.

    prologue  what the first combination reads and is no input: computed where it is copied
    products  the sum over `channel` and others
    moving    what it reads of the combinations before
    weights   what it reads of an input, which no tile moves
    results   the places of the axes that the weights alone have; `lane` is that of their last dimension
    along     the axis of the output that goes over them, block by block or over those of one block
    points    those that both have
    tiles     those that the combinations before alone have, in their order
    phases    those of them that say which of the interleaved parts of one tile
    channel   the reduced axis that vectors of the combinations before lie along
    dimension the one of `moving` that it is in, after the channels of the groups before where there are some
    read      what the output reads of the combinations after
    """

    prologue: tuple[Stage, ...]
    before: tuple[Combination, ...]
    products: Stage
    moving: Read
    weights: Read
    after: tuple[Combination, ...]
    output: Stage
    results: tuple[int, ...]
    lane: int
    along: Axis
    points: tuple[int, ...]
    tiles: tuple[Tile, ...]
    phases: tuple[int, ...]
    channel: Axis
    dimension: int
    read: Read

    @property
    def row(self) -> int:
        """Elements of the output's last axis that are turned at once: whole tiles."""
        last = self.output.axes[-1]
        size = next((t.size for t in self.tiles if t.axis is last), 1 << (extent(last) - 1).bit_length())
        times = max(min(ROW // size, -(-extent(last) // size)), 1)
        return size * (1 << (times - 1).bit_length() if turnable(size) else times)


def chain(stages: Sequence[Stage]) -> Chain | None:
    """The stages as one chain; None where they are none."""
    stages = _ended(stages)
    by_name = {stage.tensor.name: stage for stage in stages}
    sums = [stage for stage in stages if stage.monoid == "sum" and _combination(stage) is None]
    if len(sums) != 1 or stages[-1].reduced:
        return None
    place, output = stages.index(sums[0]), stages[-1]
    products = in_digits(sums[0])  # of stages whose axes were merged
    start = next((k for k, stage in enumerate(stages) if stage.reduced), place)
    prologue = stages[:start]
    before = [_combination(stage) for stage in stages[start:place]]
    after = [_combination(stage) for stage in stages[place + 1 : -1]]
    if not before or not after or None in before or None in after:
        return None
    made_first = {stage.tensor.name for stage in prologue}
    if not made_first.issuperset(x.name for x in stages[start].sources if x.name in by_name):
        return None
    for own in ((*stages[start:place], products), (products, *stages[place + 1 : -1])):
        for stage, reader in zip(own, own[1:], strict=False):
            if [x.name for x in reader.sources if x.name in by_name] != [stage.tensor.name]:
                return None
    read = [*dict.fromkeys(r for r in reads(output.body) if _name(r) in by_name)]
    if len(read) != 1 or _name(read[0]) != stages[-2].tensor.name or read[0].outside is not None:
        return None
    return _of(prologue, [c for c in before if c], products, [c for c in after if c], output, read[0])


def _ended(stages: Sequence[Stage]) -> Sequence[Stage]:
    """The stages with maps before the last one computed there, if it reads them place by place.

        a[i] = s[i] + b[i],  y[i] = a[i] * sigmoid(a[i])   ->   y[i] = (s[i] + b[i]) * sigmoid(s[i] + b[i])
    """
    while len(stages) > 1 and not (stages[-2].reduced or stages[-1].reduced):
        *before, inner, output = stages
        own = [*dict.fromkeys(r for r in reads(output.body) if r.source == inner.tensor)]
        if len(own) != 1 or own[0].outside is not None or inner.tensor.dtype != output.tensor.dtype:
            break
        if {*own[0].indices} != {*map(polynomial, output.axes)} or len(inner.axes) != len(output.axes):
            break
        if len([*reads(inner.body)]) * sum(r == own[0] for r in reads(output.body)) > READS:
            break
        made = replace_axes(inner.body, dict(zip(inner.axes, own[0].indices, strict=True)))
        stages = (*before, replace(output, body=replaced(output.body, {own[0]: made})))
    return stages


def combined(stages: Sequence[Stage]) -> bool:
    """Whether some of the stages are combinations by literal tables."""
    return any(_combination(stage) is not None for stage in stages)


def _name(read: Read) -> str:
    return read.source.name if isinstance(read.source, Tensor) else ""


def _combination(stage: Stage) -> Combination | None:
    if stage.monoid != "sum" or len(stage.reduced) != 1:
        return None
    (a,) = stage.reduced
    match stage.body:
        case Call("mul", (Read(Table() as table, (p, q)), body)) if q == polynomial(a):
            for place, own in enumerate(stage.axes):
                if p == polynomial(own) and own not in free_axes(body):
                    return Combination(stage, table, place, body)
    return None


def _aligned(combination: Combination, source: Tensor) -> bool:
    """Whether it reads the source place by place, but for the axis that it combines."""
    stage, (a,) = combination.stage, combination.stage.reduced
    own = tuple(polynomial(a if k == combination.place else b) for k, b in enumerate(stage.axes))
    return combination.body == Read(source, own)


def _of(
    prologue: Sequence[Stage],
    before: Sequence[Combination],
    products: Stage,
    after: Sequence[Combination],
    output: Stage,
    read: Read,
) -> Chain | None:
    match products.body:
        case Call("mul", (Read() as one, Read() as other)):
            made = before[-1].stage.tensor
            moving, weights = (one, other) if one.source == made else (other, one)
        case _:
            return None
    if moving.source != made or moving.outside is not None or weights.outside is not None:
        return None
    tensors = [products.tensor, *(c.stage.tensor for c in after)]
    steps = [*zip(before[1:], (c.stage.tensor for c in before), strict=False)]
    steps += zip(after, tensors, strict=False)
    if not all(_aligned(combination, source) for combination, source in steps):
        return None
    axes, with_weights = products.axes, free_axes(weights)
    for channel, dimension in _channels(before[0], moving, products):
        others = (i for k, i in enumerate(moving.indices) if k != dimension)
        with_tiles = frozenset[Axis]().union(*map(axes_in, others))
        if {channel, *(with_weights - with_tiles)}.issuperset(axes_in(moving.indices[dimension])):
            break
    else:  # taps of a direct sum are in a dimension of tiles
        return None
    results = tuple(k for k, a in enumerate(axes) if a in with_weights and a not in with_tiles)
    lane = next((k for k in results if weights.indices[-1] == polynomial(axes[k])), None)
    points = tuple(k for k, a in enumerate(axes) if a in with_weights and a in with_tiles)
    if lane is None or not points or {c.place for c in after} != set(points):
        return None
    moved = [k for k in range(len(axes)) if k not in (*results, *points)]
    phases = tuple(k for k in moved if _remains(read.indices[k], axes[k], output))
    tiles = [_tile(k, read, products, output, after) for k in moved if k not in phases]
    along = _along(read, output, products, results, lane)
    if None in tiles or along is None:
        return None
    return Chain(
        tuple(prologue),
        tuple(before),
        products,
        moving,
        weights,
        tuple(after),
        output,
        results,
        lane,
        along,
        points,
        tuple(tile for tile in tiles if tile),
        phases,
        channel,
        dimension,
        read,
    )


def _along(
    read: Read, output: Stage, products: Stage, results: Sequence[int], lane: int
) -> Axis | None:
    """The output's axis that is read by results of one block, or by blocks of them."""
    own, width = read.indices[lane], extent(products.axes[lane])
    wholes = [own, *(read.indices[k] * width + own for k in results if k != lane)]
    return next((a for whole in wholes for a in output.axes if whole == polynomial(a)), None)


def _remains(index: Size, own: Axis, output: Stage) -> bool:
    """Whether it is what remains of an axis of the output."""
    return any(index == mod(polynomial(a), own.extent) for a in output.axes if a.extent != own.extent)


def _tile(
    place: int, read: Read, products: Stage, output: Stage, after: Sequence[Combination]
) -> Tile | None:
    index = read.indices[place]
    turns = {1, *map(extent, products.axes)}
    for a in output.axes:
        own = polynomial(a)
        if index == own:
            return Tile(place, a, 1)
        for combination, n in product(after, turns):
            size, inside = combination.table.shape[0], read.indices[combination.place]
            if index == floordiv(own, size * n) and inside == mod(floordiv(own, n), size):
                return Tile(place, a, size * n)
    return None


def _channels(first: Combination, moving: Read, products: Stage) -> list[tuple[Axis, int]]:
    """The reduced axes that move what is read first along a dimension of their own, and which: step by step,
    from somewhere on; the longest first.
    """
    found: list[tuple[Axis, int]] = []
    axes = (*first.stage.axes, *first.stage.reduced)
    for place, index in enumerate(moving.indices):
        axes_of = [*axes_in(index)]
        own = [r for r in products.reduced if r in axes_of and r not in axes_in(index - polynomial(r))]
        if not own or place >= len(first.stage.axes):
            continue
        a = first.stage.axes[place]
        if all(
            None not in (forms := [slopes(i, axes) for i in r.indices])
            and [form for form in forms if form and a in form] == [{a: 1}]
            for r in reads(first.body)
            if isinstance(r.source, Tensor) and a in free_axes(r)
        ):
            found.append((own[0], place))
    return sorted(found, key=lambda pair: -extent(pair[0]))
