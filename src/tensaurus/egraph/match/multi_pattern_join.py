"""Matches of several roots that agree on what they share (TENSAT, section 4), joined one after another.

Whether a rule applies depends on the heads that were matched and on what is known of the variables.  Of
matches there are many, of such sorts few: which go together is found out once, and no others are joined.

A merge of what depends on each other would need itself: two steps of a recurrence have no product in common.
What depends on what is read off the programs that the roots were inserted as, as in TENSAT's filter of cycles
(section 5.2); a merge that another program of a root would allow is missed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.match.pattern import Match
from tensaurus.egraph.match.rewrite import Plan
from tensaurus.egraph.match.ruleset import Entry

__all__ = ["Joined", "Needs", "joined"]

Merged: TypeAlias = tuple[int, ...]  # the roots that an e-node has merged, by age


class Joined(NamedTuple):
    """A match for each root; the terms and the classes of the entry's variables; what to insert.

    `roots` are those that they merge, themselves merges of several or not.
    """

    matches: tuple[Match, ...]
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    plan: Plan
    roots: Merged


class Needs:
    """Of each root that may be merged, those that its program needs, bits of a number, and its age."""

    def __init__(self, graph: EGraph, roots: Iterable[int]):
        find = graph.find
        self._find, self._members, self._ages = find, graph.members, dict[int, int]()
        self._bits = {group: 1 << place for place, group in enumerate(dict.fromkeys(map(find, roots)))}
        self._below = below = list[int]()
        bits = self._bits
        for args in graph.born:
            needed = 0
            for arg in args:
                if arg != ABSENT:
                    needed |= below[arg] | bits.get(find(arg), 0)
            below.append(needed)

    def age(self, root: int) -> int:
        """The oldest e-node of its class: whatever a rewrite makes of a root keeps its place."""
        group = self._find(root)
        if group not in self._ages:
            self._ages[group] = min(self._members[group])
        return self._ages[group]

    def own(self, roots: Merged) -> int:
        """The roots themselves."""
        bits = 0
        for root in roots:
            bits |= self._bits.get(self._find(root), 0)
        return bits

    def below(self, roots: Merged) -> int:
        """What they need."""
        bits = 0
        for root in roots:
            bits |= self._below[root]
        return bits


class _Row(NamedTuple):
    """A match of one root; `sort` is a number for its heads and what is known of its variables.

    `roots` are those that it has merged, else itself; `own` and `below` their bits and what they need,
    `first` and `last` the ages of the oldest and the youngest.
    """

    match: Match
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    roots: Merged
    own: int
    below: int
    sort: int
    first: int
    last: int


class _Alike(NamedTuple):
    """Rows of one sort, by their first roots' age."""

    firsts: list[int]
    rows: list[_Row]


def joined(
    graph: EGraph,
    entry: Entry,
    matches: Sequence[Sequence[Match]],
    merged: Mapping[int, Merged],
    needs: Needs,
) -> Iterator[Joined]:
    """All that a rule applies to, in the order of the first root's matches.

    A rule that says the same of its roots in any order (`once`) is tried in one, that of their age; and what
    it has `merged` it merges only with what came wholly before or after, and needs nothing of it: never
    anything twice.
    """
    return _Join(graph, entry, matches, merged, needs).extend((), {})


