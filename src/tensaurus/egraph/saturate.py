"""Exploration: apply every rule everywhere, round after round, within limits (TENSAT, section 4).

Patterns are searched in batches before anything is inserted; later rounds search only below what changed.  A
rule of several roots (a multi-pattern) joins the matches of its roots on the variables that they share, and
only in `k_multi` rounds, as each may square the number of e-nodes; the paper has the first ones, we those
after the rules of one root have saturated or filled half of the room: merged is what those have made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Protocol, TypeAlias

from tensaurus.collector import collector_resting
from tensaurus.egraph.check import Refutation, check
from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.finder import Finder, find_all
from tensaurus.egraph.head import Kind
from tensaurus.egraph.join import Joined, Needs, joined
from tensaurus.egraph.pattern import Match, Pattern
from tensaurus.egraph.rewrite import Plan
from tensaurus.egraph.ruleset import Entry, Family, Ruleset
from tensaurus.egraph.table import Candidates, Table
from tensaurus.rules.equation import Equation, instance
from tensaurus.rules.match import Binding, build

__all__ = ["Entry", "Exploration", "Filter", "Limits", "Matched", "Ruleset", "saturate"]


KEPT = 0.1  # of the room, for what finders insert alone


@dataclass(frozen=True)
class Limits:
    """When to stop: e-nodes, rounds, rounds of multi-patterns, and a deadline (of `time.monotonic`).

    `matches` are those of one pattern in one round: what is equal in many ways is matched in all of them.
    """

    nodes: int = 50_000
    rounds: int = 15
    multi: int = 1
    deadline: float | None = None
    matches: int = 500_000


class Matched:
    """The source of a union: a rule with what its variables stood for; a match for each of its roots.

    `terms` are the variables' terms, in the order of the entry's names, `made` the e-nodes of the steps.
    """

    __slots__ = ("entry", "matches", "terms", "plan", "made")

    def __init__(
        self, entry: Entry, matches: tuple[Match, ...], terms: Sequence[int], plan: Plan, made: Sequence[int]
    ):
        self.entry, self.matches, self.terms, self.plan, self.made = entry, matches, terms, plan, made

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        """The rule's instance over the terms."""
        entry, terms, rule = self.entry, self.terms, self.entry.rewrite.rule
        nodes = {name: graph.term(term) for name, term in zip(entry.names, terms, strict=True)}
        binding = Binding(nodes, dict(self.plan.values))
        left, right = [], []
        needs = self.plan.needs(graph, terms, self.made)
        for pattern, match, slots, rhs in zip(
            entry.patterns, self.matches, entry.slots, rule.rhs, strict=True
        ):
            bound = tuple(terms[slot] for slot in slots)
            made = build(rhs, binding, self.plan.dtype)
            assert made is not None
            left.append(pattern.instance(graph, match, bound))
            right.append(made)
            found = pattern.bind(graph.born, match)
            needs += [(a, b) for a, b in zip(bound, found, strict=True) if a != b]
            needs += pattern.needs(graph, match)
        return [instance(rule, binding, left, right)], needs


# what Matched takes
_Made: TypeAlias = tuple[Entry, tuple[Match, ...], Sequence[int], Plan, Sequence[int]]


@dataclass
class Exploration:
    """How it went."""

    ended_by: str = "saturated"  # or: nodes, rounds, matches, time
    rounds: int = 0
    matches: int = 0  # that a rule applied to
    filtered: int = 0  # that would have made a cycle
    applied: Counter[str] = field(default_factory=Counter)  # unions by rule
    seconds: float = 0.0


class Filter(Protocol):
    """Keeps the e-graph free of cycles, or lets everything pass."""

    eager: bool  # whether it must see every union before the next match, not the round's together

    def begin(self, graph: EGraph) -> None:
        """A round begins; the e-graph is rebuilt."""

    def allows(self, graph: EGraph, roots: Sequence[int], reads: Iterable[int]) -> bool:
        """Whether e-nodes over the classes `reads` may join the classes of `roots`."""

    def end(self, graph: EGraph) -> None:
        """A round is over; the e-graph is rebuilt."""


def saturate(
    graph: EGraph,
    ruleset: Ruleset,
    limits: Limits = Limits(),
    *,
    cycles: Filter | None = None,
    finders: Sequence[Finder] = (),
    watch: Callable[[int, int], None] = lambda rounds, nodes: None,
    refutation: Refutation | None = None,
) -> Exploration:
    """Apply the rules until nothing is new or a limit is met; nothing is inserted past the limit of e-nodes.

    The e-graph must be rebuilt, and is afterwards.  `watch` is told of the rounds done and of the e-nodes.
    The `finders` look for more after every round with multi-patterns, which write one thing in several ways.
    With a `refutation` everything is checked in the end, see `check`.
    """
    start = monotonic()
    run = _Run(graph, ruleset, limits, cycles, finders)
    with collector_resting():
        run.explore(watch)
    run.report.seconds = monotonic() - start
    if refutation is not None:
        check(graph, refutation)
    return run.report


