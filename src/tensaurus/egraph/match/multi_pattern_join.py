"""Joins the matches of a multi-pattern rule's roots that agree on shared variables (TENSAT, section 4).

    MatMul(x, y), MatMul(x, z) => Split(MatMul(x, Concat(y, z)))[0], Split(MatMul(x, Concat(y, z)))[1]

Each match of MatMul(x, y) is joined with each match of MatMul(x, z) whose x is of the same class.
Whether a rule applies depends only on the *signature* of each match: the heads of its e-nodes (operators with
attributes) and what is known of its variables.  There are many matches but few signatures, so the
combinations of signatures to which the rule applies are found once, and only such matches are joined.

Roots of which one depends on another must not be merged: two steps of a recurrence cannot be one product.
Dependencies are those of the programs as which the roots were inserted, as in TENSAT's filter of cycles
(section 5.2); so a merge that is possible only with another program of a root is missed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.match.pattern import Match
from tensaurus.egraph.match.plan import Plan
from tensaurus.egraph.match.ruleset import RuleEntry

__all__ = ["JointMatch", "Dependencies", "join_matches"]

MergedRoots: TypeAlias = tuple[int, ...]  # the roots (e-nodes) that a rule has merged into one e-node, by age


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
    roots: MergedRoots


class Dependencies:
    """For each root that may be merged, the roots on which its program depends, as bits, and its age.

    The age is the number of the oldest e-node of the root's class.
    """

    def __init__(self, graph: EGraph, roots: Iterable[int]):
        find = graph.find
        self._find, self._members, self._ages = find, graph.members, dict[int, int]()
        classes = dict.fromkeys(map(find, roots))
        self._bits = bits = {eclass: 1 << number for number, eclass in enumerate(classes)}
        self._needed_bits = needed_bits = list[int]()  # of each e-node
        for args in graph.original_args:
            needed = 0
            for arg in args:
                if arg != ABSENT:
                    needed |= needed_bits[arg] | bits.get(find(arg), 0)
            needed_bits.append(needed)

    def age(self, root: int) -> int:
        """Return the oldest e-node of a root's class, so that a rewritten root keeps its age."""
        eclass = self._find(root)
        if eclass not in self._ages:
            self._ages[eclass] = min(self._members[eclass])
        return self._ages[eclass]

    def own_bits(self, roots: MergedRoots) -> int:
        """Return the bits of these roots."""
        bits = 0
        for root in roots:
            bits |= self._bits.get(self._find(root), 0)
        return bits

    def needed_bits(self, roots: MergedRoots) -> int:
        """Return the bits of the roots on which these depend."""
        bits = 0
        for root in roots:
            bits |= self._needed_bits[root]
        return bits


class _RootMatch(NamedTuple):
    """A match of one root.

    roots             the roots that were merged into it, or itself
    own_bits          the bits of `roots`, see `Dependencies`
    needed_bits       the bits of the roots on which these depend
    signature         a number for its heads and what is known of its variables
    oldest, youngest  the ages of the oldest and the youngest of `roots`
    """

    match: Match
    terms: tuple[int, ...]
    classes: tuple[int, ...]
    roots: MergedRoots
    own_bits: int
    needed_bits: int
    signature: int
    oldest: int
    youngest: int


class _SignatureGroup(NamedTuple):
    """Matches of one signature, ordered by `oldest`, the age of the oldest root of each."""

    oldest: list[int]
    rows: list[_RootMatch]


def join_matches(
    graph: EGraph,
    entry: RuleEntry,
    matches: Sequence[Sequence[Match]],
    merged: Mapping[int, MergedRoots],
    dependencies: Dependencies,
    own_enodes: float = inf,
) -> Iterator[JointMatch]:
    """Yield all joint matches to which a rule applies, in the order of the first root's matches.

    entry       the rule with the patterns of its roots
    matches     for each root, the matches of its pattern
    merged      for an e-node that the rule has made by merging, the roots that it merged
    own_enodes  only roots of classes with an e-node below this number are joined, and merged ones

    A rule that is symmetric in its roots (its tag `once`) is tried only in the order of their age.  Roots
    that it has `merged` before are joined only with roots that are all older or all younger and do not depend
    on them, so that no set of roots is merged twice.
    """
    return _Join(graph, entry, matches, merged, dependencies, own_enodes).extend((), {})


