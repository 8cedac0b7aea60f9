"""Matches of several roots that agree on what they share (TENSAT, section 4), joined one after another.

Whether a rule applies depends on the heads that were matched and on what is known of the variables.  Of
matches there are many, of such sorts few: which go together is found out once, and no others are joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.pattern import Match
from tensaurus.egraph.rewrite import Plan
from tensaurus.egraph.ruleset import Entry

__all__ = ["Joined", "joined"]

Span: TypeAlias = tuple[int, int]  # the oldest and the youngest root that an e-node has merged


class Joined(NamedTuple):
    """A match for each root; the terms and the classes of the entry's variables; what to insert.

    `span` are the oldest and the youngest root that they merge.
    """

    matches: tuple[Match, ...]
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    plan: Plan
    span: Span


class _Row(NamedTuple):
    """A match of one root; `sort` is a number for its heads and what is known of its variables."""

    match: Match
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    first: int
    last: int
    sort: int


class _Alike(NamedTuple):
    """Rows of one sort, by their first roots' age."""

    firsts: list[int]
    rows: list[_Row]


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
        self._buckets: dict[Any, dict[tuple[int, ...], dict[int, _Alike]]] = {}
        self._rows: dict[int, list[_Row]] = {}
        self._fitting: dict[Any, list[tuple[_Alike, Plan]]] = {}

    def extend(self, chosen: tuple[_Row, ...], bound: dict[int, int]) -> Iterator[Joined]:
        """All that begins with these; `bound` are the classes of the variables."""
        place = len(chosen)
        slots = self.entry.slots[place]
        if not place:
            for row in self._of(0):
                yield from self.extend((row,), dict(zip(slots, row.classes, strict=True)))
            return
        shared = tuple([k for k, slot in enumerate(slots) if slot in bound])
        agreed = tuple([bound[slots[k]] for k in shared])
        if place < len(self.entry.patterns) - 1:
            for alike in self._by(place, shared).get(agreed, {}).values():
                for row in self._after(chosen, alike):
                    now = bound | dict(zip(slots, row.classes, strict=True))
                    yield from self.extend((*chosen, row), now)
            return
        fresh = [k for k, slot in enumerate(slots) if slot not in bound]
        matches = tuple([row.match for row in chosen])
        terms = self._together(chosen, [row.terms for row in chosen])
        classes = self._together(chosen, [row.classes for row in chosen])
        first, last = min([row.first for row in chosen]), max([row.last for row in chosen])
        for alike, plan in self._plans(chosen, shared, agreed):
            for row in self._after(chosen, alike):
                yield Joined(
                    (*matches, row.match),
                    (*terms, *[row.terms[k] for k in fresh]),
                    (*classes, *[row.classes[k] for k in fresh]),
                    plan,
                    (min(first, row.first), max(last, row.last)),
                )

    def _after(self, chosen: Sequence[_Row], alike: _Alike) -> Iterable[_Row]:
        """Those that may follow."""
        if self.entry.rewrite.once:
            begin = bisect_right(alike.firsts, max([row.last for row in chosen]))
            return islice(alike.rows, begin, None) if begin < len(alike.rows) else ()
        roots = [row.match[0] for row in chosen]
        return [row for row in alike.rows if row.match[0] not in roots]

    def _together(self, rows: Sequence[_Row], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """What each has for its variables, by slot; where roots share a variable, the first one's."""
        if len(rows) == 1:  # slots are numbered as the roots name them
            return parts[0]
        found: dict[int, int] = {}
        for slots, part in zip(self.entry.slots, parts, strict=False):
            for slot, value in zip(slots, part, strict=True):
                found.setdefault(slot, value)
        return tuple([found[slot] for slot in range(len(found))])

    def _by(self, place: int, shared: tuple[int, ...]) -> dict[tuple[int, ...], dict[int, _Alike]]:
        """The matches of a root by the classes of shared variables and by sort."""
        buckets = self._buckets.get((place, shared))
        if buckets is None:
            buckets = self._buckets[place, shared] = {}
            for row in sorted(self._of(place), key=lambda row: row.first):
                agreed = tuple([row.classes[k] for k in shared])
                alike = buckets.setdefault(agreed, {}).setdefault(row.sort, _Alike([], []))
                alike.firsts.append(row.first)
                alike.rows.append(row)
        return buckets

    def _of(self, place: int) -> list[_Row]:
        if place not in self._rows:
            graph, merged, sorts = self.graph, self.merged, self.entry.sorts
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

    def _plans(
        self, chosen: Sequence[_Row], shared: tuple[int, ...], agreed: tuple[int, ...]
    ) -> list[tuple[_Alike, Plan]]:
        """What fits to these as the last root, and what to insert then."""
        sorts, plans = tuple([row.sort for row in chosen]), self.entry.plans
        key = agreed, sorts
        found = self._fitting.get(key)
        if found is None:
            found = self._fitting[key] = []
            for sort, alike in self._by(len(chosen), shared).get(agreed, {}).items():
                all_sorts = (*sorts, sort)
                if all_sorts not in plans:
                    plans[all_sorts] = self._plan((*chosen, alike.rows[0]))
                if (plan := plans[all_sorts]) is not None:
                    found.append((alike, plan))
        return found

    def _plan(self, rows: Sequence[_Row]) -> Plan | None:
        """For matches of these sorts; None where the rule does not apply."""
        graph = self.graph
        heads = [graph.heads[number] for row in rows for number in row.match]
        classes = self._together(rows, [row.classes for row in rows])
        facts = [graph.facts[graph.find(group)] for group in classes]
        roots = [graph.facts[graph.find(row.match[0])] for row in rows]
        return self.entry.plan(graph, heads, facts, roots)
