"""Decides by equality saturation whether rules derive an equation (as Ruler and Enumo do).

A rule whose equation the other rules derive is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.rule import Rule

__all__ = ["DERIVATION_LIMITS", "is_derivable"]

# small, as thousands of equations are tried; multi=0: multi-pattern rules are not applied
DERIVATION_LIMITS = Limits(nodes=2000, rounds=6, multi=0)


def is_derivable(
    left: Sequence[Node], right: Sequence[Node], rules: Iterable[Rule] | Ruleset,
    limits: Limits = DERIVATION_LIMITS
) -> bool:
    """Return whether saturation of the left sides alone, within the limits, finds the right sides equal.

    The right sides are inserted afterwards, so that no rule is applied to them: a search that meets the left
    sides in a model does not have the right ones either.
    """
    ruleset = rules if isinstance(rules, Ruleset) else Ruleset(rules)
    graph = EGraph()
    roots = [graph.insert_term(node) for node in left]
    graph.rebuild()
    saturate(graph, ruleset, limits)
    others = [graph.insert_term(node) for node in right]
    graph.rebuild()
    return all(graph.find(a) == graph.find(b) for a, b in zip(roots, others, strict=True))
