"""Defines heads: a head is an e-node without its arguments (operator, attributes, number of outputs)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from tensaurus.graph.ir.node import ITEM, Leaf, Node, apply, item, replace_args
from tensaurus.ops import Op
from tensaurus.ops.declare import Attributes

__all__ = ["Head", "Kind", "enode_kind", "operator_head", "output_head"]

Kind: TypeAlias = str  # operator and number of arguments, by which patterns find e-nodes; see `enode_kind`


class Head:
    """An e-node without its arguments: an operator with attributes, or a leaf.  Heads are interned.

    Transpose(x, perm=(1, 0)) has the head (Transpose, (("perm", (1, 0)),), 1), as it has 1 output.
    """

    __slots__ = ("op", "attrs", "outputs", "node")

    def __init__(self, op: Op | Leaf, attrs: Attributes, outputs: int, node: Node | None = None):
        self.op, self.attrs, self.outputs = op, attrs, outputs
        self.node = node  # of an input, a constant or an opaque node: `build` copies it over other arguments

    def build(self, args: Sequence[Node | None]) -> Node:
        """Return the node of this head over these arguments."""
        if isinstance(self.op, Op):
            return apply(self.op, args, dict(self.attrs), self.outputs)
        if self.op is ITEM:
            assert args[0] is not None
            return item(args[0], self.attrs[0][1])
        assert self.node is not None
        return replace_args(self.node, tuple(args))

    def __repr__(self) -> str:
        return f"<{self.op} {dict(self.attrs)}>"


# All e-graphs share the heads of operators, of which there are few.
_operator_heads: dict[Any, Head] = {}


def operator_head(op: Op | Leaf, attrs: Attributes, outputs: int) -> Head:
    """Return the head of an operator with attributes, or of an output of a call."""
    key = (op, attrs, outputs)
    head = _operator_heads.get(key)
    if head is None:
        head = _operator_heads[key] = Head(op, attrs, outputs)
    return head


def output_head(place: int) -> Head:
    """Return the head of one output of a call with several outputs."""
    return operator_head(ITEM, (("index", place),), 1)


@cache
def enode_kind(op: Op | Leaf, arguments: int, index: int | None = None) -> Kind:
    """Return the kind of the e-nodes of an operator; of an ITEM, `index` is the place of its output.

    Such as "Add/2" or "item/1 0".  Kinds are texts, as Python computes the hash of a text only once.
    """
    return f"{op.name}/{arguments}" if index is None else f"{op.name}/{arguments} {index}"
