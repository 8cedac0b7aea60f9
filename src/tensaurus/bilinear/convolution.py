"""Convolutions by fast algorithms along their dimensions, as nested scopes.

Along a dimension with stride s, dilation d and g = gcd(s, d), tap k = (s/g) k' + p and output
y = (d/g) y' + q meet at element (s d / g)(y' + k') + s q + d p - pad: so it is a sum over input phases p of
convolutions without stride and dilation, one for each output phase q.  The phases p count as channels, those
of outputs as tiles.
Along a direct dimension nothing is transformed, and the product adds up its taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod
from typing import Any

from tensaurus.algebra.expr import Body, Scope, Table, Tensor, compute, total
from tensaurus.algebra.size import Size
from tensaurus.bilinear.algorithm import Algorithm, Matrix

__all__ = ["Convolution", "Window", "fast", "transformed"]


@dataclass(frozen=True)
class Window:
    """One spatial dimension: output y reads element y * stride + k * dilation - pad for k in range(taps)."""

    size: int
    taps: int
    outputs: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0


@dataclass(frozen=True)
class Convolution:
    """x [batch, channels, sizes...], w [filters, channels / groups, taps...]; zero beyond the edges."""

    batch: int
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


def transformed(of: Convolution, algorithms: Sequence[Algorithm | None]) -> Scope:
    """U [products..., filters, channels / groups * phases, direct taps...] of w, which is x0.

    An algorithm for each dimension, None where it is direct.
    """
    lines = _lines(of, algorithms)
    along = [line for line in lines if line.fast]
    phases = prod(line.phases for line in along)
    direct = tuple(line.window.taps for line in lines if line.summed)

    def tap(f: Size, c: Size, *rest: Size) -> Body:
        """w at taps of a sub-kernel, where it has that many, else zero."""
        inner, outer = list(rest[: len(along)]), list(rest[len(along) :])
        left, spot, edge = c % phases, [], False
        for line in lines:
            if line.fast:
                left, phase = left // line.phases, left % line.phases
                spot.append(line.phases * inner.pop(0) + phase)
                edge = edge or line.phases * line.taps > line.window.taps
            else:
                spot.append(outer.pop(0) if line.summed else 0)
        place = (f, c // phases, *spot)
        return of.w.padded(0)[place] if edge else of.w[place]

    depth = of.channels // of.groups * phases
    shape = [of.filters, depth, *(line.taps for line in along), *direct]
    found = compute(shape, tap)
    for place, line in enumerate(along):
        shape[2 + place] = line.products
        found = _applied(line.algorithm.weights, found, 2 + place, shape)  # type: ignore[union-attr]
    last = len(along)

    def moved(*place: Size) -> Body:
        return found[(*place[last : last + 2], *place[:last], *place[last + 2 :])]

    return compute((*shape[2 : 2 + last], of.filters, depth, *direct), moved)


def fast(of: Convolution, algorithms: Sequence[Algorithm | None]) -> Scope:
    """The convolution of x, which is x0, by its transformed weights, x1; its bias is x2.

    D  [n, c, tiles..., points...]     x, tile by tile
    V                                  BT applied to it, one dimension after the other
    M  [n, f, tiles..., products...]   sum[c] V * U
    Z  [n, f, tiles..., outputs...]    AT applied to it, likewise
    """
    lines = _lines(of, algorithms)
    along = [line for line in lines if line.fast]
    rank, phases = len(lines), prod(line.phases for line in along)

    def element(n: Size, c: Size, *rest: Size) -> Body:
        tiles, points = rest[:rank], list(rest[rank:])
        left, spot = c % phases, []
        for line, tile in zip(lines, tiles, strict=True):
            if line.fast:
                left, phase = left // line.phases, left % line.phases
                spot.append(line.read(tile, points.pop(0), phase))
            else:
                spot.append(line.read(tile, 0, 0))
        return of.x.padded(0)[(n, c // phases, *spot)]

    shape: list[Size] = [of.batch, of.channels * phases, *(line.tiles for line in lines)]
    shape += [line.products for line in along]
    found = compute(shape, element)
    for place, line in enumerate(along, 2 + rank):
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


def _product(of: Convolution, lines: Sequence[_Line], data: Scope) -> tuple[Scope, list[Size]]:
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

    places = [line.tiles if line.fast else line.window.outputs for line in lines]
    shape: list[Size] = [of.batch, of.filters, *places, *products]
    return compute(shape, element), shape


def _applied(matrix: Matrix, source: Scope, place: int, shape: Sequence[Size]) -> Scope:
    """The matrix by the source, along this one of its dimensions; the result has this shape."""
    numbers = Table((len(matrix), len(matrix[0])), tuple(n for row in matrix for n in row))

    def element(*at: Size) -> Body:
        def term(k: Size) -> Body:
            return numbers[at[place], k] * source[(*at[:place], k, *at[place + 1 :])]

        return total((len(matrix[0]),), term)

    return compute(shape, element)


@dataclass(frozen=True)
class _Line:
    """A dimension and its algorithm, None where it is direct."""

    window: Window
    algorithm: Algorithm | None

    @property
    def fast(self) -> bool:
        return self.algorithm is not None

    @property
    def summed(self) -> bool:
        """Whether the product adds up its taps."""
        return self.algorithm is None and self.window.taps > 1

    @property
    def phases(self) -> int:
        """Of its input."""
        return self.window.stride // gcd(self.window.stride, self.window.dilation) if self.fast else 1

    @property
    def turns(self) -> int:
        """Phases of its output."""
        return self.window.dilation // gcd(self.window.stride, self.window.dilation)

    @property
    def taps(self) -> int:
        """Of a sub-kernel."""
        return ceil(self.window.taps / self.phases)

    @property
    def products(self) -> int:
        return self.algorithm.products if self.algorithm else 1

    @property
    def outputs(self) -> int:
        return self.algorithm.outputs if self.algorithm else 1

    @property
    def tiles(self) -> int:
        """Of all output phases; rows that a direct dimension reads."""
        own = self.window
        if self.fast:
            return self.turns * ceil(ceil(own.outputs / self.turns) / self.outputs)
        if self.summed:
            return 1 + int(self.row(own.outputs - 1, own.taps - 1))
        return own.outputs

    def read(self, tile: Size, point: Size, phase: Size) -> Size:
        """The element that this one of a tile is."""
        own = self.window
        if not self.fast:
            return tile - own.pad if self.summed else tile * own.stride - own.pad
        step = own.stride * self.turns
        return (
            step * (self.outputs * (tile // self.turns) + point)
            + own.stride * (tile % self.turns)
            + own.dilation * phase
            - own.pad
        )

    def row(self, output: Any, tap: Any) -> Any:
        """Of a direct dimension, for an output and a tap."""
        return output * self.window.stride + tap * self.window.dilation

    def spot(self, output: Size) -> tuple[Size, Size]:
        """The tile of an output, and its place there."""
        if not self.fast:
            return output, 0
        step = self.turns * self.outputs
        return output // step * self.turns + output % self.turns, output // self.turns % self.outputs


def _lines(of: Convolution, algorithms: Sequence[Algorithm | None]) -> list[_Line]:
    lines = [_Line(*pair) for pair in zip(of.windows, algorithms, strict=True)]
    for line in lines:
        if line.algorithm and line.algorithm.taps != line.taps:
            raise ValueError(f"{line.algorithm} for sub-kernels of {line.taps} taps")
    return lines
