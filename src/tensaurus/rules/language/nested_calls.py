"""Merge a call inside a call of the same operator into one call.

    Concat(Concat(x, y), z) = Concat(x, y, z)
    Split(Split(x, (1, 4))[1], (1, 3))[0] = Split(x, (1, 1, 3))[1]

`egraph/match/flatten_nested_calls` finds nested calls and builds the merged one; this module says whether
they merge, with which attributes, and makes the equation.

No rule can say this for any number of arguments.  For a variadic operator its expression tells whether nested
calls merge; an operator with several outputs declares the attributes of the merged call (`merge_nested`).
Each use is an equation of its own at its sizes, proved by the canonical form of both sides; an equation with
very many arguments is replayed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from tensaurus.expr.ir.scope import Source, Tensor
from tensaurus.expr.normal.canonicalize import canonicalize
from tensaurus.graph.analysis.program_expression import build_expressions
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.node_text import format_nodes

# Largest number of leaves for which canonical forms are compared: the time grows with its square (100: 6 s).
MAX_COMPARED_LEAVES = 40

__all__ = ["can_join_nested", "nested_equation", "merge_split_attributes"]

PROVED_HERE = Proved("algebra", "at these sizes")
TESTED_AT_USE = Tested("gf", "where it is used")  # an equation that is not proved is replayed in GF(p)
LAW_DEPTH = 100  # levels of nested calls that a law's text shows


@cache
def can_join_nested(op: Op) -> bool:
    """Return whether a nested call of a variadic operator may be replaced by its arguments.

    Tested with three arguments like those of the operator's examples; each use is proved or replayed by
    itself.
    """
    if not op.is_variadic:
        return False
    shown: list[bool] = []
    for text in op.examples:
        example = parse_example(text)
        kinds = [kind for kind in example.types if kind is not None]
        if len(kinds) < 2:
            continue
        leaves = [source(f"x{place}", kind) for place, kind in enumerate([*kinds, kinds[0]][:3])]
        try:
            first, last = (apply(op, some, example.attrs) for some in (leaves[:2], leaves[1:]))
            flat = apply(op, leaves, example.attrs)
            for args in ([first, leaves[2]], [leaves[0], last]):  # f(f(x, y), z) and f(x, f(y, z))
                shown.append(_are_same_function(apply(op, args, example.attrs), flat, leaves))
        except Untypable:
            continue
    return bool(shown) and all(shown)


@cache
def merge_split_attributes(
    op: Op, kind: TensorType, outer: Attributes, index: int, inner: Attributes
) -> Attributes | None:
    """Return attributes of one call that replaces a call on output `index` of another, None where none exist.

    The outputs of the inner call take the place of that output among the others.
    """
    if op.merge_nested is None:
        return None
    try:
        attrs = op.canonical((kind,), op.merge_nested(dict(outer), index, dict(inner)))
        before, whole = op.types((kind,), outer), op.types((kind,), attrs)
        parts = op.types((before[index],), inner)
    except Untypable:
        return None
    return attrs if (*before[:index], *parts, *before[index + 1 :]) == whole else None


def nested_equation(name: str, left: Node, right: Node, leaves: Sequence[Node]) -> Equation:
    """Return the equation of two calls on these leaves; its evidence is found when it is asked for."""
    law = " => ".join(format_nodes(side, leaves=leaves, depth=LAW_DEPTH) for side in (left, right))
    evidence_source = partial(_find_evidence, left, right, tuple(leaves))
    return Equation(name, law, (left,), (right,), tuple(leaves), evidence_source)


def _find_evidence(left: Node, right: Node, leaves: Sequence[Node]) -> Evidence:
    is_proved = len(leaves) <= MAX_COMPARED_LEAVES and _are_same_function(left, right, leaves)
    return PROVED_HERE if is_proved else TESTED_AT_USE


def _are_same_function(left: Node, right: Node, leaves: Sequence[Node]) -> bool:
    """Return whether both compute the same function of the leaves, as their canonical forms show."""
    tensors: dict[Node, Source] = {
        leaf: Tensor(f"x{k}", leaf.tensor.shape, leaf.tensor.dtype) for k, leaf in enumerate(leaves)
    }
    first, second = build_expressions([left, right], tensors)
    return canonicalize(first) == canonicalize(second)
