"""A region and the eOperator that is its composition, as an equation.

What a stage computes once and several read stays a scope of its own (`finders/fuse/inline_stages`); constants
of one number are numbers in the scope, all others are arguments.  Regions that are equal up to the names and
the order of what they read have one scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Scope, Source, Tensor
from tensaurus.expr.ir.walk import Rewriting, replace_tensors, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.finders.fuse.inline_stages import merged
from tensaurus.graph.analysis.program_expression import expressions
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node, again, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import topological
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.match import scalar_value
from tensaurus.rules.language.nested_calls import said

__all__ = ["FUSED", "composition"]

FUSED = "fused-"  # begins the names of these equations
COMPOSED = Proved("algebra", "the expressions composed, at these sizes")
USED = Tested("gf", "where it is used")
RENAMED = 3  # orders of the arguments that are tried until the scope names them in its own


def composition(piece: Piece) -> Equation | None:
    """The region is the eOperator, over leaves x0, x1, ... in the order of the piece's.

    None where the region is the eOperator already, or has no scope that reads its leaves.
    """
    names = {leaf: source(f"x{place}", leaf.types[0]) for place, leaf in enumerate(piece.leaves)}
    return _composition(piece.over(names), tuple(names.values()))


@lru_cache(10_000)
def _composition(left: Node, leaves: tuple[Node, ...]) -> Equation | None:
    inner = topological([left], leaves)
    right = None if inner == [left] and left.op is eop else _composed(left, leaves)
    if right is None:
        return None
    operators = dict.fromkeys(str(node.op).lower() for node in inner if node.op not in (CONSTANT, ITEM))
    return _equation(f"{FUSED}{'-'.join(operators)}", left, right, leaves)


def _equation(name: str, left: Node, right: Node, leaves: tuple[Node, ...]) -> Equation:
    law = f"{said(left)} => {said(right)}"
    return _Composition(name, law, (left,), (right,), leaves, partial(_shown, left, right, leaves))


class _Composition(Equation):
    """It holds for all sizes: over leaves of others the region is composed again."""

    def over(self, leaves: Mapping[Node, Node]) -> Equation:
        try:
            return super().over(leaves)
        except Untypable:
            if self.evidence is not COMPOSED:
                raise
        new = dict(leaves)
        for node in topological(self.left, new):
            new[node] = again(node, tuple(arg and new[arg] for arg in node.args))
        (left,) = (new[node] for node in self.left)
        kept = tuple(dict.fromkeys(new[leaf] for leaf in self.leaves))
        right = _composed(left, kept)
        if right is None:
            raise Untypable(f"{said(left)} has no composition")
        return _equation(self.name, left, right, kept)


def _composed(left: Node, leaves: tuple[Node, ...]) -> Node | None:
    """The program of the leaves as one eOperator; None where it reads none of them."""
    scope = _scope(left, leaves)
    of = dict(zip(_tensors(leaves), leaves, strict=True))
    for _ in range(RENAMED):
        names = {x: Tensor(f"x{k}", x.shape, x.dtype) for k, x in enumerate(tensors(scope))}
        if all(old == new for old, new in names.items()):
            break
        scope, of = intern_scope(replace_tensors(scope, names)), {new: of[old] for old, new in names.items()}
    args = [of[x] for x in sorted(tensors(scope), key=lambda x: int(x.name[1:]))]
    if not args:
        return None
    made = apply(eop, args, {"scope": scope})
    return made if made.types == left.types else None


def _tensors(leaves: tuple[Node, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"x{k}", leaf.tensor.shape, leaf.tensor.dtype) for k, leaf in enumerate(leaves))


def _scope(root: Node, leaves: tuple[Node, ...]) -> Scope:
    """What the program computes of the leaves, as tensors x0, x1, ..."""
    given: dict[Node, Source] = dict(zip(leaves, _tensors(leaves), strict=True))
    values: dict[Tensor, Const] = {}
    for node in topological([root], leaves):
        if node.op is CONSTANT:
            value = scalar_value(node)
            assert value is not None
            number = Tensor(f"c{len(values)}", node.tensor.shape, node.tensor.dtype)
            given[node], values[number] = number, Const(value)
    (scope,) = expressions([root], given)
    return merged(_Numbered(values).scope(scope))


class _Numbered(Rewriting):
    """Constants of one number as numbers, which take the type of what they meet; where they meet nothing that
    says it, a conversion does."""

    def __init__(self, values: Mapping[Tensor, Const]):
        super().__init__()
        self.values = values

    def scope(self, scope: Scope) -> Scope:
        made, dtype = super().scope(scope), dtype_of(scope)
        return made if dtype_of(made) == dtype else Scope(made.axes, Call(f"to_{dtype}", (made.body,)))

    def body(self, body: Body) -> Body:
        if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source in self.values:
            return self.values[body.source]
        return super().body(body)


def _shown(left: Node, right: Node, leaves: tuple[Node, ...]) -> Evidence:
    """Whether both are one expression of the leaves."""
    return COMPOSED if _scope(left, leaves) is _scope(right, leaves) else USED
