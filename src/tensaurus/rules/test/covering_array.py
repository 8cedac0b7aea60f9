"""Covering arrays: combinations of three attributes, sizes or ranks, each of which occurs in some instance.

A pointwise convolution of stride s before one of stride t is no convolution of stride s * t: to see it, two
strides and the size of a kernel must be right at once, which single changes of an instance seldom meet.  So
each attribute and size is a *factor* of a few *levels* (of a tuple of strides: all 1, all 2, mixed), and what
three factors have not yet been at once is asked for, one after the other (Cohen et al., AETG, 1997).  Which
combinations types allow is known to nobody: those that no draw reaches are counted, and told.
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
Triple: TypeAlias = tuple[tuple[Factor, Level], ...]
STRENGTH = 3
USUAL = (1, 2, 3)  # elements of a tuple
LARGE = 3  # sizes and numbers from here on are one level


@dataclass
class Covering:
    """What instances have had at once.  `add` each; `missing` are the combinations that none has had.

    Each has two attributes at least, where there are as many: sizes alone are varied by all draws.  Of the
    tuples that are `picked`, of which the law reads elements, each element is a factor.
    """

    picked: frozenset[str] = frozenset()
    levels: dict[Factor, dict[Level, Any]] = field(default_factory=dict)
    _seen: set[Triple] = field(default_factory=set)
    given_up: set[Triple] = field(default_factory=set)

    def add(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> None:
        """One more instance: its leaves by name, and its attributes (as `coverage.flat` names them)."""
        row = self.row(nodes, values)
        for factor, (level, value) in row.items():
            usual = {level_of(n): n for n in USUAL} if "[" in factor[0] else {}
            self.levels.setdefault(factor, usual).setdefault(level, value)
        self._seen.update(self._combined({factor: [level] for factor, (level, _) in row.items()}))

    def row(self, nodes: Mapping[str, Node], values: Mapping[str, Any]) -> dict[Factor, tuple[Level, Any]]:
        """The level of each factor in one instance, and the value that it stands for."""
        every = dict(values)
        for name in self.picked & values.keys():
            if isinstance(values[name], tuple):
                every |= {f"{name}[{place}]": item for place, item in enumerate(values[name])}
        row: dict[Factor, tuple[Level, Any]] = {(name, None): (level_of(v), v) for name, v in every.items()}
        for name, node in nodes.items():
            shape = node.tensor.shape
            for place, size in enumerate(shape, -len(shape)):
                row[name, place] = (str(min(size, LARGE)) if isinstance(size, int) else "?", size)
        return row

    def has(self, triple: Triple) -> bool:
        """Whether an instance had it."""
        return triple in self._seen

    def missing(self) -> list[Triple]:
        """Those of seen levels that no instance had, and that were not given up."""
        known = self._seen | self.given_up
        return [triple for triple in self._every() if triple not in known]

    def _every(self) -> list[Triple]:
        varied = {factor: [*levels] for factor, levels in self.levels.items() if len(levels) > 1}
        return [*self._combined(varied)]

    @property
    def attributes(self) -> int:
        """How many there are."""
        return sum(place is None for _, place in self.levels)

    def _combined(self, levels: Mapping[Factor, list[Level]]) -> Iterator[Triple]:
        factors = sorted(levels, key=_order)
        least = min(2, self.attributes)
        for group in combinations(factors, min(STRENGTH, len(factors))):
            if sum(place is None for _, place in group) >= least:
                yield from _product(group, levels)

    def __str__(self) -> str:
        """In how many of the combinations an instance is, "" where there are none to combine."""
        every = self._every()
        if not self.attributes or len(every) < 2:
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
    """Few for each attribute: 0, 1, 2, more, below zero; of a tuple the one of all, or what it is like."""
    if isinstance(value, tuple):
        inner = {level_of(item) for item in value}
        if len(inner) == 1 and len({*value}) == 1:
            return f"all {inner.pop()}"
        return "none" if not value else "in order" if [*value] == sorted(value, key=repr) else "mixed"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float, np.number)) or hasattr(value, "numerator"):
        return "below" if value < 0 else str(value) if value in (0, 1, 2) else "more" if value > 1 else "part"
    return str(value)[:80]
