"""A program as one expression over its leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tensaurus.algebra.expr import Scope, Tensor
from tensaurus.algebra.walk import replace_tensors
from tensaurus.graph.node import ITEM, Node
from tensaurus.ops import Op

__all__ = ["Source", "expression"]

Source: TypeAlias = Tensor | Scope


def expression(node: Node, leaf: Callable[[Node], Source | None], memo: dict[Node, Source]) -> Source:
    """What the node computes, of what `leaf` gives for some nodes; None from it for all others."""
    if node in memo:
        return memo[node]
    scope = leaf(node)
    if scope is None:
        owner, place = (node.args[0], node.attribute("index")) if node.op is ITEM else (node, 0)
        assert owner is not None and isinstance(owner.op, Op)
        kinds = owner.kinds()
        given = {
            tensor: expression(arg, leaf, memo)
            for tensor, arg in zip(owner.op.tensors(kinds), owner.args, strict=False)
            if tensor is not None and arg is not None
        }
        scope = replace_tensors(owner.op.scopes(kinds, owner.attrs)[place], given)
    memo[node] = scope
    return scope
