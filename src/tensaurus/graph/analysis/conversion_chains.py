"""Skip conversions (Cast) that keep every number, so that a chain of them is seen as what it computes.

    float16 -> float32 -> float16       keeps every number: equal to no conversion
    float32 -> float16 -> float32       rounds

A field of exact numbers, such as GF(p), cannot round: there a conversion to a narrower type is an unknown
function, whatever it converts.  Only the chain shows that the conversion changes nothing.
"""

from __future__ import annotations

from tensaurus.expr.ir.element_types import is_rounding_cast
from tensaurus.expr.ir.float_conversions import is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Call, Read
from tensaurus.expr.sizes.size import is_same_size, polynomial
from tensaurus.graph.ir.node import Node
from tensaurus.ops import Op, TensorType


def args_before_casts(node: Node) -> tuple[Node | None, ...]:
    """Return the arguments of a declared node; of a conversion, the value before all lossless ones."""
    args = node.args
    if args and args[0] is not None and _cast_of(node) is not None:
        return _before_lossless_casts(args[0]), *args[1:]
    return args


def converted_type(node: Node) -> str | None:
    """Return the type to which a node converts each element of its first argument, None of any other node."""
    call = _cast_of(node)
    return None if call is None else cast_target(call.fn)


def _before_lossless_casts(node: Node) -> Node:
    while (call := _cast_of(node)) is not None:
        before = node.args[0]
        if before is None or not is_float(cast_target(call.fn) or "") or is_rounding_cast(call):
            break
        node = before
    return node


def _cast_of(node: Node) -> Call | None:
    """Return the expression of a node that converts each element of its first argument, None of any other."""
    if not isinstance(node.op, Op) or len(node.types) != 1 or not node.args or node.args[0] is None:
        return None
    after, before = node.types[0], node.args[0].types[0]
    if not isinstance(after, TensorType) or not isinstance(before, TensorType):
        return None
    same_shape = after.rank == before.rank and all(map(is_same_size, after.shape, before.shape))
    if after.dtype == before.dtype or not same_shape:
        return None
    scope = node.scopes()[0]
    match scope.body:
        case Call(fn, (Read(source, indices, None),)) if cast_target(fn) is not None:
            is_elementwise = all(  # an axis of one element is read at 0
                index == polynomial(a) or a.extent == 1 and is_same_size(index, 0)
                for index, a in zip(indices, scope.axes, strict=True)
            )
            return scope.body if is_elementwise and source == node.op.tensors(node.arg_types())[0] else None
    return None
