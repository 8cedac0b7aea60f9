"""Bound the degree of a program's outputs as polynomials of its inputs, to bound the error of tests in GF(p).

Two different polynomials of degree d agree at a random point with probability at most d / p.  Functions that
are unknown in GF(p), such as Exp, cut a program: their results count as new variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensaurus.expr.analysis.polynomial_degree import DEGREE_0, DEGREE_1, Degree, Degrees
from tensaurus.expr.evaluate.two_point_field import Laws
from tensaurus.graph.analysis.conversion_chains import args_before_casts
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Op, TensorType


def bound_degree(roots: Iterable[Node], laws: Laws, drawn: Iterable[Node] = ()) -> float:
    """Return an upper bound of the degrees of all roots and arguments of unknown functions; inf if too large.

    Variables are the inputs of float types, and the constants in `drawn`, which are drawn as inputs are.
    `laws` says which functions besides + and * the field computes, such as 1 / x; all others are unknown.
    """
    degrees = Degrees(laws)
    known: dict[Node, Sequence[Degree]] = {node: [DEGREE_1] for node in drawn}
    roots = list(roots)
    for node in topological_order(roots, tuple(known)):
        known[node] = _node_degrees(node, known, degrees)
    for node in roots:
        for degree in known[node]:
            degrees.record(degree)
    return degrees.largest


def _node_degrees(node: Node, known: Mapping[Node, Sequence[Degree]], degrees: Degrees) -> Sequence[Degree]:
    if node.op is CONSTANT:
        return [DEGREE_0]
    if node.op is INPUT:
        kind = node.types[0]
        is_variable = isinstance(kind, TensorType) and kind.dtype.startswith(("float", "bfloat"))
        return [DEGREE_1 if is_variable else DEGREE_0]
    if node.op is ITEM:
        assert node.args[0] is not None
        return [known[node.args[0]][node.attribute("index")]]
    if not isinstance(node.op, Op):
        return [DEGREE_1] * len(node.types)
    args = args_before_casts(node)
    kinds = tuple(None if arg is None else arg.tensor for arg in args)
    leaves = {
        leaf: known[arg][0]
        for leaf, arg in zip(node.op.tensors(kinds), args, strict=False)
        if leaf is not None and arg is not None
    }
    return [degrees.of(s, leaves) for s in node.op.scopes(kinds, node.attrs)[: len(node.types)]]
