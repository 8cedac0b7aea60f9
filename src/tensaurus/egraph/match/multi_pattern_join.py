"""Joins the matches of a multi-pattern rule's roots that agree on shared variables (TENSAT, section 4).

    MatMul(x, y), MatMul(x, z) => Split(MatMul(x, Concat(y, z)))[0], Split(MatMul(x, Concat(y, z)))[1]

Each match of MatMul(x, y) is joined with each match of MatMul(x, z) whose x is of the same class.
Whether a rule applies depends only on the *sort* of each match: the heads of its e-nodes (operators with
attributes) and what is known of its variables.  There are many matches but few sorts, so the combinations of
sorts to which the rule applies are found once, and only matches of such sorts are joined.

Roots of which one depends on another must not be merged: two steps of a recurrence cannot be one product.
Dependencies are those of the programs as which the roots were inserted, as in TENSAT's filter of cycles
(section 5.2); so a merge that is possible only with another program of a root is missed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.match.pattern import Match
from tensaurus.egraph.match.rewrite import Plan
from tensaurus.egraph.match.ruleset import RuleEntry

__all__ = ["JointMatch", "Dependencies", "join_matches"]

Merged: TypeAlias = tuple[int, ...]  # the roots (e-nodes) that a rule has merged into one e-node, by age


class JointMatch(NamedTuple):
    """A match for each root of a rule, so that the rule applies to all of them together.

    terms, classes  the e-node and the e-class of each variable of the rule
    plan            how the right-hand sides are inserted
    roots           all roots that are merged; a root that is a merge itself counts with its own roots
    """

    matches: tuple[Match, ...]
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    plan: Plan
    roots: Merged


class Dependencies:
    """For each root that may be merged, the roots on which its program depends, as bits, and its age.

    The age is the number of the oldest e-node of the root's class.
    """

    def __init__(self, graph: EGraph, roots: Iterable[int]):
        find = graph.find
        self._find, self._members, self._ages = find, graph.members, dict[int, int]()
        self._bits = {group: 1 << place for place, group in enumerate(dict.fromkeys(map(find, roots)))}
        self._below = below = list[int]()
        bits = self._bits
        for args in graph.original_args:
            needed = 0
            for arg in args:
                if arg != ABSENT:
                    needed |= below[arg] | bits.get(find(arg), 0)
            below.append(needed)

    def age(self, root: int) -> int:
        """Return the oldest e-node of a root's class, so that a rewritten root keeps its age."""
        group = self._find(root)
        if group not in self._ages:
            self._ages[group] = min(self._members[group])
        return self._ages[group]

    def own(self, roots: Merged) -> int:
        """Return the bits of these roots."""
        bits = 0
        for root in roots:
            bits |= self._bits.get(self._find(root), 0)
        return bits

    def below(self, roots: Merged) -> int:
        """Return the bits of the roots on which these depend."""
        bits = 0
        for root in roots:
            bits |= self._below[root]
        return bits


