"""Computes in float32 what a model computes in float16 or bfloat16: fewer roundings, and no slow emulation.

    Relu(Conv(x, w))   =   Cast(Relu(Conv(Cast(x, float32), w')), float16)      w' is w in float32

Processors without arithmetic of half precision convert the arguments and the result of every operator.  Here
inputs are converted once, constants ahead of time, and outputs at the end.  float32 has every number of
float16 and bfloat16, so that over the reals a conversion changes nothing, and both sides are the same
expression.  In floats the right side rounds less: each result to 24 binary digits instead of 11 or 8.

Operators that make integers or truth values (comparisons, ArgMax, a quantizer), opaque ones, and those whose
declaration admits only half precision still read numbers that are rounded to half precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tensaurus.expr.ir.float_conversions import is_exact_conversion, is_float
from tensaurus.expr.ir.scope import Const, Read, Select
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.analysis.conversion_chains import converted_type
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node, apply, constant, item, replace_args
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.lower.primitives import call_function
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Widened

__all__ = ["WIDE_FLOATS", "refute_widening", "widen_equation", "widen_floats"]

WIDE_FLOATS = "half-precision-in-float32"
HALVES = frozenset({"float16", "bfloat16"})
WIDE = "float32"


def widen_floats(program: Program, became: dict[Node, Node] | None = None) -> Program:
    """Return the program computed in float32 between its inputs and outputs; itself where it has no halves.

    A program that only stores or converts numbers of half precision stays as it is, too.  `became` is filled
    with the new node for each old one.
    """
    if not any(map(_computes_in_half, program.active)):
        return program
    wide = program.rebuild(_build, became)
    pairs = zip(wide.roots, program.roots, strict=True)
    return wide.with_outputs([_narrowed(new, old.types[0]) for new, old in pairs])


def widen_equation(before: Program, after: Program) -> Equation:
    """Return the equation of a program with the program that `widen_floats` made of it."""
    pairs = [(a, b) for a, b in zip(before.roots, after.roots, strict=True) if a is not b]
    left, right = zip(*dict.fromkeys(pairs), strict=True)
    types = [kind for node in before.nodes for kind in node.types]
    kinds = sorted({kind.dtype for kind in types if isinstance(kind, TensorType) and kind.dtype in HALVES})
    law = f"what {' and '.join(kinds)} operators compute is computed in {WIDE}"
    leaves = (*before.inputs, *before.captured)
    return Equation(WIDE_FLOATS, law, left, right, leaves, Widened(" and ".join(kinds), WIDE))


def refute_widening(equation: Equation) -> str | None:
    """Return why the sides differ by more than wider floats on the right; None where they do not.

    Each side is read as an expression over the reals: conversions between float types are left out, and
    constants are their values.  Both sides must be the same expression, and no value on the right may have a
    type that lacks numbers of its type on the left.  What makes integers must read the same types.
    """
    reals = _Reals()
    left, left_types = reals.read_side(equation.left)
    right, right_types = reals.read_side(equation.right)
    if left != right:
        return "more than the types of floats has changed"
    for number, dtypes in right_types.items():
        for dtype in dtypes:
            if not any(is_exact_conversion(known, dtype) for known in left_types.get(number, ())):
                return f"the right side rounds a value to {dtype} that the left side does not"
    return None


@dataclass
class _Reals:
    """Numbers expressions over the reals; equal ones have equal numbers."""

    numbers: dict[object, int] = field(default_factory=dict)

    def read_side(self, roots: tuple[Node, ...]) -> tuple[list[int], dict[int, set[str]]]:
        """Return the number of each root, and by number the float types in which a value is computed."""
        number_of: dict[Node, int] = {}
        types: dict[int, set[str]] = {}
        for node in topological_order(roots):
            args = tuple(None if arg is None else number_of[arg] for arg in node.args)
            number = number_of[node] = self._number(node, args)
            kind = node.types[0]
            if len(node.types) == 1 and isinstance(kind, TensorType) and is_float(kind.dtype):
                types.setdefault(number, set()).add(kind.dtype)
        return [number_of[root] for root in roots], types

    def _number(self, node: Node, args: tuple[int | None, ...]) -> int:
        dtype, key = converted_type(node), (node.op, node.attrs, args)
        if dtype is not None and is_float(dtype) and args[0] is not None:
            before = node.args[0]
            assert before is not None
            # a float stays what it is over the reals; an integer becomes a float
            return args[0] if is_float(before.tensor.dtype) else self._number_of(("float", args))
        if node.op is CONSTANT and is_float(node.tensor.dtype):
            values = np.asarray(node.attribute("data").array).astype(np.float64)
            return self._number_of((CONSTANT, values.shape, values.tobytes()))
        makes_floats = all(isinstance(kind, TensorType) and is_float(kind.dtype) for kind in node.types)
        if isinstance(node.op, Op) and makes_floats or node.op in (INPUT, ITEM):
            return self._number_of(key)
        return self._number_of((*key, tuple(arg and arg.types for arg in node.args)))

    def _number_of(self, key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))


def _is_half(kind: object) -> bool:
    return isinstance(kind, TensorType) and kind.dtype in HALVES


def _computes_in_half(node: Node) -> bool:
    """Whether a node computes numbers of half precision from numbers of half precision."""
    reads = any(arg is not None and any(map(_is_half, arg.types)) for arg in node.args)
    return isinstance(node.op, Op) and reads and any(map(_is_half, node.types)) and not _only_moves(node)


def _only_moves(node: Node) -> bool:
    """Whether a node copies numbers, or converts their type."""
    parts = (body for scope in node.scopes() for body in bodies(scope))
    return converted_type(node) is not None or all(isinstance(body, Read | Select | Const) for body in parts)


def _widened_type(kind: object) -> object:
    return replace(kind, dtype=WIDE) if _is_half(kind) and isinstance(kind, TensorType) else kind


def _build(node: Node, args: tuple[Node | None, ...]) -> Node:
    """Return what computes the node's value, in float32 where it is of half precision."""
    if node.op is INPUT:
        return _widened(node)
    if node.op is CONSTANT:
        if not _is_half(node.types[0]):
            return node
        return constant(np.asarray(node.attribute("data").array).astype(np.float32))
    if node.op is ITEM:
        call = args[0]
        assert call is not None
        return _widened(item(call, node.attribute("index")))
    if (kind := converted_type(node)) is not None and is_float(kind) and args[0] is not None:
        return _converted(args[0], WIDE if kind in HALVES else kind)
    made = _apply_wide(node, args)
    if made is None:
        narrow = tuple(
            None if new is None or old is None else _narrowed(new, old.types[0])
            for new, old in zip(args, node.args, strict=True)
        )
        made = replace_args(node, narrow)
    return _widened(made) if len(made.types) == 1 else made


def _apply_wide(node: Node, args: tuple[Node | None, ...]) -> Node | None:
    """Return the operator applied to wide arguments; None where it must read half precision."""
    if not isinstance(node.op, Op) or not all(
        isinstance(kind, TensorType) and is_float(kind.dtype) for kind in node.types
    ):
        return None
    try:
        made = apply(node.op, args, dict(node.attrs), len(node.types))
    except (Untypable, ValueError, NotImplementedError):
        return None
    return made if made.types == tuple(map(_widened_type, node.types)) else None


def _widened(node: Node) -> Node:
    return _converted(node, WIDE) if _is_half(node.types[0]) else node


def _narrowed(node: Node, kind: object) -> Node:
    """Return the node as a value of the type that the original has there."""
    return _converted(node, kind.dtype) if _is_half(kind) and isinstance(kind, TensorType) else node


def _converted(node: Node, dtype: str) -> Node:
    """Return the node converted to a float type; what was converted from this type exactly, as it was."""
    if node.tensor.dtype == dtype:
        return node
    before = node.args[0] if node.args and converted_type(node) == WIDE else None
    if before is not None and before.tensor.dtype == dtype:
        return before
    return call_function(f"to_{dtype}", node)
