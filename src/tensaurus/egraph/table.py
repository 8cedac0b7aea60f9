"""The e-nodes of an e-graph as patterns search them: by class and kind, as of one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tensaurus.egraph.egraph import EGraph, Kind, kind
from tensaurus.egraph.pattern import Match, Pattern
from tensaurus.graph.node import ITEM

__all__ = ["Table"]


@dataclass
class Table:
    """E-nodes of each class by kind, and the classes that have a kind."""

    rows: dict[int, dict[Kind, list[int]]] = field(default_factory=dict)
    having: dict[Kind, set[int]] = field(default_factory=lambda: defaultdict(set))

    def update(self, graph: EGraph, changed: Iterable[int]) -> None:
        """Bring the rows of classes up to date; the e-graph must be rebuilt."""
        heads = graph.heads
        for group in changed:
            row: dict[Kind, list[int]] = {}
            for number in graph.live(group):
                head = heads[number]
                place = head.attrs[0][1] if head.op is ITEM else None
                row.setdefault(kind(head.op, len(graph.args[number]), place), []).append(number)
            self.rows[group] = row
            for found in row:
                self.having[found].add(group)

    def search(self, graph: EGraph, pattern: Pattern, among: set[int] | None = None) -> list[Match]:
        """Where the pattern matches, its root in the classes `among` or anywhere, class by class."""
        groups = self.having[pattern.root]
        stale = [group for group in groups if group not in graph.members]  # merged into others
        groups.difference_update(stale)
        for group in stale:
            self.rows.pop(group, None)
        found: list[Match] = []
        for group in sorted(groups if among is None else groups & among):
            pattern.search(group, self.rows, graph.args, graph.facts, found)
        return found
