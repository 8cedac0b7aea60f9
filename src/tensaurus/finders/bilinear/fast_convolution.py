"""Writes a convolution by fast algorithms along its dimensions as nested scopes.

There are two expressions, each with its own inputs x0, x1, ...: the transform of the weights, which is
computed once where they are constant, and the convolution of the data by the transformed weights. A dimension
is fast (it has an algorithm), summed (it has several taps and none) or plain; `tiling` says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tensaurus.expr.ir.scope import Body, Scope, Table, Tensor, compute, total
from tensaurus.expr.sizes.size import Size, Symbol, polynomial
from tensaurus.finders.bilinear.bilinear_algorithm import Matrix
from tensaurus.finders.bilinear.tiling import Algorithms, ConvolutionAxis, Tiling

__all__ = ["Convolution", "fast_scope", "transform_weights"]


@dataclass(frozen=True)
class Convolution:
    """A convolution of x [batch, channels, sizes...] by w [filters, channels / groups, taps...].

    Both are called x0, as x is the first input of `fast_scope` and w that of `transform_weights`.
    """

    batch: Any  # a number or a symbol
    channels: int
    filters: int
    groups: int
    windows: tuple[ConvolutionAxis, ...]
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
    def over_any_sizes(self) -> Convolution:
        """The convolution with symbols for the batch and the spatial sizes of the data."""
        windows = (w.over_size(polynomial(Symbol(f"S{k}", 1))) for k, w in enumerate(self.windows))
        return replace(self, batch=polynomial(Symbol("N", 1)), windows=tuple(windows))

    def depth(self, algorithms: Algorithms) -> int:
        """Returns how many products are added up for each of an algorithm's multiplications."""
        return self.channels // self.groups * prod(
            tiling.window.taps for tiling in self.tilings(algorithms) if not tiling.is_fast
        )

    def tilings(self, algorithms: Algorithms) -> list[Tiling]:
        """Returns the tiling of each dimension. Raises ValueError for an algorithm of other taps or steps."""
        return [Tiling(*pair) for pair in zip(self.windows, algorithms, strict=True)]


def transform_weights(convolution: Convolution, algorithms: Algorithms) -> Scope:
    """Returns the transform of the weights x0: [products..., filters, channels / groups, taps...].

    The products are those of fast dimensions, the taps those of summed dimensions.
    """
    tilings = convolution.tilings(algorithms)
    fast = [tiling for tiling in tilings if tiling.is_fast]
    summed_taps = tuple(tiling.window.taps for tiling in tilings if tiling.is_summed)

    def tap(f: Size, c: Size, *rest: Size) -> Body:
        """Reads w by the taps of fast dimensions, then those of summed dimensions."""
        inner, outer = iter(rest[: len(fast)]), iter(rest[len(fast) :])
        places = (next(inner) if x.is_fast else next(outer) if x.is_summed else 0 for x in tilings)
        return convolution.w[(f, c, *places)]

    # w as [filters, channels, taps of fast dimensions..., taps of summed dimensions...]
    depth = convolution.channels // convolution.groups
    shape = [convolution.filters, depth, *(tiling.window.taps for tiling in fast), *summed_taps]
    weights = compute(shape, tap)
    # G along each fast dimension turns its taps into products, which then move to the front
    for place, tiling in enumerate(fast):
        shape[2 + place] = tiling.products
        weights = _apply_matrix(tiling.algorithm.weights, weights, 2 + place, shape)  # type: ignore[union-attr]
    rank = len(fast)

    def moved(*place: Size) -> Body:
        """Reads the transformed weights, whose own order is filters, channels, products, taps."""
        return weights[(*place[rank : rank + 2], *place[:rank], *place[rank + 2 :])]

    return compute((*shape[2 : 2 + rank], convolution.filters, depth, *summed_taps), moved)


