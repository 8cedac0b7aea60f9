"""The e-nodes of an e-graph as patterns search them: by kind and class, as of one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head, Kind, kind
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.graph.ir.node import ITEM

__all__ = ["Candidates", "Table"]


@dataclass
class Table:
    """E-nodes of each kind, by class."""

    rows: dict[Kind, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    _kinds: dict[tuple[Head, int], tuple[Kind, ...]] = field(default_factory=dict)
    _kinds_of: dict[int, list[Kind]] = field(default_factory=dict)  # of each class
    _every: dict[Kind, Candidates] = field(default_factory=dict)

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
                asked = kinds.get(key)
                if asked is None:
                    head, count = key
                    asked = kinds[key] = (kind(head.op, count),)
                    if head.op is ITEM:  # a rule asks for this output, or for any
                        asked = kinds[key] = (*asked, kind(ITEM, count, head.attrs[0][1]))
                for wanted in asked:
                    if wanted in row:
                        row[wanted].append(number)
                    else:
                        row[wanted] = [number]
            for wanted, numbers in row.items():
                self.rows[wanted][group] = numbers
            self._kinds_of[group] = list(row)
        self._every.clear()

    def having(self, graph: EGraph, wanted: Kind, among: Set[int] | None = None) -> Candidates:
        """The e-nodes of a kind, those of some classes or all, class by class."""
        rows = self.rows.get(wanted, {})
        groups = sorted(rows if among is None else rows.keys() & among)
        nodes = [number for group in groups for number in rows[group]]
        return Candidates(nodes, graph.args, self._kinds_of)

    def search(
        self,
        graph: EGraph,
        pattern: Pattern,
        among: Candidates | None = None,
        most: float = inf,
        deadline: float = inf,
    ) -> list[Match]:
        """Where the pattern matches, its root one of these e-nodes of its kind, or any.

        The first so many matches, and those that are seen by `deadline` of `time.monotonic`.
        """
        rows = [self.rows.get(wanted, {}) for wanted in pattern.kinds]
        matches: list[Match] = []
        if all(rows):
            if among is None:
                among = self._every.get(pattern.root)
                if among is None:
                    among = self._every[pattern.root] = self.having(graph, pattern.root)
            nodes = among.over(pattern.below)
            pattern.search(nodes, rows, graph.args, graph.analyses, matches, most, deadline)
        return matches


class Candidates:
    """E-nodes of one kind that patterns may begin with, by what their arguments' classes have."""

    def __init__(self, nodes: list[int], args: Sequence[tuple[int, ...]], kinds: Mapping[int, list[Kind]]):
        self.nodes, self._args, self._kinds = nodes, args, kinds
        self._by: dict[tuple[int, Kind], list[int]] | None = None

    def over(self, below: Sequence[tuple[int, Kind]]) -> list[int]:
        """Those that read e-nodes of a kind at a place, by the rarest of the pairs."""
        if not below:
            return self.nodes
        if self._by is None:
            self._by = self._sorted()
        return min((self._by.get(pair, []) for pair in below), key=len)

    def _sorted(self) -> dict[tuple[int, Kind], list[int]]:
        args, kinds = self._args, self._kinds
        places: list[dict[Kind, list[int]]] = []
        for number in self.nodes:
            read = args[number]
            while len(places) < len(read):
                places.append({})
            for readers, group in zip(places, read, strict=False):
                for below in kinds.get(group, ()):
                    if below in readers:
                        readers[below].append(number)
                    else:
                        readers[below] = [number]
        return {(place, below): nodes for place, by in enumerate(places) for below, nodes in by.items()}
