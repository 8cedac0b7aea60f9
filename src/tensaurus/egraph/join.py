"""Matches of several roots that agree on what they share (TENSAT, section 4), joined one after another.

Whether a rule applies depends on the heads that were matched and on what is known of the variables.  Of
matches there are many, of such sorts few: which go together is found out once, and no others are joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.pattern import Match
from tensaurus.egraph.rewrite import Plan
from tensaurus.egraph.ruleset import Entry

__all__ = ["Joined", "joined"]

Span: TypeAlias = tuple[int, int]  # the oldest and the youngest root that an e-node has merged


class Joined(NamedTuple):
    """A match for each root; the terms and the classes of the entry's variables; what to insert."""

    matches: tuple[Match, ...]
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    plan: Plan


class _Row(NamedTuple):
    """A match of one root; `sort` is a number for its heads and what is known of its variables."""

    match: Match
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    first: int
    last: int
    sort: int


def joined(
    graph: EGraph, entry: Entry, found: Sequence[Sequence[Match]], merged: Mapping[int, Span]
) -> Iterator[Joined]:
    """All that a rule applies to, in the order of the first root's matches.

    A rule that says the same of its roots in any order (`once`) is tried in one, that of their age; and what
    it has `merged` it merges only with what came wholly before or after: never anything twice.
    """
    return _Join(graph, entry, found, merged).extend((), {})


class _Join:
    """The matches of an entry's roots, by what they share and by sort."""

    def __init__(
        self, graph: EGraph, entry: Entry, found: Sequence[Sequence[Match]], merged: Mapping[int, Span]
    ):
        self.graph, self.entry, self.merged = graph, entry, merged
        self.found = found
        self._buckets: dict[Any, dict[tuple[int, ...], dict[int, list[_Row]]]] = {}
        self._rows: dict[int, list[_Row]] = {}
        self._sorts: dict[Any, int] = {}
        self._plans: dict[tuple[int, ...], Plan | None] = {}

    def extend(self, chosen: tuple[_Row, ...], bound: dict[int, int]) -> Iterator[Joined]:
        """All that begins with these; `bound` are the classes of the variables."""
        entry, place = self.entry, len(chosen)
        slots = entry.slots[place]
        shared = tuple([k for k, slot in enumerate(slots) if slot in bound])
        fresh = [k for k, slot in enumerate(slots) if slot not in bound]
        complete = place == len(entry.patterns) - 1
        once, roots = entry.rewrite.once, [row.match[0] for row in chosen]
        after = max((row.last for row in chosen), default=-1)
        agreed = tuple([bound[slots[k]] for k in shared])
        for rows in self._by(place, shared).get(agreed, {}).values():
            if complete and (plan := self._plan((*chosen, rows[0]))) is None:
                continue
            if once:
                rows = rows[bisect_right(rows, after, key=_first) :]
            for row in rows:
                if not once and row.match[0] in roots:
                    continue
                if not complete:
                    yield from self.extend((*chosen, row), bound | dict(zip(slots, row.classes, strict=True)))
                    continue
                terms, classes = self._together((*chosen, row), fresh)
                assert plan is not None
                yield Joined((*[r.match for r in chosen], row.match), terms, classes, plan)

    def _together(
        self, rows: Sequence[_Row], fresh: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Terms and classes of the variables; where roots share one, the first root's."""
        if len(rows) == 2:  # the slots count variables in the order in which the roots name them
            one, two = rows
            terms = (*one.terms, *[two.terms[k] for k in fresh])
            return terms, (*one.classes, *[two.classes[k] for k in fresh])
        found: dict[int, tuple[int, int]] = {}
        for row, slots in zip(rows, self.entry.slots, strict=True):
            for slot, term, group in zip(slots, row.terms, row.classes, strict=True):
                found.setdefault(slot, (term, group))
        pairs = [found[slot] for slot in range(len(found))]
        return tuple([term for term, _ in pairs]), tuple([group for _, group in pairs])

    def _by(self, place: int, shared: tuple[int, ...]) -> dict[tuple[int, ...], dict[int, list[_Row]]]:
        """The matches of a root by the classes of shared variables and by sort, the oldest first."""
        buckets = self._buckets.get((place, shared))
        if buckets is None:
            buckets = self._buckets[place, shared] = {}
            # the first root's are in the order of their classes, and everything follows the empty choice
            for row in sorted(self._of(place), key=_first) if place else self._of(place):
                agreed = tuple([row.classes[k] for k in shared])
                buckets.setdefault(agreed, {}).setdefault(row.sort if place else 0, []).append(row)
        return buckets

    def _of(self, place: int) -> list[_Row]:
        if place not in self._rows:
            graph, merged, sorts = self.graph, self.merged, self._sorts
            find, facts, heads = graph.find, graph.facts, graph.heads
            bind, asks = self.entry.patterns[place].bind, self.entry.rewrite.asks_content
            rows = self._rows[place] = []
            for match in self.found[place]:
                terms = bind(graph.born, match)
                classes = tuple([find(term) for term in terms])
                known = [facts[group].content if asks else facts[group].code for group in classes]
                sort = sorts.setdefault((*[heads[number] for number in match], *known), len(sorts))
                root = match[0]
                rows.append(_Row(match, terms, classes, *merged.get(root, (root, root)), sort))
        return self._rows[place]

    def _plan(self, rows: Sequence[_Row]) -> Plan | None:
        """For matches of these sorts; None where the rule does not apply."""
        key = tuple([row.sort for row in rows])
        if key not in self._plans:
            graph, entry = self.graph, self.entry
            known = dict(zip(entry.slots[0], rows[0].classes, strict=True))
            for slots, row in zip(entry.slots[1:], rows[1:], strict=True):
                for slot, group in zip(slots, row.classes, strict=True):
                    known.setdefault(slot, group)
            heads = [graph.heads[number] for row in rows for number in row.match]
            facts = [graph.facts[graph.find(known[slot])] for slot in range(len(known))]
            roots = [graph.facts[graph.find(row.match[0])] for row in rows]
            self._plans[key] = entry.plan(graph, heads, facts, roots)
        return self._plans[key]


def _first(row: _Row) -> int:
    return row.first
