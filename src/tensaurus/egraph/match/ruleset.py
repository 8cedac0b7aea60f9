"""Rules compiled for e-graphs: patterns that rules share, and what each makes of a match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tensaurus.egraph.core.class_analysis import Analysis
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head, Kind
from tensaurus.egraph.match.pattern import Pattern, Sift, compiled, shape, sift
from tensaurus.egraph.match.rewrite import Plan, Rewrite, rewrites
from tensaurus.egraph.match.variable_guard import guards
from tensaurus.rules.language.occurrences import variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import show_term

__all__ = ["Entry", "Family", "Ruleset"]


class Entry:
    """A rewrite with its roots' patterns, and which variables those share.

    A pattern that it shares with other rules has their names and terms; `own` are its own.
    """

    def __init__(self, rewrite: Rewrite, patterns: Sequence[Pattern], own: Sequence[Pattern]):
        self.rewrite, self.patterns = rewrite, patterns
        self.sorts: dict[Any, int] = {}  # of matches of several roots: of their heads and variables' types
        self.plans: dict[tuple[int, ...], Plan | None] = {}  # by the sorts of all roots
        self.names = tuple(dict.fromkeys(name for pattern in own for name in pattern.variables))
        self.slots = [[self.names.index(name) for name in pattern.variables] for pattern in own]
        self.operators = [pattern.operators for pattern in own]
        self.given: dict[tuple[int, int], dict[str, Any] | None] = {}  # by root and sort: see `Rewrite.given`
        self.witness = _witness(rewrite, own)

    def plan(
        self, graph: EGraph, heads: Sequence[Head], analyses: Sequence[Analysis], roots: Sequence[Analysis]
    ) -> Plan | None:
        """What it inserts where these were matched; None where it does not apply."""
        return self.rewrite.plan(graph, heads, analyses, roots, self.names, self.operators)


def _witness(rewrite: Rewrite, patterns: Sequence[Pattern]) -> bool:
    """Whether the last root stays as it is, and gives the others nothing but what its sort says."""
    *others, last = rewrite.rule.rhs
    known = {name for pattern in patterns[:-1] for name in pattern.variables}
    used = {name for root in others for name in variables(root)}
    return bool(others) and used <= known and show_term(last) == show_term(rewrite.side[-1])


class Family:
    """Entries of one root that search for the same; what they make of a match is looked up together."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.entries: list[Entry] = []
        self.plans: dict[Any, tuple[tuple[Entry, Plan], ...]] = {}  # of the entries that apply

    @cached_property
    def sift(self) -> Sift:
        asked = any(entry.rewrite.asks_content for entry in self.entries)
        return sift(self.pattern, "content" if asked else "code")


class Ruleset:
    """Rules compiled once, for any number of e-graphs; `patterns` are shared between rules."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = [rule for rule in rules if not rule.tags & {"off", "expand"}]
        self.several: list[Entry] = []
        known: dict[Any, Pattern] = {}
        families: dict[Pattern, Family] = {}
        for rule in self.rules:
            guarded = guards(rule)
            for rewrite in rewrites(rule):
                own, shared = [], []
                for term in rewrite.side:
                    names: dict[str, int] = {}
                    form = shape(term, names)
                    asked = tuple([(names[name], id(guarded[name])) for name in names if name in guarded])
                    pattern = compiled(term, guarded)
                    own.append(pattern)
                    shared.append(known.setdefault((form, asked), pattern))
                entry = Entry(rewrite, shared, own)
                if len(shared) == 1:
                    families.setdefault(shared[0], Family(shared[0])).entries.append(entry)
                else:
                    self.several.append(entry)
        self.single = list(families.values())
        self.by_root: dict[tuple[Kind, int], list[Family]] = {}  # of one root: by its kind and depth
        for family in self.single:
            self.by_root.setdefault((family.pattern.root, family.pattern.depth), []).append(family)
        self.patterns = list(known.values())
