"""The scalar functions of expressions, with their meaning over the reals and the type of their result.

add, sub, mul, neg and div have a meaning in every field; max, min and the comparisons need an order.  All
others are transcendental: outside the reals they are uninterpreted functions, equal for equal arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from scipy import special

FIELD_FUNCTIONS = frozenset({"add", "sub", "mul", "neg", "div"})
LATTICE_FUNCTIONS = frozenset({"max", "min"})
MONOID_FUNCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}  # a reduction -> of two elements
NEUTRAL_ELEMENTS: dict[str, float] = {"sum": 0, "prod": 1, "max": -inf, "min": inf}  # by reduction
ASSOCIATIVE = frozenset({"add", "mul", "max", "min", "and", "or"})  # and commutative


@dataclass(frozen=True)
class Function:
    """A scalar function.

    run     applies it to arrays of float64, of bools, or of integers as `integer_types.to_native` returns
    result  the element type of the result: "same" as the arguments, "bool" or "float"
    """

    name: str
    arity: int
    run: Callable[..., Any]
    result: str = "same"
    commutative: bool = False


def _divide(a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a, b), np.integer):
        nonzero = np.where(np.equal(b, 0), 1, b)
        # truncated by correcting the floor: the magnitude of the least integer overflows
        quotient = np.floor_divide(a, nonzero)
        return np.where(
            np.equal(b, 0), 0, quotient + ((quotient * nonzero != a) & ((a < 0) != (nonzero < 0)))
        )
    return np.divide(a, b)


def _power(a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a, b), np.integer):
        return np.power(np.asarray(a, np.float64), b)  # in floats, as runtimes do: 2 ** -1 is 0.5
    return np.power(a, b)


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add, commutative=True),
        Function("sub", 2, np.subtract),
        Function("mul", 2, np.multiply, commutative=True),
        Function("div", 2, _divide),
        Function("neg", 1, np.negative),
        Function("max", 2, np.maximum, commutative=True),
        Function("min", 2, np.minimum, commutative=True),
        Function("mod", 2, np.mod),
        Function("fmod", 2, np.fmod),
        Function("pow", 2, _power),
        Function("abs", 1, np.abs),
        Function("sign", 1, np.sign),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.round),
        *(
            Function(name, 1, run, "float")
            for name, run in {
                "sqrt": np.sqrt,
                "exp": np.exp,
                "log": np.log,
                "erf": special.erf,
                "sin": np.sin,
                "cos": np.cos,
                "tan": np.tan,
                "asin": np.arcsin,
                "acos": np.arccos,
                "atan": np.arctan,
                "sinh": np.sinh,
                "cosh": np.cosh,
                "tanh": np.tanh,
                "asinh": np.arcsinh,
                "acosh": np.arccosh,
                "atanh": np.arctanh,
            }.items()
        ),
        Function("eq", 2, np.equal, "bool", commutative=True),
        Function("lt", 2, np.less, "bool"),
        Function("le", 2, np.less_equal, "bool"),
        Function("and", 2, np.logical_and, "bool", commutative=True),
        Function("or", 2, np.logical_or, "bool", commutative=True),
        Function("xor", 2, np.logical_xor, "bool", commutative=True),
        Function("not", 1, np.logical_not, "bool"),
        Function("isnan", 1, np.isnan, "bool"),
        Function("isinf", 1, np.isinf, "bool"),
        Function("where", 3, np.where),
    )
}


def cast_target(fn: str) -> str | None:
    """Return the element type of a conversion function `to_<dtype>`, None for any other function."""
    return fn.removeprefix("to_") if fn.startswith("to_") else None
