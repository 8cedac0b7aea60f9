"""Elementwise operators with numpy's broadcasting: arithmetic, comparison, logic, rounding, conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute
from tensaurus.expr.sizes.open_questions import forget_open_questions
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.declare import NUMBERS, Op, op


def broadcast_shape(*shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the shape of numpy's broadcasting; a symbolic size is only combined with itself and 1."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = []
    for d in range(-rank, 0):
        size: Size = 1
        forget_open_questions()  # about dimensions before: they broadcast, so no answer was needed
        for shape in shapes:
            if len(shape) < -d or is_same_size(shape[d], 1) or is_same_size(shape[d], size):
                continue
            if not is_same_size(size, 1):
                raise Untypable(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
            size = shape[d]
        result.append(size)
    return tuple(result)


def broadcast_read(x: Tensor | Scope, indices: tuple[Size, ...]) -> Body:
    """Return the element of x that broadcasting pairs with these output indices."""
    own_indices = indices[len(indices) - x.rank :]
    return x[tuple(0 if is_same_size(n, 1) else i for i, n in zip(own_indices, x.shape, strict=True))]


def broadcast(element: Callable[..., Any], *xs: Tensor | Scope) -> Scope:
    """Return element(x, y, ...) over broadcast inputs."""
    return compute(
        broadcast_shape(*(x.shape for x in xs)), lambda *i: element(*(broadcast_read(x, i) for x in xs))
    )


def broadcast_to(x: Tensor, *others: Tensor) -> None:
    """Raise Untypable unless the others broadcast to the shape of x."""
    if not is_broadcast_shape(x.shape, *(y.shape for y in others)):
        raise Untypable(f"{' and '.join(str(y.shape) for y in others)} do not broadcast to {x.shape}")


def is_broadcast_shape(shape: tuple[Size, ...], *others: tuple[Size, ...]) -> bool:
    """Return whether broadcasting the shape with others leaves it unchanged."""
    result = broadcast_shape(shape, *others)
    return len(result) == len(shape) and all(map(is_same_size, result, shape))


def is_float(x: Tensor) -> bool:
    return x.dtype.startswith(("float", "bfloat"))


def has_one_element(x: Tensor) -> bool:
    """Return whether x is a scalar or a vector of one element."""
    return x.rank == 0 or x.rank == 1 and is_same_size(x.shape[0], 1)


def convert_dtype(value: Body, source: str, target: str) -> Body:
    """Return the value as another element type."""
    return value if source == target else call(f"to_{target}", value)


def require_dtype(x: Tensor, *dtypes: str) -> None:
    if x.dtype not in dtypes:
        raise Untypable(f"{x.name} is {x.dtype}, not {' or '.join(dtypes)}")


def require_numbers(*xs: Tensor) -> None:
    """Raise Untypable where an input is bool."""
    for x in xs:
        if x.dtype == "bool":
            raise Untypable(f"{x.name} is bool, no number")


BINARY: dict[str, Op] = {}  # by scalar function of two arguments: the operator that applies it elementwise


def _binary(name: str, fn: str, since: int, *examples: str, truths: bool | None = False) -> None:
    """Declare an operator with two inputs: numbers (`truths` False), bools (True), or either (None)."""

    def declare(a: Tensor, b: Tensor) -> Scope:
        if truths is False:
            require_numbers(a, b)
        for x in (a, b) if truths else ():
            require_dtype(x, "bool")
        return broadcast(lambda x, y: call(fn, x, y), a, b)

    BINARY[fn] = op(name, since=since, examples=examples)(declare)


_FLOATS = ("f32[2,3,4] f32[3,1]", "f32[5] f32[]", "f64[2,1] f64[3]", "i32[2,3] i32[3]>0", "i64[4] i64[4]>0")
for _name, _fn in [("Add", "add"), ("Sub", "sub"), ("Mul", "mul"), ("Div", "div")]:
    _binary(_name, _fn, 7, *_FLOATS)
for _name in ["And", "Or", "Xor"]:
    _binary(_name, _name.lower(), 7, "bool[2,3] bool[3]", "bool[4] bool[]", truths=True)
_binary("Equal", "eq", 7, "i64[2,3]<3 i64[3]<3", "f32[4]={1,2,3,nan} f32[4]={1,3,3,nan}", "bool[4] bool[1]",
        truths=None)
_binary("Less", "lt", 7, "f32[2,3] f32[3]", "i32[2,3]<3 i32[3]<3")
_binary("LessOrEqual", "le", 12, "f32[2,3] f32[3]", "i32[2,3]<3 i32[3]<3")


@op("Greater", since=7, examples=["f32[2,3] f32[3]", "i32[2,3]<3 i32[3]<3"])
def greater(a: Tensor, b: Tensor) -> Scope:
    """b < a."""
    require_numbers(a, b)
    return broadcast(lambda x, y: call("lt", y, x), a, b)


@op("GreaterOrEqual", since=12, examples=["f32[2,3] f32[3]", "i32[2,3]<3 i32[3]<3"])
def greater_or_equal(a: Tensor, b: Tensor) -> Scope:
    """b <= a."""
    require_numbers(a, b)
    return broadcast(lambda x, y: call("le", y, x), a, b)


@op("Pow", since=7, examples=[
    "f32[2,3]>0 f32[3]", "f32[4] f32[]={2}", "f32[3]>0 i64[]={3}", "i32[3]<5 i32[]={2}",
    "i64[3]<5 f32[3]={2,1,3}",
])  # fmt: skip
def power(a: Tensor, b: Tensor) -> Scope:
    """a to the power of b, in the type of a."""
    real = next((t.dtype for t in (a, b) if is_float(t)), a.dtype)
    return broadcast(
        lambda x, y: convert_dtype(
            call("pow", convert_dtype(x, a.dtype, real), convert_dtype(y, b.dtype, real)), real, a.dtype
        ),
        a,
        b,
    )


@op("Mod", since=10, examples=[
    "i32[2,3] i32[3]>0", "i64[4]={-7,7,-7,7} i64[4]={3,-3,-3,3}",
    "i64[4]={-7,7,-7,7} i64[4]={3,-3,-3,3} fmod=1", "f32[5] f32[5]>0 fmod=1", "f32[5] f32[5]>0",
])  # fmt: skip
def modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Scope:
    """The remainder of a division rounded down (fmod=0) or towards zero (fmod=1)."""
    return broadcast(lambda x, y: call("fmod" if fmod else "mod", x, y), a, b)


def _variadic(name: str, fn: str, mean: bool = False, *examples: str) -> None:
    """Declare an operator that combines any number of inputs by `fn`, or by their mean."""

    def declare(*xs: Tensor) -> Scope:
        if not xs:
            raise Untypable(f"{name} of nothing")
        count = len(xs) if mean else 1
        return broadcast(
            lambda *values: (
                _combine_pairwise(fn, values) / count if count > 1 else _combine_pairwise(fn, values)
            ),
            *xs,
        )

    op(name, since=8, examples=("f32[2,3] f32[3] f32[]", "f32[4]", "f32[2,1] f32[1,3]", *examples))(declare)


def _combine_pairwise(fn: str, values: Sequence[Any]) -> Any:
    """Combine all values by an associative function, in pairs: a thousand values make a depth of ten."""
    while len(values) > 1:
        pairs = [call(fn, x, y) for x, y in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]


_variadic("Sum", "add")
_variadic("Mean", "add", True)
_variadic("Max", "max", False, "i64[3] i64[3] i64[]", "i32[3] i32[1]")
_variadic("Min", "min", False, "i64[3] i64[3] i64[]", "i32[3] i32[1]")


def unary(
    name: str, element: Callable[[Body], Any], since: int, *examples: str, truths: bool = False
) -> None:
    """Declare an operator with one input and no attribute; the input may be bool if `truths`."""

    def declare(x: Tensor) -> Scope:
        if not truths:
            require_numbers(x)
        return broadcast(element, x)

    op(name, since=since, examples=examples or ("f32[2,3]", "f64[]"))(declare)


def _function(fn: str) -> Callable[[Body], Body]:
    return lambda v: call(fn, v)


for _name, _fn, _since, _examples in [
    ("Neg", "neg", 6, ["f32[2,3]", "i32[4]", "i64[]"]),
    ("Abs", "abs", 6, ["f32[2,3]", "i32[4]", "u8[4]"]),
    ("Sqrt", "sqrt", 6, ["f32[2,3]>0", "f64[]>0"]),
    ("Exp", "exp", 6, ["f32[2,3]", "f32[3]={-1000,0,80}"]),
    ("Log", "log", 6, ["f32[2,3]>0", "f64[]>0"]),
    ("Erf", "erf", 9, ["f32[2,3]", "f32[3]={-9,0,9}"]),
    ("Sign", "sign", 9, ["f32[2,3]", "f32[3]={-2,0,3}", "i64[3]={-2,0,3}"]),
    ("Floor", "floor", 6, ["f32[2,3]", "f32[4]={-1.5,-1,0.5,2}"]),
    ("Ceil", "ceil", 6, ["f32[2,3]", "f32[4]={-1.5,-1,0.5,2}"]),
    ("Round", "round", 11, ["f32[2,3]", "f32[6]={-2.5,-1.5,-0.5,0.5,1.5,2.5}"]),
    ("Sin", "sin", 7, []),
    ("Cos", "cos", 7, []),
    ("Tan", "tan", 7, []),
    ("Asin", "asin", 7, ["f32[2,3]<1"]),
    ("Acos", "acos", 7, ["f32[2,3]<1"]),
    ("Atan", "atan", 7, []),
    ("Sinh", "sinh", 9, []),
    ("Cosh", "cosh", 9, []),
    ("Asinh", "asinh", 9, []),
    ("Acosh", "acosh", 9, ["f32[2,3]>1"]),
    ("Atanh", "atanh", 9, ["f32[2,3]<1"]),
    ("Tanh", "tanh", 6, ["f32[2,3]", "f32[3]={-1000,0,1000}"]),
    ("IsNaN", "isnan", 9, ["f32[4]={1,nan,inf,-inf}", "f64[2]"]),
]:
    unary(_name, _function(_fn), _since, *_examples)

unary("Reciprocal", lambda v: 1 / v, 6, "f32[2,3]>0", "f64[]>0")
unary("Identity", lambda v: v, 1, "f32[2,3]", "i64[4]", "bool[]", "u8[2]", truths=True)


@op("Not", examples=["bool[2,3]"])
def logical_not(x: Tensor) -> Scope:
    require_dtype(x, "bool")
    return broadcast(lambda v: call("not", v), x)


@op("IsInf", since=10, examples=[
    "f32[4]={1,nan,inf,-inf}", "f32[4]={1,nan,inf,-inf} detect_negative=0",
    "f64[4]={1,nan,inf,-inf} detect_positive=0", "f32[2] detect_negative=0 detect_positive=0",
])  # fmt: skip
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Scope:
    """Whether x is an infinity of a detected sign."""
    if not detect_negative and not detect_positive:
        return compute(x.shape, lambda *i: Const(False))
    infinite = broadcast(lambda v: call("isinf", v), x)
    if detect_negative and detect_positive:
        return infinite
    return broadcast(
        lambda v: call("and", call("isinf", v), call("lt", 0, v) if detect_positive else call("lt", v, 0)), x
    )


@op("Where", since=9, examples=[
    "bool[2,3] f32[2,3] f32[]", "bool[2,1] i64[3] i64[2,3]", "bool[] f64[2] f64[2]",
])  # fmt: skip
def choose(condition: Tensor, x: Tensor, y: Tensor) -> Scope:
    """x where the condition holds, else y."""
    require_dtype(condition, "bool")
    return broadcast(lambda c, a, b: call("where", c, a, b), condition, x, y)


def _drop_float8_attributes(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes without those for 8-bit floats, which have no declaration."""
    return {"saturate": 1, "round_mode": "up"}


