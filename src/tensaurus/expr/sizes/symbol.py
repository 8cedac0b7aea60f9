"""The atoms that stand for unknown integers: symbols, and iterators over a range.

    Symbol("n", 1)   any number from 1 on        Axis("i", n)   each of 0, ..., n - 1 in turn
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensaurus.expr.sizes.polynomial import Atom, Poly, Size, polynomial


@dataclass(frozen=True, repr=False)
class Symbol(Atom):
    """An unknown integer (an open size of a model, a size of a rule): at least `low`, at most `high`."""

    name: str
    low: int = 0
    high: Size | None = None
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.low, self.high)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.low, self.high)  # hashes of strings differ between processes

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name

    def interval(self) -> tuple[Size | None, Size | None]:
        return polynomial(self), None  # bounds are sizes over symbols: a symbol is its own lower bound


@dataclass(frozen=True, repr=False)
class Axis(Atom):
    """An iterator over range(extent); `expr.ir.scope.axis` gives each a name of its own."""

    name: str
    extent: Size
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.extent)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Axis, (self.name, self.extent)

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name

    def interval(self) -> tuple[Size | None, Size | None]:
        return 0, self.extent - 1

    def rebuild(self, change: Callable[[Size], Size]) -> Any:
        return Axis(self.name, change(self.extent)) if isinstance(self.extent, Poly) else self
