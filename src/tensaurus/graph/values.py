"""Which integers a node is known to hold: constants, and sizes that may still be symbols.

A Reshape whose shape is computed from Shape(x) is static as soon as these values are known, whether x's
sizes are numbers or symbols.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tensaurus.algebra.expr import tensors
from tensaurus.algebra.field import Array, Exact, Reals
from tensaurus.algebra.interpret import interpret
from tensaurus.algebra.size import Arithmetic, floordiv, largest, nonnegative, polynomial, smallest
from tensaurus.graph.node import CONSTANT, ITEM, Node
from tensaurus.ops import Op, TensorType, Untypable

Known: TypeAlias = MutableMapping[Node, Array | None]

LIMIT = 4096  # elements of a value worth knowing


class Sizes(Exact):
    """Integers that may hold symbols."""

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
        if isinstance(a, int) and isinstance(b, int):
            return int(a / b) if b else 0
        if not nonnegative(a):
            raise Untypable("division of a size that may be negative")
        return floordiv(a, b)

    def greater(self, a: Any, b: Any) -> Any:
        return largest(a, b)

    def lesser(self, a: Any, b: Any) -> Any:
        return smallest(a, b)

    def unknown(self, fn: str, *args: Any) -> Any:
        raise Untypable(f"{fn} of a size")

    def unknown_bool(self, fn: str, *args: Any) -> bool:
        a, b = args
        if fn == "eq":
            if polynomial(a) == polynomial(b):
                return True
            if nonnegative(a - b - 1) or nonnegative(b - a - 1):
                return False
        elif fn == "lt":
            if nonnegative(b - a - 1):
                return True
            if nonnegative(a - b):
                return False
        raise Untypable(f"{fn} of {a} and {b} is not known")

    def _from_int(self, data: Array) -> Array:
        return self._each(int, data)

    def _to_int(self, data: Array) -> Array:
        return data


def known(node: Node, memo: Known) -> Array | None:
    """The node's elements: int64, bool, float64, or objects where symbols remain; None where unknown."""
    if node not in memo:
        memo[node] = None
        try:
            memo[node] = _evaluated(node, memo)
        except (Untypable, ValueError, TypeError, IndexError, KeyError, NotImplementedError, OverflowError):
            memo[node] = None
    return memo[node]


def _evaluated(node: Node, memo: Known) -> Array | None:
    if not isinstance(node.types[0], TensorType) or not node.types[0].static:
        return None
    if node.op is CONSTANT:
        data = node.attribute("data")
        return None if data.dtype == "string" or prod(data.shape) > LIMIT else data.array
    if node.op is ITEM:
        owner = node.args[0]
        assert owner is not None
        return _outputs(owner, memo, node.attribute("index"))
    if isinstance(node.op, Op) and len(node.types) == 1:
        return _outputs(node, memo, 0)
    return None


def _outputs(node: Node, memo: Known, index: int) -> Array | None:
    wanted = node.types[index]
    if not isinstance(node.op, Op) or not isinstance(wanted, TensorType) or not wanted.static:
        return None
    if prod(n for n in wanted.shape if isinstance(n, int)) > LIMIT or wanted.dtype.startswith("complex"):
        return None
    kinds = tuple(None if a is None else a.tensor for a in node.args)
    leaves = node.op.tensors(kinds)
    scope = node.op.scopes(kinds, node.attrs)[index]
    needed = set(tensors(scope))
    values: dict[Any, Array] = {}
    for leaf, arg in zip(leaves, node.args, strict=True):
        if leaf is not None and leaf in needed:
            assert arg is not None
            value = known(arg, memo)
            if value is None:
                return None
            values[leaf] = value
    symbolic = not wanted.dtype.startswith("float") and (
        any(v.dtype.kind == "O" for v in values.values()) or not needed
    )
    if symbolic:
        found = interpret(scope, {leaf: v if v.dtype.kind == "O" else Sizes().lift(v) for leaf, v in values.items()}, Sizes())
        return _plain(found)
    if any(v.dtype.kind == "O" for v in values.values()):
        return None
    field = Reals()
    return interpret(scope, {leaf: field.lift(v) for leaf, v in values.items()}, field)


def _plain(found: Array) -> Array:
    """int64 where no symbol is left."""
    if found.dtype.kind == "O" and all(isinstance(x, (int, np.integer)) for x in found.flat):
        return found.astype(np.int64)
    return found


def as_sizes(value: Array) -> tuple[Any, ...] | Any:
    """A known 0-d or 1-d integer value as Python ints and symbols."""
    plain: Sequence[Any] = [x if isinstance(x, Arithmetic) else int(x) for x in value.ravel()]
    return plain[0] if value.ndim == 0 else tuple(plain)
