"""Bound the magnitudes of the elements of constant expressions, and compute them where bounds do not decide.

    Mul(c, d)  with 1 <= |c| <= 2 and 3 <= |d| <= 4, where c != 0 and d != 0     ->   3 <= |c * d| <= 8

Bounds of an expression follow from those of its arguments, so that most constants need not be computed.
`needed_rounding` asks for both: rules create many constant expressions, and each is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import inf, prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.expr.evaluate.fields import Array, Reals
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source
from tensaurus.expr.sizes.size import product
from tensaurus.graph.analysis.evaluate_node import evaluate_node, output_expression
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.graph.ir.subnormal import is_float
from tensaurus.ops import Op, TensorType, Untypable

MAX_EVALUATED_ELEMENTS = 1 << 16  # larger tensors are taken for weights: not evaluated, to save time
MAX_CACHED_ELEMENTS = 1 << 10  # values of larger tensors are computed again when needed, to save memory


class MagnitudeBounds(NamedTuple):
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


ZERO = MagnitudeBounds(inf, 0.0, inf)  # of a tensor whose elements are all 0 or not finite

_bounds: WeakKeyDictionary[Node, MagnitudeBounds | None] = WeakKeyDictionary()  # see `bound_magnitudes`
_largest_magnitudes: WeakKeyDictionary[Node, float | None] = WeakKeyDictionary()  # see `largest_magnitude`
_values: WeakKeyDictionary[Node, Array] = WeakKeyDictionary()  # of small constant expressions


def is_float_constant(node: Node) -> bool:
    """Return whether the node is a constant expression of floats, with one output."""
    return node.static and len(node.types) == 1 and is_float(node.types[0])


def _is_small_tensor(kind: TensorType) -> bool:
    return all(isinstance(n, int) for n in kind.shape) and prod(kind.shape) <= MAX_EVALUATED_ELEMENTS  # type: ignore[operator]


def bound_magnitudes(node: Node) -> MagnitudeBounds | None:
    """Return bounds of the elements of a small constant expression, None where no bounds are known."""
    if not node.static:
        return None
    if node not in _bounds:
        for part in topological_order([node], [arg for arg in node.args if arg and arg in _bounds]):
            _bounds[part] = _compute_bounds(part)
    return _bounds[node]


def _compute_bounds(node: Node) -> MagnitudeBounds | None:
    if len(node.types) != 1 or not is_float(node.types[0]) or not _is_small_tensor(node.tensor):
        return None
    if node.op is CONSTANT:
        return _measure_bounds(np.abs(Reals().lift(node.attribute("data").array)).astype(np.float64))
    if not isinstance(node.op, Op):
        return None
    scope, read = output_expression(node)
    return _bound_body(scope.body, {leaf: bound_magnitudes(arg) for leaf, arg in read.items()})


def _bound_body(body: Body, read: Mapping[Source, MagnitudeBounds | None]) -> MagnitudeBounds | None:
    """Return bounds of an expression, given those of the tensors that it reads."""
    match body:
        case Const(value) if isinstance(value, int | Fraction):
            return _measure_bounds(np.abs(np.array([float(value)])))
        case Read(source, _, outside):
            inside = _bound_body(source.body, read) if isinstance(source, Scope) else read.get(source)
            return inside if outside is None else _union_bounds(inside, _bound_body(outside, read))
        case Select(_, then, other):
            return _union_bounds(_bound_body(then, read), _bound_body(other, read))
        case Reduce("sum", axes, inner):
            count, terms = product(axis.extent for axis in axes), _bound_body(inner, read)
            if terms is not None and isinstance(count, int):
                return MagnitudeBounds(terms.quantum, count * terms.high, terms.quantum)
        case Call("neg", (inner,)):
            return _bound_body(inner, read)
        case Call(fn, (left, right)):
            first, last = _bound_body(left, read), _bound_body(right, read)
            if first is not None and last is not None:
                return _bound_call(fn, first, last)
    return None


def _union_bounds(first: MagnitudeBounds | None, last: MagnitudeBounds | None) -> MagnitudeBounds | None:
    if first is None or last is None:
        return None
    low, high = min(first.low, last.low), max(first.high, last.high)
    return MagnitudeBounds(low, high, min(first.quantum, last.quantum))


def _bound_call(fn: str, first: MagnitudeBounds, last: MagnitudeBounds) -> MagnitudeBounds | None:
    if fn in ("mul", "div") and not (first.high and last.high):  # all results are 0, infinite or NaN
        return ZERO
    match fn:
        case "add" | "sub":
            quantum = min(first.quantum, last.quantum)
            return MagnitudeBounds(quantum, first.high + last.high, quantum)
        case "mul":
            return MagnitudeBounds(first.low * last.low, first.high * last.high, first.quantum * last.quantum)
        case "div":
            high = _divide_or(first.high, last.low, inf)
            return MagnitudeBounds(_divide_or(first.low, last.high, 0.0), high, 0.0)
    return None


def _divide_or(above: float, below: float, otherwise: float) -> float:
    return above / below if below else otherwise


def _measure_bounds(magnitudes: Array) -> MagnitudeBounds:
    """Return the bounds of known elements; the quantum is the smallest of their lowest set bits."""
    nonzero = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    if not nonzero.size:
        return ZERO
    fractions, exponents = np.frexp(nonzero)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    lowest_bits = (mantissas & -mantissas).astype(np.float64)
    quanta = np.ldexp(lowest_bits, exponents - 53)
    return MagnitudeBounds(float(nonzero.min()), float(nonzero.max()), float(quanta.min()))


def largest_magnitude(node: Node) -> float | None:
    """Return the magnitude of the largest finite element of a constant expression.

    None where the expression is not evaluated, because a tensor is too large or a value is not defined.
    """
    if node not in _largest_magnitudes:
        _largest_magnitudes[node] = _compute_largest_magnitude(node)
    return _largest_magnitudes[node]


def _compute_largest_magnitude(node: Node) -> float | None:
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