class _Stop(Exception):
    """A limit was met; its name."""


class _Full(_Stop):
    """There is no room for another e-node, or for another match."""


class _Run:
    """One exploration."""

    def __init__(
        self,
        graph: EGraph,
        ruleset: Ruleset,
        limits: Limits,
        cycles: Filter | None,
        finders: Sequence[Finder],
    ):
        self.graph, self.ruleset, self.limits, self.cycles = graph, ruleset, limits, cycles
        self.finders = finders
        self.table = Table()
        self.most = limits.nodes - (int(KEPT * limits.nodes) if finders else 0)
        self.room = self.most  # e-nodes at most
        self.report = Exploration()
        self.tried: dict[Family, set[Match]] = defaultdict(set)  # matches of earlier rounds
        self.refused: dict[Family, list[Match]] = defaultdict(list)  # those that not every entry took
        self.joined: dict[Entry, set[tuple[Match, ...]]] = defaultdict(set)  # those of several roots
        self.equal: list[tuple[list[tuple[int, int]], _Made]] = []  # to be merged when the round is over
        self.learnt = 0
        self.cut = False  # a pattern matched more often in this round than the limit allows
        self.merged: dict[int, tuple[int, ...]] = {}  # the roots that each has merged

    def explore(self, watch: Callable[[int, int], None]) -> None:
        """Rules of one root first, within half of the room; then those of several, and what follows."""
        graph, report, limits = self.graph, self.report, self.limits
        graph.changed = set(graph.classes)
        multi = min(limits.multi, limits.rounds) if self.ruleset.several else 0
        try:
            if multi:
                self.room = limits.nodes // 2
                with suppress(_Full):
                    self._rounds(limits.rounds - multi, watch)
                self.room = self.most
                for _ in range(multi):
                    self._rounds(1, watch, multi=True)
            self._rounds(limits.rounds - report.rounds, watch)
            if graph.changed:
                report.ended_by = "rounds"
        except _Stop as stop:
            report.ended_by = str(stop)

    def _rounds(self, count: int, watch: Callable[[int, int], None], multi: bool = False) -> None:
        """At most so many rounds, until nothing is new."""
        graph = self.graph
        for _ in range(count):
            if not graph.changed and not multi:
                return
            before = set(graph.changed)
            if self.cycles is not None:
                self.cycles.begin(graph)
            try:
                self._round(multi)
            except _Stop:
                graph.changed |= before  # not every match of theirs was applied
                raise
            finally:
                self._merge()
                graph.rebuild()
                if multi:
                    find_all(graph, self.finders, self.limits.nodes)
                graph.changed = {graph.find(group) for group in graph.changed}
                if self.cycles is not None:
                    self.cycles.end(graph)
            self.report.rounds += 1
            watch(self.report.rounds, len(graph))

    def _round(self, multi: bool) -> None:
        """Search all patterns, then apply the rules to what matches."""
        graph, ruleset, table = self.graph, self.ruleset, self.table
        self.cut = False
        changed = {graph.find(group) for group in graph.changed}
        graph.changed.clear()
        if graph.learnt != self.learnt:
            self.learnt = graph.learnt
            for family, matches in self.refused.items():
                self.tried[family].difference_update(matches)
            self.refused.clear()
        table.update(graph, changed)
        joint: list[tuple[Entry, list[list[Match]]]] = []
        if multi:
            wanted = dict.fromkeys(pattern for entry in ruleset.several for pattern in entry.patterns)
            found = {pattern: self._search(pattern) for pattern in wanted}
            joint = [(entry, [found[pattern] for pattern in entry.patterns]) for entry in ruleset.several]
        reach = [changed]  # classes from which what changed is so many steps below
        roots: dict[tuple[Kind, int], Candidates] = {}  # their e-nodes of a kind
        singles: list[tuple[Family, list[Match]]] = []
        for family in ruleset.single:
            pattern = family.pattern
            while len(reach) < pattern.depth:
                reach.append(self._above(reach[-1]))
            key = pattern.root, pattern.depth
            if key not in roots:
                roots[key] = table.having(graph, pattern.root, reach[pattern.depth - 1])
            if matches := self._search(pattern, roots[key]):
                singles.append((family, matches))
        singles.sort(key=lambda found: len(found[1]))  # what matches most is what a limit cuts
        for family, matches in singles:
            self._sift(family, matches)
        if joint:
            self._together(joint)
        if self.cut:
            raise _Full("matches")

    def _search(self, pattern: Pattern, among: Candidates | None = None) -> list[Match]:
        """Where it matches, as far as the limits allow."""
        deadline, most = self.limits.deadline, self.limits.matches
        found = self.table.search(self.graph, pattern, among, most, inf if deadline is None else deadline)
        if deadline is not None and monotonic() > deadline:
            raise _Stop("time")
        self.cut |= len(found) >= most
        return found

    def _together(self, joint: Sequence[tuple[Entry, list[list[Match]]]]) -> None:
        """Apply the rules of several roots to the matches of each; raises _Stop."""
        graph, merged = self.graph, self.merged
        tops = {match[0] for _, lists in joint for matches in lists for match in matches}
        needs = Needs(graph, [root for top in sorted(tops) for root in merged.get(top, (top,))])
        waiting = [(entry, joined(graph, entry, lists, merged, needs)) for entry, lists in joint]
        while waiting:  # in turns: before a limit is met, every rule has had its share
            left = []
            for entry, rest in waiting:
                if (together := next(rest, None)) is not None:
                    self._apply(entry, together)
                    left.append((entry, rest))
            waiting = left

    def _sift(self, family: Family, matches: list[Match]) -> None:
        """Apply the rules of one root to their matches; raises _Stop.

        What a match makes depends on its e-nodes alone, and on what is known of the variables.
        """
        graph, find, cycles = self.graph, self.graph.find, self.cycles
        born, heads, analyses = graph.born, graph.heads, graph.analyses
        tried, refused, bind = self.tried[family], self.refused[family], family.pattern.bind
        again: list[Match] = []
        entries = len(family.entries)

        def plan(key: Any, match: Match, classes: tuple[int, ...]) -> tuple[tuple[Entry, Plan], ...]:
            told = [heads[number] for number in match], [analyses[group] for group in classes]
            roots = [analyses[find(match[0])]]
            made = [(entry, entry.plan(graph, *told, roots)) for entry in family.entries]
            family.plans[key] = found = tuple([(entry, plan) for entry, plan in made if plan is not None])
            return found

        def act(match: Match, classes: tuple[int, ...], plans: tuple[tuple[Entry, Plan], ...]) -> None:
            terms, root = bind(born, match), match[0]
            if len(plans) < entries:
                refused.append(match)
            for entry, plan in plans:
                told = tuple(map(graph.constant_of, terms)) if entry.rewrite.asks_content else terms
                if cycles is not None:
                    classes = tuple(map(find, terms))
                    if not cycles.allows(graph, (root,), told):
                        self.report.filtered += 1
                        again.append(match)
                        continue
                made = self._insert(plan, told, classes)
                (place,) = plan.roots
                new = told[place] if place >= 0 else made[~place]
                if find(root) != find(new):
                    self._hold([(root, new)], (entry, (match,), told, plan, made))

        now = graph.args, heads, analyses, graph.parents, find
        family.sift(matches, tried, *now, family.plans, plan, act, refused)
        tried.update(matches)
        tried.difference_update(again)

    def _insert(self, plan: Plan, terms: Sequence[int], classes: Sequence[int]) -> tuple[int, ...]:
        """The e-nodes of a plan; raises _Stop where a limit is met."""
        graph, deadline = self.graph, self.limits.deadline
        self.report.matches += 1
        if deadline is not None and monotonic() > deadline:
            raise _Stop("time")
        room = self.room - len(graph.known)
        if len(plan.steps) > room and plan.missing(graph, terms) > room:
            raise _Full("nodes")
        return plan.insert(graph, terms, classes)

    def _hold(self, pairs: list[tuple[int, int]], made: _Made) -> None:
        """Terms are equal: merged when the round is over, as until then e-nodes are found by class."""
        self.equal.append((pairs, made))
        if self.cycles is not None and self.cycles.eager:
            self._merge()

    def _merge(self) -> None:
        """Merge what was found to be equal."""
        graph, applied = self.graph, self.report.applied
        find = graph.find
        for pairs, made in self.equal:
            source = None
            for left, right in pairs:
                if find(left) != find(right):
                    source = source or Matched(*made)
                    graph.union(left, right, source)
                    applied[source.entry.rewrite.rule.name] += 1
        self.equal.clear()

    def _above(self, groups: set[int]) -> set[int]:
        """The classes and those that read them."""
        graph = self.graph
        readers = (number for group in groups for number in graph.readers[group] if graph.alive[number])
        return groups | {graph.find(number) for number in readers}

    def _apply(self, entry: Entry, found: Joined) -> None:
        """Insert what a rule of several roots makes of a match; raises _Stop."""
        graph, find = self.graph, self.graph.find
        matches, terms, classes, plan, merged = found
        joined = self.joined[entry]
        if matches in joined:
            return
        roots = [match[0] for match in matches]
        if self.cycles is not None:
            classes = tuple(map(find, terms))
        if entry.rewrite.asks_content:  # the rule's instance must show them
            terms = tuple(map(graph.constant_of, terms))
        if self.cycles is not None and not self.cycles.allows(graph, roots, terms):
            self.report.filtered += 1
            return
        newest = len(graph.heads)
        made = self._insert(plan, terms, classes)
        if entry.rewrite.once:
            for number in made:
                if number >= newest:
                    self.merged[number] = merged
        joined.add(matches)
        news = [terms[place] if place >= 0 else made[~place] for place in plan.roots]
        pairs = [(root, new) for root, new in zip(roots, news, strict=True) if find(root) != find(new)]
        if pairs:
            self._hold(pairs, (entry, matches, terms, plan, made))