class _RootMatch(NamedTuple):
    """A match of one root.

    roots        the roots that were merged into it, or itself
    own, below   the bits of `roots` and of the roots on which they depend
    sort         a number for its heads and what is known of its variables
    first, last  the ages of the oldest and the youngest of `roots`
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


class _SameSort(NamedTuple):
    """Matches of one sort, in the order of `firsts`, their `first` ages."""

    firsts: list[int]
    rows: list[_RootMatch]


def join_matches(
    graph: EGraph,
    entry: RuleEntry,
    matches: Sequence[Sequence[Match]],
    merged: Mapping[int, Merged],
    needs: Dependencies,
) -> Iterator[JointMatch]:
    """Yield all joint matches to which a rule applies, in the order of the first root's matches.

    entry    the rule with the patterns of its roots
    matches  for each root, the matches of its pattern
    merged   for an e-node that the rule has made by merging, the roots that it merged

    A rule that is symmetric in its roots (`once`) is tried only in the order of their age.  Roots that it has
    `merged` before are joined only with roots that are all older or all younger and do not depend on them, so
    that no set of roots is merged twice.
    """
    return _Join(graph, entry, matches, merged, needs).extend((), {})


class _Join:
    """Joins the matches of an entry's roots, bucketed by the classes of shared variables and by sort.

    A *slot* is the number of a variable among those of all roots.
    """

    def __init__(
        self,
        graph: EGraph,
        entry: RuleEntry,
        matches: Sequence[Sequence[Match]],
        merged: Mapping[int, Merged],
        needs: Dependencies,
    ):
        self.graph, self.entry, self.merged, self.needs = graph, entry, merged, needs
        self.matches = matches
        # {(root, its shared variables): {classes of these variables: {sort: matches}}}
        self._buckets: dict[Any, dict[tuple[int, ...], dict[int, _SameSort]]] = {}
        self._rows: dict[int, list[_RootMatch]] = {}  # the matches of each root
        self._fitting: dict[Any, list[tuple[_SameSort, Plan]]] = {}

    def extend(self, chosen: tuple[_RootMatch, ...], bound: dict[int, int]) -> Iterator[JointMatch]:
        """Yield all joint matches that begin with `chosen`; `bound` are the classes of its variables."""
        place = len(chosen)
        slots = self.entry.slots[place]
        if not place:  # the first root: nothing is bound yet
            for row in self._root_matches(0):
                yield from self.extend((row,), dict(zip(slots, row.classes, strict=True)))
            return
        shared = tuple([k for k, slot in enumerate(slots) if slot in bound])
        agreed = tuple([bound[slots[k]] for k in shared])
        if place < len(self.entry.patterns) - 1:  # a root in the middle: of any sort
            for alike in self._buckets_at(place, shared).get(agreed, {}).values():
                for row in self._may_follow(chosen, alike):
                    now = bound | dict(zip(slots, row.classes, strict=True))
                    yield from self.extend((*chosen, row), now)
            return
        # the last root: only of sorts with which the rule has a plan
        unbound = [k for k, slot in enumerate(slots) if slot not in bound]
        matches = tuple([row.match for row in chosen])
        terms = self._merge_by_slot(chosen, [row.terms for row in chosen])
        classes = self._merge_by_slot(chosen, [row.classes for row in chosen])
        roots = tuple([root for row in chosen for root in row.roots])
        for alike, plan in self._fitting_plans(chosen, shared, agreed):
            rows = self._may_follow(chosen, alike)
            for row in islice(rows, 1) if self.entry.is_last_root_interchangeable else rows:
                yield JointMatch(
                    (*matches, row.match),
                    (*terms, *[row.terms[k] for k in unbound]),
                    (*classes, *[row.classes[k] for k in unbound]),
                    plan,
                    (*roots, *row.roots),
                )

    def _may_follow(self, chosen: Sequence[_RootMatch], alike: _SameSort) -> Iterable[_RootMatch]:
        """Return the matches of one sort, of other roots, that may follow those chosen.

        Of a symmetric rule, these are younger roots that do not depend on the chosen ones, nor these on them.
        """
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

    def _merge_by_slot(self, rows: Sequence[_RootMatch], parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the values of all variables by slot; of a shared variable that of the first root."""
        if len(rows) == 1:  # the slots of the first root are 0, 1, ...
            return parts[0]
        by_slot: dict[int, int] = {}
        for slots, part in zip(self.entry.slots, parts, strict=False):
            for slot, value in zip(slots, part, strict=True):
                by_slot.setdefault(slot, value)
        return tuple([by_slot[slot] for slot in range(len(by_slot))])

    def _buckets_at(self, place: int, shared: tuple[int, ...]) -> dict[tuple[int, ...], dict[int, _SameSort]]:
        """Return the matches of a root by the classes of shared variables and by sort."""
        buckets = self._buckets.get((place, shared))
        if buckets is None:
            buckets = self._buckets[place, shared] = {}
            for row in sorted(self._root_matches(place), key=lambda row: row.first):
                agreed = tuple([row.classes[k] for k in shared])
                alike = buckets.setdefault(agreed, {}).setdefault(row.sort, _SameSort([], []))
                alike.firsts.append(row.first)
                alike.rows.append(row)
        return buckets

    def _root_matches(self, place: int) -> list[_RootMatch]:
        if place not in self._rows:
            graph, merged, needs, sorts = self.graph, self.merged, self.needs, self.entry.sorts
            find, analyses, heads = graph.find, graph.analyses, graph.heads
            bind, asks = self.entry.patterns[place].bind, self.entry.rewrite.asks_content
            literals = self.entry.patterns[place].literals  # their shapes may decide about the root's shape
            rows = self._rows[place] = []
            for match in self.matches[place]:
                root = analyses[find(match[0])]
                if root.static:  # runtimes compute it once, before the model runs
                    continue
                terms = bind(graph.original_args, match)
                classes = tuple([find(term) for term in terms])
                known = [analyses[group].content if asks else analyses[group].code for group in classes]
                types = root.types if literals else ()
                sort = sorts.setdefault((*[heads[number] for number in match], *known, types), len(sorts))
                if self._attribute_values(place, sort, match, classes) is None:  # fits to no match of others
                    continue
                roots = merged.get(match[0], match[:1])
                bits, ages = (needs.own(roots), needs.below(roots)), [needs.age(root) for root in roots]
                rows.append(_RootMatch(match, terms, classes, roots, *bits, sort, min(ages), max(ages)))
        return self._rows[place]

    def _attribute_values(
        self, place: int, sort: int, match: Match, classes: Sequence[int]
    ) -> Mapping[str, Any] | None:
        """Return the attribute values that a match binds; None where it fits to no match of other roots."""
        entry, graph = self.entry, self.graph
        if (place, sort) not in entry.attribute_values:
            heads = [graph.heads[number] for number in match]
            known = [graph.analyses[group] for group in classes]
            names = [entry.names[slot] for slot in entry.slots[place]]
            given = entry.rewrite.attribute_values(place, heads, known, names, entry.operators[place])
            entry.attribute_values[place, sort] = given
        return entry.attribute_values[place, sort]

    def _fitting_plans(
        self, chosen: Sequence[_RootMatch], shared: tuple[int, ...], agreed: tuple[int, ...]
    ) -> list[tuple[_SameSort, Plan]]:
        """Return the matches of the last root that fit to those chosen, by sort, with their plans."""
        sorts, plans = tuple([row.sort for row in chosen]), self.entry.plans
        key = agreed, sorts
        fitting = self._fitting.get(key)
        if fitting is None:
            fitting = self._fitting[key] = []
            for sort, alike in self._buckets_at(len(chosen), shared).get(agreed, {}).items():
                all_sorts = (*sorts, sort)
                if all_sorts not in plans:
                    given = [self.entry.attribute_values[each] or {} for each in enumerate(all_sorts)]
                    plans[all_sorts] = None if _values_differ(given) else self._plan((*chosen, alike.rows[0]))
                if (plan := plans[all_sorts]) is not None:
                    fitting.append((alike, plan))
        return fitting

    def _plan(self, rows: Sequence[_RootMatch]) -> Plan | None:
        """Return the plan for matches of these sorts; None where the rule does not apply."""
        graph = self.graph
        heads = [graph.heads[number] for row in rows for number in row.match]
        classes = self._merge_by_slot(rows, [row.classes for row in rows])
        analyses = [graph.analyses[graph.find(group)] for group in classes]
        roots = [graph.analyses[graph.find(row.match[0])] for row in rows]
        return self.entry.plan(graph, heads, analyses, roots)


def _values_differ(given: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two roots bind one name to different values.

    A negative number may be an axis counted from the end: it is taken to agree with any number.
    """
    seen: dict[str, Any] = {}
    for values in given:
        for name, value in values.items():
            known = seen.setdefault(name, value)
            counted = isinstance(value, int) and isinstance(known, int) and min(value, known) < 0
            if known != value and type(known) is type(value) and not counted:
                return True
    return False
