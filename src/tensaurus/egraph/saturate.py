"""Exploration: apply every rule everywhere, round after round, within limits (TENSAT, section 4).

Patterns are searched in batches before anything is inserted; later rounds search only below what changed.  A
rule of several roots (a multi-pattern) joins the matches of its roots on the variables that they share, and
only in the first `k_multi` rounds: each such round may square the number of e-nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from tensaurus.egraph.egraph import EGraph, Kind, Source
from tensaurus.egraph.pattern import Match, Pattern, compiled, shape
from tensaurus.egraph.rewrite import Rewrite, rewrites
from tensaurus.rules.rule import Rule

__all__ = ["Exploration", "Filter", "Limits", "Matched", "Ruleset", "saturate"]


@dataclass(frozen=True)
class Limits:
    """When to stop: e-nodes, rounds, rounds of multi-patterns, and a deadline (of `time.monotonic`)."""

    nodes: int = 50_000
    rounds: int = 15
    multi: int = 1
    deadline: float | None = None


@dataclass(frozen=True)
class Matched:
    """The reason of a union: a rule with what its variables stood for, terms by name, and attributes.

    `roots` are each root's pattern, the e-nodes that it matched and the terms of the pattern's variables.
    """

    rule: Rule
    terms: tuple[tuple[str, int], ...]
    values: dict[str, Any] = field(compare=False)
    dtype: str
    roots: tuple[tuple[Pattern, Match, tuple[int, ...]], ...]


@dataclass
class Exploration:
    """How it went."""

    ended_by: str = "saturated"  # or: nodes, rounds, time
    rounds: int = 0
    matches: int = 0  # that a rule applied to
    filtered: int = 0  # that would have made a cycle
    applied: Counter[str] = field(default_factory=Counter)  # unions by rule
    seconds: float = 0.0


class Filter(Protocol):
    """Keeps the e-graph free of cycles, or lets everything pass."""

    def begin(self, graph: EGraph) -> None:
        """A round begins; the e-graph is rebuilt."""

    def allows(self, graph: EGraph, roots: Sequence[int], reads: Iterable[int]) -> bool:
        """Whether e-nodes over the classes `reads` may join the classes of `roots`."""

    def end(self, graph: EGraph) -> None:
        """A round is over; the e-graph is rebuilt."""


class _Compiled:
    """A rewrite with the numbers of its roots' patterns, and which variables those share.

    A pattern that it shares has another rule's names and terms; `own` are its own.
    """

    def __init__(self, rewrite: Rewrite, patterns: Sequence[int], own: Sequence[Pattern]):
        self.rewrite, self.patterns = rewrite, patterns
        self.names = tuple(dict.fromkeys(name for pattern in own for name in pattern.variables))
        self.slots = [[self.names.index(name) for name in pattern.variables] for pattern in own]
        self.operators = [pattern.operators for pattern in own]


class Ruleset:
    """Rules compiled once, for any number of e-graphs; `patterns` are shared between rules."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = [rule for rule in rules if not rule.tags & {"off", "expand"}]
        self.patterns: list[Pattern] = []
        self.single: list[_Compiled] = []
        self.several: list[_Compiled] = []
        known: dict[Any, int] = {}
        for rule in self.rules:
            for rewrite in rewrites(rule):
                own = [compiled(term) for term in rewrite.side]
                numbers = []
                for term, pattern in zip(rewrite.side, own, strict=True):
                    form = shape(term, {})
                    if form not in known:
                        known[form] = len(self.patterns)
                        self.patterns.append(pattern)
                    numbers.append(known[form])
                entry = _Compiled(rewrite, numbers, own)
                (self.single if len(numbers) == 1 else self.several).append(entry)


@dataclass
class _Table:
    """E-nodes of each class by kind, and the classes that have a kind; brought up to date round by round."""

    rows: dict[int, dict[Kind, list[int]]] = field(default_factory=dict)
    having: dict[Kind, set[int]] = field(default_factory=lambda: defaultdict(set))

    def update(self, graph: EGraph, changed: Iterable[int]) -> None:
        heads = graph.heads
        for group in changed:
            row: dict[Kind, list[int]] = {}
            for number in graph.live(group):
                row.setdefault(heads[number].kind, []).append(number)
            self.rows[group] = row
            for kind in row:
                self.having[kind].add(group)

    def candidates(self, graph: EGraph, kind: Kind, among: set[int] | None) -> Iterator[int]:
        """Classes that have an e-node of the kind, in order; merged ones are forgotten."""
        groups = self.having[kind]
        stale = [group for group in groups if group not in graph.members]
        groups.difference_update(stale)
        for group in stale:
            self.rows.pop(group, None)
        return iter(sorted(groups if among is None else groups & among))


def saturate(
    graph: EGraph,
    ruleset: Ruleset,
    limits: Limits = Limits(),
    *,
    cycles: Filter | None = None,
    watch: Callable[[int, int], None] = lambda rounds, nodes: None,
) -> Exploration:
    """Apply the rules until nothing is new or a limit is met; nothing is inserted past the limit of e-nodes.

    The e-graph must be rebuilt, and is afterwards.  `watch` is told of the rounds done and of the e-nodes.
    """
    start = monotonic()
    run = _Run(graph, ruleset, limits, cycles)
    run.explore(watch)
    run.report.seconds = monotonic() - start
    return run.report


class _Stop(Exception):
    """A limit was met; its name."""


