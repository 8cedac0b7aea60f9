"""Indexes the e-nodes of an e-graph by kind and class, for the search of patterns.

A kind is an operator with its number of arguments ("Add/2").  Where e-nodes 3 and 5 are additions of class 3
and 8 is one of class 7, the rows of "Add/2" are {3: [3, 5], 7: [8]}.
"""

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
    _kinds_of_head: dict[tuple[Head, int], tuple[Kind, ...]] = field(default_factory=dict)
    _kinds_of_class: dict[int, list[Kind]] = field(default_factory=dict)
    _every: dict[Kind, CandidateRoots] = field(default_factory=dict)  # all e-nodes of a kind

    def update(self, graph: EGraph, changed: Iterable[int]) -> None:
        """Update the rows of the changed classes; the e-graph must be rebuilt."""
        members = graph.members
        for rows in self.rows.values():
            for eclass in [eclass for eclass in rows if eclass not in members]:  # merged into others
                del rows[eclass]
        heads, args, kinds_of_head = graph.heads, graph.args, self._kinds_of_head
        for eclass in changed:
            enodes_by_kind: dict[Kind, list[int]] = {}
            for enode in graph.live_members(eclass):
                key = (heads[enode], len(args[enode]))
                kinds = kinds_of_head.get(key)
                if kinds is None:
                    head, count = key
                    kinds = kinds_of_head[key] = (enode_kind(head.op, count),)
                    if head.op is ITEM:  # a pattern asks for this output, or for any
                        kinds = kinds_of_head[key] = (*kinds, enode_kind(ITEM, count, head.attrs[0][1]))
                for kind in kinds:
                    if kind in enodes_by_kind:
                        enodes_by_kind[kind].append(enode)
                    else:
                        enodes_by_kind[kind] = [enode]
            for kind, enodes in enodes_by_kind.items():
                self.rows[kind][eclass] = enodes
            self._kinds_of_class[eclass] = list(enodes_by_kind)
        self._every.clear()

    def enodes_of_kind(self, graph: EGraph, kind: Kind, among: Set[int] | None = None) -> CandidateRoots:
        """Return the e-nodes of a kind in the classes `among`, or in all, class by class."""
        rows = self.rows.get(kind, {})
        eclasses = sorted(rows if among is None else rows.keys() & among)
        enodes = [enode for eclass in eclasses for enode in rows[eclass]]
        return CandidateRoots(enodes, graph.args, self._kinds_of_class)

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
        rows = [self.rows.get(kind, {}) for kind in pattern.kinds]
        matches: list[Match] = []
        if all(rows):  # else an operator of the pattern is nowhere in the e-graph
            if among is None:
                among = self._every.get(pattern.root)
                if among is None:
                    among = self._every[pattern.root] = self.enodes_of_kind(graph, pattern.root)
            enodes = among.select_readers(pattern.below)
            pattern.search(enodes, rows, graph.args, graph.analyses, matches, most, deadline)
        return matches


class CandidateRoots:
    """E-nodes of one kind, as roots of matches, selected by the kinds in the classes of their arguments."""

    def __init__(
        self, nodes: list[int], args: Sequence[tuple[int, ...]], kinds_of_class: Mapping[int, list[Kind]]
    ):
        self.nodes, self._args, self._kinds_of_class = nodes, args, kinds_of_class
        self._readers: dict[tuple[int, Kind], list[int]] | None = None  # by (argument's place, kind in it)

    def select_readers(self, below: Sequence[tuple[int, Kind]]) -> list[int]:
        """Return a superset of the e-nodes that read all these kinds: those with the rarest (place, kind).

        `below` is that of the pattern: [(0, "Mul/2")] for Add(Mul(x, y), z).
        """
        if not below:
            return self.nodes
        if self._readers is None:
            self._readers = self._find_readers()
        return min((self._readers.get(pair, []) for pair in below), key=len)

    def _find_readers(self) -> dict[tuple[int, Kind], list[int]]:
        args, kinds_of_class = self._args, self._kinds_of_class
        places: list[dict[Kind, list[int]]] = []  # for each argument {kind in its class: readers}
        for enode in self.nodes:
            read = args[enode]
            while len(places) < len(read):
                places.append({})
            for readers, eclass in zip(places, read, strict=False):
                for kind in kinds_of_class.get(eclass, ()):
                    if kind in readers:
                        readers[kind].append(enode)
                    else:
                        readers[kind] = [enode]
        return {(place, kind): enodes for place, by in enumerate(places) for kind, enodes in by.items()}
