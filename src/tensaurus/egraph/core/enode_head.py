"""Heads: what e-nodes are but for their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from tensaurus.graph.ir.node import ITEM, Leaf, Node, again, apply, item
from tensaurus.ops import Op
from tensaurus.ops.declare import Attributes

__all__ = ["Head", "Kind", "kind", "operator_head", "output_head"]

Kind: TypeAlias = str  # what a pattern asks of an e-node: its operator, how many arguments; see `kind`


class Head:
    """What an e-node is but for its arguments: an operator with attributes, or a leaf.  Interned."""

    __slots__ = ("op", "attrs", "outputs", "node")

    def __init__(self, op: Op | Leaf, attrs: Attributes, outputs: int, node: Node | None = None):
        self.op, self.attrs, self.outputs = op, attrs, outputs
        self.node = node  # an input, a constant, or an opaque node with arguments of its own

    def build(self, args: Sequence[Node | None]) -> Node:
        """The node over these arguments."""
        if isinstance(self.op, Op):
            return apply(self.op, args, dict(self.attrs), self.outputs)
        if self.op is ITEM:
            assert args[0] is not None
            return item(args[0], self.attrs[0][1])
        assert self.node is not None
        return again(self.node, tuple(args))

    def __repr__(self) -> str:
        return f"<{self.op} {dict(self.attrs)}>"


# Of operators and attributes there are few: all e-graphs share them.
_operators: dict[Any, Head] = {}


def operator_head(op: Op | Leaf, attrs: Attributes, outputs: int) -> Head:
    """The head of an operator's nodes, or of an output's."""
    key = (op, attrs, outputs)
    head = _operators.get(key)
    if head is None:
        head = _operators[key] = Head(op, attrs, outputs)
    return head


def output_head(place: int) -> Head:
    """The head of one output of a call of several."""
    return operator_head(ITEM, (("index", place),), 1)


@cache
def kind(op: Op | Leaf, arguments: int, index: int | None = None) -> Kind:
    """The kind of e-nodes of an operator; `index` is the place of an output.  Texts know their own hash."""
    return f"{op.name}/{arguments}" if index is None else f"{op.name}/{arguments} {index}"
