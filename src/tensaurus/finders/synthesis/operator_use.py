"""Uses, of which terms consist: operators with attributes, on arguments of given types, and numbers.

    Concat(axis=1) of f32[3,3], f32[3,3] to f32[3,6]        one use of Concat in the world `matrices`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tensaurus.expr.evaluate.field_protocol import Array, Field
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.scope import Read, Scope, Tensor, axis
from tensaurus.expr.ir.walk import Rewriting
from tensaurus.expr.sizes.size import polynomial
from tensaurus.graph.ir.node import Node, apply, item
from tensaurus.graph.lower.primitives import literal
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.prove.attribute_domain import domain_of

__all__ = ["NumberUse", "OperatorUse", "Use"]


@dataclass(frozen=True, eq=False)
class Use:
    """Computes output number `output` of `outputs`, of type `result`, from arguments of these types.

    place  number among the uses of a world, by which terms are ordered
    """

    types: tuple[TensorType, ...]
    result: TensorType
    place: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    output: int = 0
    outputs: int = 1

    @property
    def name(self) -> str:
        """The operator's name or the number, as rules write them."""
        raise NotImplementedError

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The default of each attribute."""
        return {}

    def takes_any_numbers(self, name: str) -> bool:
        """Return whether an attribute may be any integers, as many as the rank demands."""
        return False

    def count_from_end(self, name: str, value: Any) -> Any:
        """Return an attribute's axes counted from the end, None for an attribute that has no axes."""
        return None

    def format(self, given: Sequence[str], output: str = "") -> str:
        """Return the use as rules write it, with these arguments and attributes, and this output."""
        raise NotImplementedError

    def node(self, args: Sequence[Node]) -> Node:
        """Return the use on these arguments, whatever their types.  Raises Untypable."""
        raise NotImplementedError

    def evaluate(self, args: Sequence[Array], field: Field) -> Array:
        """Return the values for many arguments at once, along an axis in front; without arguments one."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.format([f"{name}={value!r}" for name, value in self.attrs.items()])


@dataclass(frozen=True, eq=False)
class NumberUse(Use):
    """A scalar constant of the element type of `result`."""

    value: Fraction = Fraction(0)

    @property
    def name(self) -> str:
        return str(self.value)

    def format(self, given: Sequence[str], output: str = "") -> str:
        return self.name

    def node(self, args: Sequence[Node]) -> Node:
        return literal(self.value, self.result.dtype)

    def evaluate(self, args: Sequence[Array], field: Field) -> Array:
        return field.constant(self.value)[None]


@dataclass(frozen=True, eq=False)
class OperatorUse(Use):
    """An operator with these attributes."""

    op: Op = field(kw_only=True)
    _scopes: dict[int, tuple[Scope, tuple[Tensor, ...]]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.op.attributes

    def takes_any_numbers(self, name: str) -> bool:
        return domain_of(self.op, name).kind == "integers"

    def count_from_end(self, name: str, value: Any) -> Any:
        if self.takes_any_numbers(name):
            return None
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or not all(isinstance(n, int) for n in numbers):
            return None
        # an axis means the same with the rank subtracted, but not with one more
        for rank in dict.fromkeys((self.result.rank, *(kind.rank for kind in self.types[:1]))):
            if rank and self._is_same(name, value, -rank) and not self._is_same(name, value, -rank - 1):
                return tuple(n - rank for n in numbers) if isinstance(value, tuple) else value - rank
        return None

    def _is_same(self, name: str, value: Any, by: int) -> bool:
        """Return whether the attribute means the same with `by` added to each number."""
        shifted = tuple(n + by for n in value) if isinstance(value, tuple) else value + by
        try:
            return self._canonical(name, shifted) == self._canonical(name, value)
        except Untypable:
            return False

    def _canonical(self, name: str, value: Any) -> tuple[tuple[str, Any], ...]:
        return self.op.canonical(self.types, {**self.attrs, name: value})

    def format(self, given: Sequence[str], output: str = "") -> str:
        text = f"{self.op.name}({', '.join(given)})"
        return f"{text}[{output or self.output}]" if self.outputs > 1 else text

    def node(self, args: Sequence[Node]) -> Node:
        node = apply(self.op, args, self.attrs, outputs=self.outputs)
        return item(node, self.output) if self.outputs > 1 else node

    def evaluate(self, args: Sequence[Array], field: Field) -> Array:
        count = len(args[0]) if args else 1
        scope, tensors = self._batched_scope(count)
        return interpret(scope, dict(zip(tensors, args, strict=True)), field)

    def _batched_scope(self, count: int) -> tuple[Scope, tuple[Tensor, ...]]:
        if count not in self._scopes:
            attrs = self.op.canonical(self.types, self.attrs)
            scope = self.op.scopes(self.types, attrs)[self.output]
            tensors = [x for x in self.op.tensors(self.types) if x is not None]
            self._scopes.clear()
            self._scopes[count] = batch_scope(scope, tensors, count)
        return self._scopes[count]


def batch_scope(scope: Scope, tensors: Sequence[Tensor], count: int) -> tuple[Scope, tuple[Tensor, ...]]:
    """Return the scope, and its tensors, with `count` values along an additional axis in front."""
    front = axis(count, "b")
    batched = {x: Tensor(x.name, (count, *x.shape), x.dtype) for x in tensors}
    return _Batching(batched, front).scope(scope), tuple(batched.values())


class _Batching(Rewriting):
    def __init__(self, batched: Mapping[Tensor, Tensor], front: Any):
        super().__init__()
        self.batched, self.front = batched, front

    def scope(self, scope: Scope) -> Scope:
        cached = self._scopes.get(id(scope))
        if cached is None:
            new = Scope((self.front, *scope.axes), self.body(scope.body))
            cached = self._scopes[id(scope)] = scope, new
        return cached[1]

    def read(self, read: Read) -> Read:
        new = super().read(read)
        place = polynomial(self.front)
        if isinstance(read.source, Tensor):
            return Read(self.batched[read.source], (place, *new.indices), new.outside)
        if isinstance(read.source, Scope):
            return Read(new.source, (place, *new.indices), new.outside)
        return new
