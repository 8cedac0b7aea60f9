"""Explores an e-graph: applies every rule everywhere, round after round, within limits (TENSAT, section 4).

All patterns are searched before anything is inserted; later rounds search only where classes have changed.  A
multi-pattern rule joins the matches of its roots on the variables that they share.  As each application may
square the number of e-nodes, such rules are applied in `k_multi` rounds only.  In the paper these are the
first rounds; here they come after the rules of one root have saturated or filled half of the room, so that
they merge the operators that those rules have made.
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
from tensaurus.egraph.match.match_index import CandidateRoots, MatchIndex
from tensaurus.egraph.match.multi_pattern_join import Dependencies, JointMatch, join_matches
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.egraph.match.plan import Plan
from tensaurus.egraph.match.ruleset import PatternFamily, RuleEntry, Ruleset
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.match import Binding, build_term
from tensaurus.system.garbage_collector import pause_collector
from tensaurus.system.timeline import record

__all__ = ["RuleEntry", "Exploration", "Limits", "RuleMatch", "Ruleset", "Runner", "saturate"]


FINDER_SHARE = 0.1  # share of the limit of e-nodes that is reserved for finders
SIMPLIFYING_SHARE = 0.25  # share of the room for e-nodes that simplifying rules may fill
MIN_SECONDS = 1.0  # for the rules of one root, before those of several roots have their half of the time
LATER_GROWTH = 1.5  # factor of the limit of e-nodes in the second stage, that of the `later` rules


@dataclass(frozen=True)
class Limits:
    """The limits of an exploration.

    nodes          number of e-nodes
    rounds         number of rounds
    multi          rounds in which multi-pattern rules are applied (`k_multi`)
    deadline       of `time.monotonic`
    matches        matches of one pattern in one round
    rule_share     share of the e-nodes that one rule may add
    merged_enodes  multi-pattern rules merge classes with an e-node below this number, and merged ones: if
                   it is the model's number of e-nodes, what the model computes, and no other forms of that
    """

    nodes: int = 50_000
    rounds: int = 15
    multi: int = 1
    deadline: float | None = None
    matches: int = 500_000
    rule_share: float = 1.0
    merged_enodes: float = inf


class RuleMatch:
    """The application of a rule, a source of unions: a match for each root, and the terms of the variables.

    `terms` are in the order of the entry's names, `made` are the e-nodes of the plan's steps.
    """

    __slots__ = ("entry", "matches", "terms", "plan", "made")

    def __init__(
        self,
        entry: RuleEntry,
        matches: tuple[Match, ...],
        terms: Sequence[int],
        plan: Plan,
        made: Sequence[int],
    ):
        self.entry, self.matches, self.terms, self.plan, self.made = entry, matches, terms, plan, made

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        """Return the instance of the rule over the terms, and the pairs of terms that it takes for equal."""
        # the right side over the terms of the variables, the left side as it was matched; a proof needs that
        # each occurrence of a variable equals the one term that the instance has for it
        entry, terms, rule = self.entry, self.terms, self.entry.rewrite.rule
        nodes = {name: graph.term(term) for name, term in zip(entry.names, terms, strict=True)}
        binding = Binding(nodes, dict(self.plan.values))
        left, right = [], []
        needs = self.plan.needs(graph, terms, self.made)
        for pattern, match, slots, rhs in zip(
            entry.patterns, self.matches, entry.slots, rule.rhs, strict=True
        ):
            bound = tuple(terms[slot] for slot in slots)
            made = build_term(rhs, binding, self.plan.dtype)
            assert made is not None
            left.append(pattern.instance(graph, match, bound))
            right.append(made)
            own = pattern.bind(graph.original_args, match)
            needs += [(a, b) for a, b in zip(bound, own, strict=True) if a != b]
            needs += pattern.needs(graph, match)
        return [instantiate_rule(rule, binding, left, right)], needs


@dataclass
class Exploration:
    """The report of an exploration."""

    ended_by: str = "saturated"  # or the limit that was met: nodes, rounds, matches, time
    rounds: int = 0
    matches: int = 0  # to which a rule was applied
    applied: Counter[str] = field(default_factory=Counter)  # unions by rule
    seconds: float = 0.0

    def then(self, other: Exploration) -> Exploration:
        """Return the report of this exploration continued by another."""
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
    simplifying: Ruleset | None = None,
    later: Ruleset | None = None,
    finders: Sequence[Finder] = (),
    watch: Callable[[int, int], None] = lambda rounds, nodes: None,
    refutation: Refutation | None = None,
) -> Exploration:
    """Apply the rules until nothing is new or a limit is met; the limit of e-nodes is never exceeded.

    The e-graph must be rebuilt before, and is rebuilt afterwards.  `watch` is called with the numbers of
    rounds and of e-nodes.  The `finders` are called after every round with multi-pattern rules.  With a
    `refutation` all types and equalities are checked in the end, see `check`.

    The exploration has up to three stages, each until its rules saturate or meet a limit:

    1. `simplifying` (`Rule.simplifies`): these rules add few e-nodes, and so reach their results before other
       rules fill the e-graph
    2. `ruleset`
    3. `later`, with rare rules besides, and with LATER_GROWTH times the e-nodes, so that rare rules cannot
       crowd out common ones
    """
    report = Exploration()
    if simplifying is not None:
        fewer = replace(limits, nodes=len(graph) + int(SIMPLIFYING_SHARE * max(0, limits.nodes - len(graph))))
        report = Runner(graph, simplifying, fewer).explore(watch)
    report = report.then(Runner(graph, ruleset, limits, finders).explore(watch))
    if later is not None:
        more = replace(limits, nodes=int(LATER_GROWTH * limits.nodes))
        report = report.then(Runner(graph, later, more, finders).explore(watch))
    size = {"e_nodes": len(graph), "classes": len(graph.members)}
    record("exploration", **size, rounds=report.rounds, ended_by=report.ended_by)
    if refutation is not None:
        check(graph, refutation)
    return report


class _Stop(Exception):
    """A limit was met; the message is its name."""


class _Full(_Stop):
    """There is no room for another e-node, or for another match."""


class Runner:
    """Explores an e-graph once; the fields hold what later rounds need of earlier ones."""

    def __init__(
        self, graph: EGraph, ruleset: Ruleset, limits: Limits = Limits(), finders: Sequence[Finder] = ()
    ):
        self.graph, self.ruleset, self.limits, self.finders = graph, ruleset, limits, finders
        self.index = MatchIndex()
        self.most = limits.nodes - (int(FINDER_SHARE * limits.nodes) if finders else 0)
        self.room = self.most  # the present limit of e-nodes
        self.deadline = inf if limits.deadline is None else limits.deadline  # the present one
        self.report = Exploration()
        self.tried: dict[PatternFamily, set[Match]] = defaultdict(set)  # matches of earlier rounds
        self.refused: dict[PatternFamily, list[Match]] = defaultdict(list)  # matches that some entry refused
        self.joined: dict[RuleEntry, set[tuple[Match, ...]]] = defaultdict(set)  # joint matches tried earlier
        self.equal: list[tuple[list[tuple[int, int]], RuleMatch]] = []  # to merge at the end of the round
        self.analysis_version = 0
        self.added: Counter[str] = Counter()  # e-nodes by the rule that inserted them
        self.cut = False  # whether a pattern met the limit of matches in this round
        # for each e-node that a multi-pattern rule made of several roots (a merged product), these roots
        self.merged: dict[int, tuple[int, ...]] = {}

    @pause_collector()
    def explore(self, watch: Callable[[int, int], None] = lambda rounds, nodes: None) -> Exploration:
        """Apply rules of one root in half of the room and time, then multi-pattern rules, then both."""
        start, deadline = monotonic(), self.deadline
        graph, report, limits = self.graph, self.report, self.limits
        graph.dirty_classes = set(graph.classes)
        multi = min(limits.multi, limits.rounds) if self.ruleset.multi_root else 0
        try:
            if multi:
                self.room = (len(graph) + limits.nodes) // 2
                self.deadline = min(deadline, max(start + MIN_SECONDS, (start + deadline) / 2))
                with suppress(_Stop):
                    self._rounds(limits.rounds - multi, watch)
                self.room, self.deadline = self.most, deadline
                for _ in range(multi):
                    self._rounds(1, watch, multi=True)
            self._rounds(limits.rounds - report.rounds, watch)
            if graph.dirty_classes:
                report.ended_by = "rounds"
        except _Stop as stop:
            report.ended_by = str(stop)
        report.seconds = monotonic() - start
        return report

    def _rounds(self, count: int, watch: Callable[[int, int], None], multi: bool = False) -> None:
        """Run at most `count` rounds, until nothing is new."""
        graph = self.graph
        for _ in range(count):
            if not graph.dirty_classes and not multi:  # multi-pattern rules search the whole e-graph
                return
            before = set(graph.dirty_classes)
            try:
                self.round(multi)
            except _Stop:
                graph.dirty_classes |= before  # not all of their matches were applied
                raise
            finally:
                self.merge()
                graph.rebuild()
                if multi:
                    find_all(graph, self.finders, self.limits.nodes)
                graph.dirty_classes = {graph.find(group) for group in graph.dirty_classes}
            self.report.rounds += 1
            watch(self.report.rounds, len(graph))

    def round(self, multi: bool) -> None:
        """Search all patterns, then apply the rules to the matches."""
        graph, ruleset, index = self.graph, self.ruleset, self.index
        # take over what has changed since the last round
        self.cut = False
        changed = {graph.find(group) for group in graph.dirty_classes}
        graph.dirty_classes.clear()
        if graph.analysis_version != self.analysis_version:  # refused matches may be accepted now
            self.analysis_version = graph.analysis_version
            for family, matches in self.refused.items():
                self.tried[family].difference_update(matches)
            self.refused.clear()
        index.update(graph, changed)
        # search: rules of several roots everywhere, of one root only above changed classes
        joint: list[tuple[RuleEntry, list[list[Match]]]] = []
        if multi:
            wanted = dict.fromkeys(pattern for entry in ruleset.multi_root for pattern in entry.patterns)
            matches_of = {pattern: self._search(pattern) for pattern in wanted}
            joint = [(entry, [matches_of[p] for p in entry.patterns]) for entry in ruleset.multi_root]
        reach = [changed]  # reach[k]: classes from which a changed class is at most k steps below
        present = {kind for kind, rows in index.rows.items() if rows}
        singles: list[tuple[PatternFamily, list[Match]]] = []
        for (root, depth), families in ruleset.by_root.items():  # a model has few of all kinds of roots
            while len(reach) < depth:
                reach.append(self._with_readers(reach[-1]))
            if root in present and (among := index.enodes_of_kind(graph, root, reach[depth - 1])).nodes:
                left = [family for family in families if not all(map(self._has_its_share, family.entries))]
                able = [family for family in left if present.issuperset(family.pattern.kinds)]
                found = [(family, self._search(family.pattern, among)) for family in able]
                singles += [(family, matches) for family, matches in found if matches]
        # apply: what is equal is noted, and merged at the end of the round
        singles.sort(key=lambda single: len(single[1]))  # a limit then cuts the rules that match most
        for family, matches in singles:
            self._apply_to_matches(family, matches)
        if joint:
            self._apply_jointly(joint)
        if self.cut:
            raise _Full("matches")

    def _search(self, pattern: Pattern, among: CandidateRoots | None = None) -> list[Match]:
        """Return the matches of a pattern, as far as the limits allow."""
        most = self.limits.matches
        matches = self.index.search(self.graph, pattern, among, most, self.deadline)
        if monotonic() > self.deadline:
            raise _Stop("time")
        self.cut |= len(matches) >= most
        return matches

    def _apply_jointly(self, joint: Sequence[tuple[RuleEntry, list[list[Match]]]]) -> None:
        """Apply multi-pattern rules to the matches of their patterns.  Raises _Stop."""
        graph, merged = self.graph, self.merged
        tops = {match[0] for _, lists in joint for matches in lists for match in matches}
        needs = Dependencies(graph, [root for top in sorted(tops) for root in merged.get(top, (top,))])
        own = self.limits.merged_enodes
        waiting = [(entry, join_matches(graph, entry, lists, merged, needs, own)) for entry, lists in joint]
        while waiting:  # rules take turns, so that each has its share before a limit is met
            left = []
            for entry, rest in waiting:
                if not self._has_its_share(entry) and (together := next(rest, None)) is not None:
                    self._apply_joined(entry, together)
                    left.append((entry, rest))
            waiting = left

    def _apply_to_matches(self, family: PatternFamily, matches: list[Match]) -> None:
        """Apply the rules of one root to their matches.  Raises _Stop.

        The compiled loop (`compile_plan_lookup`) skips each match that was tried.  For any other it looks up
        the plans by the match's key, has them made by `plan` where the key is new, and hands them to `act`; a
        match without plans is refused.  `act` also calls a match refused that only some rules accept.
        """
        graph = self.graph
        original_args, heads, analyses, find = graph.original_args, graph.heads, graph.analyses, graph.find
        tried, refused = self.tried[family], self.refused[family]
        bind, apply, entries = family.pattern.bind, self.apply, len(family.entries)

        def plan(key: Any, match: Match, classes: tuple[int, ...]) -> tuple[tuple[RuleEntry, Plan], ...]:
            matched, variables = [heads[number] for number in match], [analyses[group] for group in classes]
            roots = [analyses[find(match[0])]]
            plans = [(entry, entry.plan(graph, matched, variables, roots)) for entry in family.entries]
            family.plans[key] = kept = tuple([(entry, plan) for entry, plan in plans if plan is not None])
            return kept

        def act(match: Match, classes: tuple[int, ...], plans: tuple[tuple[RuleEntry, Plan], ...]) -> None:
            terms = bind(original_args, match)
            if len(plans) < entries:
                refused.append(match)
            for entry, plan in plans:
                apply(entry, (match,), terms, classes, plan)

        tables = graph.args, heads, analyses, graph.union_find, find
        family.look_up_plans(matches, tried, *tables, family.plans, plan, act, refused)
        tried.update(matches)

    def _apply_joined(self, entry: RuleEntry, match: JointMatch) -> None:
        """Apply a multi-pattern rule to a joint match, unless this was done before."""
        joined, newest = self.joined[entry], len(self.graph.heads)
        if match.matches in joined:
            return
        made = self.apply(entry, match.matches, match.terms, match.classes, match.plan)
        joined.add(match.matches)
        if entry.rewrite.is_symmetric:
            for number in made:
                if number >= newest:
                    self.merged[number] = match.roots

    def apply(
        self,
        entry: RuleEntry,
        matches: tuple[Match, ...],
        terms: Sequence[int],
        classes: Sequence[int],
        plan: Plan,
    ) -> Sequence[int]:
        """Insert a rule's right-hand sides for a match of each root; return the e-nodes.

        Each root and its right-hand side are merged at the end of the round.  Raises _Stop at a limit.
        """
        if self._has_its_share(entry):
            return ()
        graph, find = self.graph, self.graph.find
        self.report.matches += 1
        if monotonic() > self.deadline:
            raise _Stop("time")
        if entry.rewrite.asks_content:  # the instance must have the constants on which conditions depend
            terms = tuple(map(graph.constant_of, terms))
        # refuse what has no room, and what loses rounding that a model needs
        room = self.room - len(graph.hashcons)
        if len(plan.steps) > room and plan.count_new_enodes(graph, terms) > room:
            raise _Full("nodes")
        if plan.may_lose_rounding and plan.loses_rounding(graph, terms):
            return ()
        known, made = len(graph.heads), plan.insert(graph, terms, classes)
        self.added[entry.rewrite.rule.name] += len(graph.heads) - known
        pairs = []
        for match, place in zip(matches, plan.roots, strict=True):
            new = terms[place] if place >= 0 else made[~place]  # see `Plan.roots`
            if find(match[0]) != find(new):
                pairs.append((match[0], new))
        if pairs:
            self.equal.append((pairs, RuleMatch(entry, matches, terms, plan, made)))
        return made

    def _has_its_share(self, entry: RuleEntry) -> bool:
        """Return whether a rule has added as many e-nodes as it may, so that others have room."""
        return self.added[entry.rewrite.rule.name] > self.limits.rule_share * self.limits.nodes

    def merge(self) -> None:
        """Merge the pairs that rules have made equal in this round."""
        graph, applied = self.graph, self.report.applied
        for pairs, source in self.equal:
            name = source.entry.rewrite.rule.name
            applied[name] += sum(graph.union(left, right, source) for left, right in pairs)
        self.equal.clear()

    def _with_readers(self, groups: set[int]) -> set[int]:
        """Return these classes and those with an e-node that reads one of them."""
        graph = self.graph
        readers = (number for group in groups for number in graph.readers[group] if graph.is_live[number])
        return groups | {graph.find(number) for number in readers}
