"""What a runtime makes of a program: which of its operators run as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensaurus.graph.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.piece import Piece
from tensaurus.ops import Op

__all__ = ["fused_pieces"]

MOST = 12  # operators of one kernel; more than that were not traced, but missed an end


def fused_pieces(nodes: Mapping[str, Node], kernels: Iterable[frozenset[str]]) -> list[Piece]:
    """Pieces of several operators that a runtime runs as one kernel, by the tensors that each computes.

    `nodes` are what the model's tensors are (`Tensors.written`).
    """
    return [piece for names in kernels if (piece := _piece(names, nodes)) is not None]


def _piece(names: frozenset[str], nodes: Mapping[str, Node]) -> Piece | None:
    """The piece of these tensors; None unless it has one root and several declared operators."""
    inner = {nodes[name] for name in names if name in nodes}
    inner |= {node.args[0] for node in inner if node.op is ITEM and node.args[0] is not None}
    inner = {node for node in inner if not node.static and node.op not in (INPUT, CONSTANT)}
    read = {arg for node in inner for arg in node.args}
    roots = [node for node in inner if node not in read]
    if len(roots) != 1 or not all(isinstance(node.op, Op) or node.op is ITEM for node in inner):
        return None
    if not 2 <= sum(isinstance(node.op, Op) for node in inner) <= MOST:
        return None
    return Piece(roots[0], tuple(dict.fromkeys(_leaves(roots[0], inner))))


def _leaves(root: Node, inner: set[Node]) -> Iterator[Node]:
    """What the nodes read that is not among them, in the order of a walk from the root."""
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        for arg in node.args:
            if arg is not None and arg not in seen:
                seen.add(arg)
                if arg in inner:
                    stack.append(arg)
                else:
                    yield arg
