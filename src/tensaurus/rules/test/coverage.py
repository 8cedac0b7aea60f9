"""Record what was varied among the instances of a rule, and what never was.

A wrong law looks right where two sizes coincide in every instance, or an attribute has one value in all of
them.  A rule may require that itself (a sum needs equal shapes): the record says only what was seen.  Its
text ends the evidence of a tested rule: "40 instances of ranks 1-3, never varied: k=0".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

from tensaurus.graph.ir.node import Node

FEWEST_COINCIDENCES = 4  # two sizes that were equal in fewer instances may be equal by chance
Dimension: TypeAlias = tuple[str, int]  # a variable, and one of its dimensions counted from the last


def flatten_attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes by name, those of a rest under `rest.name`."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        rest = isinstance(value, dict)
        flattened.update({f"{name}.{key}": inner for key, inner in value.items()} if rest else {name: value})
    return flattened


@dataclass
class Coverage:
    """What was varied among the instances that were added; `ranks` holds the largest rank of each."""

    count: int = 0
    ranks: set[int] = field(default_factory=set)
    # pairs of dimensions: in how many instances their sizes were equal; those that differed in some instance
    _equal_sizes: Counter[tuple[Dimension, Dimension]] = field(default_factory=Counter)
    _different_sizes: set[tuple[Dimension, Dimension]] = field(default_factory=set)
    _values: dict[str, Any] = field(default_factory=dict)  # by attribute its first value
    _varied: set[str] = field(default_factory=set)  # attributes that had another value, too
    _negative: set[str] = field(default_factory=set)  # attributes in which a number was negative
    _types: set[str] = field(default_factory=set)

    def add(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> None:
        """Add an instance: its leaves by name, and its attributes (as named by `flatten_attributes`)."""
        self.count += 1
        self.ranks.add(max((node.tensor.rank for node in nodes.values()), default=0))
        self._types.update(node.tensor.dtype for node in nodes.values())
        sizes = {
            (name, place): size
            for name, node in nodes.items()
            for place, size in enumerate(node.tensor.shape, -node.tensor.rank)
        }
        for pair in combinations(sorted(sizes), 2):
            if sizes[pair[0]] == sizes[pair[1]]:
                self._equal_sizes[pair] += 1
            else:
                self._different_sizes.add(pair)
        for name, value in values.items():
            if name in self._values and self._values[name] != value:
                self._varied.add(name)
            self._values.setdefault(name, value)
            if any(number < 0 for number in _numbers(value)):
                self._negative.add(name)

    @property
    def tied_sizes(self) -> list[tuple[Dimension, Dimension]]:
        """Pairs of dimensions that had equal sizes in all of several instances."""
        often = {pair for pair, count in self._equal_sizes.items() if count >= FEWEST_COINCIDENCES}
        return sorted(often - self._different_sizes)

    @property
    def constant_attributes(self) -> list[str]:
        """Attributes that had one value."""
        return sorted({*self._values} - self._varied)

    @property
    def unvaried_attributes(self) -> list[str]:
        """Attributes that had one value, or no negative number."""
        numeric = {name for name, value in self._values.items() if any(True for _ in _numbers(value))}
        return sorted({*self.constant_attributes} | (numeric - self._negative))

    def __str__(self) -> str:
        """Return the text at the end of a rule's line; `evidence_limits` reads the limits from it."""
        parts = [f"{self.count} instances"]
        if self.ranks:
            parts[0] += f" of ranks {min(self.ranks)}-{max(self.ranks)}"
        if len(self._types) > 1:
            parts.append("element types " + " ".join(sorted(self._types)))
        if self.constant_attributes:
            values = (f"{name}={self._values[name]}" for name in self.constant_attributes)
            parts.append("never varied: " + " ".join(values))
        return ", ".join(parts)


def _numbers(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple):
        return [n for item in value for n in _numbers(item)]
    return [] if value is None or isinstance(value, (str, bool)) else [value]
