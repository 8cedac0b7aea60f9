"""Turns a derivation into an equation whose evidence is one equation for each step.

The replay of a result (`check/program/replay`) then checks every step on its own, and names a wrong rule.

    Conv(x0, w1) = eop(...)                  its expression
                 = eop(...)                  summation splitting (r | c)
                 = eop(MatMul(...))          operator matching (MatMul)
"""

from __future__ import annotations

from collections.abc import Iterator

from tensaurus.finders.derive.derivation_search import DerivedProgram
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Derived, Tested
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["derivation_steps", "make_equation"]

STEP_EVIDENCE = Tested("gf", "where it is used")


def derivation_steps(
    nodes: tuple[Node, ...], leaves: tuple[Node, ...], program: DerivedProgram
) -> Iterator[Equation]:
    """Yield the equation of the nodes and their expressions, then one from each state to the next."""
    states = program.path
    names = ("its expression", *(state.applied[-1].text for state in states[1:]))
    before = nodes
    for name, state in zip(names, states, strict=True):
        if state.results != before:
            law = f"{format_nodes(*before)} => {format_nodes(*state.results)}"
            yield Equation(name, law, before, state.results, leaves, STEP_EVIDENCE)
        before = state.results


def make_equation(
    nodes: tuple[Node, ...], leaves: tuple[Node, ...], program: DerivedProgram
) -> Equation | None:
    """Return the equation of the nodes and the program, None if these are the same or differ in type."""
    results = program.state.results
    if results == nodes or any(a.types != b.types for a, b in zip(results, nodes, strict=True)):
        return None
    name = "-".join(("derived", *(str(op).lower() for op in program.operators)))
    law = f"{format_nodes(*nodes)} => {format_nodes(*results)}"
    evidence = Derived(tuple(derivation_steps(nodes, leaves, program)))
    return Equation(name, law, nodes, results, leaves, evidence)