class _Join:
    """Joins the matches of an entry's roots, bucketed by the classes of shared variables and by signature.

    A *slot* is the number of a variable among those of all roots.
    """

    def __init__(
        self,
        graph: EGraph,
        entry: RuleEntry,
        matches: Sequence[Sequence[Match]],
        merged: Mapping[int, MergedRoots],
        dependencies: Dependencies,
        own_enodes: float,
    ):
        self.graph, self.entry, self.merged, self.dependencies = graph, entry, merged, dependencies
        self.own_enodes = own_enodes
        self.matches = matches
        # {(root, its shared variables): {classes of these variables: {signature: matches}}}
        self._buckets: dict[Any, dict[tuple[int, ...], dict[int, _SignatureGroup]]] = {}
        self._rows: dict[int, list[_RootMatch]] = {}  # the matches of each root
        self._fitting: dict[Any, list[tuple[_SignatureGroup, Plan]]] = {}  # see `_fitting_plans`

    def extend(self, chosen: tuple[_RootMatch, ...], bound: dict[int, int]) -> Iterator[JointMatch]:
        """Yield all joint matches that begin with `chosen`; `bound` is {slot: class} of its variables."""
        root_index = len(chosen)
        slots = self.entry.slots[root_index]
        if not root_index:  # the first root: nothing is bound yet
            for row in self._root_matches(0):
                yield from self.extend((row,), dict(zip(slots, row.classes, strict=True)))
            return
        shared = tuple([k for k, slot in enumerate(slots) if slot in bound])
        shared_classes = tuple([bound[slots[k]] for k in shared])
        if root_index == len(self.entry.patterns) - 1:
            unbound = [k for k, slot in enumerate(slots) if slot not in bound]
            yield from self._add_last_root(chosen, shared, shared_classes, unbound)
            return
        for group in self._buckets_at(root_index, shared).get(shared_classes, {}).values():
            for row in self._may_follow(chosen, group):
                now = bound | dict(zip(slots, row.classes, strict=True))
                yield from self.extend((*chosen, row), now)

    def _add_last_root(
        self,
        chosen: tuple[_RootMatch, ...],
        shared: tuple[int, ...],
        shared_classes: tuple[int, ...],
        unbound: Sequence[int],
    ) -> Iterator[JointMatch]:
        """Yield the joint matches of `chosen` with a match of the last root for which the rule has a plan.

        `shared` and `unbound` are the variables of the last root that `chosen` has bound, and the others.
        """
        matches = tuple([row.match for row in chosen])
        terms = self._collect_by_slot(chosen, [row.terms for row in chosen])
        classes = self._collect_by_slot(chosen, [row.classes for row in chosen])
        roots = tuple([root for row in chosen for root in row.roots])
        for group, plan in self._fitting_plans(chosen, shared, shared_classes):
            rows = self._may_follow(chosen, group)
            # one match will do where the rule keeps the last root, and its other right-hand sides have only
            # variables of earlier roots
            for row in islice(rows, 1) if self.entry.is_last_root_interchangeable else rows:
                yield JointMatch(
                    (*matches, row.match),
                    (*terms, *[row.terms[k] for k in unbound]),
                    (*classes, *[row.classes[k] for k in unbound]),
                    plan,
                    (*roots, *row.roots),
                )

    def _may_follow(self, chosen: Sequence[_RootMatch], group: _SignatureGroup) -> Iterable[_RootMatch]:
        """Return the matches of one signature, of other roots, that may follow those chosen.

        Of a symmetric rule, these are younger roots that do not depend on the chosen ones, nor these on them.
        """
        if self.entry.rewrite.is_symmetric:
            begin = bisect_right(group.oldest, max([row.youngest for row in chosen]))
            if begin == len(group.rows):
                return ()
            own_bits = needed_bits = 0
            for row in chosen:
                own_bits, needed_bits = own_bits | row.own_bits, needed_bits | row.needed_bits
            later = islice(group.rows, begin, None)
            return [row for row in later if not (row.needed_bits & own_bits or row.own_bits & needed_bits)]
        roots = [row.match[0] for row in chosen]
        return (row for row in group.rows if row.match[0] not in roots)

    def _collect_by_slot(
        self, rows: Sequence[_RootMatch], parts: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Return the values of all variables by slot; of a shared variable that of the first root."""
        if len(rows) == 1:  # the slots of the first root are 0, 1, ...
            return parts[0]
        by_slot: dict[int, int] = {}
        for slots, part in zip(self.entry.slots, parts, strict=False):
            for slot, value in zip(slots, part, strict=True):
                by_slot.setdefault(slot, value)
        return tuple([by_slot[slot] for slot in range(len(by_slot))])

    def _buckets_at(
        self, root_index: int, shared: tuple[int, ...]
    ) -> dict[tuple[int, ...], dict[int, _SignatureGroup]]:
        """Return the matches of a root by the classes of shared variables and by signature."""
        buckets = self._buckets.get((root_index, shared))
        if buckets is None:
            buckets = self._buckets[root_index, shared] = {}
            for row in sorted(self._root_matches(root_index), key=lambda row: row.oldest):
                groups = buckets.setdefault(tuple([row.classes[k] for k in shared]), {})
                group = groups.setdefault(row.signature, _SignatureGroup([], []))
                group.oldest.append(row.oldest)
                group.rows.append(row)
        return buckets

    def _root_matches(self, root_index: int) -> list[_RootMatch]:
        """Return the matches of a root that may be part of a joint match."""
        if root_index not in self._rows:
            graph, pattern, signatures = self.graph, self.entry.patterns[root_index], self.entry.signatures
            find, analyses, heads = graph.find, graph.analyses, graph.heads
            bind, asks = pattern.bind, self.entry.rewrite.asks_content
            rows = self._rows[root_index] = []
            for match in self.matches[root_index]:
                root = analyses[find(match[0])]
                if root.static:  # runtimes compute it once, before the model runs
                    continue
                needs, roots = self.dependencies, self.merged.get(match[0], match[:1])
                if match[0] not in self.merged and needs.age(match[0]) >= self.own_enodes:
                    continue
                terms = bind(graph.original_args, match)
                classes = tuple([find(term) for term in terms])
                # what conditions may ask: types and whether static (`code`), in some rules values (`content`)
                known = [analyses[eclass].content if asks else analyses[eclass].code for eclass in classes]
                types = root.types if pattern.literals else ()  # shapes of literals may decide about it
                key = (*[heads[enode] for enode in match], *known, types)
                signature = signatures.setdefault(key, len(signatures))
                if self._attribute_values(root_index, signature, match, classes) is None:
                    continue
                ages = [needs.age(root) for root in roots]
                bits = needs.own_bits(roots), needs.needed_bits(roots)
                rows.append(_RootMatch(match, terms, classes, roots, *bits, signature, min(ages), max(ages)))
        return self._rows[root_index]

    def _attribute_values(
        self, root_index: int, signature: int, match: Match, classes: Sequence[int]
    ) -> Mapping[str, Any] | None:
        """Return the attribute values that a match binds; None where it fits to no match of other roots."""
        entry, graph = self.entry, self.graph
        if (root_index, signature) not in entry.attribute_values:
            heads = [graph.heads[enode] for enode in match]
            known = [graph.analyses[eclass] for eclass in classes]
            names = [entry.names[slot] for slot in entry.slots[root_index]]
            operators = entry.operators[root_index]
            values = entry.rewrite.attribute_values(root_index, heads, known, names, operators)
            entry.attribute_values[root_index, signature] = values
        return entry.attribute_values[root_index, signature]

    def _fitting_plans(
        self, chosen: Sequence[_RootMatch], shared: tuple[int, ...], shared_classes: tuple[int, ...]
    ) -> list[tuple[_SignatureGroup, Plan]]:
        """Return the matches of the last root that fit to those chosen, by signature, with their plans."""
        signatures, plans = tuple([row.signature for row in chosen]), self.entry.plans
        key = shared_classes, signatures
        fitting = self._fitting.get(key)
        if fitting is None:
            fitting = self._fitting[key] = []
            for signature, group in self._buckets_at(len(chosen), shared).get(shared_classes, {}).items():
                all_signatures = (*signatures, signature)
                if all_signatures not in plans:
                    values = [self.entry.attribute_values[key] or {} for key in enumerate(all_signatures)]
                    rows = (*chosen, group.rows[0])
                    plans[all_signatures] = None if _values_differ(values) else self._plan(rows)
                if (plan := plans[all_signatures]) is not None:
                    fitting.append((group, plan))
        return fitting

    def _plan(self, rows: Sequence[_RootMatch]) -> Plan | None:
        """Return the plan for matches of these signatures; None where the rule does not apply."""
        graph = self.graph
        heads = [graph.heads[enode] for row in rows for enode in row.match]
        classes = self._collect_by_slot(rows, [row.classes for row in rows])
        analyses = [graph.analyses[graph.find(eclass)] for eclass in classes]
        roots = [graph.analyses[graph.find(row.match[0])] for row in rows]
        return self.entry.plan(graph, heads, analyses, roots)


def _values_differ(values_of_roots: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two roots bind one name to different values.

    This only spares calls of `RuleEntry.plan`, which decides.  A negative number may be an axis counted from
    the end: it is taken to agree with any number, as are values of different types.
    """
    seen: dict[str, Any] = {}
    for values in values_of_roots:
        for name, value in values.items():
            known = seen.setdefault(name, value)
            counted = isinstance(value, int) and isinstance(known, int) and min(value, known) < 0
            if known != value and type(known) is type(value) and not counted:
                return True
    return False
