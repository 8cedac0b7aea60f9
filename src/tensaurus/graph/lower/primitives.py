"""Build nodes for scalar functions, reductions and constants of expressions.

The operator is found by its declaration: for the function "max" it is the one whose expression is
max(x[i], y[i]).  So no table of names is needed, and new declarations are found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from tensaurus.expr.ir.integer_types import integer_limits, integer_literal, is_integer
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Call, Read, Reduce, Scope, Tensor
from tensaurus.expr.sizes.size import polynomial
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.declare import NUMBERS
from tensaurus.ops.examples import parse_example
from tensaurus.ops.schema import NEWEST, NotInOpset, check_input_types


def exact_number(value: Any) -> Fraction:
    """Return an attribute as an exact number.  Raises Untypable for infinities and NaN."""
    if isinstance(value, float) and not isfinite(value):
        raise Untypable(f"{value} is no real number")
    return Fraction(value)


def literal(value: Any, dtype: str) -> Node:
    """Return a scalar constant; a rational that the dtype cannot hold becomes an exact quotient.

    An infinity of an integer type is its least or largest number.  Raises Untypable for a value that the type
    does not have.
    """
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return constant(np.asarray(bool(value)))
    if is_integer(dtype):
        low, high = integer_limits(dtype)
        if isinstance(value, float) and not isfinite(value):
            return constant(np.asarray(integer_literal(value, dtype), kind))
        if Fraction(value).denominator != 1 or not low <= value <= high:
            raise Untypable(f"{value} is no {dtype}")
        return constant(np.asarray(int(value), kind))
    near = np.asarray(float(value), kind)
    if isinstance(value, float) and not isfinite(value) or Fraction(float(near)) == value:
        return constant(near)
    exact = Fraction(value)
    if not isfinite(near):
        raise Untypable(f"{value} is no {dtype}")
    return call_function("div", *(_exact_integer(n, dtype) for n in (exact.numerator, exact.denominator)))


def _exact_integer(value: int, dtype: str) -> Node:
    """Return an integer as a sum of integers that the dtype holds, or infinite where it is too large."""
    near = np.asarray(float(value), numpy_dtype(dtype))
    if not isfinite(near) or int(near) == value:
        return constant(near)
    return call_function("add", constant(near), _exact_integer(value - int(near), dtype))


def rational_constant(values: Sequence[int | Fraction], shape: tuple[int, ...], dtype: str) -> Node:
    """Return a constant tensor; an exact quotient of two where the dtype cannot hold all of its rationals."""
    exact = [Fraction(value) for value in values]
    kind = numpy_dtype(dtype)
    near = np.array([float(value) for value in exact]).astype(kind)
    if all(Fraction(float(found)) == value for found, value in zip(near, exact, strict=True)):
        return constant(near.reshape(shape))
    parts = [float(value.numerator) for value in exact], [float(value.denominator) for value in exact]
    return call_function("div", *(constant(np.array(part).astype(kind).reshape(shape)) for part in parts))


def exact_attribute(value: Any, dtype: str) -> int | float | bool | None:
    """Return a number as an attribute of this element type, None where it would be rounded."""
    if is_integer(dtype):
        return int(integer_literal(value, dtype))
    if dtype == "bool":
        return bool(value)
    near = float(np.asarray(float(value), numpy_dtype(dtype)))
    return near if not isfinite(near) or Fraction(near) == value else None


def call_function(fn: str, *args: Node) -> Node:
    """Return a scalar function of broadcast arguments.  Raises Untypable where no operator computes it."""
    operator, attrs = _find_function(fn, tuple(arg.tensor.dtype for arg in args))
    return apply(operator, args, dict(attrs))


def call_reduction(monoid: str, x: Node, axes: Sequence[int]) -> Node:
    """Return the sum, max, min or prod over some axes, which the result lacks."""
    return apply(_find_reduction(monoid, x.tensor.dtype), [x], {"axes": tuple(axes), "keepdims": 0})


@cache
def _find_function(fn: str, dtypes: tuple[str, ...]) -> tuple[Op, tuple[tuple[str, Any], ...]]:
    """Return the operator of ONNX, and its attributes, whose expression is this function elementwise."""

    def computes(scope: Scope, inputs: tuple[Tensor, ...]) -> bool:
        indices = tuple(map(polynomial, scope.axes))
        return scope.body == Call(fn, tuple(Read(x, indices[len(indices) - x.rank :]) for x in inputs))

    shapes = ((), (2, 3)), ((2, 3), (2, 3)), ((2, 3), (3,))  # of the first argument, and of the others
    samples = [
        tuple(TensorType(dtype, rest if k else first) for k, dtype in enumerate(dtypes))
        for first, rest in shapes
    ]
    fitting = [
        (operator, attrs)
        for operator in registry.values()
        for attrs in _candidate_attributes(operator, fn)
        if all(_matches(operator, kinds, attrs, computes) for kinds in samples)
    ]
    if not fitting:
        raise Untypable(f"no operator of ONNX computes {fn} of {' and '.join(dtypes)}")
    # without attributes if possible: ReduceL1 over no axes computes abs, too, but only in newer opsets
    operator, attrs = min(
        fitting, key=lambda pair: (pair[0].is_variadic, len(pair[1]), pair[0].since, pair[0].name)
    )
    return operator, tuple(attrs.items())


@cache
def _find_reduction(monoid: str, dtype: str) -> Op:
    """Return the operator of ONNX whose expression is this reduction along axes."""
    kinds = (TensorType(dtype, (2, 3)),)

    def computes(scope: Scope, inputs: tuple[Tensor, ...]) -> bool:
        match scope.body:
            case Reduce(name, (r,), inner):
                read = Read(inputs[0], (polynomial(scope.axes[0]), polynomial(r)))
                return name == monoid and inner == read
        return False

    attrs = {"axes": (1,), "keepdims": 0}
    fitting = [operator for operator in registry.values() if _matches(operator, kinds, attrs, computes)]
    if not fitting:
        raise Untypable(f"no operator of ONNX computes the {monoid} of {dtype}")
    return min(fitting, key=lambda operator: (operator.since, operator.name))


def _candidate_attributes(operator: Op, fn: str) -> Iterator[dict[str, Any]]:
    """Yield attributes to try: none, and those of the operator's examples, with the target element type."""
    target = cast_target(fn)
    yield {}
    for text in operator.examples:
        attrs = parse_example(text).attrs
        if attrs:
            yield attrs
        if target is not None and any(value in NUMBERS for value in attrs.values() if isinstance(value, str)):
            yield {name: target if value in NUMBERS else value for name, value in attrs.items()}


def _matches(
    operator: Op,
    kinds: tuple[TensorType, ...],
    attrs: dict[str, Any],
    computes: Callable[[Scope, tuple[Tensor, ...]], bool],
) -> bool:
    """Return whether ONNX has the operator for these types, and `computes` accepts its expression."""
    if operator.domain or len(kinds) > len(operator.inputs) and not operator.is_variadic:
        return False
    try:
        check_input_types(operator, kinds, NEWEST)
        scopes = operator.scopes(kinds, operator.canonical(kinds, attrs))
    except (Untypable, NotInOpset):
        return False
    inputs = operator.tensors(kinds)
    return len(scopes) == 1 and computes(scopes[0], inputs)  # type: ignore[arg-type]
