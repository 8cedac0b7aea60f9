"""Replace expressions over constants by constants, so that a runtime does not compute them at every run.

    Mul(x, Exp(0.5))   ->   Mul(x, 1.6487213)

Export does so (`graph/onnx/onnx_export`), within a limit on the bytes of constants that a file stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

import numpy as np

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.element_types import is_rounding_cast
from tensaurus.expr.ir.float_conversions import is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.analysis.needed_rounding import needs_stepwise_rounding
from tensaurus.graph.ir.census import tensor_bytes, unfolded_constant_bytes
from tensaurus.graph.ir.node import CONSTANT, OPAQUE, Node, Type, constant, replace_args
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.tensor_data import TensorData, numpy_dtype
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.special_nodes import ONNX_DOMAINS

MAX_SHAPE_ELEMENTS = 16  # an opaque node's argument of at most this many may be a shape: not folded
# A folded constant may have MAX_GROWTH_BYTES more, or MAX_GROWTH_FACTOR times as many, bytes as the constants
# that it is computed from: the transformed weights of a fast convolution have up to eleven times as many.
MAX_GROWTH_BYTES = 1 << 20
MAX_GROWTH_FACTOR = 16
SCRATCH_FACTOR = 16  # the largest intermediate result, in units of (the constants' bytes + MAX_GROWTH_BYTES)

# Functions with jumps: the last bit of an argument decides, so that each step must round as float32 does.
DISCONTINUOUS = frozenset({"floor", "ceil", "round", "sign", "mod", "fmod", "eq", "lt", "le"})


def fold_constants(
    program: Program, became: dict[Node, Node] | None = None, max_bytes: float = inf
) -> Program:
    """Return the program with every maximal expression over constants replaced by a constant.

    Values are computed in float64 and rounded once.  Each step is rounded as in the model where a function
    jumps (Floor, a cast to integers or to narrower floats) and where constants cancel (`needed_rounding`).

    These expressions are not folded:
    - values that no specification defines (300 as a uint8, 1 / 0 in integers, element 7 of 3): the runtime's
      own answer counts;
    - results that are more than a mebibyte and sixteen times larger than their source (Expand of a scalar);
    - up to 16 elements that an opaque node reads: they may be a shape, and onnxruntime refuses a constant of
      the wrong rank where it accepts the same value at run time;
    - where all constants would take more than `max_bytes`, as few as possible of the expressions that grow
      most, if they consist of ONNX's own operators: Tile(w, 60) is stored as w, and computed at loading time.

    `became` is filled with the new node for each old one, unless nothing changed.
    """
    folded = _fold_maximal_expressions(program)
    if max_bytes < inf and unfolded_constant_bytes(_replace(program, folded)) > max_bytes:
        folded = _limit_constant_bytes(program, folded, max_bytes)
    return _replace(program, folded, became) if folded else program


def _fold_maximal_expressions(program: Program) -> dict[Node, Node]:
    """Return the constant for each expression that outputs, or nodes computed at run time, read.

    Where such an expression is not folded, the parts of it that can be folded are.
    """
    static = program.static
    waiting = [
        arg
        for node in program.nodes
        if node not in static
        for arg in node.args
        if arg is not None and arg in static and not (node.op is OPAQUE and _may_be_shape(arg))
    ] + [node for _, node in program.outputs if node in static]
    folded: dict[Node, Node] = {}
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node.op is CONSTANT:
            continue
        seen.add(node)
        value = _fold_node(node)
        if value is not None:
            folded[node] = value
        else:
            waiting.extend(arg for arg in node.args if arg is not None)
    return folded


def _replace(
    program: Program, folded: Mapping[Node, Node], became: dict[Node, Node] | None = None
) -> Program:
    """Return the program with these expressions replaced by their constants."""

    def build(node: Node, args: tuple[Node | None, ...]) -> Node:
        if node.op is OPAQUE:
            args = tuple(old if _may_be_shape(old) else new for old, new in zip(node.args, args, strict=True))
        return folded.get(node) or replace_args(node, args)

    return program.rebuild(build, became)


def _limit_constant_bytes(
    program: Program, folded: Mapping[Node, Node], max_bytes: float
) -> dict[Node, Node]:
    """Return the constants without those that add most bytes, as few as are needed to meet the limit."""
    growing = sorted(filter(_can_stay_expression, folded), key=_added_bytes, reverse=True)

    def without_largest(count: int) -> dict[Node, Node]:
        excluded = set(growing[:count])
        return {node: value for node, value in folded.items() if node not in excluded}

    low, high = 0, len(growing)  # the least count, by bisection
    while low < high:
        middle = (low + high) // 2
        if unfolded_constant_bytes(_replace(program, without_largest(middle))) > max_bytes:
            low = middle + 1
        else:
            high = middle
    return without_largest(high)


def _can_stay_expression(node: Node) -> bool:
    """Return whether folding the expression stores more, and ONNX's own operators compute it."""
    operators = [n.op for n in topological_order([node]) if isinstance(n.op, Op)]
    return all(op.domain in ONNX_DOMAINS for op in operators) and _added_bytes(node) > 0


