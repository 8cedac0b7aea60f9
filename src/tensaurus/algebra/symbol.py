"""The atoms that no size is computed into: unknown integers, and iterators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensaurus.algebra.poly import Atom, Poly, Size, polynomial


@dataclass(frozen=True, repr=False)
class Symbol(Atom):
    """An unknown integer (a dynamic dimension, a size of a rule): at least `low`, at most `high`."""

    name: str
    low: int = 0
    high: Size | None = None

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name

    def interval(self) -> tuple[Size | None, Size | None]:
        return polynomial(self), None


@dataclass(frozen=True, repr=False)
class Axis(Atom):
    """An iterator over range(extent)."""

    name: str
    extent: Size

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name

    def interval(self) -> tuple[Size | None, Size | None]:
        return 0, self.extent - 1

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return Axis(self.name, change(self.extent)) if isinstance(self.extent, Poly) else self
