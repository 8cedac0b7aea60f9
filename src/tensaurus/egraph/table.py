"""The e-nodes of an e-graph as patterns search them: by kind and class, as of one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from tensaurus.egraph.egraph import EGraph, Head, Kind, kind
from tensaurus.egraph.pattern import Match, Pattern
from tensaurus.graph.node import ITEM

__all__ = ["Table"]


@dataclass
class Table:
    """E-nodes of each kind, by class."""

    rows: dict[Kind, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    _kinds: dict[tuple[Head, int], Kind] = field(default_factory=dict)

    def update(self, graph: EGraph, changed: Iterable[int]) -> None:
        """Bring the rows of classes up to date; the e-graph must be rebuilt."""
        members = graph.members
        for rows in self.rows.values():
            for group in [group for group in rows if group not in members]:  # merged into others
                del rows[group]
        heads, args, kinds = graph.heads, graph.args, self._kinds
        for group in changed:
            row: dict[Kind, list[int]] = {}
            for number in graph.live(group):
                key = (heads[number], len(args[number]))
                found = kinds.get(key)
                if found is None:
                    head, count = key
                    place = head.attrs[0][1] if head.op is ITEM else None
                    found = kinds[key] = kind(head.op, count, place)
                if found in row:
                    row[found].append(number)
                else:
                    row[found] = [number]
            for found, numbers in row.items():
                self.rows[found][group] = numbers

    def having(self, wanted: Kind, among: Set[int] | None = None) -> list[int]:
        """The classes that have e-nodes of a kind, of some classes or of all, in order."""
        rows = self.rows.get(wanted, {})
        return sorted(rows if among is None else rows.keys() & among)

    def search(self, graph: EGraph, pattern: Pattern, groups: Sequence[int] | None = None) -> list[Match]:
        """Where the pattern matches, its root in these classes, which have its kind, or in any."""
        rows = [self.rows.get(wanted, {}) for wanted in pattern.kinds]
        found: list[Match] = []
        if all(rows):
            among = self.having(pattern.root) if groups is None else groups
            pattern.search(among, rows, graph.args, graph.facts, found)
        return found
