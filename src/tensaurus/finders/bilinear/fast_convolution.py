"""Convolutions by fast algorithms along their dimensions, as nested scopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tensaurus.expr.ir.scope import Body, Scope, Table, Tensor, compute, total
from tensaurus.expr.sizes.size import Size, Symbol, polynomial
from tensaurus.finders.bilinear.bilinear_algorithm import Matrix
from tensaurus.finders.bilinear.tiling import Algorithms, Tiling, Window

__all__ = ["Convolution", "fast", "transformed"]


@dataclass(frozen=True)
class Convolution:
    """x [batch, channels, sizes...], w [filters, channels / groups, taps...]; zero beyond the edges."""

    batch: Any  # a number, or a symbol
    channels: int
    filters: int
    groups: int
    windows: tuple[Window, ...]
    bias: bool = False
    dtype: str = "float32"

    @property
    def x(self) -> Tensor:
        shape = (self.batch, self.channels, *(w.size for w in self.windows))
        return Tensor("x0", shape, self.dtype)

    @property
    def w(self) -> Tensor:
        shape = (self.filters, self.channels // self.groups, *(w.taps for w in self.windows))
        return Tensor("x0", shape, self.dtype)

    @property
    def over_all(self) -> Convolution:
        """The same over inputs of any batch and sizes."""
        windows = (w.over(polynomial(Symbol(f"S{k}", 1))) for k, w in enumerate(self.windows))
        return replace(self, batch=polynomial(Symbol("N", 1)), windows=tuple(windows))

    def depth(self, algorithms: Algorithms) -> int:
        """Products that are added up for each point."""
        return self.channels // self.groups * prod(
            line.window.taps for line in self.tilings(algorithms) if not line.fast
        )

    def tilings(self, algorithms: Algorithms) -> list[Tiling]:
        """Of its dimensions.  Raises ValueError for an algorithm of other taps or steps."""
        return [Tiling(*pair) for pair in zip(self.windows, algorithms, strict=True)]


def transformed(of: Convolution, algorithms: Algorithms) -> Scope:
    """U [products..., filters, channels / groups, direct taps...] of w, which is x0."""
    lines = of.tilings(algorithms)
    along = [line for line in lines if line.fast]
    direct = tuple(line.window.taps for line in lines if line.summed)

    def tap(f: Size, c: Size, *rest: Size) -> Body:
        """w, the taps of fast dimensions first."""
        inner, outer = iter(rest[: len(along)]), iter(rest[len(along) :])
        return of.w[(f, c, *(next(inner) if x.fast else next(outer) if x.summed else 0 for x in lines))]

    depth = of.channels // of.groups
    shape = [of.filters, depth, *(line.window.taps for line in along), *direct]
    found = compute(shape, tap)
    for place, line in enumerate(along):
        shape[2 + place] = line.products
        found = _applied(line.algorithm.weights, found, 2 + place, shape)  # type: ignore[union-attr]
    last = len(along)

    def moved(*place: Size) -> Body:
        return found[(*place[last : last + 2], *place[:last], *place[last + 2 :])]

    return compute((*shape[2 : 2 + last], of.filters, depth, *direct), moved)


def fast(of: Convolution, algorithms: Algorithms) -> Scope:
    """The convolution of x, which is x0, by its transformed weights, x1; its bias is x2.

    D  [n, c, tiles..., elements...]   x, tile by tile
    V  [n, c, tiles..., products...]   BT applied to it, one dimension after the other
    M  [n, f, tiles..., products...]   sum[c] V * U
    Z  [n, f, tiles..., outputs...]    AT applied to it, likewise
    """
    lines = of.tilings(algorithms)
    along = [line for line in lines if line.fast]
    rank = len(lines)

    def element(n: Size, c: Size, *rest: Size) -> Body:
        places = iter(rest[rank:])
        tiles = zip(lines, rest[:rank], strict=True)
        spots = (line.read(tile, next(places) if line.fast else 0) for line, tile in tiles)
        return of.x.padded(0)[(n, c, *spots)]

    shape: list[Size] = [of.batch, of.channels, *(line.tiles for line in lines)]
    shape += [line.elements for line in along]
    found = compute(shape, element)
    for place, line in enumerate(along, 2 + rank):
        shape[place] = line.products
        found = _applied(line.algorithm.data, found, place, shape)  # type: ignore[union-attr]
    found, shape = _product(of, lines, found)
    for place, line in enumerate(along, 2 + rank):
        shape[place] = line.outputs
        found = _applied(line.algorithm.output, found, place, shape)  # type: ignore[union-attr]
    bias = Tensor("x2", (of.filters,), of.dtype)

    def output(n: Size, f: Size, *place: Size) -> Body:
        spots = [line.spot(y) for line, y in zip(lines, place, strict=True)]
        inner = (i for line, (_, i) in zip(lines, spots, strict=True) if line.fast)
        value = found[(n, f, *(tile for tile, _ in spots), *inner)]
        return value + bias[f] if of.bias else value

    return compute((of.batch, of.filters, *(w.outputs for w in of.windows)), output)


def _product(of: Convolution, lines: Sequence[Tiling], data: Scope) -> tuple[Scope, list[Size]]:
    """M, and its shape."""
    rank = len(lines)
    products = [line.products for line in lines if line.fast]
    depth, each = data.shape[1] // of.groups, of.filters // of.groups
    direct = [line.window.taps for line in lines if line.summed]
    weights = Tensor("x1", (*products, of.filters, depth, *direct), of.dtype)

    def element(n: Size, f: Size, *rest: Size) -> Body:
        tiles, points = rest[:rank], rest[rank:]

        def term(c: Size, *taps: Size) -> Body:
            left = iter(taps)
            rows = [
                line.row(tile, next(left)) if line.summed else tile
                for line, tile in zip(lines, tiles, strict=True)
            ]
            channel = c if of.groups == 1 else f // each * depth + c
            return data[(n, channel, *rows, *points)] * weights[(*points, f, c, *taps)]

        return total((depth, *direct), term)

    shape: list[Size] = [of.batch, of.filters, *(line.places for line in lines), *products]
    return compute(shape, element), shape


def _applied(matrix: Matrix, source: Scope, place: int, shape: Sequence[Size]) -> Scope:
    """The matrix by the source, along this one of its dimensions; the result has this shape."""
    numbers = Table((len(matrix), len(matrix[0])), tuple(n for row in matrix for n in row))

    def element(*at: Size) -> Body:
        def term(k: Size) -> Body:
            return numbers[at[place], k] * source[(*at[:place], k, *at[place + 1 :])]

        return total((len(matrix[0]),), term)

    return compute(shape, element)

