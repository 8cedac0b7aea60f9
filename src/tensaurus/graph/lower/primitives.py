"""Nodes of the operators that scalar functions and reductions are written with: those that compute them."""

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
from tensaurus.ops.onnx_form import check_types
from tensaurus.ops.schema import NEWEST, NotInOpset

__all__ = [
    "call_function", "call_reduction", "exact_attribute", "exact_number", "literal", "rational_constant",
]  # fmt: skip


def exact_number(value: Any) -> Fraction:
    """Return a number that an attribute gave; raises Untypable where laws of the reals do not hold of it."""
    if isinstance(value, float) and not isfinite(value):
        raise Untypable(f"{value} is no real number")
    return Fraction(value)


def literal(value: Any, dtype: str) -> Node:
    """A scalar constant; a rational that the dtype cannot hold stays an exact quotient until export.

    Of infinities integers have their least and largest.  Raises Untypable for what is no number of the type.
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
    """An integer as a sum of those that the dtype holds, or rounded where it is beyond them."""
    near = np.asarray(float(value), numpy_dtype(dtype))
    if not isfinite(near) or int(near) == value:
        return constant(near)
    return call_function("add", constant(near), _exact_integer(value - int(near), dtype))


def rational_constant(values: Sequence[int | Fraction], shape: tuple[int, ...], dtype: str) -> Node:
    """A constant; where the dtype cannot hold one of its rationals, all are quotients until export."""
    exact = [Fraction(value) for value in values]
    kind = numpy_dtype(dtype)
    near = np.array([float(value) for value in exact]).astype(kind)
    if all(Fraction(float(found)) == value for found, value in zip(near, exact, strict=True)):
        return constant(near.reshape(shape))
    parts = [float(value.numerator) for value in exact], [float(value.denominator) for value in exact]
    return call_function("div", *(constant(np.array(part).astype(kind).reshape(shape)) for part in parts))


def exact_attribute(value: Any, dtype: str) -> int | float | bool | None:
    """A number of the type as an attribute; None where it would be rounded."""
    if is_integer(dtype):
        return int(integer_literal(value, dtype))
    if dtype == "bool":
        return bool(value)
    near = float(np.asarray(float(value), numpy_dtype(dtype)))
    return near if not isfinite(near) or Fraction(near) == value else None


def call_function(fn: str, *args: Node) -> Node:
    """A scalar function of the algebra on broadcast arguments.  Raises Untypable where ONNX has none such."""
    operator, attrs = _find_function(fn, tuple(arg.tensor.dtype for arg in args))
    return apply(operator, args, dict(attrs))


def call_reduction(monoid: str, x: Node, axes: Sequence[int]) -> Node:
    """The sum, max, min or prod over some axes, which go."""
    return apply(_find_reduction(monoid, x.tensor.dtype), [x], {"axes": tuple(axes), "keepdims": 0})


@cache
def _find_function(fn: str, dtypes: tuple[str, ...]) -> tuple[Op, tuple[tuple[str, Any], ...]]:
    """The operator of ONNX, and its attributes, whose expression is this function of elements that meet."""

    def computes(scope: Scope, inputs: tuple[Tensor, ...]) -> bool:
        places = tuple(map(polynomial, scope.axes))
        return scope.body == Call(fn, tuple(Read(x, places[len(places) - x.rank :]) for x in inputs))

    shapes = ((), (2, 3)), ((2, 3), (2, 3)), ((2, 3), (3,))  # of the first, and of the others
    met = [
        tuple(TensorType(dtype, rest if place else first) for place, dtype in enumerate(dtypes))
        for first, rest in shapes
    ]
    fitting = [
        (operator, attrs)
        for operator in registry.values()
        for attrs in _candidate_attributes(operator, fn)
        if all(_matches(operator, kinds, attrs, computes) for kinds in met)
    ]
    if not fitting:
        raise Untypable(f"no operator of ONNX computes {fn} of {' and '.join(dtypes)}")
    operator, attrs = min(fitting, key=lambda pair: (pair[0].is_variadic, pair[0].since, pair[0].name))
    return operator, tuple(attrs.items())


@cache
def _find_reduction(monoid: str, dtype: str) -> Op:
    """The operator of ONNX whose expression is this reduction along axes."""
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
    """Attributes to try: none, and those of examples, with the wanted element type for theirs."""
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
    """Whether ONNX has the operator for these types, and it computes that."""
    if operator.domain or len(kinds) > len(operator.inputs) and not operator.is_variadic:
        return False
    try:
        check_types(operator, kinds, NEWEST)
        scopes = operator.scopes(kinds, operator.canonical(kinds, attrs))
    except (Untypable, NotInOpset):
        return False
    inputs = operator.tensors(kinds)
    return len(scopes) == 1 and computes(scopes[0], inputs)  # type: ignore[arg-type]
