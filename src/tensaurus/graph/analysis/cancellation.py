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
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS, is_float
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source
from tensaurus.expr.sizes.size import product
from tensaurus.graph.analysis.evaluate_node import evaluate_node, output_expression
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Op, TensorType, Untypable

__all__ = [
    "MOVE", "PRODUCT", "SUM", "classify_operation", "is_large_constant", "must_keep_operand",
    "needs_stepwise_rounding", "removes_needed_rounding", "rewrite_removes_rounding",
]  # fmt: skip

LARGE_EXPONENT = 12  # large constants are beyond 2 to this
SPARE_BITS = 2  # and beyond all but so many digits of a narrow type
LINEAR_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "neg", "sum"})
SUM_FUNCTIONS = frozenset({"add", "sub", "sum"})
SUM, PRODUCT, MOVE = "sum", "product", "move"  # of two operands, or of one
EXTREME_FACTOR = 2.0**64
MAX_EVALUATED_ELEMENTS = 1 << 16  # larger tensors are taken for weights, and are not evaluated
MAX_CACHED_ELEMENTS = 1 << 10  # elements of the largest tensors whose values are cached


class Magnitudes(NamedTuple):
    """Bounds of a constant's elements that are neither 0 nor infinite; magnitudes below `low` are 0.

    quantum  a power of two that divides every element; 0 where none is known, as of quotients.  Sums and
             differences of multiples of a quantum are multiples of it, also after rounding to float64.  So a
             difference that is not 0 is at least one quantum, however much cancels.
    """

    low: float
    high: float
    quantum: float


ArgTypes: TypeAlias = tuple[TensorType | None, ...]
Attributes: TypeAlias = tuple[tuple[str, Any], ...]

ZERO = Magnitudes(inf, 0.0, inf)  # of elements that are all 0 or not finite

_largest_magnitudes: WeakKeyDictionary[Node, float | None] = WeakKeyDictionary()  # see `_largest`
_values: WeakKeyDictionary[Node, Array] = WeakKeyDictionary()  # of small constant expressions
_bounds: WeakKeyDictionary[Node, Magnitudes | None] = WeakKeyDictionary()  # see `_magnitudes`
_removes_rounding: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()  # see `cancels`


def removes_needed_rounding(node: Node) -> bool:
    """Whether folding the node would combine constants that must stay apart.

        Sub(12582912, 12579840)   yes: 3072 has a finer unit than its terms      Add(0.5, 0.25)   no
    """
    if node not in _removes_rounding:
        _removes_rounding[node] = _check_removes_rounding(node)
    return _removes_rounding[node]


def _check_removes_rounding(node: Node) -> bool:
    fn = _constant_operation(node)
    if fn is None or needs_stepwise_rounding(node):
        return fn is not None
    terms = node.args[:1] if fn == "div" else node.args  # a divisor is no term of what it divides
    if not any(is_large_constant(arg) for arg in terms if arg is not None):
        return False
    left = _largest_magnitude(node)
    if fn in ("mul", "div"):
        return bool(left) and not is_large_constant(node)
    return fn == "sum" or left is None


def needs_stepwise_rounding(node: Node) -> bool:
    """Whether a sum, product or quotient of constants loses digits in float32 on which models rely.

    For example a - 12579840 with a = 2.3 + 12582912, which rounds 2.3.  Not a * (1 / 4096), which is exact.
    """
    fn = _constant_operation(node)
    if fn in (None, "sum") or _has_ordinary_arguments(node, fn):
        return False
    sizes = [_largest_magnitude(arg) for arg in node.args if arg is not None]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return False
    if fn in ("mul", "div"):
        return any(size and not 1 / EXTREME_FACTOR <= size <= EXTREME_FACTOR for size in known)
    if (coarsest := max(known)) <= _large_limit(node):
        return False
    left = _largest_magnitude(node)
    return left is not None and frexp(left)[1] < frexp(coarsest)[1]


