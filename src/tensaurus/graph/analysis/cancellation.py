"""Tells which constants no rewrite may combine: the model relies on what float32 loses between them.

    (x + 12582912) - 12582912   ->   x + (12582912 - 12582912)      the one rounds x to an integer
    (x * 1e30) * 1e-30          ->   x * (1e30 * 1e-30)             the one is infinite from 3.4e8 on

Over the reals both are equal.  A constant is large beyond 2^12: there a unit in its last place exceeds half
of the digits that an operand of size 1 has in float32 (in float16 beyond 2^9, in bfloat16 beyond 2^6, where a
unit is one half).  What a large constant rounds must stay rounded, however many steps a rewrite takes:

    a sum        must not have a finer unit in the last place than its largest term, if that is large;
                 12582912 - 12579840 = 3072 would forget that the one rounds to integers
    a product    must not make a small number of a large one: 12582912 * (1 / 4096) would forget it, too
    sums of products (MatMul, Gemm, Conv), and sums that are too large to be computed here, must not have a
                 large term at all

So a large constant stays large, and its unit as coarse, until it is added to an operand; and it is added to
the same operand as in the original (`rules/language/operand_partners`): (x + 12582912) - 12582912 + y must
not round x + y.  Likewise a constant beyond 2^64 or below 2^-64 (half of the range of exponents) is not
multiplied with other constants, and keeps its operand: an intermediate result might overflow where the
final one does not.  Of a tensor the largest element decides: single elements, as of folded biases, may be
large by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import frexp, inf, prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS, is_float
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source
from tensaurus.expr.sizes.size import product
from tensaurus.graph.analysis.evaluate_node import evaluated, expression_of
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.graph.ir.program import topological
from tensaurus.ops import Op, TensorType, Untypable

__all__ = [
    "MOVE", "PRODUCT", "SUM", "cancels", "has_own_rounding", "is_large", "is_rigid", "kind_of", "loses",
]  # fmt: skip

LARGE = 12  # large constants are beyond 2 to this
SPARE = 2  # and beyond all but so many digits of a narrow type
LINEAR = frozenset({"add", "sub", "mul", "div", "neg", "sum"})
SUMS = frozenset({"add", "sub", "sum"})
SUM, PRODUCT, MOVE = "sum", "product", "move"  # of two operands, or of one
RANGE = 2.0**64
ELEMENTS = 1 << 16  # larger tensors are taken for weights, and are not evaluated
KEPT = 1 << 10  # elements of the largest tensors whose values are kept for what is computed from them


class Magnitudes(NamedTuple):
    """Bounds of a constant's elements that are neither 0 nor infinite; magnitudes below `low` are 0.

    quantum  a power of two that divides every element; 0 where none is known, as of quotients.  Sums and
             differences of multiples of a quantum are multiples of it, also after rounding to float64.  So a
             difference that is not 0 is at least one quantum, however much cancels.
    """

    low: float
    high: float
    quantum: float


ZERO = Magnitudes(inf, 0.0, inf)  # of elements that are all 0 or not finite

_known: WeakKeyDictionary[Node, float | None] = WeakKeyDictionary()  # see `_largest`
_values: WeakKeyDictionary[Node, Array] = WeakKeyDictionary()  # of small constant expressions
_bounds: WeakKeyDictionary[Node, Magnitudes | None] = WeakKeyDictionary()  # see `_magnitudes`
_cancelling: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()  # see `cancels`


def cancels(node: Node) -> bool:
    """Whether folding the node would combine constants that must stay apart.

        Sub(12582912, 12579840)   yes: 3072 has a finer unit than its terms      Add(0.5, 0.25)   no
    """
    if node not in _cancelling:
        _cancelling[node] = _cancels(node)
    return _cancelling[node]


def _cancels(node: Node) -> bool:
    fn = _combined(node)
    if fn is None or has_own_rounding(node):
        return fn is not None
    terms = node.args[:1] if fn == "div" else node.args  # a divisor is no term of what it divides
    if not any(is_large(arg) for arg in terms if arg is not None):
        return False
    left = _largest(node)
    if fn in ("mul", "div"):
        return bool(left) and not is_large(node)
    return fn == "sum" or left is None


def has_own_rounding(node: Node) -> bool:
    """Whether a sum, product or quotient of constants loses digits in float32 on which models rely.

    For example a - 12579840 with a = 2.3 + 12582912, which rounds 2.3.  Not a * (1 / 4096), which is exact.
    """
    fn = _combined(node)
    if fn in (None, "sum") or _are_ordinary(node, fn):
        return False
    sizes = [_largest(arg) for arg in node.args if arg is not None]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return False
    if fn in ("mul", "div"):
        return any(size and not 1 / RANGE <= size <= RANGE for size in known)
    if (coarsest := max(known)) <= _limit(node):
        return False
    left = _largest(node)
    return left is not None and frexp(left)[1] < frexp(coarsest)[1]


def is_large(node: Node) -> bool:
    """Whether a constant must not cancel: half of the digits of an operand of size 1 are lost beside it."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    limit, bounds = _limit(node), _magnitudes(node)
    if bounds is not None and bounds.high <= limit:
        return False
    return (_largest(node) or 0.0) > limit


