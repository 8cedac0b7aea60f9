"""What was varied among the instances on which a rule was tried, and what never was.

Two sizes that coincide in every instance, or an attribute with one value in all of them, are how a law that
is wrong looks right.  A rule may tie them itself (a sum wants equal shapes): what is said is only what was
seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

from tensaurus.graph.ir.node import Node

FEW = 4
Dimension: TypeAlias = tuple[str, int]  # a variable, and one of its dimensions counted from the last


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name, those of a rest each for itself."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        rest = isinstance(value, dict)
        flattened.update({f"{name}.{key}": inner for key, inner in value.items()} if rest else {name: value})
    return flattened


@dataclass
class Coverage:
    """`add` each instance; see `tied` and `unvaried`.

    ranks  of the variable of most dimensions, in each
    """

    count: int = 0
    ranks: set[int] = field(default_factory=set)
    # of two places: in how many instances both were there; 0 where they ever differed
    _together: dict[tuple[Dimension, Dimension], int] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    _varied: set[str] = field(default_factory=set)
    _negative: set[str] = field(default_factory=set)
    _types: set[str] = field(default_factory=set)

    def add(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> None:
        """One more: its leaves by name, and its attributes (as `flat` names them)."""
        self.count += 1
        self.ranks.add(max((node.tensor.rank for node in nodes.values()), default=0))
        self._types.update(node.tensor.dtype for node in nodes.values())
        sizes = {
            (name, place): size
            for name, node in nodes.items()
            for place, size in enumerate(node.tensor.shape, -node.tensor.rank)
        }
        for pair in combinations(sorted(sizes), 2):
            seen = self._together.setdefault(pair, 1 if sizes[pair[0]] == sizes[pair[1]] else 0)
            if seen:
                self._together[pair] = seen + 1 if sizes[pair[0]] == sizes[pair[1]] else 0
        for name, value in values.items():
            if name in self._values and self._values[name] != value:
                self._varied.add(name)
            self._values.setdefault(name, value)
            if any(number < 0 for number in _numbers(value)):
                self._negative.add(name)

    @property
    def tied(self) -> list[tuple[Dimension, Dimension]]:
        """Sizes that were equal wherever both were there, and that was not once or twice."""
        return sorted(pair for pair, count in self._together.items() if count > FEW)

    @property
    def constant(self) -> list[str]:
        """Attributes that had one value."""
        return sorted({*self._values} - self._varied)

    @property
    def unvaried(self) -> list[str]:
        """Attributes that had one value, or no number below zero."""
        numeric = {name for name, value in self._values.items() if any(True for _ in _numbers(value))}
        return sorted({*self.constant} | (numeric - self._negative))

    def __str__(self) -> str:
        """Short enough for the end of a rule's line, and what limits its use (`limits`)."""
        said = [f"{self.count} instances"]
        if self.ranks:
            said[0] += f" of ranks {min(self.ranks)}-{max(self.ranks)}"
        if len(self._types) > 1:
            said.append("element types " + " ".join(sorted(self._types)))
        if self.constant:
            said.append("never varied: " + " ".join(f"{name}={self._values[name]}" for name in self.constant))
        return ", ".join(said)


def _numbers(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple):
        return [n for item in value for n in _numbers(item)]
    return [] if value is None or isinstance(value, (str, bool)) else [value]
