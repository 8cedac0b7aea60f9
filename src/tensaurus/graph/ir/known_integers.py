"""Evaluate integer nodes at import: constants, and sizes that may be symbols.

    Shape(x) of a float32[N, 3, 8, 8]            [N, 3, 8, 8]
    Concat(Gather(Shape(x), 0), [-1])            [N, -1]

The importer (`graph/onnx/graph_importer`) asks for them: a Reshape has a known shape as soon as the elements
of its second argument are known, symbols included.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.fields import Array, ExactField, Reals
from tensaurus.expr.evaluate.interpret import Evaluation, interpret
from tensaurus.expr.evaluate.labelled_arrays import LabelledArray
from tensaurus.expr.ir.integer_types import integer_limits, to_native
from tensaurus.expr.ir.scope import Tensor
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.sizes.size import (
    Arithmetic,
    Poly,
    Symbol,
    atoms,
    floordiv,
    is_nonnegative,
    largest,
    polynomial,
    smallest,
)
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType, Untypable

KnownElements: TypeAlias = MutableMapping[Node, Array | None]

MAX_ELEMENTS = 4096  # larger values are not evaluated: they are no shapes, and take time


class SizeField(ExactField):
    """The field of integers and symbolic sizes.  Raises Untypable where a symbol decides about a result."""

    name = "sizes"

    def constant(self, value: Any) -> Array:
        box = np.empty((), object)
        if isinstance(value, Arithmetic):
            box[()] = polynomial(value)
        elif value == int(value):
            box[()] = int(value)
        else:
            raise Untypable(f"{value} is no size")
        return box

    def lift(self, data: Array) -> Array:
        return data if data.dtype.kind in "bO" else data.astype(np.int64)

    def quotient(self, a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):  # towards zero; by 0: 0, as in all exact fields
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
        if not is_nonnegative(a):
            raise Untypable("division of a size that may be negative")
        return floordiv(a, b)

    def max_or_min(self, fn: str, a: Any, b: Any) -> Any:
        return largest(a, b) if fn == "max" else smallest(a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        raise Untypable(f"{fn} of a size")

    def unknown_bool(self, fn: str, *args: Any) -> bool:
        a, b = args
        if fn == "eq":
            if polynomial(a) == polynomial(b):
                return True
            if is_nonnegative(a - b - 1) or is_nonnegative(b - a - 1):
                return False
        elif fn == "lt":
            if is_nonnegative(b - a - 1):
                return True
            if is_nonnegative(a - b):
                return False
        raise Untypable(f"{fn} of {a} and {b} is not known")

    def from_int(self, data: Array) -> Array:
        return self._each(int, data)

    def _to_int(self, data: Array, target: str) -> Array:
        return data


class _SizeEvaluation(Evaluation):
    """The evaluator over `SizeField`: a literal such as N // 2 is one element, which holds the size."""

    def const(self, value: Any) -> LabelledArray:
        if isinstance(value, Poly) and any(isinstance(a, Symbol) for a in atoms(value)):
            return LabelledArray(self.field.constant(value), ())
        return super().const(value)


def known_elements(node: Node, memo: KnownElements) -> Array | None:
    """Return the node's elements, None where they are not known.

    A constant's array has its own element type; of computed values integers are int64 or uint64, floats have
    the node's type, and where symbols remain the array holds Python objects.  `memo` keeps the results of all
    nodes on the way.
    """
    waiting = [node]
    while waiting:
        last = waiting[-1]
        if last in memo:
            waiting.pop()
            continue
        needed = _needed_arguments(last)
        # None in `memo` means unknown; an argument that is not in it yet is evaluated first, below
        if needed is None or any(memo.get(arg, last) is None for arg in needed.values()):
            memo[last] = None
            continue
        missing = [arg for arg in needed.values() if arg not in memo]
        if missing:
            waiting.append(missing[0])
            continue
        try:
            memo[last] = _evaluate(last, {leaf: memo[arg] for leaf, arg in needed.items()})
        except (Untypable, ValueError, TypeError, IndexError, KeyError, NotImplementedError, OverflowError):
            memo[last] = None
    return memo[node]


def _needed_arguments(node: Node) -> dict[Tensor, Node] | None:
    """Return the arguments that the node's elements depend on, None where the elements cannot be known."""
    kind = node.types[0]
    if not isinstance(kind, TensorType) or not kind.static or len(node.types) != 1:
        return None
    if kind.dtype == "string" or kind.dtype.startswith("complex"):
        return None
    if prod(n for n in kind.shape if isinstance(n, int)) > MAX_ELEMENTS:
        return None
    if node.op is CONSTANT:
        return {}
    owner, index = node.owner
    if not owner.is_declared:
        return None
    try:
        inside = set(tensors(owner.scopes()[index]))
        return {leaf: arg for leaf, arg in owner.tensor_args().items() if leaf in inside}
    except Untypable:
        return None


def _evaluate(node: Node, values: Mapping[Tensor, Any]) -> Array:
    """Return the elements, rounded to their type: a size computed in float32 must be as float32 gives it."""
    if node.op is CONSTANT:
        return np.asarray(node.attribute("data").array)
    owner, index = node.owner
    kind, scope = node.tensor, owner.scopes()[index]
    floats = kind.dtype.startswith(("float", "bfloat"))
    objects = any(v.dtype.kind == "O" for v in values.values())
    if objects and floats:
        raise Untypable("a float computed from a size that is not a number")
    if objects or (not floats and not values):  # a Shape reads no element: its expression holds the symbols
        sizes = SizeField()
        lifted = {leaf: v if v.dtype.kind == "O" else sizes.lift(v) for leaf, v in values.items()}
        return _narrow(_SizeEvaluation(lifted, sizes, {}).scope(scope), kind.dtype)
    field = Reals(strict=True)
    value = interpret(scope, {leaf: field.lift(v) for leaf, v in values.items()}, field)
    with np.errstate(all="ignore"):
        return value.astype(numpy_dtype(kind.dtype)) if floats else to_native(value, kind.dtype)


def _narrow(value: Array, dtype: str) -> Array:
    """Return the array in its native type where no symbol is left, else as objects.

    Symbols are sizes: they, and sizes computed from them, are assumed to be below 2^31.
    """
    if value.dtype.kind != "O":
        return to_native(value, dtype)
    numbers = [int(x) for x in value.flat if isinstance(x, (int, np.integer))]
    if len(numbers) == value.size:
        return to_native(value.astype(np.int64), dtype)
    low, high = integer_limits(dtype)
    if high < 2**31 - 1 or not all(low <= x <= high for x in numbers):
        raise Untypable(f"sizes that are no {dtype}")
    return value
