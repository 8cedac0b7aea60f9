"""How large the degree of a program's polynomials is, between its unknown functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensaurus.expr.analysis.polynomial_degree import DEGREE_0, DEGREE_1, Degree, Degrees
from tensaurus.expr.evaluate.two_point_field import Laws
from tensaurus.graph.analysis.conversion_chains import args_before_casts
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Op, TensorType

__all__ = ["bound_degree"]


def bound_degree(roots: Iterable[Node], laws: Laws, drawn: Iterable[Node] = ()) -> float:
    """An upper bound of the degree of every root and every argument of an unknown function; inf if vast.

    Inputs of floats are variables, and so are the constants that are `drawn`.
    """
    degrees = Degrees(laws)
    held: dict[Node, Sequence[Degree]] = {node: [DEGREE_1] for node in drawn}
    roots = list(roots)
    for node in topological_order(roots, tuple(held)):
        held[node] = _node_degrees(node, held, degrees)
    for node in roots:
        for degree in held[node]:
            degrees.record(degree)
    return degrees.largest


def _node_degrees(node: Node, held: Mapping[Node, Sequence[Degree]], degrees: Degrees) -> Sequence[Degree]:
    if node.op is CONSTANT:
        return [DEGREE_0]
    if node.op is INPUT:
        kind = node.types[0]
        drawn = isinstance(kind, TensorType) and kind.dtype.startswith(("float", "bfloat"))
        return [DEGREE_1 if drawn else DEGREE_0]
    if node.op is ITEM:
        assert node.args[0] is not None
        return [held[node.args[0]][node.attribute("index")]]
    if not isinstance(node.op, Op):
        return [DEGREE_1] * len(node.types)
    args = args_before_casts(node)
    kinds = tuple(None if arg is None else arg.tensor for arg in args)
    leaves = {
        leaf: held[arg][0]
        for leaf, arg in zip(node.op.tensors(kinds), args, strict=False)
        if leaf is not None and arg is not None
    }
    return [degrees.of(s, leaves) for s in node.op.scopes(kinds, node.attrs)[: len(node.types)]]
