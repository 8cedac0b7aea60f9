"""What a program takes where nothing generates kernels: what is no operator is written as several."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tensaurus.cost.demand import aliases, bytes_of, operations
from tensaurus.cost.roofline import Roofline
from tensaurus.graph.node import Node
from tensaurus.graph.standard import standard
from tensaurus.ops.eop import eop

__all__ = ["CALL", "REACHED", "ahead", "written"]

REACHED = 0.5  # of the machine's peaks, by an operator of a runtime
CALL = 3e-6  # seconds of each operator beside its work


def ahead(node: Node, weights: Container[Node]) -> bool:
    """Whether it is computed ahead of time, where these nodes are constant."""
    if node.static or node in weights:
        return True
    return bool(node.args) and all(arg is None or ahead(arg, weights) for arg in node.args)


def written(roots: Sequence[Node], weights: Container[Node], roofline: Roofline) -> float:
    """Seconds of these nodes by operators of a runtime, without what is computed ahead of time.

    Raises TensaurusError for an expression that is none of operators.
    """
    total, seen = 0.0, set[Node]()
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if node in seen or not node.args or ahead(node, weights):
            continue
        seen.add(node)
        args = [arg for arg in node.args if arg is not None]
        if node.op is eop:
            waiting.append(standard(node))
            continue
        waiting += args
        if not aliases(node):
            moved = sum(bytes_of(kind) for one in (node, *args) for kind in one.types)
            total += CALL + roofline.seconds(operations(node), moved) / REACHED
    return total
