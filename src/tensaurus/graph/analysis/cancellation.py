"""Find the constants whose rounding a rewrite must keep, because models round or overflow on purpose.

Over the reals both sides of these rewrites are equal.  In float32 only the left sides do what the model
wants:

    (x + 12582912) - 12582912   ->   x + (12582912 - 12582912)      the left side rounds x to an integer
    (x * 1e30) * 1e-30          ->   x * (1e30 * 1e-30)             the left side is infinite from 3.4e8 on

Rule matching, the e-graph and constant folding ask four predicates before they combine constants:

    removes_needed_rounding    a rewrite must not create this node (asked for each new node)
    rewrite_removes_rounding   a rewrite must not turn these nodes into those
    must_keep_operand          a rewrite must not let this constant meet another operand
    needs_stepwise_rounding    constant folding must round after every step instead of once at the end

A constant is *large* beyond 2^12: added to it, an operand of size 1 loses half of its digits in float32.
(In float16 the limit is 2^9, in bfloat16 2^6: there the last digit of the constant is worth one half.)  What
a large constant rounds must stay rounded.  Rewrites come in many small steps, so each step is tested by
itself: no step may create

    a sum        whose last digit is finer than that of its largest term, if that term is large:
                 12582912 - 12579840 = 3072 no longer rounds to integers
    a product    that is small although a factor is large: 12582912 * (1 / 4096) = 3072 rounds nothing either
    a sum of products (MatMul, Gemm, Conv), or a sum too large to be computed here, of any large term

A large constant must also be added to the same operand as in the original
(`rules/language/operand_partners`): (x + 12582912) - 12582912 + y must not round x + y.  Likewise an
*extreme* factor, beyond 2^64 or below 2^-64 (half of the range of exponents), is not multiplied with other
constants and keeps its operand: an intermediate result might overflow where the final one does not.  Only the
largest elements of tensors are compared, not element with element: in a folded bias a single element may
cancel by chance.
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

ArgTypes: TypeAlias = tuple[TensorType | None, ...]
Attributes: TypeAlias = tuple[tuple[str, Any], ...]

SUM, PRODUCT, MOVE = "sum", "product", "move"  # the results of `classify_operation`
LARGE_EXPONENT = 12  # a constant is large beyond 2^12: half of the 24 digits of a float32
SPARE_BITS = 2  # a constant of a type with fewer digits is large beyond 2^(digits - 2)
EXTREME_FACTOR = 2.0**64  # a factor is extreme beyond this and below its inverse: half of the exponents
ACCUMULATION = "accumulation"  # a result of `_operation`
LINEAR_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "neg", "sum"})
SUM_FUNCTIONS = frozenset({"add", "sub", "sum"})
MAX_EVALUATED_ELEMENTS = 1 << 16  # larger tensors are taken for weights: not evaluated, to save time
MAX_CACHED_ELEMENTS = 1 << 10  # values of larger tensors are computed again when needed, to save memory


class _Magnitudes(NamedTuple):
    """Bounds of the magnitudes of a constant's elements, those that are 0 or infinite left out.

    low      every magnitude is at least this, or 0
    high     every magnitude is at most this
    quantum  a power of two that divides every element; 0 where none is known, as of quotients.  Sums and
             differences of multiples of a quantum are multiples of it, also after rounding to float64.  So a
             difference that is not 0 is at least one quantum, however many digits cancel.
    """

    low: float
    high: float
    quantum: float


ZERO = _Magnitudes(inf, 0.0, inf)  # of a tensor whose elements are all 0 or not finite

_largest_magnitudes: WeakKeyDictionary[Node, float | None] = WeakKeyDictionary()  # see `_largest_magnitude`
_values: WeakKeyDictionary[Node, Array] = WeakKeyDictionary()  # of small constant expressions
_bounds: WeakKeyDictionary[Node, _Magnitudes | None] = WeakKeyDictionary()  # see `_magnitudes`
_removes_rounding: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()  # see `removes_needed_rounding`


def removes_needed_rounding(node: Node) -> bool:
    """Return whether a rewrite must not create this node: it combines constants that must stay apart.

    Sub(12582912, 12579840)     True: the result, 3072, has a finer unit in the last place than its terms
    Mul(12582912, 1 / 4096)     True: 3072 is not large
    Mul(1e30, 1e-30)            True: both factors are extreme
    Add(0.5, 0.25)              False
    Add(x, 12582912)            False: x is no constant
    """
    if node not in _removes_rounding:
        _removes_rounding[node] = _compute_removes_rounding(node)
    return _removes_rounding[node]


def _compute_removes_rounding(node: Node) -> bool:
    fn = _constant_operation(node)
    if fn is None:
        return False
    if needs_stepwise_rounding(node):  # a sum with a finer last digit, or a product of an extreme factor
        return True
    terms = node.args[:1] if fn == "div" else node.args  # a large divisor rounds nothing
    if not any(is_large_constant(arg) for arg in terms if arg is not None):
        return False
    largest = _largest_magnitude(node)
    if fn in ("mul", "div"):  # refuse a small product of a large factor: it would round nothing
        return bool(largest) and not is_large_constant(node)
    # `needs_stepwise_rounding` has decided sums of two known terms; what cannot be computed here is refused
    return fn == ACCUMULATION or largest is None


def needs_stepwise_rounding(node: Node) -> bool:
    """Return whether a node of constants must be computed in float32 steps.

    A model may rely on its value in float32 where float64 gives another one.

    Sub(2.3 + 12582912, 12579840)    True: in float32 the inner sum rounds 2.3 to 2, in float64 it does not
    Mul(12582912, 1 / 4096)          False: exact in float32
    Mul(1e30, 1e30)                  True: infinite in float32
    """
    fn = _constant_operation(node)
    if fn in (None, ACCUMULATION) or _has_ordinary_arguments(node, fn):
        return False
    magnitudes = [_largest_magnitude(arg) for arg in node.args if arg is not None]
    known = [magnitude for magnitude in magnitudes if magnitude is not None]
    if len(known) < len(magnitudes):  # an argument is taken for weights, or has no defined value
        return False
    if fn in ("mul", "div"):  # a magnitude of 0 (no finite element but zeros) is not extreme
        return any(m and not 1 / EXTREME_FACTOR <= m <= EXTREME_FACTOR for m in known)
    if (coarsest := max(known)) <= _large_limit(node):
        return False
    # a result of smaller exponent has a finer last digit than its largest term, whose rounding would be lost
    largest = _largest_magnitude(node)
    return largest is not None and frexp(largest)[1] < frexp(coarsest)[1]


def is_large_constant(node: Node) -> bool:
    """Return whether the node is a constant beside which an operand of size 1 loses half of its digits."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    limit, bounds = _large_limit(node), _magnitudes(node)
    if bounds is not None and bounds.high <= limit:  # bounds are cheap; elements are computed where they fail
        return False
    return (_largest_magnitude(node) or 0.0) > limit


