"""Translates each scalar function of expressions (`expr/ir/scalar_functions`) to a Halide expression.

Every operation on floats follows IEEE 754: NaN, infinities, -0.0 and subnormal numbers come out as the
evaluator and ONNX have them, wherever the expression is used (`strict_float` says how, and what Halide would
do otherwise). No operation is reassociated or contracted, except Horner's rule inside a transcendental
function. A caller that wants fused multiply-adds writes plain Halide, `f[x] += a * b`; in code that reads
such a sum before it is stored, the compiler drops comparisons that only NaN or an infinity would fail.

All functions of float32 are vectorized. Transcendental functions of float64, except erf, call the C library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import copysign, inf
from types import MappingProxyType
from typing import TypeAlias, TypeGuard

import halide as hl

from tensaurus.expr.ir.integer_types import integer_literal, is_integer
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.kernels.math import integer_arithmetic, rare_functions, transcendental
from tensaurus.kernels.math.float_bits import absolute, at_most, float_constant, is_infinite, is_nan, negate
from tensaurus.kernels.math.float_remainder import modulo, remainder
from tensaurus.kernels.math.strict_float import Function, strict
from tensaurus.kernels.math.type_conversion import convert

Literal: TypeAlias = bool | int | float | Fraction

_HALIDE_TYPES: dict[str, hl.Type] = {
    "bool": hl.Bool(),
    "float32": hl.Float(32),
    "float64": hl.Float(64),
    **{f"int{bits}": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}

# Largest error of each transcendental function, by element type, in units in the last place of the exact
# result. x^3 with a literal exponent is computed by two products and has 1.5.
MAX_ERROR_ULPS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "float32": MappingProxyType(
            {"exp": 0.95, "log": 0.95, "tanh": 1.1, "erf": 1.2, "pow": 0.51}
            | dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 0.51)
            | dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 0.51)
        ),
        # the largest errors seen of glibc's functions, as its manual lists them
        "float64": MappingProxyType(
            dict.fromkeys(("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "pow", "erf"), 1.0)
            | dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), 2.5)
        ),
    }
)


def halide_type(dtype: str) -> hl.Type:
    """Returns Halide's type of an element type. Raises KeyError for one that kernels do not support."""
    return _HALIDE_TYPES[dtype]


def is_supported(fn: str, dtype: str) -> bool:
    """Whether `apply_function` translates this function of arguments of this element type."""
    target = cast_target(fn)
    if target is not None:
        return target in _HALIDE_TYPES and dtype in _HALIDE_TYPES
    return dtype in _HALIDE_TYPES and fn in _functions_of_dtype(dtype)


def literal_constant(value: Literal, dtype: str) -> hl.Expr:
    """Returns a literal, rounded to the element type; an infinity becomes an integer type's extreme.

    Raises ValueError where an integer type has no such value.
    """
    kind = _HALIDE_TYPES[dtype]
    if kind.is_float():
        return hl.f32(float(value)) if kind.bits() == 32 else hl.f64(float(value))
    if value != value or abs(value) != inf and value != int(value):
        raise ValueError(f"{value} is no {dtype}")
    whole = int(integer_literal(value, dtype))
    return hl.cast(kind, hl.u64(whole) if whole >= 0 else hl.i64(whole))


def apply_function(fn: str, args: Sequence[hl.Expr | Literal], dtype: str) -> hl.Expr:
    """Applies a scalar function to arguments of one element type `dtype` (for `where`: that of both choices).

    Arguments may be literals, for some of which there are cheaper forms: max(x, 0) is one instruction. The
    result has the function's result type. Raises ValueError where the function is not supported.
    """
    if not is_supported(fn, dtype):
        raise ValueError(f"{fn} of {dtype}")
    of_literal = _special_form_for_literal(fn, args, dtype) if _HALIDE_TYPES[dtype].is_float() else None
    if of_literal is not None:
        return of_literal
    kinds = ("bool", dtype, dtype) if fn == "where" else (dtype, dtype)
    typed = zip(args, kinds, strict=False)
    exprs = [literal_constant(a, kind) if _is_literal(a) else _as_expr(a) for a, kind in typed]
    target = cast_target(fn)
    return convert(exprs[0], _HALIDE_TYPES[target]) if target else _functions_of_dtype(dtype)[fn](*exprs)


def _as_expr(arg: hl.Expr | hl.FuncRef) -> hl.Expr:
    return arg if isinstance(arg, hl.Expr) else hl.Expr(arg)


def _is_literal(arg: hl.Expr | Literal) -> TypeGuard[Literal]:
    return isinstance(arg, (bool, int, float, Fraction))


