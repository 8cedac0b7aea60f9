"""Keeping cycles out of what is extracted (TENSAT, section 5.2), to compare with: our solver needs no filter.

A rewrite that merges an e-node with a class that it needs makes the e-graph cyclic, although no program is. A
filtered e-node counts as removed, as in the paper.

The youngest e-node of a cycle is never the oldest of its class: what reads the class was younger than the
member that it was built over. So the oldest e-nodes of all classes, an acyclic program for each, stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.match.pattern import Match
from tensaurus.egraph.match.plan import Plan
from tensaurus.egraph.match.saturate import Exploration, RuleEntry, Runner


def filter_cycles(graph: EGraph) -> int:
    """Remove e-nodes until those left have no cycle; how many.  The e-graph must be rebuilt.

    Depth first through the e-nodes that are left; on an edge back to a class that is being visited, the
    youngest e-node of the cycle is removed, and the search goes on from its class.
    """
    alive = graph.is_live
    done: set[int] = set()
    count = 0
    for start in list(graph.classes):
        if start in done:
            continue
        place: dict[int, int] = {start: 0}  # classes being visited, by their place on the path
        path: list[tuple[int, int, list[int]]] = [(start, -1, _todo(graph, start))]
        # each entry: a class, the e-node that is followed, and the (e-node, class) pairs still to follow
        while path:
            group, _, todo = path[-1]
            if not todo:
                path.pop()
                del place[group]
                done.add(group)
                continue
            below, number = todo.pop(), todo.pop()
            if not alive[number] or below in done:
                continue
            path[-1] = (group, number, todo)
            if below not in place:
                place[below] = len(path)
                path.append((below, -1, _todo(graph, below)))
                continue
            cycle = range(place[below], len(path))
            worst = max(cycle, key=lambda k: path[k][1])
            youngest = path[worst][1]
            alive[youngest] = False
            del graph.hashcons[graph.heads[youngest], *graph.args[youngest]]
            graph.dirty_classes.add(path[worst][0])
            count += 1
            for group, _, _ in path[worst + 1 :]:  # they may be reached again by another way
                del place[group]
            del path[worst + 1 :]
    return count


def _todo(graph: EGraph, group: int) -> list[int]:
    """E-nodes of the class, each with every class that it reads: flat pairs."""
    pairs: list[int] = []
    for number in graph.live_members(group):
        for below in graph.args[number]:
            if below != ABSENT:
                pairs += (number, below)
    return pairs


def reaches(graph: EGraph, above: Iterable[int], below: set[int]) -> bool:
    """Whether one of the classes `below` is among `above` or what they need."""
    stack = [graph.find(group) for group in above]
    seen = set(stack)
    while stack:
        group = stack.pop()
        if group in below:
            return True
        for number in graph.members[group]:
            if graph.is_live[number]:
                for read in graph.args[number]:
                    if read != ABSENT and (read := graph.find(read)) not in seen:
                        seen.add(read)
                        stack.append(read)
    return False


class Filter(Protocol):
    """Says what would close a cycle."""

    eager: bool  # whether it must see every union before the next match, not the round's together

    def begin(self, graph: EGraph) -> None:
        """A round begins; the e-graph is rebuilt and has no cycle."""

    def allows(self, graph: EGraph, roots: Sequence[int], reads: Iterable[int]) -> bool:
        """Whether e-nodes over the classes `reads` may join the classes of `roots`."""


class Vanilla:
    """Looks through the e-graph before every insertion; what it lets pass makes no cycle, merging may."""

    eager = True

    def begin(self, graph: EGraph) -> None:
        pass

    def allows(self, graph: EGraph, roots: Sequence[int], reads: Iterable[int]) -> bool:
        return not reaches(graph, reads, {graph.find(root) for root in roots})


class Efficient:
    """Asks the classes that were below each class when the round began; the rest is removed at its end."""

    eager = False

    def __init__(self) -> None:
        self._below: dict[int, int] = {}  # of each class, a bit for each class that it needs

    def begin(self, graph: EGraph) -> None:
        """Classes below each class, arguments first: after filtering there is no cycle."""
        below: dict[int, int] = {}
        for start in graph.classes:
            stack = [start]
            while stack:
                group = stack[-1]
                if group in below:
                    stack.pop()
                    continue
                reads = {
                    read
                    for number in graph.live_members(group)
                    for read in graph.args[number]
                    if read != ABSENT
                }
                missing = [read for read in reads if read not in below]
                if missing:
                    stack.extend(missing)
                    continue
                bits = 1 << group
                for read in reads:
                    bits |= below[read]
                below[group] = bits
                stack.pop()
        self._below = below

    def allows(self, graph: EGraph, roots: Sequence[int], reads: Iterable[int]) -> bool:
        mask = 0
        for root in roots:
            mask |= 1 << graph.find(root)
        return not any(self._below.get(graph.find(read), 0) & mask for read in reads)


class Acyclic(Runner):
    """An exploration that keeps the e-graph free of cycles by a filter."""

    def __init__(self, cycles: Filter, *given: Any):
        super().__init__(*given)
        self.cycles = cycles
        self.refused_matches = 0  # that would have made a cycle
        self.removed = 0  # e-nodes
        self._again: list[tuple[Match, ...]] = []  # matches to be tried in the next round

    def round(self, multi: bool) -> None:
        self.removed += filter_cycles(self.graph)
        self.cycles.begin(self.graph)
        super().round(multi)
        for tried in self.tried.values():
            tried.difference_update(match for match, *others in self._again if not others)
        for joined in self.joined.values():
            joined.difference_update(self._again)
        self._again.clear()

    def explore(self, watch: Callable[[int, int], None] = lambda rounds, nodes: None) -> Exploration:
        report = super().explore(watch)
        self.removed += filter_cycles(self.graph)
        return report

    def apply(
        self,
        entry: RuleEntry,
        matches: tuple[Match, ...],
        terms: Sequence[int],
        classes: Sequence[int],
        plan: Plan,
    ) -> Sequence[int]:
        if not self.cycles.allows(self.graph, [match[0] for match in matches], terms):
            self.refused_matches += 1
            self._again.append(matches)
            return ()
        made = super().apply(entry, matches, terms, tuple(map(self.graph.find, terms)), plan)
        if self.cycles.eager:
            self.merge()
        return made
