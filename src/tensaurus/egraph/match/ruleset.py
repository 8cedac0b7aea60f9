"""Compiles rules for e-graphs: rules with equal left sides share a pattern and the lookup of plans.

A plan (`plan.Plan`) says what one rule inserts for a match: the heads of the new e-nodes, with all attributes
computed.  It depends on little of a match: the heads of the matched e-nodes, and what is known of the
variables' classes, which are their types and, where a rule asks for elements, their values.  These are the
key of the plan (the signature of a match, for one root of a multi-pattern rule), and plans are kept by it:
Transpose(Transpose(x)) => Transpose(x) is planned once for all x of one type with the same two permutations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tensaurus.egraph.core.class_analysis import Analysis
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head, Kind
from tensaurus.egraph.match.pattern import (
    Pattern,
    PlanLookup,
    compile_pattern,
    compile_plan_lookup,
    pattern_shape,
)
from tensaurus.egraph.match.plan import Plan
from tensaurus.egraph.match.rewrite import Rewrite, commuted_rewrites
from tensaurus.egraph.match.variable_guard import variable_guards
from tensaurus.rules.language.occurrences import variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import show_term

__all__ = ["RuleEntry", "PatternFamily", "Ruleset"]


class RuleEntry:
    """A rewrite with the patterns of its roots, and the variables that the roots share.

    `patterns` may be shared with other rules, whose names and terms they then have; `own` have this rule's.

    names             the variables, in the order of all roots
    slots             for each root, the numbers of its variables among `names`
    operators         for each root, the terms of its operators
    signatures        a number for each signature of a match, see `multi_pattern_join`
    plans             plans by the signatures of the matches of all roots
    attribute_values  see `Rewrite.attribute_values`, by root and signature
    """

    def __init__(self, rewrite: Rewrite, patterns: Sequence[Pattern], own: Sequence[Pattern]):
        self.rewrite, self.patterns = rewrite, patterns
        self.signatures: dict[Any, int] = {}
        self.plans: dict[tuple[int, ...], Plan | None] = {}
        self.names = tuple(dict.fromkeys(name for pattern in own for name in pattern.variables))
        self.slots = [[self.names.index(name) for name in pattern.variables] for pattern in own]
        self.operators = [pattern.operators for pattern in own]
        self.attribute_values: dict[tuple[int, int], dict[str, Any] | None] = {}
        self.is_last_root_interchangeable = _is_last_root_interchangeable(rewrite, own)

    def plan(
        self, graph: EGraph, heads: Sequence[Head], analyses: Sequence[Analysis], roots: Sequence[Analysis]
    ) -> Plan | None:
        """Return the plan for matches of these heads and variables; None where the rule does not apply."""
        return self.rewrite.plan(graph, heads, analyses, roots, self.names, self.operators)


def _is_last_root_interchangeable(rewrite: Rewrite, patterns: Sequence[Pattern]) -> bool:
    """Return whether, among matches of one signature, any will do for the last root.

    The rule leaves the last root as it is, and the right-hand sides of the others read none of its variables.
    """
    *others, last = rewrite.rule.rhs
    known = {name for pattern in patterns[:-1] for name in pattern.variables}
    used = {name for root in others for name in variables(root)}
    return bool(others) and used <= known and show_term(last) == show_term(rewrite.side[-1])


class PatternFamily:
    """The entries of one root that share a pattern; their plans for a match are looked up together.

    `plans` holds for each key the entries that apply, with their plans.
    """

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.entries: list[RuleEntry] = []
        self.plans: dict[Any, tuple[tuple[RuleEntry, Plan], ...]] = {}

    @cached_property
    def look_up_plans(self) -> PlanLookup:
        """The loop over new matches, with keys by the types of variables ("code") or also their values."""
        asks_content = any(entry.rewrite.asks_content for entry in self.entries)
        return compile_plan_lookup(self.pattern, "content" if asks_content else "code")


class Ruleset:
    """Rules compiled once, for any number of e-graphs.

    by_root     the rules of one root, by the kind of the root and the depth of the pattern
    multi_root  the rules of several roots (multi-pattern rules)
    """

    def __init__(self, rules: Iterable[Rule]):
        self.rules = [rule for rule in rules if not rule.tags & {"off", "expand"}]
        self.multi_root: list[RuleEntry] = []
        known: dict[Any, Pattern] = {}
        families: dict[Pattern, PatternFamily] = {}
        for rule in self.rules:
            guarded = variable_guards(rule)
            for rewrite in commuted_rewrites(rule):
                own, shared = [], []  # patterns of the roots: with this rule's names, or shared
                for term in rewrite.side:
                    names: dict[str, int] = {}
                    shape = pattern_shape(term, names)
                    # patterns of one shape are shared if their variables have the same guard objects, too
                    guards = tuple([(names[name], id(guarded[name])) for name in names if name in guarded])
                    pattern = compile_pattern(term, guarded)  # its code is compiled at first use only
                    own.append(pattern)
                    shared.append(known.setdefault((shape, guards), pattern))
                entry = RuleEntry(rewrite, shared, own)
                if len(shared) == 1:
                    families.setdefault(shared[0], PatternFamily(shared[0])).entries.append(entry)
                else:
                    self.multi_root.append(entry)
        self.by_root: dict[tuple[Kind, int], list[PatternFamily]] = {}
        for family in families.values():
            self.by_root.setdefault((family.pattern.root, family.pattern.depth), []).append(family)
