"""Stacks tensors of one rank into one, each with zeros up to the largest (PET, sections 4.2 and 8.3.3).

    x0 float32[192, 768, 1, 1], x1 float32[160, 768, 1, 1]   ->   float32[384, 768, 1, 1], 32 filters of 0

So products of similar shapes become one product, of which some results are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensaurus.expr.ir.scope import Body, Const, Read, Scope, Tensor, axis, where
from tensaurus.expr.sizes.size import Size, polynomial

__all__ = ["Stacking"]


@dataclass(frozen=True)
class Stacking:
    """Tensors one after another along a dimension.

    dimension  of the result
    is_new     whether that is a new dimension, in which each tensor has one place
    """

    dimension: int
    is_new: bool = False

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the shape of the result for sources of these shapes."""
        largest = _largest(shapes)
        part = 1 if self.is_new else largest.pop(self.dimension)
        return (*largest[: self.dimension], part * len(shapes), *largest[self.dimension :])

    def scope(self, sources: Sequence[Tensor]) -> Scope:
        """Return the result as an expression of the sources, whose sizes are numbers."""
        shapes = [[n for n in source.shape if isinstance(n, int)] for source in sources]
        largest = _largest(shapes)
        axes = tuple(axis(n) for n in self.shape(shapes))
        part = 1 if self.is_new else largest[self.dimension]
        indices = [polynomial(a) for a in axes]
        along = indices.pop(self.dimension)
        body: Body | None = None
        for k, source in reversed(list(enumerate(sources))):
            own: list[Size] = [*indices]
            if not self.is_new:
                own.insert(self.dimension, along - k * part)
            covered = shapes[k] == largest
            element = Read(source, tuple(own), None if covered else Const(0))
            body = element if body is None else where(k * part + part - 1 - along, element, body)
        assert body is not None
        return Scope(axes, body)

    def __str__(self) -> str:
        return f"stacked along {'a new ' if self.is_new else ''}dimension {self.dimension}"


def _largest(shapes: Sequence[Sequence[int]]) -> list[int]:
    return [max(sizes) for sizes in zip(*shapes, strict=True)]