def _added_bytes(node: Node) -> int:
    """Return how many bytes the folded expression takes beyond the constants that it is computed from."""
    leaves = (leaf for leaf in topological_order([node]) if leaf.op is CONSTANT)
    return tensor_bytes(node.tensor) - sum(tensor_bytes(leaf.tensor) for leaf in leaves)


def _may_be_shape(arg: Node | None) -> bool:
    """Return whether an argument of an opaque node is constant and small enough to be a shape."""
    if arg is None or not arg.static or not isinstance(arg.types[0], TensorType):
        return False
    count = prod(arg.types[0].shape)
    return isinstance(count, int) and count <= MAX_SHAPE_ELEMENTS


def _fold_node(node: Node) -> Node | None:
    """Return the constant that the expression equals, None where it is not folded."""
    if len(node.types) != 1 or not isinstance(node.type, TensorType):
        return None
    parts = topological_order([node])
    if not all(_is_numeric(kind) for part in parts for kind in part.types) or _grows_too_much(node, parts):
        return None
    try:
        return constant(TensorData(_round_to_type(_evaluate_parts(parts)[node], node.tensor)))
    except (Untypable, NotImplementedError, ArithmeticError, LookupError):
        return None


def _is_numeric(kind: Type) -> bool:
    """Return whether a type is a tensor of numbers whose sizes are known."""
    if not isinstance(kind, TensorType) or not kind.static or kind.dtype == "string":
        return False
    return numpy_dtype(kind.dtype).kind in "fiub"


def _grows_too_much(node: Node, parts: Sequence[Node]) -> bool:
    """Return whether an expression, or a part of it, is much larger than the constants that it is made of."""
    source_bytes = sum(tensor_bytes(part.tensor) for part in parts if part.op is CONSTANT)
    if tensor_bytes(node.tensor) > max(source_bytes + MAX_GROWTH_BYTES, MAX_GROWTH_FACTOR * source_bytes):
        return True
    largest = max((tensor_bytes(part.tensor) for part in parts if len(part.types) == 1), default=0)
    return largest > SCRATCH_FACTOR * (source_bytes + MAX_GROWTH_BYTES)


def _evaluate_parts(parts: Sequence[Node]) -> dict[Node, Array]:
    """Return the elements of the parts of a constant expression in float64.

    Each part is rounded to its own type where the steps must round as in the model.
    """
    rounds_steps = _has_discontinuity(parts) or any(map(needs_stepwise_rounding, parts))
    values: dict[Node, Array] = {}
    field = Reals(strict=True)
    for part in parts:
        if len(part.types) != 1:  # each of its outputs is evaluated from its arguments
            continue
        if part.op is CONSTANT:
            values[part] = field.lift(part.attribute("data").array)
            continue
        values[part] = evaluate_node(part, values, field)
        if rounds_steps:
            values[part] = field.lift(_round_to_type(values[part], part.tensor))
    return values


def _round_to_type(value: Array, kind: TensorType) -> Array:
    with np.errstate(all="ignore"):
        return value.astype(numpy_dtype(kind.dtype)).reshape(kind.shape)


def _has_discontinuity(nodes: Sequence[Node]) -> bool:
    """Return whether the last bit of a float may change more than the last bit of a result."""
    for node in nodes:
        if node.is_declared and any(is_float(a.tensor.dtype) for a in node.args if a is not None):
            for scope in node.scopes():
                called = called_functions(scope)
                if any(fn in DISCONTINUOUS or "int" in (cast_target(fn) or "") for fn in called):
                    return True
                if any(map(is_rounding_cast, bodies(scope))):
                    return True
    return False