def _is_extreme_constant(node: Node) -> bool:
    """Return whether the node is a constant whose products soon leave the range of float32."""
    if not node.static or len(node.types) != 1 or not _is_float(node):
        return False
    bounds = _magnitudes(node)
    if bounds is not None and bounds.low >= 1 / EXTREME_FACTOR and bounds.high <= EXTREME_FACTOR:
        return False
    largest = _largest_magnitude(node)
    return largest is not None and largest > 0 and not 1 / EXTREME_FACTOR <= largest <= EXTREME_FACTOR


def must_keep_operand(node: Node, operations: Collection[str]) -> bool:
    """Return whether a rewrite must not give a constant another operand in SUM or PRODUCT (`operations`).

    A large constant rounds the operand that it is added to; an extreme factor may make it overflow.
    """
    if SUM in operations and is_large_constant(node):
        return True
    return PRODUCT in operations and _is_extreme_constant(node)


def classify_operation(op: Op, arg_types: ArgTypes, attrs: Attributes) -> str | None:
    """Return SUM for a sum or difference of two operands, PRODUCT for their product or quotient.

    MOVE for an operator that only moves elements, None for any other.
    """
    fn = _operation(op, arg_types, attrs)
    if fn in ("add", "sub"):
        return SUM
    if fn in ("mul", "div"):
        return PRODUCT
    # ACCUMULATION is of no kind; an operator that calls no function at all only moves elements
    return None if fn is not None or any(called_functions(op.scopes(arg_types, attrs)[0])) else MOVE


def rewrite_removes_rounding(
    before: Sequence[Node], after: Sequence[Node], leaves: Collection[Node], may_drop: bool
) -> bool:
    """Return whether replacing `before` by `after`, both over `leaves`, removes rounding that a model needs.

    Rounding is removed where a new node combines constants that must stay apart, and where a large constant
    is no longer read.  `may_drop` allows the latter: rules for all element types only move elements, such as
    Gather(Concat(x, c), 0) => x.
    """
    created = topological_order(after, leaves)
    if any(map(removes_needed_rounding, set(created) - set(topological_order(before, leaves)))):
        return True
    read = {*after, *(arg for node in created for arg in node.args)}
    return not may_drop and any(is_large_constant(leaf) for leaf in leaves if leaf not in read)


def _constant_operation(node: Node) -> str | None:
    """Return what `_operation` says of a float node whose arguments are all constant, None for any other."""
    if not node.static or not isinstance(node.op, Op) or len(node.types) != 1 or not _is_float(node):
        return None
    return _operation(node.op, node.arg_types(), node.attrs)


@lru_cache(maxsize=1 << 12)
def _operation(op: Op, arg_types: ArgTypes, attrs: Attributes) -> str | None:
    """Return add, sub, mul or div for an operator that applies this function to two elements.

    ACCUMULATION for one that adds up many terms, or products, such as MatMul; None for any other.
    """
    scope = op.scopes(arg_types, attrs)[0]
    match scope.body:
        case Call(fn, (Read(), Read())) if fn in LINEAR_FUNCTIONS:
            return fn
    called = set(called_functions(scope))
    return ACCUMULATION if called <= LINEAR_FUNCTIONS and called & SUM_FUNCTIONS else None