def _special_form_for_literal(fn: str, args: Sequence[hl.Expr | Literal], dtype: str) -> hl.Expr | None:
    """Returns the cheaper form that a function of one expression and one literal has, or None."""
    literals = [a for a in args if _is_literal(a)]
    exprs = [a for a in args if not _is_literal(a)]
    if len(literals) != 1 or len(exprs) != 1:
        return None
    value, x = literals[0], _as_expr(exprs[0])
    if fn in _BOUNDED_BY_LITERAL and value == value:
        return _BOUNDED_BY_LITERAL[fn](x, literal_constant(value, dtype))
    if fn == "pow" and args[1] is value and value in _LITERAL_POWERS:
        return _LITERAL_POWERS[value](x)
    if fn == "div" and args[1] is value and value == 0:
        # Halide rejects a constant divisor 0
        return _FLOAT32_FUNCTIONS["mul"](x, literal_constant(copysign(inf, value), dtype))
    return None


def _functions_of_dtype(dtype: str) -> Mapping[str, Function]:
    if dtype == "bool":
        return _BOOL_FUNCTIONS
    if is_integer(dtype):
        return _INTEGER_FUNCTIONS
    return _FLOAT64_FUNCTIONS if dtype == "float64" else _FLOAT32_FUNCTIONS


def _maximum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns the larger operand, and NaN where one is NaN, as numpy does, in three instructions."""
    return hl.select((a != a) | (b != b), a + b, hl.select(a < b, b, a))


def _minimum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    return hl.select((a != a) | (b != b), a + b, hl.select(a > b, b, a))


# The literal is no NaN, so a failed comparison can return the other operand: one vmaxps or vminps.
_BOUNDED_BY_LITERAL: dict[str, Function] = {
    "max": strict(lambda a, bound: hl.select(a < bound, bound, a)),
    "min": strict(lambda a, bound: hl.select(a > bound, bound, a)),
}


def _sign(a: hl.Expr) -> hl.Expr:
    zero = float_constant(0, a)
    return hl.select(a > zero, float_constant(1, a), hl.select(a < zero, float_constant(-1, a), absolute(a)))


def _square_root(a: hl.Expr) -> hl.Expr:
    """Returns a to the power of 1/2, which is 0 for -0.0 and infinity for -infinity, unlike sqrt."""
    return hl.select(a == float_constant(-inf, a), float_constant(inf, a), hl.sqrt(a + float_constant(0, a)))


_LITERAL_POWERS: dict[object, Function] = {
    1: lambda a: a,
    2: strict(lambda a: a * a),
    3: strict(lambda a: a * a * a),
    Fraction(1, 2): strict(_square_root),
}

_EXACT_FUNCTIONS: dict[str, Function] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": negate,
    "max": _maximum,
    "min": _minimum,
    "abs": absolute,
    "sign": _sign,
    "floor": hl.floor,
    "ceil": hl.ceil,
    "round": hl.round,
    "sqrt": hl.sqrt,
    "isnan": is_nan,
    "isinf": is_infinite,
    "where": hl.select,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": at_most,
}

_FLOAT32_FUNCTIONS: dict[str, Function] = {
    **{fn: strict(function) for fn, function in _EXACT_FUNCTIONS.items()},
    "mod": modulo,
    "fmod": remainder,
    "pow": rare_functions.power,
    "exp": transcendental.exp,
    "log": transcendental.logarithm,
    "erf": transcendental.erf,
    "tanh": transcendental.tanh,
    **{
        fn: getattr(rare_functions, fn)
        for fn in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
    },
}

_FLOAT64_FUNCTIONS: dict[str, Function] = {
    **{fn: function for fn, function in _FLOAT32_FUNCTIONS.items() if fn in _EXACT_FUNCTIONS},
    "erf": transcendental.erf_double,
    **{
        fn: strict(getattr(hl, fn))
        for fn in (
            "pow", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
            "acosh", "atanh",
        )
    },
}  # fmt: skip


def _integer_power(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """Returns the power computed in float64, as runtimes do, which also covers negative exponents."""
    x, y = (convert(v, hl.Float(64)) for v in (a, b))
    return convert(_FLOAT64_FUNCTIONS["pow"](x, y), a.type())


_INTEGER_FUNCTIONS: dict[str, Function] = {
    "add": integer_arithmetic.add,
    "sub": integer_arithmetic.wrapping(lambda a, b: a - b),
    "mul": integer_arithmetic.wrapping(lambda a, b: a * b),
    "neg": integer_arithmetic.negate,
    "div": integer_arithmetic.quotient,
    "mod": integer_arithmetic.modulo,
    "fmod": integer_arithmetic.remainder,
    "pow": _integer_power,
    "max": hl.max,
    "min": hl.min,
    "abs": integer_arithmetic.absolute,
    "sign": integer_arithmetic.sign,
    "where": hl.select,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}

_BOOL_FUNCTIONS: dict[str, Function] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a != b,
    "not": hl.logical_not,
    "eq": lambda a, b: a == b,
    "where": hl.select,
    "max": lambda a, b: a | b,
    "min": lambda a, b: a & b,
}
