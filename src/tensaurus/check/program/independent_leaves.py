"""Equations over those of their leaves that are not computed from others."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tensaurus.graph.ir.node import CONSTANT, ITEM, Node
from tensaurus.rules.language.equation import Equation

__all__ = ["independent"]

STEPS = 4  # between a leaf and those that it is computed from, as many as a rule's side has


def independent(equation: Equation) -> Equation | None:
    """Return the equation over fewer leaves, where some of them are computed from others; else None.

    Sub(x, y) = Add(x, Neg(y)) at x = Neg(y) reads Add(x, x), as equal nodes are one: it holds for every y,
    but not for every x and y.
    """
    leaves = set(equation.leaves)
    computed = {leaf for leaf in leaves if _is_computed(leaf, leaves - {leaf})}
    left = tuple(leaf for leaf in equation.leaves if leaf not in computed)
    return replace(equation, leaves=left) if computed and left else None


def _is_computed(leaf: Node, others: Set[Node]) -> bool:
    """Return whether a leaf is computed from the others in few steps."""
    at = {leaf}
    for _ in range(STEPS):
        at = {arg for node in at for arg in node.args if arg is not None and arg not in others}
        if not at:
            return bool(leaf.args)
        if not all(node.declared or node.op in (ITEM, CONSTANT) for node in at):
            return False
    return False
