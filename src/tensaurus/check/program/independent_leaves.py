"""Restricts equations to those of their leaves that are not computed from other leaves.

`replay` tries such an equation where the one over all leaves does not hold.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.rules.language.equation import Equation

__all__ = ["over_independent_leaves"]

# Operators between a leaf and the leaves from which it is computed, as many as one side of a rule has.
MAX_STEPS = 4


def over_independent_leaves(equation: Equation) -> Equation | None:
    """Return the equation over fewer leaves, where some of them are computed from others; else None.

    Sub(x, y) = Add(x, Neg(y)) at x = Neg(y) has the right side Add(x, x), as equal nodes are one object: that
    holds for every y, but not for every x and y.
    """
    leaves = set(equation.leaves)
    computed = {leaf for leaf in leaves if _is_computed(leaf, leaves - {leaf})}
    independent = tuple(leaf for leaf in equation.leaves if leaf not in computed)
    return replace(equation, leaves=independent) if computed and independent else None


def _is_computed(leaf: Node, others: Set[Node]) -> bool:
    """Return whether a leaf is computed from the others in few steps."""
    frontier = {leaf}
    for _ in range(MAX_STEPS):
        frontier = {arg for node in frontier for arg in node.args if arg is not None and arg not in others}
        if not frontier:
            return bool(leaf.args)  # an input or a constant is not computed
        if not all(node.is_declared or node.op in (ITEM, CONSTANT) for node in frontier):
            return False
    return False
