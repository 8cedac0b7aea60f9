"""Calls of one operator on the same two arguments in both orders are one, where its expression is symmetric.

Rules match such arguments in either order, so that no rule makes the second call of a first: both are there
only where a program has both, or two rewrites wrote them, and then they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensaurus.egraph.egraph import EGraph, Source
from tensaurus.ops import Op
from tensaurus.rules.equation import Equation
from tensaurus.rules.match import commutes
from tensaurus.rules.nesting import calling
from tensaurus.rules.rule import Evidence

__all__ = ["commute"]

SYMMETRIC = Evidence("proved", "canonical form", "symmetric in both arguments")


def commute(graph: EGraph, limit: int) -> int:
    """Merge calls that are in the e-graph in both orders; how many.  Nothing is inserted.

    The e-graph must be rebuilt, and is afterwards.
    """
    pairs: list[tuple[int, int, Source]] = []
    for number, alive in enumerate(graph.alive):
        head = graph.heads[number]
        if not alive or len(graph.args[number]) != 2 or not isinstance(head.op, Op) or not commutes(head.op):
            continue
        a, b = map(graph.find, graph.args[number])
        other = graph.peek(head, (b, a)) if a < b else None
        if other is not None and graph.find(other) != graph.find(number):
            pairs.append((number, other, _Commuted(number, other)))
    for left, right, source in pairs:
        graph.union(left, right, source)
    graph.rebuild()
    return len(pairs)


@dataclass(frozen=True)
class _Commuted:
    """Two calls, the arguments of one in the other's order."""

    number: int
    other: int

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        """The law at the first call's arguments."""
        head, (a, b) = graph.heads[self.number], graph.born[self.number]
        left, right = (head.build([graph.term(arg) for arg in args]) for args in ((a, b), (b, a)))
        law = f"{calling(head.op, ['x', 'y'], ())} => {calling(head.op, ['y', 'x'], ())}"
        leaves = tuple(dict.fromkeys((graph.term(a), graph.term(b))))
        needs = zip(graph.born[self.other], (b, a), strict=True)
        name = f"commute-{str(head.op).lower()}"
        return [Equation(name, law, (left,), (right,), leaves, SYMMETRIC)], [p for p in needs if p[0] != p[1]]
