"""Checks the types and the equalities of a whole e-graph again.

This takes minutes, and is for authors of rules: searches do it if the environment variable CHECK is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.ops import Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.node_text import format_nodes
from tensaurus.system.errors import NotEqualError

__all__ = ["Refutation", "check"]

Refutation: TypeAlias = Callable[[Equation], str | None]  # returns why an equation does not hold, or None


def check(graph: EGraph, refutation: Refutation) -> None:
    """Type every e-node again from its operator's declaration, and replay the equations of every union.

    Raises NotEqualError for the first wrong e-node or equation, with the rule's name and both sides.
    """
    for enode, head in enumerate(graph.heads):
        known = graph.analyses[graph.find(enode)].types
        try:
            types = graph.term(enode).types
        except Untypable as error:
            raise NotEqualError(f"e-node {enode}, {head}, does not type: {error}") from error
        if types != known:
            raise NotEqualError(f"e-node {enode}, {head}, is {types}, its class {known}")
    for source in graph.sources:
        equations, _ = source.evidence(graph)  # the others are equalities that other sources give
        for equation in equations:
            if (reason := refutation(equation)) is not None:
                left, right = (", ".join(map(format_nodes, side)) for side in (equation.left, equation.right))
                raise NotEqualError(f"rule {equation.name}: {left} is not {right}: {reason}")
