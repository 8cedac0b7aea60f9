"""Are two terms equal by a set of rules, and by which steps?"""

from __future__ import annotations

from collections.abc import Iterable

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.egraph_proof import Proof, prove
from tensaurus.egraph.match.ruleset import Ruleset
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.rule import Rule

__all__ = ["equal"]


def equal(left: Node, right: Node, rules: Iterable[Rule], limits: Limits | None = None) -> Proof | None:
    """Why two terms are equal, print it to see the steps; None where the rules do not show it within limits.

    The proof's equations, and congruence (what reads equal tensors is equal), lead from one to the other.
    """
    graph = EGraph()
    terms = [graph.adopt(left), graph.adopt(right)]
    graph.rebuild()
    saturate(graph, Ruleset(rules), limits or Limits())
    if graph.find(terms[0]) != graph.find(terms[1]):
        return None
    return prove(graph, [(terms[0], right)])
