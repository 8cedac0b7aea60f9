"""Expressions over constants become constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

import numpy as np

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.element_types import is_rounding_cast
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.walk import bodies
from tensaurus.graph.analysis.cancellation import has_own_rounding
from tensaurus.graph.analysis.evaluate_node import evaluated
from tensaurus.graph.ir.census import stored_bytes
from tensaurus.graph.ir.node import CONSTANT, OPAQUE, Node, again, constant
from tensaurus.graph.ir.program import Program, topological
from tensaurus.graph.ir.tensor_data import Data, numpy_dtype
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.leaf_form import ONNX_DOMAINS

__all__ = ["evaluated", "fold"]

FEW = 16
GROWTH = 1 << 20  # bytes that a folded constant may have beyond those it is computed from
TIMES = 16  # or this many times those: transformed weights of a convolution have up to eleven
SCRATCH = 16  # times these bytes that a step of the computation may have

# functions that jump: the last bit of an argument decides, so that float32 must be followed step by step
JUMPS = frozenset({"floor", "ceil", "round", "sign", "mod", "fmod", "eq", "lt", "le"})


def fold(program: Program, became: dict[Node, Node] | None = None, most: float = inf) -> Program:
    """Every maximal expression over constants becomes a constant: computed in float64, rounded once.

    Where the constants would be more than `most` bytes then, those that grow most stay expressions of ONNX's
    own operators, which runtimes compute when they load the model: Tile(w, 60) is stored as w.

    `became` is filled with what each node became, where any changed.

    What no specification gives a value (300 as a uint8, 1 / 0 in integers, element 7 of 3) is left to the
    runtime.

    Where a function jumps (Floor, a cast to integers or to narrower floats), and where constants cancel (see
    `cancellation`), each step is rounded as the model itself would.
    What would grow by more than a mebibyte and sixteenfold (Expand of a scalar) stays an expression, and so
    does what few numbers an opaque node reads: runtimes are stricter about a constant than about a value.
    """
    static = program.static
    waiting = [
        arg
        for node in program.nodes
        if node not in static
        for arg in node.args
        if arg is not None and arg in static and not (node.op is OPAQUE and _kept(arg))
    ] + [node for _, node in program.outputs if node in static]
    folded: dict[Node, Node] = {}
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node.op is CONSTANT:
            continue
        seen.add(node)
        value = _folded(node)
        if value is not None:
            folded[node] = value
        else:  # a part of it may be foldable
            waiting.extend(arg for arg in node.args if arg is not None)

    def build(node: Node, args: tuple[Node | None, ...]) -> Node:
        if node.op is OPAQUE:
            args = tuple(old if _kept(old) else new for old, new in zip(node.args, args, strict=True))
        return folded.get(node) or again(node, args)

    if most < inf and stored_bytes(program.rebuilt(build)) > most:
        growing = sorted(filter(_may_stay, folded), key=_growth, reverse=True)
        least, enough = 0, len(growing)  # how many stay expressions: as few as will do
        everything = folded
        while least < enough:
            middle = (least + enough) // 2
            folded = _without(everything, growing[:middle])
            if stored_bytes(program.rebuilt(build)) > most:
                least = middle + 1
            else:
                enough = middle
        folded = _without(everything, growing[:enough])
    return program.rebuilt(build, became) if folded else program


def _without(folded: Mapping[Node, Node], nodes: Sequence[Node]) -> dict[Node, Node]:
    """Return what is folded but for these nodes."""
    staying = set(nodes)
    return {node: value for node, value in folded.items() if node not in staying}


def _may_stay(node: Node) -> bool:
    """Return whether folding the expression stores more, and ONNX's own operators compute it."""
    own = all(n.op.domain in ONNX_DOMAINS for n in topological([node]) if isinstance(n.op, Op))
    return own and _growth(node) > 0


def _growth(node: Node) -> int:
    """Return how many bytes more the folded expression is than the constants that it is computed from."""
    return _bytes(node) - sum(_bytes(n) for n in topological([node]) if n.op is CONSTANT)


def _kept(arg: Node | None) -> bool:
    """True for an argument of an opaque node that stays an expression: so few numbers may be a shape."""
    if arg is None or not arg.static or not isinstance(arg.types[0], TensorType):
        return False
    count = prod(arg.types[0].shape)
    return isinstance(count, int) and count <= FEW


def _folded(node: Node) -> Node | None:
    if len(node.types) != 1 or not isinstance(node.type, TensorType):
        return None
    needed = topological([node])
    if not all(
        isinstance(kind, TensorType) and kind.static and _plain(kind) for n in needed for kind in n.types
    ):
        return None
    kind = node.tensor
    before = sum(_bytes(n) for n in needed if n.op is CONSTANT)
    if _bytes(node) > max(before + GROWTH, TIMES * before):
        return None
    if any(_bytes(n) > SCRATCH * (before + GROWTH) for n in needed if len(n.types) == 1):
        return None
    stepwise = _jumps(needed) or any(map(has_own_rounding, needed))
    values: dict[Node, Array] = {}
    field = Reals(strict=True)
    try:
        for part in needed:
            if len(part.types) != 1:
                continue
            if part.op is CONSTANT:
                values[part] = field.lift(part.attribute("data").array)
                continue
            values[part] = evaluated(part, values, field)
            if stepwise:
                values[part] = field.lift(_rounded(values[part], part.tensor))
        return constant(Data(_rounded(values[node], kind)))
    except (Untypable, NotImplementedError, ArithmeticError, LookupError):
        return None


def _rounded(value: Array, kind: TensorType) -> Array:
    with np.errstate(all="ignore"):
        return value.astype(numpy_dtype(kind.dtype)).reshape(kind.shape)


def _plain(kind: TensorType) -> bool:
    return kind.dtype != "string" and numpy_dtype(kind.dtype).kind in "fiub"


def _bytes(node: Node) -> int:
    kind = node.tensor
    return int(prod(kind.shape)) * numpy_dtype(kind.dtype).itemsize  # type: ignore[arg-type]


def _jumps(nodes: list[Node]) -> bool:
    """True where a last bit of a float may decide about more than a last bit."""
    for node in nodes:
        if isinstance(node.op, Op) and any(_is_float(a.tensor) for a in node.args if a is not None):
            kinds = node.kinds()
            for scope in node.op.scopes(kinds, node.attrs):
                if any(fn in JUMPS or "int" in (cast_target(fn) or "") for fn in called_functions(scope)):
                    return True
                if any(map(is_rounding_cast, bodies(scope))):
                    return True
    return False


def _is_float(kind: TensorType) -> bool:
    return kind.dtype.startswith(("float", "bfloat"))
