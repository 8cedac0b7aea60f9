"""Evaluate one declared node in a field: float64, GF(p), fractions, sizes, ... (`expr.evaluate.fields`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensaurus.expr.evaluate.fields import Array
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.ir.walk import tensors
from tensaurus.graph.analysis.conversion_chains import args_before_casts
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.ops import Op


def output_expression(owner: Node, index: int = 0) -> tuple[Scope, dict[Tensor, Node]]:
    """Return the expression of an output of a declared node, and the argument for each tensor in it."""
    op = owner.op
    assert isinstance(op, Op)
    args = args_before_casts(owner)
    kinds = tuple(None if arg is None else arg.tensor for arg in args)
    scope = op.scopes(kinds, owner.attrs)[index]
    read = set(tensors(scope))
    pairs = zip(op.tensors(kinds), args, strict=False)
    return scope, {leaf: arg for leaf, arg in pairs if leaf in read and leaf is not None and arg is not None}


def evaluate_node(node: Node, values: Mapping[Node, Array], field: Any) -> Array:
    """Return the elements of a declared node (or of one output), given those of its arguments.

    Conversions that keep every number are skipped, as elements of a field have no type: `values` holds the
    arguments of `conversion_chains.args_before_casts`.
    """
    owner, index = node.owner
    if node.op is ITEM and owner in values:  # the only output of a call, as of a Split into one part
        return values[owner]
    scope, read = output_expression(owner, index)
    return interpret(scope, {leaf: values[arg] for leaf, arg in read.items()}, field)
