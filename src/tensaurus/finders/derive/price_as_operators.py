"""Estimates the run time of a derived program on a runtime for which no kernels can be generated.

Each eOperator is expanded into standard operators, and each of those is priced by the roofline model.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.lower.expression_lowering import lower_node
from tensaurus.ops.eop import eop
from tensaurus.runtimes.price.operation_counts import bytes_of, is_alias, is_free, operations
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["PEAK_FRACTION", "estimate_seconds", "is_precomputed", "operator_seconds"]

PEAK_FRACTION = 0.5  # fraction of the machine's peaks that a runtime's operator is assumed to reach
CALL_SECONDS = 3e-6  # seconds that calling an operator takes in addition to its work


def is_precomputed(node: Node, weights: Container[Node]) -> bool:
    """Return whether the node depends on constants alone, where the `weights` are constant as well."""
    if node.static or node in weights:
        return True
    return bool(node.args) and all(arg is None or is_precomputed(arg, weights) for arg in node.args)


def estimate_seconds(
    roots: Sequence[Node], weights: Container[Node], roofline: Roofline, known: dict[Node, float]
) -> float:
    """Return the seconds that a runtime's operators take for the roots, without precomputed nodes.

    `known` caches the seconds of single nodes.  Raises TensaurusError where an eOperator cannot be expanded.
    """
    nodes = [node for node in topological_order(roots) if node.args and not is_precomputed(node, weights)]
    for node in nodes:
        if node not in known:
            args = [arg for arg in node.args if arg is not None]
            operators = topological_order([lower_node(node)], args) if node.op is eop else [node]
            called = [one for one in operators if not is_free(one) and not is_alias(one)]
            known[node] = sum(CALL_SECONDS + operator_seconds(one, roofline) for one in called)
    return sum(known[node] for node in nodes)


def operator_seconds(node: Node, roofline: Roofline) -> float:
    """Return the seconds of an operator's work by the roofline model, without those of calling it."""
    moved = sum(bytes_of(kind) for one in (node, *filter(None, node.args)) for kind in one.types)
    return roofline.seconds(operations(node), moved) / PEAK_FRACTION