@op("Cast", since=6, canonicalize=_drop_float8_attributes, examples=[
    "f32[5]={-1.5,-0.5,0,0.5,2.7} to=int64", "i64[3] to=float32", "f32[3]={-1,0,0.3} to=bool",
    "bool[4] to=float32", "f32[3] to=float64", "i64[3]={1,256,-1} to=uint8", "bool[3] to=int32",
    "f32[3] to=float32 saturate=0",
])  # fmt: skip
def cast(x: Tensor, *, to: str, saturate: int = 1, round_mode: str = "up") -> Scope:
    """x as another element type; floats become integers by truncation."""
    if to not in NUMBERS:
        raise Untypable(f"a conversion to {to}")
    return broadcast(lambda v: convert_dtype(v, x.dtype, to), x)


@op("CastLike", since=15, canonicalize=_drop_float8_attributes, examples=["f32[3] i64[]", "i64[2,3] f32[4]"])
def cast_like(x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Scope:
    """x as the element type of the target."""
    return broadcast(lambda v: convert_dtype(v, x.dtype, target.dtype), x)


@op("Dropout", since=7, moved={"ratio": 12, "training_mode": 12}, outputs={12: 1}, examples=[
    "f32[2,3]", "f32[4] ratio=0.25",
])  # fmt: skip
def dropout(
    x: Tensor, *, ratio: float = 0.5, training_mode: int = 0, seed: int | None = None
) -> tuple[Scope, Scope]:
    """At inference x itself, and a mask of ones (before version 12 the mask is not specified)."""
    if training_mode:
        raise Untypable("Dropout in training mode")
    return broadcast(lambda v: v, x), compute(x.shape, lambda *i: Const(True))
