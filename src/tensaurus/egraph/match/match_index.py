"""Indexes the e-nodes of an e-graph by kind and class, for the search of patterns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head, Kind, enode_kind
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.graph.ir.node import ITEM

__all__ = ["CandidateRoots", "MatchIndex"]


@dataclass
class MatchIndex:
    """Holds the e-nodes of each kind by class ({kind: {class: e-nodes}}), as of the last `update`."""

    rows: dict[Kind, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    _kinds: dict[tuple[Head, int], tuple[Kind, ...]] = field(default_factory=dict)
    _kinds_of: dict[int, list[Kind]] = field(default_factory=dict)  # the kinds in each class
    _every: dict[Kind, CandidateRoots] = field(default_factory=dict)  # all e-nodes of a kind

    def update(self, graph: EGraph, changed: Iterable[int]) -> None:
        """Update the rows of the changed classes; the e-graph must be rebuilt."""
        members = graph.members
        for rows in self.rows.values():
            for group in [group for group in rows if group not in members]:  # merged into others
                del rows[group]
        heads, args, kinds = graph.heads, graph.args, self._kinds
        for group in changed:
            row: dict[Kind, list[int]] = {}
            for number in graph.live_members(group):
                key = (heads[number], len(args[number]))
                known = kinds.get(key)
                if known is None:  # the kinds of e-nodes of this head
                    head, count = key
                    known = kinds[key] = (enode_kind(head.op, count),)
                    if head.op is ITEM:  # a pattern asks for this output, or for any
                        known = kinds[key] = (*known, enode_kind(ITEM, count, head.attrs[0][1]))
                for wanted in known:
                    if wanted in row:
                        row[wanted].append(number)
                    else:
                        row[wanted] = [number]
            for wanted, numbers in row.items():
                self.rows[wanted][group] = numbers
            self._kinds_of[group] = list(row)
        self._every.clear()

    def enodes_of_kind(self, graph: EGraph, wanted: Kind, among: Set[int] | None = None) -> CandidateRoots:
        """Return the e-nodes of a kind in the classes `among`, or in all, class by class."""
        rows = self.rows.get(wanted, {})
        groups = sorted(rows if among is None else rows.keys() & among)
        nodes = [number for group in groups for number in rows[group]]
        return CandidateRoots(nodes, graph.args, self._kinds_of)

    def search(
        self,
        graph: EGraph,
        pattern: Pattern,
        among: CandidateRoots | None = None,
        most: float = inf,
        deadline: float = inf,
    ) -> list[Match]:
        """Return the matches of a pattern whose roots are `among` these e-nodes, or any.

        At most the first `most` matches are returned, and only those found before `deadline` (of
        `time.monotonic`).
        """
        rows = [self.rows.get(wanted, {}) for wanted in pattern.kinds]
        matches: list[Match] = []
        if all(rows):  # else an operator of the pattern is nowhere in the e-graph
            if among is None:
                among = self._every.get(pattern.root)
                if among is None:
                    among = self._every[pattern.root] = self.enodes_of_kind(graph, pattern.root)
            nodes = among.reading(pattern.below)
            pattern.search(nodes, rows, graph.args, graph.analyses, matches, most, deadline)
        return matches


class CandidateRoots:
    """E-nodes of one kind, as roots of matches, selected by the kinds in the classes of their arguments."""

    def __init__(self, nodes: list[int], args: Sequence[tuple[int, ...]], kinds: Mapping[int, list[Kind]]):
        self.nodes, self._args, self._kinds = nodes, args, kinds
        self._readers_by_argument: dict[tuple[int, Kind], list[int]] | None = None

    def reading(self, below: Sequence[tuple[int, Kind]]) -> list[int]:
        """Return a superset of the e-nodes that read all these kinds: those with the rarest (place, kind).

        `below` is that of the pattern: [(0, "Mul/2")] for Add(Mul(x, y), z).
        """
        if not below:
            return self.nodes
        if self._readers_by_argument is None:
            self._readers_by_argument = self._sort_by_argument()
        return min((self._readers_by_argument.get(pair, []) for pair in below), key=len)

    def _sort_by_argument(self) -> dict[tuple[int, Kind], list[int]]:
        args, kinds = self._args, self._kinds
        places: list[dict[Kind, list[int]]] = []  # for each argument {kind in its class: readers}
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
