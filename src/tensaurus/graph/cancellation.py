"""Constants that no rewrite combines: what float32 loses between them is what the model means.

    (x + 12582912) - 12582912   ->   x + (12582912 - 12582912)      the one rounds x to an integer
    (x * 1e30) * 1e-30          ->   x * (1e30 * 1e-30)             the one is infinite from 3.4e8 on

Over the reals both are equal.  A sum of constants is not made where the largest of them exceeds 2^12 times
what is left of them, or 2^12 if less than 1 is left: added one after the other they cost a result of that
size, and an operand of size 1, half of the digits that a float32 has.  A product or quotient is not made
where one of them is beyond 2^64 or below 2^-64, half of the range: what is between them overflows where the
result does not.  Single elements may be anything, as folded biases are by chance: the largest of a tensor
decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.algebra.expr import Call, Read
from tensaurus.algebra.field import Array, Reals
from tensaurus.algebra.rounding import is_float
from tensaurus.graph.evaluation import evaluated
from tensaurus.graph.node import CONSTANT, Node
from tensaurus.graph.program import topological
from tensaurus.ops import Op, TensorType, Untypable

__all__ = ["cancels", "is_large", "loses"]

LOST = 2.0**12  # times what is left
RANGE = 2.0**64
ELEMENTS = 1 << 16  # of tensors that are weights, and are not computed to know it

_known: WeakKeyDictionary[Node, float | None] = WeakKeyDictionary()  # see `_largest`


def cancels(node: Node) -> bool:
    """Whether a node combines constants that are not to be combined."""
    fn = _combined(node)
    if fn is None:
        return False
    sizes = [size for arg in node.args if arg is not None and (size := _largest(arg)) is not None]
    if len(sizes) < len(node.args):
        return False
    if fn in ("mul", "div"):
        return any(size and not 1 / RANGE <= size <= RANGE for size in sizes)
    left = _largest(node)
    return left is not None and max(sizes) > LOST * max(1.0, left)


def is_large(node: Node) -> bool:
    """Whether a constant must not cancel: half of the digits of an operand of size 1 are lost beside it."""
    if not node.static or len(node.types) != 1 or not _is_small_float(node):
        return False
    return (_largest(node) or 0.0) > LOST


def loses(before: Sequence[Node], after: Sequence[Node], leaves: Collection[Node], moved: bool) -> bool:
    """Whether a rewrite of these leaves combines such constants, or drops one that is not only `moved`."""
    made = topological(after, leaves)
    if any(map(cancels, set(made) - set(topological(before, leaves)))):
        return True
    read = {*after, *(arg for node in made for arg in node.args)}
    return not moved and any(is_large(leaf) for leaf in leaves if leaf not in read)


def _combined(node: Node) -> str | None:
    """The operation of numbers that a node of constants is, if it is but one."""
    if not node.static or not isinstance(node.op, Op) or len(node.types) != 1 or not _is_small_float(node):
        return None
    match node.op.scopes(node.kinds(), node.attrs)[0].body:
        case Call(fn, args) if fn in ("add", "sub", "mul", "div"):
            return fn if sum(isinstance(arg, Read) for arg in args) == len(node.args) else None
    return None


def _is_small_float(node: Node) -> bool:
    kind = node.types[0]
    return isinstance(kind, TensorType) and is_float(kind.dtype) and _is_small(kind)


def _is_small(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in kind.shape) and prod(kind.shape) <= ELEMENTS  # type: ignore[operator]


def _largest(node: Node) -> float | None:
    """The magnitude of the largest finite element of a constant expression; None where it is not computed."""
    if node not in _known:
        _known[node] = _computed(node)
    return _known[node]


def _computed(node: Node) -> float | None:
    values: dict[Node, Array] = {}
    field = Reals()
    for part in topological([node]):
        if len(part.types) != 1:
            continue
        kind = part.types[0]
        if not isinstance(kind, TensorType) or not _is_small(kind):
            return None
        try:
            if part.op is CONSTANT:
                values[part] = field.lift(part.attribute("data").array)
            else:
                values[part] = evaluated(part, values, field)
        except (Untypable, NotImplementedError, ArithmeticError, LookupError):
            return None
    found = np.abs(values[node].astype(np.float64))
    return float(np.max(found, where=np.isfinite(found), initial=0.0))
