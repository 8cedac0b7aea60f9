"""Cancels re-indexings that undo each other between two mutants (PET, section 6.3, Figure 7).

    z1 = Conv(...)    y = move(z1)    r = Relu(y)    z2 = Conv(move'(r), ...)
    move'(Relu(move(z1)))   ->   Relu(z1)              where move' after move moves nothing

Functions of single elements between them commute with both moves.  The equation is proved by the canonical
forms of both sides; a mutant with corrections is left alone, as its elements do not all come from its
operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.expr.ir.scope import Tensor
from tensaurus.expr.normal.canonicalize import are_equal_expressions
from tensaurus.finders.mutate.correct_mutant import CorrectedMutant
from tensaurus.finders.mutate.subprogram import Subprogram
from tensaurus.graph.analysis.program_expression import build_expressions
from tensaurus.graph.ir.node import Node, replace_args
from tensaurus.ops import Op, Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.node_text import format_nodes
from tensaurus.rules.prove.pointwise import is_elementwise

__all__ = ["cancel_inverses"]

MAX_CHAIN = 4  # functions of single elements between two mutants


def cancel_inverses(chosen: Sequence[tuple[Subprogram, CorrectedMutant]]) -> Iterator[Equation]:
    """Yield the equations of neighbouring mutants among these; their leaves are nodes of the program."""
    for second, later in chosen:
        if len(second.nodes) > 1 or len(later.mutant.candidate.sources[0]) > 1:
            continue
        data = second.leaves[later.mutant.candidate.sources[0][0]]
        chain = _elementwise_chain(data)
        start = chain[-1].args[0] if chain else data
        for first, earlier in chosen:
            if start is first.nodes[0] and len(first.nodes) == 1 and not any(earlier.corrections):
                equation = _cancel_pair(chain, first, earlier, later)
                if equation is not None:
                    yield equation


def _elementwise_chain(node: Node) -> list[Node]:
    """Return the functions of single elements that lead to the node, the last first."""
    chain = list[Node]()
    while len(chain) < MAX_CHAIN and _is_elementwise(node):
        chain.append(node)
        assert node.args[0] is not None
        node = node.args[0]
    return chain


def _is_elementwise(node: Node) -> bool:
    """Return whether each element is a function of the element of the only argument in its place."""
    is_unary = isinstance(node.op, Op) and len(node.types) == len(node.args) == 1 and not node.static
    return is_unary and isinstance(node.op, Op) and is_elementwise(node.op, (True,))


def _cancel_pair(
    chain: Sequence[Node], first: Subprogram, earlier: CorrectedMutant, later: CorrectedMutant
) -> Equation | None:
    """Return the equation of one pair, None where the re-indexings do not undo each other."""
    leaves = dict(zip(first.inputs, first.leaves, strict=True))
    core = earlier.mutant.candidate.build(first.leaves)
    left = earlier.equation.over(leaves).right[0]
    right = core
    try:
        for node in reversed(chain):
            left, right = replace_args(node, (left,)), replace_args(node, (right,))
        arranged = later.mutant.candidate.arrange_operand(0, [left])
        if arranged.types != right.types:
            return None
        tensors = {core: Tensor("core", core.tensor.shape, core.tensor.dtype)}
        sides = build_expressions([arranged, right], tensors)
    except (Untypable, ValueError):
        return None
    if arranged is right or not are_equal_expressions(*sides):
        return None
    law = f"{format_nodes(arranged)} => {format_nodes(right)}"
    evidence = Proved("algebra", "the expressions composed, at these sizes")
    return Equation("inverse-reindexing", law, (arranged,), (right,), (core,), evidence)