class _Join:
    """The matches of an entry's roots, by what they share and by sort."""

    def __init__(
        self,
        graph: EGraph,
        entry: Entry,
        matches: Sequence[Sequence[Match]],
        merged: Mapping[int, Merged],
        needs: Needs,
    ):
        self.graph, self.entry, self.merged, self.needs = graph, entry, merged, needs
        self.matches = matches
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
        roots = tuple([root for row in chosen for root in row.roots])
        for alike, plan in self._plans(chosen, shared, agreed):
            after = self._after(chosen, alike)
            for row in islice(after, 1) if self.entry.witness else after:
                yield Joined(
                    (*matches, row.match),
                    (*terms, *[row.terms[k] for k in fresh]),
                    (*classes, *[row.classes[k] for k in fresh]),
                    plan,
                    (*roots, *row.roots),
                )

    def _after(self, chosen: Sequence[_Row], alike: _Alike) -> Iterable[_Row]:
        """Those that may follow."""
        if self.entry.rewrite.once:
            begin = bisect_right(alike.firsts, max([row.last for row in chosen]))
            if begin == len(alike.rows):
                return ()
            own = below = 0
            for row in chosen:
                own, below = own | row.own, below | row.below
            later = islice(alike.rows, begin, None)
            return [row for row in later if not (row.below & own or row.own & below)]
        roots = [row.match[0] for row in chosen]
        return (row for row in alike.rows if row.match[0] not in roots)

    def _together(self, rows: Sequence[_Row], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """What each has for its variables, by slot; where roots share a variable, the first one's."""
        if len(rows) == 1:  # slots are numbered as the roots name them
            return parts[0]
        by_slot: dict[int, int] = {}
        for slots, part in zip(self.entry.slots, parts, strict=False):
            for slot, value in zip(slots, part, strict=True):
                by_slot.setdefault(slot, value)
        return tuple([by_slot[slot] for slot in range(len(by_slot))])

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
            graph, merged, needs, sorts = self.graph, self.merged, self.needs, self.entry.sorts
            find, analyses, heads = graph.find, graph.analyses, graph.heads
            bind, asks = self.entry.patterns[place].bind, self.entry.rewrite.asks_content
            literals = self.entry.patterns[place].literals  # whose shapes may decide about the root's
            rows = self._rows[place] = []
            for match in self.matches[place]:
                root = analyses[find(match[0])]
                if root.static:  # computed once, before the model runs
                    continue
                terms = bind(graph.born, match)
                classes = tuple([find(term) for term in terms])
                known = [analyses[group].content if asks else analyses[group].code for group in classes]
                types = root.types if literals else ()
                sort = sorts.setdefault((*[heads[number] for number in match], *known, types), len(sorts))
                if self._given(place, sort, match, classes) is None:
                    continue
                roots = merged.get(match[0], match[:1])
                bits, ages = (needs.own(roots), needs.below(roots)), [needs.age(root) for root in roots]
                rows.append(_Row(match, terms, classes, roots, *bits, sort, min(ages), max(ages)))
        return self._rows[place]

    def _given(
        self, place: int, sort: int, match: Match, classes: Sequence[int]
    ) -> Mapping[str, Any] | None:
        """What a match gives to names of attributes; None where nothing goes together with it."""
        entry, graph = self.entry, self.graph
        if (place, sort) not in entry.given:
            heads = [graph.heads[number] for number in match]
            known = [graph.analyses[group] for group in classes]
            names = [entry.names[slot] for slot in entry.slots[place]]
            given = entry.rewrite.given(place, heads, known, names, entry.operators[place])
            entry.given[place, sort] = given
        return entry.given[place, sort]

    def _plans(
        self, chosen: Sequence[_Row], shared: tuple[int, ...], agreed: tuple[int, ...]
    ) -> list[tuple[_Alike, Plan]]:
        """What fits to these as the last root, and what to insert then."""
        sorts, plans = tuple([row.sort for row in chosen]), self.entry.plans
        key = agreed, sorts
        fitting = self._fitting.get(key)
        if fitting is None:
            fitting = self._fitting[key] = []
            for sort, alike in self._by(len(chosen), shared).get(agreed, {}).items():
                all_sorts = (*sorts, sort)
                if all_sorts not in plans:
                    given = [self.entry.given[each] or {} for each in enumerate(all_sorts)]
                    plans[all_sorts] = None if _differ(given) else self._plan((*chosen, alike.rows[0]))
                if (plan := plans[all_sorts]) is not None:
                    fitting.append((alike, plan))
        return fitting

    def _plan(self, rows: Sequence[_Row]) -> Plan | None:
        """For matches of these sorts; None where the rule does not apply."""
        graph = self.graph
        heads = [graph.heads[number] for row in rows for number in row.match]
        classes = self._together(rows, [row.classes for row in rows])
        analyses = [graph.analyses[graph.find(group)] for group in classes]
        roots = [graph.analyses[graph.find(row.match[0])] for row in rows]
        return self.entry.plan(graph, heads, analyses, roots)


def _differ(given: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two roots give one name different values; of negative ones a rule may count from the end."""
    seen: dict[str, Any] = {}
    for values in given:
        for name, value in values.items():
            known = seen.setdefault(name, value)
            counted = isinstance(value, int) and isinstance(known, int) and min(value, known) < 0
            if known != value and type(known) is type(value) and not counted:
                return True
    return False
