"""The stages of a chain in the form that its loops want: channels in vectors, the result turned at the end.

    s[f, l, i, j, p, q]   ->   s[p, q, f, i, j, l]

Operands are copied with the channel last, combinations are written out, and products and sums stand with the
vector's axis innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensaurus.algebra.expr import Body, Read, Tensor, axis
from tensaurus.algebra.size import Size, floordiv, interval, mod, polynomial
from tensaurus.algebra.walk import reads, rebuilt, replace_axes
from tensaurus.codegen.chain import Chain, Combination, written_out
from tensaurus.codegen.stage import Stage, axes_in, extent, free_axes

__all__ = ["Transformed", "transformed"]


@dataclass(frozen=True)
class Transformed:
    """The stages of a chain, each with the axis of its vectors last.

    copies    what the first combination reads: (..., its channels)
    before    (points, blocks of channels, others, channels of one block)
    products  (points, blocks of results, tiles, results of one block)
    after     (tiles, points, blocks of results, results of one block)
    turned    the last of these in the order of the output, (..., results of one block, the last axis)
    """

    copies: tuple[Stage, ...]
    before: tuple[Stage, ...]
    products: Stage
    after: tuple[Stage, ...]
    turned: Stage
    output: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (*self.copies, *self.before, self.products, *self.after, self.turned, self.output)


def transformed(chain: Chain, deep: int) -> Transformed:
    """The chain with blocks of `deep` channels.

    Raises ValueError where these do not divide them, or where the output's last axis is not one of tiles.
    """
    return _Transforming(chain, deep).whole()


class _Transforming:
    def __init__(self, chain: Chain, deep: int):
        self.chain, self.deep = chain, deep
        channels = extent(chain.channel)
        if channels % deep:
            raise ValueError(f"blocks of {deep} of {channels} channels")
        self.channel = chain.moving.indices.index(polynomial(chain.channel))

    def whole(self) -> Transformed:
        chain = self.chain
        copies, first = self.copied(chain.before[0])
        before: list[Stage] = []
        for combination in (first, *chain.before[1:]):
            before.append(self.deepened(written_out(combination), before))
        products = self.multiplied(before[-1])
        after: list[Stage] = []
        for combination in chain.after:
            source = after[-1].tensor if after else products.tensor
            after.append(self.widened(written_out(combination), source, self.last if after else self.blocked))
        turned, output = self.turned(after[-1])
        return Transformed(tuple(copies), tuple(before), products, tuple(after), turned, output)

    def copied(self, first: Combination) -> tuple[list[Stage], Combination]:
        """What the first combination reads by the channel, padded, channels last."""
        made: dict[Read, Body] = {}
        copies = []
        c = first.stage.axes[self.channel]
        for read in dict.fromkeys(reads(first.body)):
            if not isinstance(read.source, Tensor) or c not in free_axes(read):
                continue
            dimension = next(d for d, index in enumerate(read.indices) if c in axes_in(index))
            lows, sizes = zip(*map(_range, read.indices), strict=True)
            own = [axis(size, "q") for size in sizes]
            block, lane = axis(sizes[dimension] // self.deep, "q"), axis(self.deep, "q")
            places: list[Size] = [polynomial(a) + low for a, low in zip(own, lows, strict=True)]
            places[dimension] = polynomial(block) * self.deep + polynomial(lane) + lows[dimension]
            others = [k for k in range(len(own)) if k != dimension]
            axes = (block, *(own[k] for k in others), lane)
            name = f"{first.stage.tensor.name}_{read.source.name}_{len(copies)}"
            tensor = Tensor(name, tuple(a.extent for a in axes), read.source.dtype)
            copies.append(Stage(tensor, axes, Read(read.source, tuple(places), read.outside)))
            inside = [i - low for i, low in zip(read.indices, lows, strict=True)]
            moved = inside[dimension]
            indices = (floordiv(moved, self.deep), *(inside[k] for k in others), mod(moved, self.deep))
            made[read] = Read(tensor, indices)
        return copies, replace(first, body=_replaced(first.body, made))

    def deepened(self, stage: Stage, before: Sequence[Stage]) -> Stage:
        """A combination before, its channels in vectors."""
        c = stage.axes[self.channel]
        block, lane = axis(extent(c) // self.deep), axis(self.deep)
        body = replace_axes(stage.body, {c: polynomial(block) * self.deep + polynomial(lane)})
        if before:
            source = before[-1].tensor
            body = _mapped(body, source.name, lambda indices: Read(source, self.deeply(indices)))
        axes = self.ordered(stage.axes, block, lane)
        return Stage(replace(stage.tensor, shape=tuple(a.extent for a in axes)), axes, body)

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
        deep, step = axis(extent(c) // self.deep, "r"), axis(self.deep, "r")
        body = replace_axes(old.body, {c: polynomial(deep) * self.deep + polynomial(step)})
        body = _mapped(body, last.tensor.name, lambda indices: Read(last.tensor, self.deeply(indices)))
        axes = self.blocked(old.axes)
        reduced = (*(a for a in old.reduced if a is not c), deep, step)
        tensor = replace(old.tensor, shape=tuple(a.extent for a in axes))
        return Stage(tensor, axes, body, reduced, old.monoid)

    def blocked(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """What stands at the places of the products, in the order of their new axes."""
        chain = self.chain
        blocks = (k for k in chain.results if k != chain.lane)
        return tuple(items[k] for k in (*chain.points, *blocks, *(t.place for t in chain.tiles), chain.lane))

    def last(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """The same of the combinations after."""
        chain = self.chain
        blocks = (k for k in chain.results if k != chain.lane)
        return tuple(items[k] for k in (*(t.place for t in chain.tiles), *chain.points, *blocks, chain.lane))

    def widened(self, stage: Stage, source: Tensor, order: Callable[[Sequence[Any]], tuple[Any, ...]]) -> Stage:
        """A combination after, results last."""
        body = _mapped(stage.body, source.name, lambda indices: Read(source, order(indices)))
        axes = self.last(stage.axes)
        return Stage(replace(stage.tensor, shape=tuple(a.extent for a in axes)), axes, body)

    def turned(self, last: Stage) -> tuple[Stage, Stage]:
        """The combinations' result with the output's last axis last, and the output that reads it."""
        chain, output = self.chain, self.chain.output
        f = next((a for a in output.axes if chain.read.indices[chain.lane] == polynomial(a)), None)
        if f is None or f is output.axes[-1]:
            raise ValueError("an output whose last axis is that of the results")
        used = [a for a in output.axes if a in free_axes(chain.read)]
        if output.axes[-1] not in used:
            raise ValueError("an output whose last axis the products do not have")
        order = [*(a for a in used[:-1] if a is not f), f, used[-1]]
        fresh = {a: axis(a.extent) for a in order}
        values = {a: polynomial(b) for a, b in fresh.items()}
        moved = replace_axes(Read(last.tensor, self.last(chain.read.indices)), values)
        tensor = Tensor(f"{last.tensor.name}_turned", tuple(a.extent for a in order), last.tensor.dtype)
        stage = Stage(tensor, tuple(fresh.values()), moved)
        read = Read(tensor, tuple(map(polynomial, order)))
        return stage, replace(output, body=_replaced(output.body, {chain.read: read}))


def _range(index: Size) -> tuple[int, int]:
    """The first, and how many."""
    low, high = interval(index)
    if not isinstance(low, int) or not isinstance(high, int):
        raise ValueError(f"an index without bounds: {index}")
    return low, high - low + 1


def _replaced(body: Body, values: Mapping[Read, Body]) -> Body:
    if isinstance(body, Read) and body in values:
        return values[body]
    return rebuilt(body, lambda inner: _replaced(inner, values), lambda size: size)


def _mapped(body: Body, name: str, made: Any) -> Body:
    """The body with what it reads of a tensor of this name read as `made` says of the indices."""
    if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source.name == name:
        result: Body = made(body.indices)
        return result
    return rebuilt(body, lambda inner: _mapped(inner, name, made), lambda size: size)