def _is_extreme(node: Node) -> bool:
    """Whether a constant is so large or small that a product with it soon leaves the range of float32."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    bounds = _magnitudes(node)
    if bounds is not None and bounds.low >= 1 / RANGE and bounds.high <= RANGE:
        return False
    size = _largest(node)
    return size is not None and size > 0 and not 1 / RANGE <= size <= RANGE


def is_rigid(node: Node, kinds: Collection[str]) -> bool:
    """Whether a constant must keep its partner in such sums or products: it rounds, or may overflow."""
    return SUM in kinds and is_large(node) or PRODUCT in kinds and _is_extreme(node)


def kind_of(op: Op, kinds: tuple[TensorType | None, ...], attrs: tuple[tuple[str, Any], ...]) -> str | None:
    """Return SUM or PRODUCT where an operator is that of two operands, MOVE where it only moves elements."""
    fn = _operation(op, kinds, attrs)
    if fn in ("add", "sub"):
        return SUM
    if fn in ("mul", "div"):
        return PRODUCT
    return None if fn is not None or any(called_functions(op.scopes(kinds, attrs)[0])) else MOVE


def loses(before: Sequence[Node], after: Sequence[Node], leaves: Collection[Node], moved: bool) -> bool:
    """Whether a rewrite of these leaves combines such constants, or drops one that is not only `moved`."""
    made = topological(after, leaves)
    if any(map(cancels, set(made) - set(topological(before, leaves)))):
        return True
    read = {*after, *(arg for node in made for arg in node.args)}
    return not moved and any(is_large(leaf) for leaf in leaves if leaf not in read)


def _combined(node: Node) -> str | None:
    """The operation of two numbers that a node of constants is; "sum" where it adds up more, or products."""
    if not node.static or not isinstance(node.op, Op) or len(node.types) != 1 or not _is_float(node):
        return None
    return _operation(node.op, node.kinds(), node.attrs)


@lru_cache(maxsize=1 << 12)
def _operation(
    op: Op, kinds: tuple[TensorType | None, ...], attrs: tuple[tuple[str, Any], ...]
) -> str | None:
    scope = op.scopes(kinds, attrs)[0]
    match scope.body:
        case Call(fn, args) if fn in LINEAR and len(args) == 2 and all(isinstance(a, Read) for a in args):
            return fn
    called = set(called_functions(scope))
    return "sum" if called <= LINEAR and called & SUMS else None


def _limit(node: Node) -> float:
    """The magnitude beyond which a constant of the node's type is large."""
    return 2.0 ** min(LARGE, FLOAT_FORMATS[node.tensor.dtype][0] - SPARE)


def _is_float(node: Node) -> bool:
    kind = node.types[0]
    return isinstance(kind, TensorType) and is_float(kind.dtype)


def _is_small(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in kind.shape) and prod(kind.shape) <= ELEMENTS  # type: ignore[operator]


def _are_ordinary(node: Node, fn: str | None) -> bool:
    """Return whether the bounds of a node's arguments show that its sum or product loses nothing.

    Bounds follow from the arguments' own, so that most constants are never computed.  Tensors of more than
    ELEMENTS elements have no bounds: False.
    """
    found = [_magnitudes(arg) for arg in node.args if arg is not None]
    read = [bounds for bounds in found if bounds is not None]
    if len(read) < len(found):
        return False
    if fn in ("mul", "div"):
        return all(bounds.low >= 1 / RANGE and bounds.high <= RANGE for bounds in read)
    return all(bounds.high <= _limit(node) for bounds in read)