def _large_limit(node: Node) -> float:
    """Return the magnitude beyond which a constant of the node's type is large."""
    return 2.0 ** min(LARGE_EXPONENT, FLOAT_FORMATS[node.tensor.dtype][0] - SPARE_BITS)


def _is_float(node: Node) -> bool:
    kind = node.types[0]
    return isinstance(kind, TensorType) and is_float(kind.dtype)


def _is_small_tensor(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in kind.shape) and prod(kind.shape) <= MAX_EVALUATED_ELEMENTS  # type: ignore[operator]


def _has_ordinary_arguments(node: Node, fn: str | None) -> bool:
    """Return whether bounds show that no argument is large (of a sum) or extreme (of a product).

    The bounds of an expression follow from those of its arguments, so that most constants are never computed.
    Tensors of more than MAX_EVALUATED_ELEMENTS elements have no bounds: False.
    """
    bounds = [_magnitudes(arg) for arg in node.args if arg is not None]
    if fn in ("mul", "div"):
        return all(b is not None and b.low >= 1 / EXTREME_FACTOR and b.high <= EXTREME_FACTOR for b in bounds)
    return all(b is not None and b.high <= _large_limit(node) for b in bounds)


def _magnitudes(node: Node) -> _Magnitudes | None:
    """Return bounds of the elements of a small constant expression, None where no bounds are known."""
    if not node.static:
        return None
    if node not in _bounds:
        for part in topological_order([node], [arg for arg in node.args if arg and arg in _bounds]):
            _bounds[part] = _compute_magnitudes(part)
    return _bounds[node]


def _compute_magnitudes(node: Node) -> _Magnitudes | None:
    if len(node.types) != 1 or not _is_float(node) or not _is_small_tensor(node.tensor):
        return None
    if node.op is CONSTANT:
        return _measure_magnitudes(np.abs(Reals().lift(node.attribute("data").array)).astype(np.float64))
    if not isinstance(node.op, Op):
        return None
    scope, read = output_expression(node)
    return _bound_body(scope.body, {leaf: _magnitudes(arg) for leaf, arg in read.items()})


def _bound_body(body: Body, read: Mapping[Source, _Magnitudes | None]) -> _Magnitudes | None:
    """Return bounds of an expression, given those of the tensors that it reads."""
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
                return _Magnitudes(terms.quantum, count * terms.high, terms.quantum)
        case Call("neg", (inner,)):
            return _bound_body(inner, read)
        case Call(fn, (left, right)):
            first, last = _bound_body(left, read), _bound_body(right, read)
            if first is not None and last is not None:
                return _bound_call(fn, first, last)
    return None


def _union_bounds(first: _Magnitudes | None, last: _Magnitudes | None) -> _Magnitudes | None:
    if first is None or last is None:
        return None
    return _Magnitudes(min(first.low, last.low), max(first.high, last.high), min(first.quantum, last.quantum))


def _bound_call(fn: str, first: _Magnitudes, last: _Magnitudes) -> _Magnitudes | None:
    if fn in ("mul", "div") and not (first.high and last.high):  # all results are 0, infinite or NaN
        return ZERO
    match fn:
        case "add" | "sub":
            quantum = min(first.quantum, last.quantum)
            return _Magnitudes(quantum, first.high + last.high, quantum)
        case "mul":
            return _Magnitudes(first.low * last.low, first.high * last.high, first.quantum * last.quantum)
        case "div":
            high = _divide_or(first.high, last.low, inf)
            return _Magnitudes(_divide_or(first.low, last.high, 0.0), high, 0.0)
    return None


def _divide_or(above: float, below: float, otherwise: float) -> float:
    return above / below if below else otherwise


def _measure_magnitudes(magnitudes: Array) -> _Magnitudes:
    """Return the bounds of known elements; the quantum is the smallest of their lowest set bits."""
    nonzero = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    if not nonzero.size:
        return ZERO
    fractions, exponents = np.frexp(nonzero)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    lowest_bits = (mantissas & -mantissas).astype(np.float64)
    quanta = np.ldexp(lowest_bits, exponents - 53)
    return _Magnitudes(float(nonzero.min()), float(nonzero.max()), float(quanta.min()))


def _largest_magnitude(node: Node) -> float | None:
    """Return the magnitude of the largest finite element of a constant expression.

    None where the expression is not evaluated, because a tensor is too large or a value is not defined.
    """
    if node not in _largest_magnitudes:
        _largest_magnitudes[node] = _compute_largest(node)
    return _largest_magnitudes[node]


def _compute_largest(node: Node) -> float | None:
    if len(node.types) != 1:  # such as a Split: ask for each of its outputs
        return None
    values: dict[Node, Array] = {arg: _values[arg] for arg in node.args if arg is not None and arg in _values}
    field = Reals()
    for part in topological_order([node], values):
        if len(part.types) != 1:  # each of its outputs is evaluated from its arguments
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
    magnitudes = np.abs(values[node].astype(np.float64))
    return float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0))
