"""What a program takes where nothing generates kernels: what is no operator is written as several."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.lower.standard_operators import lower_node
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import bytes_of, is_alias, is_free, operations
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["REACHED", "ahead", "written"]

REACHED = 0.5  # of the machine's peaks, by an operator of a runtime
CALL = 3e-6  # seconds of each operator beside its work


def ahead(node: Node, weights: Container[Node]) -> bool:
    """Whether it is computed ahead of time, where these nodes are constant."""
    if node.static or node in weights:
        return True
    return bool(node.args) and all(arg is None or ahead(arg, weights) for arg in node.args)


def written(
    roots: Sequence[Node], weights: Container[Node], roofline: Roofline, known: dict[Node, float]
) -> float:
    """Seconds of these nodes by operators of a runtime, without what is computed ahead of time.

    `known` are seconds of expressions alone, and is filled.  Raises TensaurusError for one that is none of
    operators.
    """
    nodes = [node for node in topological_order(roots) if node.args and not ahead(node, weights)]
    for node in nodes:
        if node not in known:
            args = [arg for arg in node.args if arg is not None]
            inner = topological_order([lower_node(node)], args) if node.op is eop else [node]
            known[node] = sum(_alone(one, roofline) for one in inner if not is_free(one))
    return sum(known[node] for node in nodes)


def _alone(node: Node, roofline: Roofline) -> float:
    if is_alias(node):
        return 0.0
    moved = sum(bytes_of(kind) for one in (node, *filter(None, node.args)) for kind in one.types)
    return CALL + roofline.seconds(operations(node), moved) / REACHED
