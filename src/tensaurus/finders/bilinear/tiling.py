"""One dimension of a convolution, and how an algorithm tiles it.

Along a dimension with stride s, dilation d and g = gcd(s, d), tap k and output y = (d/g) y' + q meet at
element d ((s/g) y' + k) + s q - pad: a convolution without dilation in steps of s/g for each output phase q,
of every d-th element.  These phases count as tiles.  Along a direct dimension nothing is transformed, and the
product adds up its taps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, TypeAlias

from tensaurus.expr.sizes.size import Size
from tensaurus.finders.bilinear.bilinear_algorithm import Algorithm

__all__ = ["Algorithms", "Tiling", "Window"]

Algorithms: TypeAlias = tuple[Algorithm | None, ...]  # of each dimension, None where it is direct


@dataclass(frozen=True)
class Window:
    """One spatial dimension: output y reads element y * stride + k * dilation - pad for k in range(taps)."""

    size: Any  # a number, or a symbol
    taps: int
    outputs: Any
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    def over(self, size: Size) -> Window:
        """The same of other inputs; as many outputs beyond the edges as here."""
        span = (self.outputs - 1) * self.stride + 1 - self.size
        return replace(self, size=size, outputs=(size + span - 1) // self.stride + 1)

    @property
    def step(self) -> int:
        """Elements of one output phase from one output to the next."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def turns(self) -> int:
        """Phases of the output."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def reach(self) -> int:
        """Taps, at most, that are as many elements apart as outputs are."""
        return ceil(self.taps / self.step)


@dataclass(frozen=True)
class Tiling:
    """A dimension and its algorithm, None where it is direct."""

    window: Window
    algorithm: Algorithm | None

    def __post_init__(self) -> None:
        if self.algorithm is None:
            return
        own = self.window.taps, self.window.step
        if (self.algorithm.taps, self.algorithm.step) != own:
            raise ValueError(f"{self.algorithm} for {own[0]} taps in steps of {own[1]}")

    @property
    def fast(self) -> bool:
        return self.algorithm is not None

    @property
    def summed(self) -> bool:
        """Whether the product adds up its taps."""
        return self.algorithm is None and self.window.taps > 1

    @property
    def elements(self) -> int:
        """That a tile reads."""
        return self.algorithm.elements if self.algorithm else 1

    @property
    def products(self) -> int:
        return self.algorithm.products if self.algorithm else 1

    @property
    def outputs(self) -> int:
        return self.algorithm.outputs if self.algorithm else 1

    @property
    def tiles(self) -> Any:
        """Of all output phases; rows that a direct dimension reads."""
        own = self.window
        if self.fast:
            return own.turns * ((own.outputs - 1) // (own.turns * self.outputs) + 1)
        if self.summed:
            return 1 + self.row(own.outputs - 1, own.taps - 1)
        return own.outputs

    @property
    def places(self) -> Any:
        """Where the product is computed: tiles, or outputs of a direct dimension."""
        return self.tiles if self.fast else self.window.outputs

    def read(self, tile: Size, place: Size) -> Size:
        """The element that is at this place of a tile."""
        own = self.window
        if not self.fast:
            return tile - own.pad if self.summed else tile * own.stride - own.pad
        within = own.step * self.outputs * (tile // own.turns) + place
        return own.dilation * within + own.stride * (tile % own.turns) - own.pad

    def row(self, output: Any, tap: Any) -> Any:
        """Of a direct dimension, for an output and a tap."""
        return output * self.window.stride + tap * self.window.dilation

    def spot(self, output: Size) -> tuple[Size, Size]:
        """The tile of an output, and its place there."""
        if not self.fast:
            return output, 0
        turns = self.window.turns
        tile = output // (turns * self.outputs) * turns + output % turns
        return tile, output // turns % self.outputs
