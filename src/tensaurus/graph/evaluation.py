"""One declared node in a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensaurus.algebra.field import Array
from tensaurus.algebra.interpret import interpret
from tensaurus.algebra.walk import tensors
from tensaurus.graph.conversion import arguments
from tensaurus.graph.node import ITEM, Node
from tensaurus.ops import Op

__all__ = ["evaluated"]


def evaluated(node: Node, values: Mapping[Node, Array], field: Any) -> Array:
    """One declared node (or one output of it) in a field, given its arguments' elements."""
    owner, index = node, 0
    if node.op is ITEM:
        assert node.args[0] is not None
        owner, index = node.args[0], node.attribute("index")
        if owner in values:
            return values[owner]
    op = owner.op
    assert isinstance(op, Op)
    args = arguments(owner)
    kinds = tuple(None if arg is None else arg.tensor for arg in args)
    scope = op.scopes(kinds, owner.attrs)[index]
    needed = set(tensors(scope))
    leaves = {
        leaf: values[arg]
        for leaf, arg in zip(op.tensors(kinds), args, strict=False)
        if leaf is not None and arg is not None and leaf in needed
    }
    return interpret(scope, leaves, field)
