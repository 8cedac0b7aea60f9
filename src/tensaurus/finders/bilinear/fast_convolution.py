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
    spatial_axes: tuple[ConvolutionAxis, ...]
    has_bias: bool = False
    dtype: str = "float32"

    @property
    def x(self) -> Tensor:
        shape = (self.batch, self.channels, *(axis.size for axis in self.spatial_axes))
        return Tensor("x0", shape, self.dtype)

    @property
    def w(self) -> Tensor:
        shape = (self.filters, self.channels // self.groups, *(axis.taps for axis in self.spatial_axes))
        return Tensor("x0", shape, self.dtype)

    @property
    def over_any_sizes(self) -> Convolution:
        """The convolution with symbols for the batch and the spatial sizes of the data."""
        sizes = (polynomial(Symbol(f"S{k}", 1)) for k in range(len(self.spatial_axes)))
        axes = tuple(axis.over_size(size) for axis, size in zip(self.spatial_axes, sizes, strict=True))
        return replace(self, batch=polynomial(Symbol("N", 1)), spatial_axes=axes)

    def depth(self, algorithms: Algorithms) -> int:
        """Returns how many products are added up for each of an algorithm's multiplications."""
        return self.channels // self.groups * prod(
            tiling.axis.taps for tiling in self.tilings(algorithms) if not tiling.is_fast
        )

    def tilings(self, algorithms: Algorithms) -> list[Tiling]:
        """Returns the tiling of each dimension. Raises ValueError for an algorithm of other taps or steps."""
        return [Tiling(*pair) for pair in zip(self.spatial_axes, algorithms, strict=True)]


def transform_weights(convolution: Convolution, algorithms: Algorithms) -> Scope:
    """Returns the transform of the weights x0: [products..., filters, channels / groups, taps...].

    The products are those of fast dimensions, the taps those of summed dimensions.
    """
    tilings = convolution.tilings(algorithms)
    fast, summed = _fast_and_summed(tilings)
    used = [a for a in algorithms if a]
    rank = len(fast)
    summed_taps = [tilings[k].axis.taps for k in summed]

    def read_taps(f: Size, c: Size, *taps: Size) -> Body:
        tap_of = dict(zip((*fast, *summed), taps, strict=True))
        return convolution.w[(f, c, *(tap_of.get(k, 0) for k in range(len(tilings))))]

    # w as [filters, channels, taps of fast dimensions..., taps of summed dimensions...]
    depth = convolution.channels // convolution.groups
    shape = [convolution.filters, depth, *(a.taps for a in used), *summed_taps]
    weights = compute(shape, read_taps)
    # G along each fast dimension turns its taps into products, which then move to the front
    for place, algorithm in enumerate(used, 2):
        shape[place] = algorithm.products
        weights = _apply_matrix(algorithm.weights, weights, place, shape)

    def products_first(*place: Size) -> Body:
        products, (f, c), taps = place[:rank], place[rank : rank + 2], place[rank + 2 :]
        return weights[(f, c, *products, *taps)]

    return compute((*shape[2 : 2 + rank], convolution.filters, depth, *summed_taps), products_first)


def fast_scope(convolution: Convolution, algorithms: Algorithms) -> Scope:
    """Returns the convolution of the data x0 by the transformed weights x1, plus the bias x2.

    D  [n, c, tiles..., elements...]   x0, tile by tile
    V  [n, c, tiles..., products...]   BT applied to D, one dimension after the other
    M  [n, f, tiles..., products...]   sum[c, taps...] V * x1, over the taps of summed dimensions
    Z  [n, f, tiles..., outputs...]    AT applied to M, one dimension after the other

    For a summed dimension the tiles of D and V are elements of the data, those of M and Z are outputs.
    """
    tilings = convolution.tilings(algorithms)
    fast, _ = _fast_and_summed(tilings)
    used = [a for a in algorithms if a]
    rank = len(tilings)

    def element(n: Size, c: Size, *rest: Size) -> Body:
        """Reads D: `rest` is one tile number for each dimension, then one position for each fast one."""
        position_of = dict(zip(fast, rest[rank:], strict=True))
        tiles = enumerate(zip(tilings, rest[:rank], strict=True))
        indices = (tiling.element_index(tile, position_of.get(k, 0)) for k, (tiling, tile) in tiles)
        return convolution.x.padded(0)[(n, c, *indices)]

    shape: list[Size] = [convolution.batch, convolution.channels, *(tiling.tiles for tiling in tilings)]
    shape += [algorithm.elements for algorithm in used]
    stage = compute(shape, element)  # D, then V, M and Z in turn
    for place, algorithm in enumerate(used, 2 + rank):
        shape[place] = algorithm.products
        stage = _apply_matrix(algorithm.data, stage, place, shape)
    stage, shape = _multiply(convolution, algorithms, stage)
    for place, algorithm in enumerate(used, 2 + rank):
        shape[place] = algorithm.outputs
        stage = _apply_matrix(algorithm.output, stage, place, shape)
    bias = Tensor("x2", (convolution.filters,), convolution.dtype)

    def output(n: Size, f: Size, *place: Size) -> Body:
        found = [tiling.tile_and_position(y) for tiling, y in zip(tilings, place, strict=True)]
        tiles, positions = (tile for tile, _ in found), (found[k][1] for k in fast)
        value = stage[(n, f, *tiles, *positions)]
        return value + bias[f] if convolution.has_bias else value

    outputs = (axis.outputs for axis in convolution.spatial_axes)
    return compute((convolution.batch, convolution.filters, *outputs), output)


def _fast_and_summed(tilings: Sequence[Tiling]) -> tuple[list[int], list[int]]:
    """Returns the numbers of the fast dimensions, and those of the summed ones."""
    fast = [k for k, tiling in enumerate(tilings) if tiling.is_fast]
    return fast, [k for k, tiling in enumerate(tilings) if tiling.is_summed]


def _multiply(convolution: Convolution, algorithms: Algorithms, data: Scope) -> tuple[Scope, list[Size]]:
    """Returns M (see `fast_scope`) and its shape; `data` is V."""
    tilings = convolution.tilings(algorithms)
    rank = len(tilings)
    _, summed = _fast_and_summed(tilings)
    products = [algorithm.products for algorithm in algorithms if algorithm]
    depth, filters_in_group = data.shape[1] // convolution.groups, convolution.filters // convolution.groups
    summed_taps = [tilings[k].axis.taps for k in summed]
    weights = Tensor("x1", (*products, convolution.filters, depth, *summed_taps), convolution.dtype)

    def element(n: Size, f: Size, *rest: Size) -> Body:
        positions, points = rest[:rank], rest[rank:]  # `points`: which product of each fast dimension

        def term(c: Size, *taps: Size) -> Body:
            tiles = list(positions)
            for k, tap in zip(summed, taps, strict=True):
                tiles[k] = tilings[k].tile_at_tap(tiles[k], tap)
            channel = c if convolution.groups == 1 else f // filters_in_group * depth + c
            return data[(n, channel, *tiles, *points)] * weights[(*points, f, c, *taps)]

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