class _Run:
    """One exploration."""

    def __init__(self, graph: EGraph, ruleset: Ruleset, limits: Limits, cycles: Filter | None):
        self.graph, self.ruleset, self.limits, self.cycles = graph, ruleset, limits, cycles
        self.table = _Table()
        self.report = Exploration()

    def explore(self, watch: Callable[[int, int], None]) -> None:
        graph, report = self.graph, self.report
        graph.changed = set(graph.classes)
        try:
            while report.rounds < self.limits.rounds:
                if not graph.changed:
                    return
                if self.cycles is not None:
                    self.cycles.begin(graph)
                try:
                    self._round()
                finally:
                    graph.rebuild()
                    if self.cycles is not None:
                        self.cycles.end(graph)
                report.rounds += 1
                watch(report.rounds, len(graph))
            if graph.changed:
                report.ended_by = "rounds"
        except _Stop as stop:
            report.ended_by = str(stop)

    def _round(self) -> None:
        """Search every pattern, then apply every rule to its matches."""
        graph = self.graph
        changed = {graph.find(group) for group in graph.changed}
        graph.changed.clear()
        self.table.update(graph, changed)
        multi = self.report.rounds < self.limits.multi
        wanted = {entry.patterns[0] for entry in self.ruleset.single}
        reach = [changed]  # classes from which what changed is so many steps below
        found: dict[int, list[Match]] = {}
        for number, pattern in enumerate(self.ruleset.patterns):
            while len(reach) < pattern.depth:
                reach.append(self._above(reach[-1]))
            if number in wanted:
                found[number] = self._search(pattern, reach[pattern.depth - 1])
        for entry in self.ruleset.single:
            for match in found[entry.patterns[0]]:
                self._apply(entry, (match,))
        if multi:
            every = {
                p: self._search(self.ruleset.patterns[p], None)
                for e in self.ruleset.several
                for p in e.patterns
            }
            for entry in self.ruleset.several:
                for matches in self._joined(entry, every):
                    self._apply(entry, matches)

    def _above(self, groups: set[int]) -> set[int]:
        """The classes and those that read them."""
        graph = self.graph
        readers = (number for group in groups for number in graph.readers[group] if graph.alive[number])
        return groups | {graph.find(number) for number in readers}

    def _search(self, pattern: Pattern, among: set[int] | None) -> list[Match]:
        found: list[Match] = []
        graph, rows = self.graph, self.table.rows
        for group in self.table.candidates(graph, pattern.root, among):
            pattern.search(group, rows, graph.args, graph.facts, found)
        return found

    def _joined(self, entry: _Compiled, found: dict[int, list[Match]]) -> Iterator[tuple[Match, ...]]:
        """Matches of all roots that agree on shared variables, one after another."""
        graph, patterns = self.graph, self.ruleset.patterns

        def extend(chosen: tuple[Match, ...], bound: dict[int, int]) -> Iterator[tuple[Match, ...]]:
            place = len(chosen)
            if place == len(entry.patterns):
                yield chosen
                return
            slots = entry.slots[place]
            shared = [k for k, slot in enumerate(slots) if slot in bound]
            for match, groups in buckets(place, tuple(shared)).get(
                tuple(bound[slots[k]] for k in shared), ()
            ):
                if any(match[0] == other[0] for other in chosen):
                    continue
                yield from extend((*chosen, match), bound | dict(zip(slots, groups, strict=True)))

        known: dict[Any, dict[tuple[int, ...], list[tuple[Match, tuple[int, ...]]]]] = {}

        def buckets(place: int, shared: tuple[int, ...]) -> dict[tuple[int, ...], list[Any]]:
            if (place, shared) not in known:
                table: dict[tuple[int, ...], list[Any]] = defaultdict(list)
                pattern = patterns[entry.patterns[place]]
                for match in found[entry.patterns[place]]:
                    groups = tuple(map(graph.find, pattern.bind(graph, match)))
                    table[tuple(groups[k] for k in shared)].append((match, groups))
                known[place, shared] = table
            return known[place, shared]

        return extend((), {})

    def _apply(self, entry: _Compiled, matches: tuple[Match, ...]) -> None:
        """Insert what the rule makes of a match and merge it with the match's roots; raises _Stop."""
        graph, rewrite, limits = self.graph, entry.rewrite, self.limits
        terms = [-1] * len(entry.names)
        needs: list[tuple[int, int]] = []
        for slots, number, match in zip(entry.slots, entry.patterns, matches, strict=True):
            pattern = self.ruleset.patterns[number]
            for slot, term in zip(slots, pattern.bind(graph, match), strict=True):
                if terms[slot] == -1:
                    terms[slot] = term
                elif terms[slot] != term:
                    needs.append((terms[slot], term))
        heads = [graph.heads[number] for match in matches for number in match]
        facts = [graph.facts[graph.find(term)] for term in terms]
        roots = [match[0] for match in matches]
        wanted = [graph.facts[graph.find(root)] for root in roots]
        plan = rewrite.plan(graph, heads, facts, wanted, entry.names, entry.operators)
        if plan is None:
            return
        self.report.matches += 1
        if self.cycles is not None and not self.cycles.allows(graph, roots, terms):
            self.report.filtered += 1
            return
        if limits.deadline is not None and monotonic() > limits.deadline:
            raise _Stop("time")
        if len(graph) + plan.missing(graph, terms) > limits.nodes:
            raise _Stop("nodes")
        made, more = plan.insert(graph, terms)
        for number, match in zip(entry.patterns, matches, strict=True):
            needs += self.ruleset.patterns[number].needs(graph, match)
        parts = zip(entry.patterns, matches, entry.slots, strict=True)
        reason = Matched(
            rewrite.rule,
            tuple(zip(entry.names, terms, strict=True)),
            plan.values,
            plan.dtype,
            tuple(
                (self.ruleset.patterns[p], match, tuple(terms[s] for s in slots)) for p, match, slots in parts
            ),
        )
        for root, new in zip(roots, made, strict=True):
            if graph.union(Source(root, new, reason, (*needs, *more))):
                self.report.applied[rewrite.rule.name] += 1
