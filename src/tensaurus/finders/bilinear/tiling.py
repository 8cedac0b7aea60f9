"""Describes one spatial dimension of a convolution, and how an algorithm divides its outputs into tiles.

    F(2, 3), 3 taps, stride 1, dilation 2      tile 0: outputs 0, 2 from elements 0, 2, 4, 6    (phase 0)
                                               tile 1: outputs 1, 3 from elements 1, 3, 5, 7    (phase 1)

Let a dimension have stride s and dilation d, and g = gcd(s, d). Tap k and output y = (d/g) y' + q read
element d ((s/g) y' + k) + s q - pad. So for each output phase q the convolution is one without dilation, in
steps of s/g, over every d-th element. A tile's number holds its phase, too: tile t is of phase t % (d/g).

A dimension is fast (an algorithm transforms its tiles), summed (it has no algorithm, and the product adds up
its taps) or plain (it has no algorithm and a single tap).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, TypeAlias

from tensaurus.expr.sizes.size import Size
from tensaurus.finders.bilinear.bilinear_algorithm import BilinearAlgorithm

__all__ = ["Algorithms", "Tiling", "ConvolutionAxis"]

Algorithms: TypeAlias = tuple[BilinearAlgorithm | None, ...]  # one for each dimension; None: no algorithm


@dataclass(frozen=True)
class ConvolutionAxis:
    """A spatial dimension: output y reads element y * stride + k * dilation - pad for k in range(taps)."""

    size: Any  # a number or a symbol
    taps: int
    outputs: Any
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    def over_size(self, size: Size) -> ConvolutionAxis:
        """Returns the dimension with another input size, and the same padding at the end."""
        span = (self.outputs - 1) * self.stride + 1 - self.size
        return replace(self, size=size, outputs=(size + span - 1) // self.stride + 1)

    @property
    def step(self) -> int:
        """The elements from one output of a phase to the next, of every `dilation`-th element: s/g."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def phase_count(self) -> int:
        """The number of phases of the output: d/g."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def taps_per_residue(self) -> int:
        """The number of taps k with the same k % step, rounded up."""
        return ceil(self.taps / self.step)


@dataclass(frozen=True)
class Tiling:
    """A dimension and its algorithm; without an algorithm a tile is one element or one output."""

    axis: ConvolutionAxis
    algorithm: BilinearAlgorithm | None

    def __post_init__(self) -> None:
        if self.algorithm is None:
            return
        needed = self.axis.taps, self.axis.step
        if (self.algorithm.taps, self.algorithm.step) != needed:
            raise ValueError(f"{self.algorithm} for {needed[0]} taps in steps of {needed[1]}")

    @property
    def is_fast(self) -> bool:
        return self.algorithm is not None

    @property
    def is_summed(self) -> bool:
        """Whether the product adds up the taps of this dimension."""
        return self.algorithm is None and self.axis.taps > 1

    @property
    def outputs(self) -> int:
        return self.algorithm.outputs if self.algorithm else 1

    @property
    def tiles(self) -> Any:
        """The number of tiles of the data.

        Fast: the tiles of all phases. Summed: the elements from the first to the last that a tap reads.
        Plain: the outputs.
        """
        axis = self.axis
        if self.is_fast:
            return axis.phase_count * ((axis.outputs - 1) // (axis.phase_count * self.outputs) + 1)
        if self.is_summed:
            return 1 + self.tile_at_tap(axis.outputs - 1, axis.taps - 1)
        return axis.outputs

    @property
    def product_positions(self) -> Any:
        """The number of positions where products are computed: tiles (fast), outputs (summed, plain)."""
        return self.tiles if self.is_fast else self.axis.outputs

    def element_index(self, tile: Size, position_in_tile: Size) -> Size:
        """Returns the index in the input of the element at this position in the tile."""
        axis = self.axis
        if not self.is_fast:  # a tile of one element: any that a tap reads (summed), or an output's (plain)
            return tile - axis.pad if self.is_summed else tile * axis.stride - axis.pad
        # tile t: phase q = t % (d/g), and the (t // (d/g))-th tile of this phase
        within = axis.step * self.outputs * (tile // axis.phase_count) + position_in_tile
        return axis.dilation * within + axis.stride * (tile % axis.phase_count) - axis.pad

    def tile_at_tap(self, output: Any, tap: Any) -> Any:
        """Returns the tile, which is one element, that an output of a summed dimension reads at a tap."""
        return output * self.axis.stride + tap * self.axis.dilation

    def tile_and_position(self, output: Size) -> tuple[Size, Size]:
        """Returns the tile of an output, and the output's position in the tile."""
        if not self.is_fast:
            return output, 0
        phase_count = self.axis.phase_count
        tile = output // (phase_count * self.outputs) * phase_count + output % phase_count
        return tile, output // phase_count % self.outputs
