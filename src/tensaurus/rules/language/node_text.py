"""Writes programs as rules write them: Relu(Add(x0, f32[2,3])).

The texts stand in the laws of equations, in proofs, and in messages for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tensaurus.expr.ir.scope import Scope
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.program_text import format_attribute, format_type
from tensaurus.ops.declare import Attributes

__all__ = ["format_nodes"]

MAX_SHOWN_CALLS = 1000  # calls in one text: a program that shares results has exponentially many as a tree


def _format_call(op: object, args: Sequence[str], attrs: Attributes) -> str:
    """Return a call as rules write it."""
    given = (
        f"{name}={format_attribute(value) if isinstance(value, Scope) else repr(value)}"
        for name, value in attrs
        if value is not None
    )
    return f"{op}({', '.join([*args, *given])})"


def format_nodes(*nodes: Node | None, leaves: Sequence[Node] = (), depth: int = 4) -> str:
    """Return programs as rules write them, over leaves x0, x1, ..., where leaves are given.

    Below `depth` nested calls, and after `MAX_SHOWN_CALLS` calls, only types are shown.
    """
    names = {leaf: f"x{k}" for k, leaf in enumerate(leaves) if leaf.op not in (INPUT, CONSTANT)}
    calls = count()

    def format_node(node: Node | None, depth: int) -> str:
        if node is None:
            return "None"
        if node.op is INPUT:
            return str(node.attribute("name"))
        if node in names:
            return names[node]
        if node.op is CONSTANT or not depth or next(calls) >= MAX_SHOWN_CALLS:
            return ", ".join(map(format_type, node.types))
        if node.op is ITEM:
            return f"{format_node(node.args[0], depth)}[{node.attribute('index')}]"
        return _format_call(node.op, [format_node(arg, depth - 1) for arg in node.args], node.attrs)

    return ", ".join(format_node(node, depth) for node in nodes)
