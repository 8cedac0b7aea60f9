"""Exploration: apply every rule everywhere, round after round, within limits (TENSAT, section 4).

Patterns are searched in batches before anything is inserted; later rounds search only below what changed.  A
rule of several roots (a multi-pattern) joins the matches of its roots on the variables that they share, and
only in `k_multi` rounds, as each may square the number of e-nodes; the paper has the first ones, we those
after the rules of one root have saturated or filled half of the room: merged is what those have made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Any

from tensaurus.egraph.core.check_egraph import Refutation, check
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Finder, find_all
from tensaurus.egraph.match.match_index import Candidates, Table
from tensaurus.egraph.match.multi_pattern_join import Joined, Needs, joined
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.egraph.match.rewrite import Plan
from tensaurus.egraph.match.ruleset import Entry, Family, Ruleset
from tensaurus.rules.language.equation import Equation, instance
from tensaurus.rules.language.match import Binding, build
from tensaurus.system.garbage_collector import collector_resting

__all__ = ["Entry", "Exploration", "Limits", "Matched", "Ruleset", "Runner", "saturate"]


KEPT = 0.1  # of the room, for what finders insert alone
LATER = 1.5  # times as many e-nodes, once rules are applied that had to wait for others


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
            own = pattern.bind(graph.born, match)
            needs += [(a, b) for a, b in zip(bound, own, strict=True) if a != b]
            needs += pattern.needs(graph, match)
        return [instance(rule, binding, left, right)], needs


@dataclass
class Exploration:
    """How it went."""

    ended_by: str = "saturated"  # or: nodes, rounds, matches, time
    rounds: int = 0
    matches: int = 0  # that a rule applied to
    applied: Counter[str] = field(default_factory=Counter)  # unions by rule
    seconds: float = 0.0

    def then(self, other: Exploration) -> Exploration:
        """This one, and another that went on from it."""
        return Exploration(
            other.ended_by,
            self.rounds + other.rounds,
            self.matches + other.matches,
            self.applied + other.applied,
            self.seconds + other.seconds,
        )


def saturate(
    graph: EGraph,
    ruleset: Ruleset,
    limits: Limits = Limits(),
    *,
    later: Ruleset | None = None,
    finders: Sequence[Finder] = (),
    watch: Callable[[int, int], None] = lambda rounds, nodes: None,
    refutation: Refutation | None = None,
) -> Exploration:
    """Apply the rules until nothing is new or a limit is met; nothing is inserted past the limit of e-nodes.

    The e-graph must be rebuilt, and is afterwards.  `watch` gets the rounds done and the e-nodes there are.
    The `finders` look for more after every round with multi-patterns, which write one thing in several ways.
    With a `refutation` everything is checked in the end, see `check`.

    Rules that seldom help are in `later`, beside the others: these have done before all that they do alone,
    and there is room for LATER times as many e-nodes.  Else what seldom helps would take their room.
    """
    report = Runner(graph, ruleset, limits, finders).explore(watch)
    if later is not None:
        more = replace(limits, nodes=int(LATER * limits.nodes))
        report = report.then(Runner(graph, later, more, finders).explore(watch))
    if refutation is not None:
        check(graph, refutation)
    return report


class _Stop(Exception):
    """A limit was met; its name."""


class _Full(_Stop):
    """There is no room for another e-node, or for another match."""


class Runner:
    """One exploration."""

    def __init__(
        self, graph: EGraph, ruleset: Ruleset, limits: Limits = Limits(), finders: Sequence[Finder] = ()
    ):
        self.graph, self.ruleset, self.limits, self.finders = graph, ruleset, limits, finders
        self.table = Table()
        self.most = limits.nodes - (int(KEPT * limits.nodes) if finders else 0)
        self.room = self.most  # e-nodes at most
        self.report = Exploration()
        self.tried: dict[Family, set[Match]] = defaultdict(set)  # matches of earlier rounds
        self.refused: dict[Family, list[Match]] = defaultdict(list)  # those that not every entry took
        self.joined: dict[Entry, set[tuple[Match, ...]]] = defaultdict(set)  # those of several roots
        self.equal: list[tuple[list[tuple[int, int]], Matched]] = []  # merged when the round is over
        self.learnt = 0
        self.cut = False  # a pattern matched more often in this round than the limit allows
        self.merged: dict[int, tuple[int, ...]] = {}  # the roots that each has merged

    @collector_resting()
    def explore(self, watch: Callable[[int, int], None] = lambda rounds, nodes: None) -> Exploration:
        """Rules of one root first, within half of the room; then those of several, and what follows."""
        start = monotonic()
        graph, report, limits = self.graph, self.report, self.limits
        graph.changed = set(graph.classes)
        multi = min(limits.multi, limits.rounds) if self.ruleset.several else 0
        try:
            if multi:
                self.room = (len(graph) + limits.nodes) // 2
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
        report.seconds = monotonic() - start
        return report

    def _rounds(self, count: int, watch: Callable[[int, int], None], multi: bool = False) -> None:
        """At most so many rounds, until nothing is new."""
        graph = self.graph
        for _ in range(count):
            if not graph.changed and not multi:
                return
            before = set(graph.changed)
            try:
                self.round(multi)
            except _Stop:
                graph.changed |= before  # not every match of theirs was applied
                raise
            finally:
                self.merge()
                graph.rebuild()
                if multi:
                    find_all(graph, self.finders, self.limits.nodes)
                graph.changed = {graph.find(group) for group in graph.changed}
            self.report.rounds += 1
            watch(self.report.rounds, len(graph))

    def round(self, multi: bool) -> None:
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
            matches_of = {pattern: self._search(pattern) for pattern in wanted}
            joint = [(entry, [matches_of[p] for p in entry.patterns]) for entry in ruleset.several]
        reach = [changed]  # classes from which what changed is so many steps below
        present = {kind for kind, rows in table.rows.items() if rows}
        singles: list[tuple[Family, list[Match]]] = []
        for (root, depth), families in ruleset.by_root.items():  # most kinds of root are in no one model
            while len(reach) < depth:
                reach.append(self._above(reach[-1]))
            if root in present and (among := table.having(graph, root, reach[depth - 1])).nodes:
                able = [family for family in families if present.issuperset(family.pattern.kinds)]
                found = [(family, self._search(family.pattern, among)) for family in able]
                singles += [(family, matches) for family, matches in found if matches]
        singles.sort(key=lambda single: len(single[1]))  # what matches most is what a limit cuts
        for family, matches in singles:
            self._sift(family, matches)
        if joint:
            self._together(joint)
        if self.cut:
            raise _Full("matches")

    def _search(self, pattern: Pattern, among: Candidates | None = None) -> list[Match]:
        """Where it matches, as far as the limits allow."""
        deadline, most = self.limits.deadline, self.limits.matches
        matches = self.table.search(self.graph, pattern, among, most, inf if deadline is None else deadline)
        if deadline is not None and monotonic() > deadline:
            raise _Stop("time")
        self.cut |= len(matches) >= most
        return matches

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
                    self._apply_joined(entry, together)
                    left.append((entry, rest))
            waiting = left

    def _sift(self, family: Family, matches: list[Match]) -> None:
        """Apply the rules of one root to their matches; raises _Stop.

        What a match makes depends on its e-nodes alone, and on what is known of the variables.
        """
        graph = self.graph
        born, heads, analyses, find = graph.born, graph.heads, graph.analyses, graph.find
        tried, refused = self.tried[family], self.refused[family]
        bind, apply, entries = family.pattern.bind, self.apply, len(family.entries)

        def plan(key: Any, match: Match, classes: tuple[int, ...]) -> tuple[tuple[Entry, Plan], ...]:
            matched, variables = [heads[number] for number in match], [analyses[group] for group in classes]
            roots = [analyses[find(match[0])]]
            plans = [(entry, entry.plan(graph, matched, variables, roots)) for entry in family.entries]
            family.plans[key] = kept = tuple([(entry, plan) for entry, plan in plans if plan is not None])
            return kept

        def act(match: Match, classes: tuple[int, ...], plans: tuple[tuple[Entry, Plan], ...]) -> None:
            terms = bind(born, match)
            if len(plans) < entries:
                refused.append(match)
            for entry, plan in plans:
                apply(entry, (match,), terms, classes, plan)

        now = graph.args, heads, analyses, graph.parents, find
        family.sift(matches, tried, *now, family.plans, plan, act, refused)
        tried.update(matches)

    def _apply_joined(self, entry: Entry, match: Joined) -> None:
        """Apply a rule of several roots, unless it was to these matches."""
        joined, newest = self.joined[entry], len(self.graph.heads)
        if match.matches in joined:
            return
        made = self.apply(entry, match.matches, match.terms, match.classes, match.plan)
        joined.add(match.matches)
        if entry.rewrite.once:
            for number in made:
                if number >= newest:
                    self.merged[number] = match.roots

    def apply(
        self,
        entry: Entry,
        matches: tuple[Match, ...],
        terms: Sequence[int],
        classes: Sequence[int],
        plan: Plan,
    ) -> Sequence[int]:
        """Insert what a rule makes of a match for each of its roots; the e-nodes.  Raises _Stop at a limit.

        Roots and what they become are merged when the round is over: until then e-nodes are found by class.
        """
        graph, deadline, find = self.graph, self.limits.deadline, self.graph.find
        self.report.matches += 1
        if deadline is not None and monotonic() > deadline:
            raise _Stop("time")
        if entry.rewrite.asks_content:  # the rule's instance must show them
            terms = tuple(map(graph.constant_of, terms))
        room = self.room - len(graph.known)
        if len(plan.steps) > room and plan.missing(graph, terms) > room:
            raise _Full("nodes")
        if plan.asks_constants and plan.loses(graph, terms):
            return ()
        made = plan.insert(graph, terms, classes)
        pairs = []
        for match, place in zip(matches, plan.roots, strict=True):
            new = terms[place] if place >= 0 else made[~place]
            if find(match[0]) != find(new):
                pairs.append((match[0], new))
        if pairs:
            self.equal.append((pairs, Matched(entry, matches, terms, plan, made)))
        return made

    def merge(self) -> None:
        """Merge what rules have made equal."""
        graph, applied = self.graph, self.report.applied
        for pairs, source in self.equal:
            name = source.entry.rewrite.rule.name
            for left, right in pairs:
                if graph.union(left, right, source):
                    applied[name] += 1
        self.equal.clear()

    def _above(self, groups: set[int]) -> set[int]:
        """The classes and those that read them."""
        graph = self.graph
        readers = (number for group in groups for number in graph.readers[group] if graph.alive[number])
        return groups | {graph.find(number) for number in readers}
