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
largest elements of tensors are compared (`constant_magnitudes`), not element with element: in a folded bias a
single element may cancel by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import frexp
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from tensaurus.expr.analysis.work_counts import called_functions
from tensaurus.expr.ir.float_conversions import FLOAT_FORMATS
from tensaurus.expr.ir.scope import Call, Read
from tensaurus.graph.analysis.constant_magnitudes import (
    MagnitudeBounds,
    bound_magnitudes,
    is_float_constant,
    largest_magnitude,
)
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Op, TensorType

ArgTypes: TypeAlias = tuple[TensorType | None, ...]
Attributes: TypeAlias = tuple[tuple[str, Any], ...]

SUM, PRODUCT, MOVE = "sum", "product", "move"  # the results of `classify_operation`
LARGE_EXPONENT = 12  # a constant is large beyond 2^12: half of the 24 digits of a float32
SPARE_BITS = 2  # a constant of a type with fewer digits is large beyond 2^(digits - 2)
EXTREME_FACTOR = 2.0**64  # a factor is extreme beyond this and below its inverse: half of the exponents
ACCUMULATION = "accumulation"  # a result of `_linear_function`: a sum of many terms or of products
LINEAR_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "neg", "sum"})
SUM_FUNCTIONS = frozenset({"add", "sub", "sum"})

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
    fn = _constant_function(node)
    if fn is None:
        return False
    if needs_stepwise_rounding(node):  # a sum with a finer last digit, or a product of an extreme factor
        return True
    terms = node.args[:1] if fn == "div" else node.args  # a large divisor rounds nothing
    if not any(is_large_constant(arg) for arg in terms if arg is not None):
        return False
    largest = largest_magnitude(node)
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
    fn = _constant_function(node)
    if fn in (None, ACCUMULATION) or _has_ordinary_arguments(node, fn):
        return False
    magnitudes = [largest_magnitude(arg) for arg in node.args if arg is not None]
    known = [magnitude for magnitude in magnitudes if magnitude is not None]
    if len(known) < len(magnitudes):  # an argument is taken for weights, or has no defined value
        return False
    if fn in ("mul", "div"):
        return any(map(_is_extreme, known))
    if (coarsest := max(known)) <= _large_limit(node):
        return False
    # a result of smaller exponent has a finer last digit than its largest term, whose rounding would be lost
    largest = largest_magnitude(node)
    return largest is not None and frexp(largest)[1] < frexp(coarsest)[1]


def is_large_constant(node: Node) -> bool:
    """Return whether the node is a constant beside which an operand of size 1 loses half of its digits."""
    if not is_float_constant(node):
        return False
    limit, bounds = _large_limit(node), bound_magnitudes(node)
    if bounds is not None and bounds.high <= limit:  # bounds are cheap; elements are computed where they fail
        return False
    return (largest_magnitude(node) or 0.0) > limit


def _is_extreme_constant(node: Node) -> bool:
    """Return whether the node is a constant whose products soon leave the range of float32."""
    if not is_float_constant(node):
        return False
    return not _is_within_ordinary_factors(bound_magnitudes(node)) and _is_extreme(largest_magnitude(node))


def _is_within_ordinary_factors(bounds: MagnitudeBounds | None) -> bool:
    """Return whether bounds show that no element is an extreme factor."""
    return bounds is not None and bounds.low >= 1 / EXTREME_FACTOR and bounds.high <= EXTREME_FACTOR


def _is_extreme(magnitude: float | None) -> bool:
    """Return whether a magnitude is known and extreme; 0 (no finite element but zeros) is not extreme."""
    return bool(magnitude) and not 1 / EXTREME_FACTOR <= magnitude <= EXTREME_FACTOR  # type: ignore[operator]


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
    fn = _linear_function(op, arg_types, attrs)
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


def _constant_function(node: Node) -> str | None:
    """Return the `_linear_function` of a node of floats whose arguments are all constant, else None."""
    if not node.static or not isinstance(node.op, Op) or not is_float_constant(node):
        return None
    return _linear_function(node.op, node.arg_types(), node.attrs)


@lru_cache(maxsize=1 << 12)
def _linear_function(op: Op, arg_types: ArgTypes, attrs: Attributes) -> str | None:
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
    return 2.0 ** min(LARGE_EXPONENT, FLOAT_FORMATS[node.tensor.dtype].digits - SPARE_BITS)


def _has_ordinary_arguments(node: Node, fn: str | None) -> bool:
    """Return whether bounds show that no argument is large (of a sum) or extreme (of a product).

    The bounds of an expression follow from those of its arguments, so that most constants are never computed.
    Tensors of more than MAX_EVALUATED_ELEMENTS elements have no bounds: False.
    """
    bounds = [bound_magnitudes(arg) for arg in node.args if arg is not None]
    if fn in ("mul", "div"):
        return all(map(_is_within_ordinary_factors, bounds))
    return all(b is not None and b.high <= _large_limit(node) for b in bounds)
