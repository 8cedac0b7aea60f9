"""Composes the operators of a region to one eOperator, and states that as an equation.

A scope that several scopes read stays a scope of its own (`finders/fuse/inline_stages`). Constants of one
number become numbers in the expression, all other constants are arguments. Regions that differ only in the
names and the order of their leaves get the same expression, so that they share one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, replace_tensors, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.finders.fuse.inline_stages import inline_stages
from tensaurus.graph.analysis.program_expression import build_expressions
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node, apply, replace_args, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.match import scalar_value
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["FUSED_PREFIX", "compose_region"]

FUSED_PREFIX = "fused-"  # prefix of the names of fusion equations
COMPOSED = Proved("algebra", "the expressions composed, at these sizes")
TESTED_WHERE_USED = Tested("gf", "where it is used")
# Rounds of numbering the arguments by their first reads: interning may reorder reads, and so the numbers.
MAX_RENAMINGS = 3


def compose_region(piece: Piece) -> Equation | None:
    """Returns the equation region = eOperator over leaves x0, x1, ..., in the order of the piece's leaves.

    Returns None where the region is one eOperator already, or its expression reads no leaf.
    """
    names = {leaf: source(f"x{place}", leaf.types[0]) for place, leaf in enumerate(piece.leaves)}
    return _compose_over_leaves(piece.with_leaves(names), tuple(names.values()))


@lru_cache(10_000)
def _compose_over_leaves(left: Node, leaves: tuple[Node, ...]) -> Equation | None:
    inner = topological_order([left], leaves)
    right = None if inner == [left] and left.op is eop else _compose_node(left, leaves)
    if right is None:
        return None
    operators = dict.fromkeys(str(node.op).lower() for node in inner if node.op not in (CONSTANT, ITEM))
    return _make_equation(f"{FUSED_PREFIX}{'-'.join(operators)}", left, right, leaves)


def _make_equation(name: str, left: Node, right: Node, leaves: tuple[Node, ...]) -> Equation:
    law = f"{format_nodes(left)} => {format_nodes(right)}"
    return _Composition(name, law, (left,), (right,), leaves, partial(_find_evidence, left, right, leaves))


class _Composition(Equation):
    """A fusion, which holds for all sizes: over leaves of other types the region is composed again."""

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        try:
            return super().over(leaves)
        except Untypable:
            if self.evidence is not COMPOSED:
                raise
        replaced = dict(leaves)
        for node in topological_order(self.left, replaced):
            replaced[node] = replace_args(node, tuple(arg and replaced[arg] for arg in node.args))
        (left,) = (replaced[node] for node in self.left)
        new_leaves = tuple(dict.fromkeys(replaced[leaf] for leaf in self.leaves))
        right = _compose_node(left, new_leaves)
        if right is None:
            raise Untypable(f"{format_nodes(left)} has no composition")
        return _make_equation(self.name, left, right, new_leaves)


def _compose_node(left: Node, leaves: tuple[Node, ...]) -> Node | None:
    """Composes the program over the leaves to one eOperator; returns None where it reads no leaf."""
    # name tensors x0, x1, ... in the order of their first reads, so that equal expressions have equal names
    scope = _compose_scope(left, leaves)
    leaf_of = dict(zip(_leaf_tensors(leaves), leaves, strict=True))
    for _ in range(MAX_RENAMINGS):
        names = {x: Tensor(f"x{k}", x.shape, x.dtype) for k, x in enumerate(tensors(scope))}
        if all(old == new for old, new in names.items()):
            break
        scope, leaf_of = (
            intern_scope(replace_tensors(scope, names)),
            {new: leaf_of[old] for old, new in names.items()},
        )
    args = [leaf_of[x] for x in sorted(tensors(scope), key=lambda x: int(x.name[1:]))]
    if not args:
        return None
    node = apply(eop, args, {"scope": scope})
    return node if node.types == left.types else None


def _leaf_tensors(leaves: tuple[Node, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"x{k}", leaf.tensor.shape, leaf.tensor.dtype) for k, leaf in enumerate(leaves))


def _compose_scope(root: Node, leaves: tuple[Node, ...]) -> Scope:
    """Returns the expression of the program over the leaves, which become tensors x0, x1, ..."""
    sources: dict[Node, Source] = dict(zip(leaves, _leaf_tensors(leaves), strict=True))
    values: dict[Tensor, Const] = {}
    # constants within a region have one number (`is_literal`): each is a tensor until its number replaces it
    for node in topological_order([root], leaves):
        if node.op is CONSTANT:
            value = scalar_value(node)
            assert value is not None
            number = Tensor(f"c{len(values)}", node.tensor.shape, node.tensor.dtype)
            sources[node], values[number] = number, Const(value)
    (scope,) = build_expressions([root], sources)
    return inline_stages(_InlineNumbers(values).scope(scope))


class _InlineNumbers(Rewriting):
    """Replaces tensors of one constant number by the number, which takes the type of the operands beside it.

    A conversion keeps the type of a scope where no operand determines it.
    """

    def __init__(self, values: Mapping[Tensor, Const]):
        super().__init__()
        self.values = values

    def scope(self, scope: Scope) -> Scope:
        inlined, dtype = super().scope(scope), dtype_of(scope)
        return (
            inlined
            if dtype_of(inlined) == dtype
            else Scope(inlined.axes, Call(f"to_{dtype}", (inlined.body,)))
        )

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source in self.values:
            return self.values[body.source]
        return super().body(body)


def _find_evidence(left: Node, right: Node, leaves: tuple[Node, ...]) -> Evidence:
    """Returns a proof if both sides are one expression, else that the equation is tested where it is used."""
    return COMPOSED if _compose_scope(left, leaves) is _compose_scope(right, leaves) else TESTED_WHERE_USED
