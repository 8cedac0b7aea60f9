"""A derivation as an equation: each of its steps is one, and the whole follows from them."""

from __future__ import annotations

from collections.abc import Iterator

from tensaurus.finders.derive.derivation_search import Derived
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Derived as Following
from tensaurus.rules.language.evidence import Tested
from tensaurus.rules.language.nested_calls import format_nodes

__all__ = ["equation", "steps"]

USED = Tested("gf", "where it is used")


def steps(nodes: tuple[Node, ...], leaves: tuple[Node, ...], found: Derived) -> Iterator[Equation]:
    """From the nodes to their expressions, and from each state to the next."""
    states = found.path
    pairs = zip(("its expression", *(s.moves[-1].text for s in states[1:])), states, strict=True)
    before = nodes
    for name, state in pairs:
        if state.results != before:
            law = f"{format_nodes(*before)} => {format_nodes(*state.results)}"
            yield Equation(name, law, before, state.results, leaves, USED)
        before = state.results


def equation(nodes: tuple[Node, ...], leaves: tuple[Node, ...], found: Derived) -> Equation | None:
    """The nodes are what was derived of them, over these leaves; None where that is the nodes themselves."""
    made = found.state.results
    if made == nodes or any(a.types != b.types for a, b in zip(made, nodes, strict=True)):
        return None
    name = "-".join(("derived", *(str(op).lower() for op in found.operators)))
    law = f"{format_nodes(*nodes)} => {format_nodes(*made)}"
    return Equation(name, law, nodes, made, leaves, Following(tuple(steps(nodes, leaves, found))))