def _magnitudes(node: Node) -> Magnitudes | None:
    """Return bounds of the elements of a small constant expression; None where they are not known."""
    if not node.static:
        return None
    if node not in _bounds:
        given = [arg for arg in node.args if arg is not None]
        for part in topological([node], [arg for arg in given if arg in _bounds]):
            _bounds[part] = _bounded(part)
    return _bounds[node]


def _bounded(node: Node) -> Magnitudes | None:
    if len(node.types) != 1 or not _is_float(node) or not _is_small(node.tensor):
        return None
    if node.op is CONSTANT:
        return _measured(np.abs(Reals().lift(node.attribute("data").array)).astype(np.float64))
    if not isinstance(node.op, Op):
        return None
    scope, read = expression_of(node)
    return _of_body(scope.body, {leaf: _magnitudes(arg) for leaf, arg in read.items()})


def _of_body(body: Body, read: Mapping[Source, Magnitudes | None]) -> Magnitudes | None:
    """Return bounds of an expression by those of the tensors that are read."""
    match body:
        case Const(value) if isinstance(value, int | Fraction):
            return _measured(np.abs(np.array([float(value)])))
        case Read(source, _, outside):
            inside = _of_body(source.body, read) if isinstance(source, Scope) else read.get(source)
            return inside if outside is None else _either(inside, _of_body(outside, read))
        case Select(_, then, other):
            return _either(_of_body(then, read), _of_body(other, read))
        case Reduce("sum", axes, inner):
            count, terms = product(axis.extent for axis in axes), _of_body(inner, read)
            if terms is not None and isinstance(count, int):
                return Magnitudes(terms.quantum, count * terms.high, terms.quantum)
        case Call("neg", (inner,)):
            return _of_body(inner, read)
        case Call(fn, (left, right)):
            first, last = _of_body(left, read), _of_body(right, read)
            if first is not None and last is not None:
                return _of_two(fn, first, last)
    return None


def _either(first: Magnitudes | None, last: Magnitudes | None) -> Magnitudes | None:
    if first is None or last is None:
        return None
    return Magnitudes(min(first.low, last.low), max(first.high, last.high), min(first.quantum, last.quantum))


def _of_two(fn: str, first: Magnitudes, last: Magnitudes) -> Magnitudes | None:
    if fn in ("mul", "div") and not (first.high and last.high):
        return ZERO
    match fn:
        case "add" | "sub":
            quantum = min(first.quantum, last.quantum)
            return Magnitudes(quantum, first.high + last.high, quantum)
        case "mul":
            return Magnitudes(first.low * last.low, first.high * last.high, first.quantum * last.quantum)
        case "div":
            return Magnitudes(_ratio(first.low, last.high, 0.0), _ratio(first.high, last.low, inf), 0.0)
    return None


def _ratio(above: float, below: float, otherwise: float) -> float:
    return above / below if below else otherwise


def _measured(magnitudes: Array) -> Magnitudes:
    kept = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    if not kept.size:
        return ZERO
    parts, exponents = np.frexp(kept)
    whole = np.ldexp(parts, 53).astype(np.int64)
    quanta = np.ldexp((whole & -whole).astype(np.float64), exponents - 53)
    return Magnitudes(float(kept.min()), float(kept.max()), float(quanta.min()))


def _largest(node: Node) -> float | None:
    """The magnitude of the largest finite element of a constant expression; None where it is not computed."""
    if node not in _known:
        _known[node] = _computed(node)
    return _known[node]


def _computed(node: Node) -> float | None:
    if len(node.types) != 1:  # as a Split, whose parts are read one by one
        return None
    given = [arg for arg in node.args if arg is not None]
    values: dict[Node, Array] = {arg: _values[arg] for arg in given if arg in _values}
    field = Reals()
    for part in topological([node], values):
        if len(part.types) != 1:
            continue
        kind = part.types[0]
        if not isinstance(kind, TensorType) or not _is_small(kind):
            return None
        try:
            if part.op is CONSTANT:
                values[part] = field.lift(part.attribute("data").array)
            else:
                with np.errstate(all="ignore"):
                    values[part] = evaluated(part, values, field)
        except (Untypable, NotImplementedError, ArithmeticError, LookupError):
            return None
    if values[node].size <= KEPT:
        _values[node] = values[node]
    found = np.abs(values[node].astype(np.float64))
    return float(np.max(found, where=np.isfinite(found), initial=0.0))
