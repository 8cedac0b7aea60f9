"""Calls inside calls of one operator that are one call.

    Concat(Concat(x, y), z) = Concat(x, y, z)
    Split(Split(x, (1, 4))[1], (1, 3))[0] = Split(x, (1, 1, 3))[1]

Of a variadic operator its expression tells whether that is so; one with several outputs declares the one
call's attributes (`nested`).  Each use is an equation of its own, for the sizes at hand, with the canonical
form of both sides as its proof; of very many arguments it is replayed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from tensaurus.expr.ir.scope import Scope, Source, Tensor
from tensaurus.expr.normal.canonicalize import canonicalize
from tensaurus.graph.analysis.program_expression import expressions
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node, apply, source
from tensaurus.graph.ir.program_text import show_type, show_value
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.declare import Attributes
from tensaurus.ops.examples import parse_example
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Evidence, Proved, Tested

SHOWN = 40  # arguments up to which canonical forms are compared: their time grows with the square (100: 6 s)

__all__ = ["calling", "joins", "nested_equation", "parted", "said"]

SHOWN_EQUAL = Proved("algebra", "at these sizes")
USED = Tested("gf", "where it is used")
DEEP = 1000  # calls inside each other that are written out where it is the law


@cache
def joins(op: Op) -> bool:
    """Whether a call of a variadic operator that another call reads may give way to its arguments.

    As far as three arguments like those of its examples show; each use is proved or replayed on its own.
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
            for args in ([first, leaves[2]], [leaves[0], last]):
                shown.append(_same(apply(op, args, example.attrs), flat, leaves))
        except Untypable:
            continue
    return bool(shown) and all(shown)


@cache
def parted(op: Op, kind: TensorType, outer: Attributes, index: int, inner: Attributes) -> Attributes | None:
    """Attributes of one call in place of a call on output `index` of another; None where there is none.

    The parts of that output take its place among the others.
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
    """Two calls on these leaves are equal; why is looked into where it is asked for."""
    law = f"{said(left, depth=DEEP)} => {said(right, depth=DEEP)}"
    return Equation(name, law, (left,), (right,), tuple(leaves), partial(_shown, left, right, tuple(leaves)))


def _shown(left: Node, right: Node, leaves: Sequence[Node]) -> Evidence:
    return SHOWN_EQUAL if len(leaves) <= SHOWN and _same(left, right, leaves) else USED


def calling(op: object, args: Sequence[str], attrs: Attributes) -> str:
    """A call as rules write it."""
    given = (
        f"{name}={show_value(value) if isinstance(value, Scope) else repr(value)}"
        for name, value in attrs
        if value is not None
    )
    return f"{op}({', '.join([*args, *given])})"


def said(*nodes: Node | None, depth: int = 4) -> str:
    """Programs as a reader of rules would write them, what lies deep left out."""
    return ", ".join(_said(node, depth) for node in nodes)


def _said(node: Node | None, depth: int) -> str:
    if node is None:
        return "None"
    if node.op is INPUT:
        return str(node.attribute("name"))
    if node.op is CONSTANT or not depth:
        return ", ".join(map(show_type, node.types))
    if node.op is ITEM:
        return f"{_said(node.args[0], depth)}[{node.attribute('index')}]"
    return calling(node.op, [_said(arg, depth - 1) for arg in node.args], node.attrs)


def _same(left: Node, right: Node, leaves: Sequence[Node]) -> bool:
    """Whether both compute the same of the leaves, as their canonical forms show."""
    tensors: dict[Node, Source] = {
        leaf: Tensor(f"x{k}", leaf.tensor.shape, leaf.tensor.dtype) for k, leaf in enumerate(leaves)
    }
    first, second = expressions([left, right], tensors)
    return canonicalize(first) == canonicalize(second)