def is_large_constant(node: Node) -> bool:
    """Whether a constant must not cancel: half of the digits of an operand of size 1 are lost beside it."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    limit, bounds = _large_limit(node), _magnitudes(node)
    if bounds is not None and bounds.high <= limit:
        return False
    return (_largest_magnitude(node) or 0.0) > limit


def _is_extreme_constant(node: Node) -> bool:
    """Whether a constant is so large or small that a product with it soon leaves the range of float32."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    bounds = _magnitudes(node)
    if bounds is not None and bounds.low >= 1 / EXTREME_FACTOR and bounds.high <= EXTREME_FACTOR:
        return False
    size = _largest_magnitude(node)
    return size is not None and size > 0 and not 1 / EXTREME_FACTOR <= size <= EXTREME_FACTOR


def must_keep_operand(node: Node, kinds: Collection[str]) -> bool:
    """Whether a constant must keep its partner in such sums or products: it rounds, or may overflow."""
    return SUM in kinds and is_large_constant(node) or PRODUCT in kinds and _is_extreme_constant(node)


def classify_operation(op: Op, kinds: ArgTypes, attrs: Attributes) -> str | None:
    """Return SUM or PRODUCT where an operator is that of two operands, MOVE where it only moves elements."""
    fn = _operation(op, kinds, attrs)
    if fn in ("add", "sub"):
        return SUM
    if fn in ("mul", "div"):
        return PRODUCT
    return None if fn is not None or any(called_functions(op.scopes(kinds, attrs)[0])) else MOVE


def rewrite_removes_rounding(
    before: Sequence[Node], after: Sequence[Node], leaves: Collection[Node], may_drop: bool
) -> bool:
    """Whether a rewrite of these leaves combines such constants, or drops one that is not only `moved`."""
    made = topological_order(after, leaves)
    if any(map(removes_needed_rounding, set(made) - set(topological_order(before, leaves)))):
        return True
    read = {*after, *(arg for node in made for arg in node.args)}
    return not may_drop and any(is_large_constant(leaf) for leaf in leaves if leaf not in read)


def _constant_operation(node: Node) -> str | None:
    """The operation of two numbers that a node of constants is; "sum" where it adds up more, or products."""
    if not node.static or not isinstance(node.op, Op) or len(node.types) != 1 or not _is_float(node):
        return None
    return _operation(node.op, node.arg_types(), node.attrs)


@lru_cache(maxsize=1 << 12)
def _operation(op: Op, kinds: ArgTypes, attrs: Attributes) -> str | None:
    scope = op.scopes(kinds, attrs)[0]
    match scope.body:
        case Call(fn, (Read(), Read())) if fn in LINEAR_FUNCTIONS:
            return fn
    called = set(called_functions(scope))
    return "sum" if called <= LINEAR_FUNCTIONS and called & SUM_FUNCTIONS else None


def _large_limit(node: Node) -> float:
    """The magnitude beyond which a constant of the node's type is large."""
    return 2.0 ** min(LARGE_EXPONENT, FLOAT_FORMATS[node.tensor.dtype][0] - SPARE_BITS)


def _is_float(node: Node) -> bool:
    kind = node.types[0]
    return isinstance(kind, TensorType) and is_float(kind.dtype)


def _is_small_tensor(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in kind.shape) and prod(kind.shape) <= MAX_EVALUATED_ELEMENTS  # type: ignore[operator]


def _has_ordinary_arguments(node: Node, fn: str | None) -> bool:
    """Return whether the bounds of a node's arguments show that its sum or product loses nothing.

    Bounds follow from the arguments' own, so that most constants are never computed.  Tensors of more than
    ELEMENTS elements have no bounds: False.
    """
    found = [_magnitudes(arg) for arg in node.args if arg is not None]
    read = [bounds for bounds in found if bounds is not None]
    if len(read) < len(found):
        return False
    if fn in ("mul", "div"):
        return all(bounds.low >= 1 / EXTREME_FACTOR and bounds.high <= EXTREME_FACTOR for bounds in read)
    return all(bounds.high <= _large_limit(node) for bounds in read)


def _magnitudes(node: Node) -> Magnitudes | None:
    """Return bounds of the elements of a small constant expression; None where they are not known."""
    if not node.static:
        return None
    if node not in _bounds:
        given = [arg for arg in node.args if arg is not None]
        for part in topological_order([node], [arg for arg in given if arg in _bounds]):
            _bounds[part] = _compute_magnitudes(part)
    return _bounds[node]


