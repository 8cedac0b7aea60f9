"""The stages of a chain in the form that its loops want: channels in vectors, the result turned at the end.

    s[f, l, i, j, p, q]   ->   s[p, q, f, i, j, l]

Operands are copied with the channel last, combinations are written out, and products and sums stand with the
vector's axis innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensaurus.expr.ir.scope import Body, Const, Read, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import axes_in, free_axes, reads, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Axis, Size, floordiv, mod, polynomial, substitute
from tensaurus.kernels.stages.bilinear_chain import Chain, Combination
from tensaurus.kernels.stages.copy_operands import replaced, span
from tensaurus.kernels.stages.group_long_sums import grouped
from tensaurus.kernels.stages.linear_combinations import written_out
from tensaurus.kernels.stages.register_transpose import shuffled, turnable
from tensaurus.kernels.stages.stage import Stage, extent

GROUP = 32  # channels whose products are added up before they are added to others

__all__ = ["GROUP", "Transformed", "part_of", "transformed"]


@dataclass(frozen=True)
class Transformed:
    """The stages of a chain, each with the axis of its vectors last.

    prologue  of what is copied, as it is
    copies    of what the first combination reads: padded, then turned, so that its channels are last
    before    (points, blocks of channels, others, channels of one block)
    products  (points, blocks of results, phases, tiles, results of one block); first of groups of channels,
              where there are several
    after     (tiles, phases, points, blocks of results, results of one block)
    turned    the last of these in the order of the output: the last axis holds rows along the output's last
    """

    prologue: tuple[Stage, ...]
    copies: tuple[tuple[Stage, ...], ...]
    before: tuple[Stage, ...]
    products: tuple[Stage, ...]
    after: tuple[Stage, ...]
    turned: tuple[Stage, ...]
    output: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        copies = (stage for copy in self.copies for stage in copy)
        return (*self.prologue, *copies, *self.before, *self.products, *self.after, *self.turned, self.output)


def transformed(chain: Chain, deep: int, lanes: int, row: int) -> Transformed:
    """The chain with `deep` channels, and `lanes` results, in a vector; `row` elements are turned at once.

    Channels that `deep` does not divide lie in vectors that are not full, `part_of` them in each.  Raises
    ValueError where results do not divide, or such channels are of several groups or are read otherwise than
    one by one; where sizes are no powers of two, or no output axis is along rows.
    """
    return _Transforming(chain, deep, lanes, row).whole()


def part_of(channels: int, deep: int) -> int:
    """How many of so many channels are in a vector of `deep`: the most of which there are whole blocks."""
    return next(n for n in range(deep, 0, -1) if channels % n == 0)


class _Transforming:
    def __init__(self, chain: Chain, deep: int, lanes: int, row: int):
        self.chain, self.deep, self.lanes, self.row = chain, deep, lanes, row
        channels, groups = extent(chain.channel), extent(chain.before[0].stage.axes[chain.dimension])
        self.part = part_of(channels, deep)
        if self.part < deep and (groups > channels or not turnable(deep)):
            raise ValueError(f"blocks of {deep} of {channels} channels")
        self.channel = chain.dimension

    def whole(self) -> Transformed:
        chain = self.chain
        copies, first = self.copied(chain.before[0])
        before: list[Stage] = []
        for combination in (first, *chain.before[1:]):
            before.append(self.deepened(written_out(combination), before))
        whole = self.multiplied(before[-1])
        products = grouped(whole, range(len(whole.reduced))[::-1], GROUP, 1) or (whole,)
        after: list[Stage] = []
        for combination in chain.after:
            source = after[-1].tensor if after else products[-1].tensor
            after.append(self.widened(written_out(combination), source, self.last if after else self.blocked))
        turned, output = self.turned(after[-1])
        made = tuple(copies), tuple(before), products, tuple(after)
        return Transformed(chain.prologue, *made, turned, output)

    def copied(self, first: Combination) -> tuple[list[tuple[Stage, ...]], Combination]:
        """What the first combination reads by the channel, padded, channels last."""
        made: dict[Read, Body] = {}
        copies: list[tuple[Stage, ...]] = []
        c = first.stage.axes[self.channel]
        for read in dict.fromkeys(reads(first.body)):
            if isinstance(read.source, Tensor) and c in free_axes(read):
                name = f"{first.stage.tensor.name}_{read.source.name}_{len(copies)}"
                stages, made[read] = self.channels_last(read, c, name)
                copies.append(stages)
        if self.part < self.deep and c in free_axes(replaced(first.body, dict.fromkeys(made, Const(0)))):
            raise ValueError("channels that are counted, in vectors that are not full")
        return copies, replace(first, body=replaced(first.body, made))

    def channels_last(self, read: Read, c: Axis, name: str) -> tuple[tuple[Stage, ...], Read]:
        """Copies of what is read, and how it is read of the last."""
        source = read.source
        assert isinstance(source, Tensor)
        dimension = next(d for d, index in enumerate(read.indices) if c in axes_in(index))
        last = len(read.indices) - 1
        if dimension == last:
            raise ValueError("channels that lie side by side")
        deep, row = self.deep, self.lanes
        lows, sizes = map(list, zip(*map(span, read.indices), strict=True))
        sizes[last] = -(-sizes[last] // row) * row
        blocks = -(-sizes[dimension] // self.part)
        if self.part < deep and read.indices[dimension] != polynomial(c):
            raise ValueError(f"{self.part} channels in a vector of {deep} that are not read one by one")
        sizes[dimension] = blocks * self.part + deep - self.part  # zeros fill the last vector
        own = tuple(axis(size, "q") for size in sizes)
        places = tuple(polynomial(a) + low for a, low in zip(own, lows, strict=True))
        outside = Const(0) if read.outside is None else read.outside
        padded = Stage(
            Tensor(name, tuple(sizes), source.dtype), own, Read(source, places, outside)
        )
        others = [k for k in range(last) if k != dimension]
        block, part, element = axis(blocks), axis(sizes[last] // row), axis(deep * row)
        moved: list[Size] = [0] * (last + 1)
        moved[dimension] = polynomial(block) * self.part + floordiv(polynomial(element), row)
        moved[last] = polynomial(part) * row + mod(polynomial(element), row)
        kept = {k: axis(sizes[k]) for k in others}
        for k, a in kept.items():
            moved[k] = polynomial(a)
        axes = (block, *kept.values(), part, element)
        tensor = Tensor(f"{name}_turned", tuple(a.extent for a in axes), source.dtype)
        rows = shuffled(Stage(tensor, axes, Read(padded.tensor, tuple(moved))), deep)
        inside = [i - low for i, low in zip(read.indices, lows, strict=True)]
        channel, along = inside[dimension], inside[last]
        indices = (
            floordiv(channel, deep),
            *(inside[k] for k in others),
            floordiv(along, row),
            mod(along, row) * deep + mod(channel, deep),
        )
        return (padded, *rows), Read(rows[-1].tensor, indices)

    def deepened(self, stage: Stage, before: Sequence[Stage]) -> Stage:
        """A combination before, its channels in vectors, as if each were full."""
        c = stage.axes[self.channel]
        block, lane = axis(extent(c) // self.part), axis(self.deep)
        body = replace_axes(stage.body, {c: polynomial(block) * self.deep + polynomial(lane)})
        if before:
            source = before[-1].tensor
            body = _mapped(body, source.name, lambda indices: Read(source, self.deeply(indices)))
        axes = self.ordered(stage.axes, block, lane)
        tensor = replace(stage.tensor, shape=tuple(a.extent for a in axes))
        return replace(stage, tensor=tensor, axes=axes, body=body)

    def deeply(self, indices: Sequence[Size]) -> tuple[Size, ...]:
        c = indices[self.channel]
        return self.ordered(indices, floordiv(c, self.deep), mod(c, self.deep))

    def ordered(self, items: Sequence[Any], block: Any, lane: Any) -> tuple[Any, ...]:
        """What stands at the places of a combination before, in the order of its new axes."""
        points = [combination.place for combination in self.chain.before]
        others = [k for k in range(len(items)) if k not in points and k != self.channel]
        return (*(items[k] for k in points), block, *(items[k] for k in others), lane)

    def multiplied(self, last: Stage) -> Stage:
        chain = self.chain
        old, c = chain.products, chain.channel
        deep, step, own = digit_axes(c, self.part, "r")
        within: dict[Any, Any] = {c: polynomial(deep) * self.deep + polynomial(step)}
        others = (i for k, i in enumerate(chain.moving.indices) if k != self.channel)
        if self.part < self.deep and any(c in axes_in(index) for index in others):
            raise ValueError("channels that move tiles, in vectors that are not full")

        def moving(indices: Sequence[Size]) -> Read:
            return Read(last.tensor, self.deeply([substitute(i, within) for i in indices]))

        body = replace_axes(_mapped(old.body, last.tensor.name, moving), {c: own})
        axes = self.blocked(old.axes)
        reduced = (*(a for a in old.reduced if a is not c), deep, step)
        tensor = replace(old.tensor, shape=tuple(a.extent for a in axes))
        return Stage(tensor, axes, body, reduced, old.monoid)

    def blocked(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """What stands at the places of the products, in the order of their new axes."""
        chain = self.chain
        blocks = (k for k in chain.results if k != chain.lane)
        tiles = (t.place for t in chain.tiles)
        return tuple(items[k] for k in (*chain.points, *blocks, *chain.phases, *tiles, chain.lane))

    def last(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """The same of the combinations after."""
        chain = self.chain
        blocks = (k for k in chain.results if k != chain.lane)
        tiles = (t.place for t in chain.tiles)
        return tuple(items[k] for k in (*tiles, *chain.phases, *chain.points, *blocks, chain.lane))

    def widened(
        self, stage: Stage, source: Tensor, order: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> Stage:
        """A combination after, results last."""
        body = _mapped(stage.body, source.name, lambda indices: Read(source, order(indices)))
        axes = self.last(stage.axes)
        tensor = replace(stage.tensor, shape=tuple(a.extent for a in axes))
        return replace(stage, tensor=tensor, axes=axes, body=body)

    def turned(self, last: Stage) -> tuple[tuple[Stage, ...], Stage]:
        """The combinations' result along the output's last axis, and the output that reads it."""
        chain, output, lanes, row = self.chain, self.chain.output, self.lanes, self.row
        f, x = chain.along, output.axes[-1]
        if f is x or x not in free_axes(chain.read):
            raise ValueError("an output whose last axis is not one of tiles")
        others = [a for a in output.axes[:-1] if a in free_axes(chain.read) and a is not f]
        fresh = {a: axis(a.extent) for a in others}
        block, part, element = axis(-(-extent(f) // lanes)), axis(-(-extent(x) // row)), axis(lanes * row)
        values: dict[Any, Any] = {a: polynomial(b) for a, b in fresh.items()}
        inner, outer = (lanes, 1) if turnable(row) else (1, row)  # else it is read by the step of a vector
        values[x] = polynomial(part) * row + mod(floordiv(polynomial(element), inner), row)
        vectors = extent(chain.products.axes[chain.lane]) // lanes  # of one block of results
        within = mod(floordiv(polynomial(element), outer), lanes)
        indices = list(chain.read.indices)
        for k in chain.results:
            if f in axes_in(indices[k]):
                indices[k] = floordiv(polynomial(block), vectors)
        indices[chain.lane] = mod(polynomial(block), vectors) * lanes + within
        moved = replace_axes(Read(last.tensor, self.last(indices)), values)
        axes = (*fresh.values(), block, part, element)
        tensor = Tensor(f"{last.tensor.name}_turned", tuple(a.extent for a in axes), last.tensor.dtype)
        stages = shuffled(Stage(tensor, axes, moved), row if turnable(row) else 1)
        own, along = polynomial(f), polynomial(x)
        read = Read(
            stages[-1].tensor,
            (
                *map(polynomial, others),
                floordiv(own, lanes),
                floordiv(along, row),
                mod(own, lanes) * row + mod(along, row),
            ),
        )
        return stages, replace(output, body=replaced(output.body, {chain.read: read}))


def _mapped(body: Body, name: str, made: Any) -> Body:
    """The body with what it reads of a tensor of this name read as `made` says of the indices."""
    if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source.name == name:
        result: Body = made(body.indices)
        return result
    return rebuild_body(body, lambda inner: _mapped(inner, name, made), lambda size: size)
