"""Find combinations of three attributes, sizes or ranks that no instance of a rule has had (covering arrays).

A pointwise convolution of stride s before one of stride t is no convolution of stride s * t.  To see it, two
strides and a kernel size must be right at once, which single changes of an instance seldom achieve.  So each
attribute and size is a *factor* with a few *levels* (of a tuple of strides: all 1, all 2, mixed), and missing
combinations of three factors are tried one by one (Cohen et al., AETG, 1997).  Nothing tells which
combinations the types allow: those that no draw reaches are counted and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from tensaurus.graph.ir.node import Node

__all__ = ["Covering", "Factor", "Triple"]

Factor: TypeAlias = tuple[str, int | None]  # an attribute, or a variable's dimension counted from the last
Level: TypeAlias = str
# such as (("kernel_shape", None), "all more"), (("strides", None), "all 2"), (("x", -1), "3")
Triple: TypeAlias = tuple[tuple[Factor, Level], ...]
COMBINED_FACTORS = 3  # factors of a combination
COMMON_ELEMENTS = (1, 2, 3)  # levels that each element of a tuple always has
MAX_LEVEL = 3  # sizes from here on are one level


@dataclass
class Covering:
    """The combinations of levels that instances have had, and those that are missing.

    Each combination has at least two attributes, where there are as many: all draws vary sizes.  A tuple in
    `indexed_tuples`, of which the law reads single elements, has one factor for each element.  `levels` has a
    value for each level of a factor; combinations in `given_up` were reached by no draw.
    """

    indexed_tuples: frozenset[str] = frozenset()
    levels: dict[Factor, dict[Level, Any]] = field(default_factory=dict)
    _seen: set[Triple] = field(default_factory=set)
    given_up: set[Triple] = field(default_factory=set)

    def add(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> None:
        """Add an instance: its leaves by name, and its attributes as named by `flatten_attributes`."""
        row = self.row(nodes, values)
        for factor, (level, value) in row.items():
            usual = {level_of(n): n for n in COMMON_ELEMENTS} if "[" in factor[0] else {}
            self.levels.setdefault(factor, usual).setdefault(level, value)
        self._seen.update(self._triples({factor: [level] for factor, (level, _) in row.items()}))

    def row(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> dict[Factor, tuple[Level, Any]]:
        """Return the level of each factor in one instance, with the value that has this level."""
        every = dict(values)
        for name in self.indexed_tuples & values.keys():
            if isinstance(values[name], tuple):
                every |= {f"{name}[{place}]": item for place, item in enumerate(values[name])}
        row: dict[Factor, tuple[Level, Any]] = {(name, None): (level_of(v), v) for name, v in every.items()}
        for name, node in nodes.items():
            shape = node.tensor.shape
            for place, size in enumerate(shape, -len(shape)):
                row[name, place] = (str(min(size, MAX_LEVEL)) if isinstance(size, int) else "?", size)
        return row

    def contains(self, triple: Triple) -> bool:
        """Return whether an instance had the combination."""
        return triple in self._seen

    def missing_triples(self) -> list[Triple]:
        """Return the combinations of known levels that no instance had, and that were not given up."""
        known = self._seen | self.given_up
        return [triple for triple in self._all_triples() if triple not in known]

    def _all_triples(self) -> list[Triple]:
        varied = {factor: [*levels] for factor, levels in self.levels.items() if len(levels) > 1}
        return [*self._triples(varied)]

    @property
    def attribute_count(self) -> int:
        """The number of factors that are attributes."""
        return sum(place is None for _, place in self.levels)

    def _triples(self, levels: Mapping[Factor, list[Level]]) -> Iterator[Triple]:
        factors = sorted(levels, key=_order)
        least = min(2, self.attribute_count)
        for group in combinations(factors, min(COMBINED_FACTORS, len(factors))):
            if sum(place is None for _, place in group) >= least:
                yield from _product(group, levels)

    def __str__(self) -> str:
        """Return which share of the combinations instances had, "" where there are none."""
        every = self._all_triples()
        if not self.attribute_count or len(every) < 2:
            return ""
        count = sum(triple in self._seen for triple in every)
        return f"{100 * count // len(every)} % of triples of attributes and sizes"


def _product(group: tuple[Factor, ...], levels: Mapping[Factor, list[Level]]) -> Iterator[Triple]:
    if not group:
        yield ()
        return
    for level in levels[group[0]]:
        for rest in _product(group[1:], levels):
            yield ((group[0], level), *rest)


def _order(factor: Factor) -> tuple[str, int]:
    name, place = factor
    return name, 0 if place is None else place


def level_of(value: Any) -> Level:
    """Return one of few levels of a value; for a tuple, that of all elements or the order of elements.

    -3 is "below", 2 is "2", 0.5 is "part", 7 is "more", (7, 7) is "all more", and (1, 7) is "in order".
    """
    if isinstance(value, tuple):
        inner = {level_of(item) for item in value}
        if len(inner) == 1 and len({*value}) == 1:
            return f"all {inner.pop()}"
        return "none" if not value else "in order" if [*value] == sorted(value, key=repr) else "mixed"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float, np.number)) or hasattr(value, "numerator"):
        if value in (0, 1, 2):
            return str(value)
        return "below" if value < 0 else "more" if value > 1 else "part"
    return str(value)[:80]