def fast_scope(convolution: Convolution, algorithms: Algorithms) -> Scope:
    """Returns the convolution of the data x0 by the transformed weights x1, plus the bias x2.

    D  [n, c, tiles..., elements...]   x0, tile by tile
    V  [n, c, tiles..., products...]   BT applied to D, one dimension after the other
    M  [n, f, tiles..., products...]   sum[c, taps...] V * x1, over the taps of summed dimensions
    Z  [n, f, tiles..., outputs...]    AT applied to M, one dimension after the other

    For a summed dimension the tiles of D and V are elements of the data, those of M and Z are outputs.
    """
    tilings = convolution.tilings(algorithms)
    fast = [tiling for tiling in tilings if tiling.is_fast]
    rank = len(tilings)

    def element(n: Size, c: Size, *rest: Size) -> Body:
        """Reads D: `rest` is one tile number for each dimension, then one place for each fast one."""
        places = iter(rest[rank:])
        tiles = zip(tilings, rest[:rank], strict=True)
        spots = (t.element_index(tile, next(places) if t.is_fast else 0) for t, tile in tiles)
        return convolution.x.padded(0)[(n, c, *spots)]

    shape: list[Size] = [convolution.batch, convolution.channels, *(tiling.tiles for tiling in tilings)]
    shape += [tiling.elements for tiling in fast]
    stage = compute(shape, element)  # D, then V, M and Z in turn
    for place, tiling in enumerate(fast, 2 + rank):
        shape[place] = tiling.products
        stage = _apply_matrix(tiling.algorithm.data, stage, place, shape)  # type: ignore[union-attr]
    stage, shape = _multiply(convolution, tilings, stage)
    for place, tiling in enumerate(fast, 2 + rank):
        shape[place] = tiling.outputs
        stage = _apply_matrix(tiling.algorithm.output, stage, place, shape)  # type: ignore[union-attr]
    bias = Tensor("x2", (convolution.filters,), convolution.dtype)

    def output(n: Size, f: Size, *place: Size) -> Body:
        positions = [tiling.tile_and_position(y) for tiling, y in zip(tilings, place, strict=True)]
        inner = (i for tiling, (_, i) in zip(tilings, positions, strict=True) if tiling.is_fast)
        value = stage[(n, f, *(tile for tile, _ in positions), *inner)]
        return value + bias[f] if convolution.bias else value

    outputs = (window.outputs for window in convolution.windows)
    return compute((convolution.batch, convolution.filters, *outputs), output)


def _multiply(convolution: Convolution, tilings: Sequence[Tiling], data: Scope) -> tuple[Scope, list[Size]]:
    """Returns M (see `fast_scope`) and its shape."""
    rank = len(tilings)
    products = [tiling.products for tiling in tilings if tiling.is_fast]
    depth, filters_in_group = data.shape[1] // convolution.groups, convolution.filters // convolution.groups
    summed_taps = [tiling.window.taps for tiling in tilings if tiling.is_summed]
    weights = Tensor("x1", (*products, convolution.filters, depth, *summed_taps), convolution.dtype)

    def element(n: Size, f: Size, *rest: Size) -> Body:
        tiles, points = rest[:rank], rest[rank:]  # positions, and which product of each fast dimension

        def term(c: Size, *taps: Size) -> Body:
            remaining_taps = iter(taps)
            rows = [
                tiling.tile_at_tap(tile, next(remaining_taps)) if tiling.is_summed else tile
                for tiling, tile in zip(tilings, tiles, strict=True)
            ]
            channel = c if convolution.groups == 1 else f // filters_in_group * depth + c
            return data[(n, channel, *rows, *points)] * weights[(*points, f, c, *taps)]

        return total((depth, *summed_taps), term)

    places = (tiling.product_positions for tiling in tilings)
    shape: list[Size] = [convolution.batch, convolution.filters, *places, *products]
    return compute(shape, element), shape


def _apply_matrix(matrix: Matrix, source: Scope, dimension: int, shape: Sequence[Size]) -> Scope:
    """Multiplies the matrix by the source along this dimension; the result has this shape."""
    numbers = Table((len(matrix), len(matrix[0])), tuple(n for row in matrix for n in row))

    def element(*at: Size) -> Body:
        def term(k: Size) -> Body:
            return numbers[at[dimension], k] * source[(*at[:dimension], k, *at[dimension + 1 :])]

        return total((len(matrix[0]),), term)

    return compute(shape, element)

