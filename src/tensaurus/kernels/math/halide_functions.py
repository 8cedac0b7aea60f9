"""The scalar functions of the algebra as Halide expressions.

Every operation on floats is that of IEEE 754: NaN, infinities, -0.0 and subnormal numbers are what the
evaluator and ONNX make of them, whatever the caller compiles (`apart` says how, and what Halide would do
otherwise).  Nothing is reassociated or contracted, save Horner's rule inside of a transcendental function.  A
sum of products that a caller wants as fused multiply-adds is plain Halide, `f[x] += a * b`; in what reads it
before it is stored the compiler drops comparisons that only NaN or an infinity would meet.

float32 is vectorised throughout; transcendental functions of float64 call the C library, except erf.
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
from tensaurus.kernels.math.float_bits import absolute, at_most, is_infinite, is_nan, negated, number
from tensaurus.kernels.math.float_remainder import modulo, remainder
from tensaurus.kernels.math.strict_float import Function, strict
from tensaurus.kernels.math.type_conversion import converted

Literal: TypeAlias = bool | int | float | Fraction

_TYPES: dict[str, hl.Type] = {
    "bool": hl.Bool(),
    "float32": hl.Float(32),
    "float64": hl.Float(64),
    **{f"int{bits}": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}

# Largest errors of transcendental functions, in units in the last place of the exact result.
# The third power, where 3 is a literal, has 1.5.
BOUNDS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "float32": MappingProxyType(
            {"exp": 0.95, "log": 0.95, "tanh": 1.1, "erf": 1.2, "pow": 0.51}
            | dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 0.51)
            | dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 0.51)
        ),
        # glibc's, by its manual, which lists what was seen
        "float64": MappingProxyType(
            dict.fromkeys(("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "pow", "erf"), 1.0)
            | dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), 2.5)
        ),
    }
)


def halide_type(dtype: str) -> hl.Type:
    """The type of an element; KeyError where no kernel has such elements."""
    return _TYPES[dtype]


def supported(fn: str, dtype: str) -> bool:
    """Whether there is an expression of the function of arguments of this type."""
    target = cast_target(fn)
    if target is not None:
        return target in _TYPES and dtype in _TYPES
    return dtype in _TYPES and fn in _table(dtype)


def constant(value: Literal, dtype: str) -> hl.Expr:
    """A literal, rounded; an infinity in place of an integer is its type's extreme.  Raises ValueError."""
    kind = _TYPES[dtype]
    if kind.is_float():
        return hl.f32(float(value)) if kind.bits() == 32 else hl.f64(float(value))
    if value != value or abs(value) != inf and value != int(value):
        raise ValueError(f"{value} is no {dtype}")
    whole = int(integer_literal(value, dtype))
    return hl.cast(kind, hl.u64(whole) if whole >= 0 else hl.i64(whole))


def expression(fn: str, args: Sequence[hl.Expr | Literal], dtype: str) -> hl.Expr:
    """The function of expressions of one element type, `dtype` (of `where`, that of the two choices).

    Arguments may be literals, for which there are cheaper forms: max(x, 0) is one instruction.  The result is
    of the type that the algebra gives it.  Raises ValueError where the function is not `supported`.
    """
    if not supported(fn, dtype):
        raise ValueError(f"{fn} of {dtype}")
    of_literal = _of_literal(fn, args, dtype) if _TYPES[dtype].is_float() else None
    if of_literal is not None:
        return of_literal
    kinds = ("bool", dtype, dtype) if fn == "where" else (dtype, dtype)
    exprs = [constant(a, k) if _is_literal(a) else _expr(a) for a, k in zip(args, kinds, strict=False)]
    target = cast_target(fn)
    return _table(dtype)[fn](*exprs) if target is None else converted(exprs[0], _TYPES[target])


def _expr(arg: hl.Expr | hl.FuncRef) -> hl.Expr:
    return arg if isinstance(arg, hl.Expr) else hl.Expr(arg)


def _is_literal(arg: hl.Expr | Literal) -> TypeGuard[Literal]:
    return isinstance(arg, (bool, int, float, Fraction))


def _of_literal(fn: str, args: Sequence[hl.Expr | Literal], dtype: str) -> hl.Expr | None:
    """The form of a function of an expression and a literal, if it has one of its own."""
    literals = [a for a in args if _is_literal(a)]
    exprs = [a for a in args if not _is_literal(a)]
    if len(literals) != 1 or len(exprs) != 1:
        return None
    value, x = literals[0], _expr(exprs[0])
    if fn in _BOUNDED and value == value:
        return _BOUNDED[fn](x, constant(value, dtype))
    if fn == "pow" and args[1] is value and value in _POWERS:
        return _POWERS[value](x)
    if fn == "div" and args[1] is value and value == 0:
        # Halide refuses a divisor that it sees to be 0
        return _OF_SINGLES["mul"](x, constant(copysign(inf, value), dtype))
    return None


def _table(dtype: str) -> Mapping[str, Function]:
    if dtype == "bool":
        return _OF_BOOLS
    return _OF_INTEGERS if is_integer(dtype) else _OF_DOUBLES if dtype == "float64" else _OF_SINGLES


def _maximum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    """NaN of NaN, as numpy's; three instructions, as one comparison tells whether there is one."""
    return hl.select((a != a) | (b != b), a + b, hl.select(a < b, b, a))


def _minimum(a: hl.Expr, b: hl.Expr) -> hl.Expr:
    return hl.select((a != a) | (b != b), a + b, hl.select(a > b, b, a))


# The bound, a number, is what a comparison with NaN does not choose: one vmaxps or vminps.
_BOUNDED: dict[str, Function] = {
    "max": strict(lambda a, bound: hl.select(a < bound, bound, a)),
    "min": strict(lambda a, bound: hl.select(a > bound, bound, a)),
}


def _sign(a: hl.Expr) -> hl.Expr:
    zero = number(0, a)
    return hl.select(a > zero, number(1, a), hl.select(a < zero, number(-1, a), absolute(a)))


def _square_root(a: hl.Expr) -> hl.Expr:
    """The power of 1/2: of -0.0 it is 0, of minus infinity infinity."""
    return hl.select(a == number(-inf, a), number(inf, a), hl.sqrt(a + number(0, a)))


_POWERS: dict[object, Function] = {
    1: lambda a: a,
    2: strict(lambda a: a * a),
    3: strict(lambda a: a * a * a),
    Fraction(1, 2): strict(_square_root),
}

_EXACT: dict[str, Function] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": negated,
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

_OF_SINGLES: dict[str, Function] = {
    **{fn: strict(function) for fn, function in _EXACT.items()},
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

_OF_DOUBLES: dict[str, Function] = {
    **{fn: function for fn, function in _OF_SINGLES.items() if fn in _EXACT},
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
    """As runtimes do: in float64, so that a negative exponent, too, has a power."""
    x, y = (converted(v, hl.Float(64)) for v in (a, b))
    return converted(_OF_DOUBLES["pow"](x, y), a.type())


_OF_INTEGERS: dict[str, Function] = {
    "add": integer_arithmetic.added,
    "sub": integer_arithmetic.wrapping(lambda a, b: a - b),
    "mul": integer_arithmetic.wrapping(lambda a, b: a * b),
    "neg": integer_arithmetic.negative,
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

_OF_BOOLS: dict[str, Function] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a != b,
    "not": hl.logical_not,
    "eq": lambda a, b: a == b,
    "where": hl.select,
    "max": lambda a, b: a | b,
    "min": lambda a, b: a & b,
}