def _compute_magnitudes(node: Node) -> Magnitudes | None:
    if len(node.types) != 1 or not _is_float(node) or not _is_small_tensor(node.tensor):
        return None
    if node.op is CONSTANT:
        return _measure_magnitudes(np.abs(Reals().lift(node.attribute("data").array)).astype(np.float64))
    if not isinstance(node.op, Op):
        return None
    scope, read = output_expression(node)
    return _bound_body(scope.body, {leaf: _magnitudes(arg) for leaf, arg in read.items()})


def _bound_body(body: Body, read: Mapping[Source, Magnitudes | None]) -> Magnitudes | None:
    """Return bounds of an expression by those of the tensors that are read."""
    match body:
        case Const(value) if isinstance(value, int | Fraction):
            return _measure_magnitudes(np.abs(np.array([float(value)])))
        case Read(source, _, outside):
            inside = _bound_body(source.body, read) if isinstance(source, Scope) else read.get(source)
            return inside if outside is None else _union_bounds(inside, _bound_body(outside, read))
        case Select(_, then, other):
            return _union_bounds(_bound_body(then, read), _bound_body(other, read))
        case Reduce("sum", axes, inner):
            count, terms = product(axis.extent for axis in axes), _bound_body(inner, read)
            if terms is not None and isinstance(count, int):
                return Magnitudes(terms.quantum, count * terms.high, terms.quantum)
        case Call("neg", (inner,)):
            return _bound_body(inner, read)
        case Call(fn, (left, right)):
            first, last = _bound_body(left, read), _bound_body(right, read)
            if first is not None and last is not None:
                return _bound_call(fn, first, last)
    return None


def _union_bounds(first: Magnitudes | None, last: Magnitudes | None) -> Magnitudes | None:
    if first is None or last is None:
        return None
    return Magnitudes(min(first.low, last.low), max(first.high, last.high), min(first.quantum, last.quantum))


def _bound_call(fn: str, first: Magnitudes, last: Magnitudes) -> Magnitudes | None:
    if fn in ("mul", "div") and not (first.high and last.high):
        return ZERO
    match fn:
        case "add" | "sub":
            quantum = min(first.quantum, last.quantum)
            return Magnitudes(quantum, first.high + last.high, quantum)
        case "mul":
            return Magnitudes(first.low * last.low, first.high * last.high, first.quantum * last.quantum)
        case "div":
            high = _divide_or(first.high, last.low, inf)
            return Magnitudes(_divide_or(first.low, last.high, 0.0), high, 0.0)
    return None


def _divide_or(above: float, below: float, otherwise: float) -> float:
    return above / below if below else otherwise


def _measure_magnitudes(magnitudes: Array) -> Magnitudes:
    kept = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    if not kept.size:
        return ZERO
    parts, exponents = np.frexp(kept)
    whole = np.ldexp(parts, 53).astype(np.int64)
    quanta = np.ldexp((whole & -whole).astype(np.float64), exponents - 53)
    return Magnitudes(float(kept.min()), float(kept.max()), float(quanta.min()))


def _largest_magnitude(node: Node) -> float | None:
    """The magnitude of the largest finite element of a constant expression; None where it is not computed."""
    if node not in _largest_magnitudes:
        _largest_magnitudes[node] = _compute_largest(node)
    return _largest_magnitudes[node]


def _compute_largest(node: Node) -> float | None:
    if len(node.types) != 1:  # as a Split, whose parts are read one by one
        return None
    given = [arg for arg in node.args if arg is not None]
    values: dict[Node, Array] = {arg: _values[arg] for arg in given if arg in _values}
    field = Reals()
    for part in topological_order([node], values):
        if len(part.types) != 1:
            continue
        kind = part.types[0]
        if not isinstance(kind, TensorType) or not _is_small_tensor(kind):
            return None
        try:
            if part.op is CONSTANT:
                values[part] = field.lift(part.attribute("data").array)
            else:
                with np.errstate(all="ignore"):
                    values[part] = evaluate_node(part, values, field)
        except (Untypable, NotImplementedError, ArithmeticError, LookupError):
            return None
    if values[node].size <= MAX_CACHED_ELEMENTS:
        _values[node] = values[node]
    found = np.abs(values[node].astype(np.float64))
    return float(np.max(found, where=np.isfinite(found), initial=0.0))
