"""Parse the examples of declarations: inputs and attributes in one line of text.

    example    ::=  (tensor | "-" | name=value) ...         separated by spaces, "-" is an absent input
    tensor     ::=  dtype[size,size,...] values?            a size is a number, or a name: a symbol >= 1
    dtype      ::=  f16 f32 f64 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool
    values     ::=  <n     integers of 0..n-1, floats of (-n, n)
                 |  >n     numbers above n
                 |  ={a,b,...}    these, in row-major order
    value      ::=  a Python literal (spaces only within '...'), else the word itself

    f32[2,3,4] i64[3]<4 - axis=1 mode=linear
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensaurus.expr.sizes.size import Size, Symbol, polynomial
from tensaurus.ops.declare import Attributes, Op, TensorType, attribute_value

Array: TypeAlias = np.ndarray[Any, Any]

DTYPES = {
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "bool": "bool",
}
_WORD = re.compile(r"(?:[^\s']|'[^']*')+")
_TENSOR = re.compile(r"(\w+)\[([\w,]*)\](?:([<>])(-?[\d.]+)|=\{([^}]*)\})?")


class ValueRange(NamedTuple):
    """What an example says of an input's values: "<", ">" or "=" and the numbers behind; "" says nothing."""

    sign: str = ""
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Example:
    """The types of the inputs (None: absent), the attributes, and the range of each input's values."""

    text: str
    types: tuple[TensorType | None, ...]
    attrs: dict[str, Any]
    ranges: tuple[ValueRange, ...]

    def values(self, rng: np.random.Generator) -> list[Array | None]:
        """Draw an array for each input, None where it is absent.  Raises ValueError for a symbolic size."""
        pairs = zip(self.types, self.ranges, strict=True)
        return [None if kind is None else _draw(kind, span, rng) for kind, span in pairs]


def parse_example(text: str) -> Example:
    """Return the example with this text.  Raises ValueError where the grammar does not allow it."""
    types: list[TensorType | None] = []
    ranges: list[ValueRange] = []
    attrs: dict[str, Any] = {}
    for word in _WORD.findall(text):
        if word == "-":
            types.append(None)
            ranges.append(ValueRange())
        elif match := _TENSOR.fullmatch(word):
            dtype, sizes, sign, bound, listed_values = match.groups()
            if dtype not in DTYPES:
                raise ValueError(f"{text}: no type {dtype}")
            types.append(TensorType(DTYPES[dtype], tuple(_size(s) for s in sizes.split(",") if s)))
            values = listed_values.split(",") if listed_values is not None else [bound] if bound else []
            sign = sign or ("=" if listed_values is not None else "")
            ranges.append(ValueRange(sign, tuple(map(float, values))))
        elif "=" in word:
            name, value = word.split("=", 1)
            attrs[name] = _value(value)
        else:
            raise ValueError(f"{text}: what is {word}?")
    return Example(text, tuple(types), attrs, tuple(ranges))


@cache
def examples_of(op: Op) -> tuple[tuple[tuple[TensorType | None, ...], Attributes], ...]:
    """Return types and canonical attributes of the operator's examples whose sizes are numbers."""
    examples = map(parse_example, op.examples)
    known = [e for e in examples if all(kind is None or kind.static for kind in e.types)]
    return tuple((e.types, op.canonical(e.types, e.attrs)) for e in known)


def _size(text: str) -> Size:
    size: Size = int(text) if text.isdigit() else polynomial(Symbol(text, 1))
    return size


def _value(text: str) -> Any:
    try:
        return attribute_value(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _draw(kind: TensorType, span: ValueRange, rng: np.random.Generator) -> Array:
    """Return random elements in the range."""
    sign, bounds = span
    shape = []
    for size in kind.shape:
        if not isinstance(size, int):
            raise ValueError(f"the size {size} is not known")
        shape.append(size)
    dtype = np.dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if sign == "=":
        return np.array([int(b) if dtype.kind in "iu" else b for b in bounds]).reshape(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low, high = 0 if dtype.kind == "u" else -9, 10
        if sign == "<":
            low, high = 0, int(bounds[0])
        elif sign == ">":
            low, high = int(bounds[0]) + 1, int(bounds[0]) + 10
        return np.asarray(rng.integers(low, high, tuple(shape)).astype(dtype))
    match sign:
        case "<":
            drawn = rng.uniform(-bounds[0], bounds[0], shape)
        case ">":
            drawn = bounds[0] + rng.uniform(0.1, 3.0, shape)
        case _:
            drawn = rng.standard_normal(shape)
    return np.asarray(drawn, dtype)
