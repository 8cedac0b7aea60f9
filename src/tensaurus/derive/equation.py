"""A derivation as an equation: each of its steps is one, and the whole follows from them."""

from __future__ import annotations

from collections.abc import Iterator

from tensaurus.derive.search import Derived
from tensaurus.graph.node import Node
from tensaurus.rules.equation import Equation
from tensaurus.rules.evidence import Derived as Following
from tensaurus.rules.evidence import Tested
from tensaurus.rules.nesting import said

__all__ = ["equation", "steps"]

USED = Tested("gf", "where it is used")


def steps(node: Node, leaves: tuple[Node, ...], found: Derived) -> Iterator[Equation]:
    """From the node to its expression, and from each state to the next."""
    states = found.path
    pairs = zip(("its expression", *(s.moves[-1].text for s in states[1:])), states, strict=True)
    before = node
    for name, state in pairs:
        if state.node is not before:
            law = f"{said(before)} => {said(state.node)}"
            yield Equation(name, law, (before,), (state.node,), leaves, USED)
        before = state.node


def equation(node: Node, leaves: tuple[Node, ...], found: Derived) -> Equation | None:
    """The node is what was derived of it, over these leaves; None where that is the node itself."""
    made = found.state.node
    if made is node or made.types != node.types:
        return None
    name = "-".join(("derived", *(str(op).lower() for op in found.operators)))
    law = f"{said(node)} => {said(made)}"
    return Equation(name, law, (node,), (made,), leaves, Following(tuple(steps(node, leaves, found))))
