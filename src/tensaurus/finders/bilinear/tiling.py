"""Describes one dimension of a convolution, and how an algorithm tiles it.

Let a dimension have stride s and dilation d, and g = gcd(s, d). Tap k and output y = (d/g) y' + q read
element d ((s/g) y' + k) + s q - pad. So for each output phase q the convolution is one without dilation, in
steps of s/g, over every d-th element; phases are numbered as tiles. Along a direct dimension nothing is
transformed, and the product adds up the taps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, TypeAlias

from tensaurus.expr.sizes.size import Size
from tensaurus.finders.bilinear.bilinear_algorithm import BilinearAlgorithm

__all__ = ["Algorithms", "Tiling", "ConvolutionAxis"]

Algorithms: TypeAlias = tuple[BilinearAlgorithm | None, ...]  # one for each dimension, None for a direct sum


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
        """The elements of one output phase from one output to the next."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def phase_count(self) -> int:
        """The number of phases of the output."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def phase_taps(self) -> int:
        """The taps of one phase, which reads every `step`-th tap, rounded up."""
        return ceil(self.taps / self.step)


@dataclass(frozen=True)
class Tiling:
    """A dimension and its algorithm, None for a direct sum."""

    window: ConvolutionAxis
    algorithm: BilinearAlgorithm | None

    def __post_init__(self) -> None:
        if self.algorithm is None:
            return
        needed = self.window.taps, self.window.step
        if (self.algorithm.taps, self.algorithm.step) != needed:
            raise ValueError(f"{self.algorithm} for {needed[0]} taps in steps of {needed[1]}")

    @property
    def is_fast(self) -> bool:
        return self.algorithm is not None

    @property
    def is_summed(self) -> bool:
        """Whether the product adds up the taps of this dimension."""
        return self.algorithm is None and self.window.taps > 1

    @property
    def elements(self) -> int:
        """The number of elements that a tile reads."""
        return self.algorithm.elements if self.algorithm else 1

    @property
    def products(self) -> int:
        return self.algorithm.products if self.algorithm else 1

    @property
    def outputs(self) -> int:
        return self.algorithm.outputs if self.algorithm else 1

    @property
    def tiles(self) -> Any:
        """The number of tiles in all output phases; of a direct sum, the number of elements that it reads."""
        window = self.window
        if self.is_fast:
            return window.phase_count * ((window.outputs - 1) // (window.phase_count * self.outputs) + 1)
        if self.is_summed:
            return 1 + self.row_index(window.outputs - 1, window.taps - 1)
        return window.outputs

    @property
    def product_places(self) -> Any:
        """The number of places where the product is computed: tiles, or outputs for a direct sum."""
        return self.tiles if self.is_fast else self.window.outputs

    def element_index(self, tile: Size, place: Size) -> Size:
        """Returns the index of the element at this place of a tile."""
        window = self.window
        if not self.is_fast:
            return tile - window.pad if self.is_summed else tile * window.stride - window.pad
        within = window.step * self.outputs * (tile // window.phase_count) + place
        return window.dilation * within + window.stride * (tile % window.phase_count) - window.pad

    def row_index(self, output: Any, tap: Any) -> Any:
        """Returns the tile that an output reads at a tap, where the dimension is summed directly."""
        return output * self.window.stride + tap * self.window.dilation

    def tile_and_place(self, output: Size) -> tuple[Size, Size]:
        """Returns the tile of an output, and its place in the tile."""
        if not self.is_fast:
            return output, 0
        phase_count = self.window.phase_count
        tile = output // (phase_count * self.outputs) * phase_count + output % phase_count
        return tile, output // phase_count % self.outputs
