"""Merges calls of a commutative operator on the same two arguments in both orders.

Rules match the arguments of such an operator in either order, so no rule writes x + y as y + x.  Both are in
the e-graph only where a program has both, or where two rewrites made them: then they are merged here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.enode_head import Head
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.graph.ir.node import Type, source
from tensaurus.ops import Op
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.match import is_commutative
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["commute"]

SYMMETRIC = Proved("algebra", "symmetric in both arguments")


def commute(graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
    """Yield the equalities of calls that are in the e-graph in both orders."""
    for enode, is_live in enumerate(graph.is_live):
        head = graph.heads[enode]
        if not is_live or len(graph.args[enode]) != 2:
            continue
        if not isinstance(head.op, Op) or not is_commutative(head.op):
            continue
        a, b = map(graph.find, graph.args[enode])
        other = graph.peek(head, (b, a)) if a < b else None
        if other is not None and graph.find(other) != graph.find(enode):
            (x,), (y,) = graph.analyses[a].types, graph.analyses[b].types
            yield Proposal(_swapped(head, x, y), graph.original_args[enode])


@cache
def _swapped(head: Head, first: Type, second: Type) -> Equation:
    """Return the commutative law of an operator for arguments of these types."""
    x, y = source("x", first), source("y", second)
    left, right = head.build([x, y]), head.build([y, x])
    name = f"commute-{str(head.op).lower()}"
    law = f"{format_nodes(left)} => {format_nodes(right)}"
    return Equation(name, law, (left,), (right,), (x, y), SYMMETRIC)
