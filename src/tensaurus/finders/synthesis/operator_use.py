"""A use: what a term is made with, an operator with attributes on arguments of given types, or a number."""

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

__all__ = ["Call", "Number", "Use"]


@dataclass(frozen=True, eq=False)
class Use:
    """What makes a value of arguments of these types: output number `output` of `outputs`.

    place  its place among those of its world: earlier ones are smaller
    """

    types: tuple[TensorType, ...]
    result: TensorType
    place: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    output: int = 0
    outputs: int = 1

    @property
    def name(self) -> str:
        """What is used, as rules call it."""
        raise NotImplementedError

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of the attributes that there are."""
        return {}

    def any_numbers(self, name: str) -> bool:
        """Whether an attribute is as many integers as the rank asks for, and any of them are right."""
        return False

    def from_end(self, name: str, value: Any) -> Any:
        """An attribute's value that names dimensions, counted from the end; None where it names none."""
        return None

    def said(self, given: Sequence[str], output: str = "") -> str:
        """As rules are written: with these arguments and attributes, of the output that is called so."""
        raise NotImplementedError

    def node(self, args: Sequence[Node]) -> Node:
        """The use on these arguments, of whatever types.  Raises Untypable."""
        raise NotImplementedError

    def values(self, args: Sequence[Array], field: Field) -> Array:
        """Of many arguments at once, each with an axis in front, its values; one value where it has none."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.said([f"{name}={value!r}" for name, value in self.attrs.items()])


@dataclass(frozen=True, eq=False)
class Number(Use):
    """A number of a tensor's element type."""

    value: Fraction = Fraction(0)

    @property
    def name(self) -> str:
        return str(self.value)

    def said(self, given: Sequence[str], output: str = "") -> str:
        return self.name

    def node(self, args: Sequence[Node]) -> Node:
        return literal(self.value, self.result.dtype)

    def values(self, args: Sequence[Array], field: Field) -> Array:
        return field.constant(self.value)[None]


@dataclass(frozen=True, eq=False)
class Call(Use):
    """An operator with these attributes."""

    op: Op = field(kw_only=True)
    _scopes: dict[int, tuple[Scope, tuple[Tensor, ...]]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.op.attributes

    def any_numbers(self, name: str) -> bool:
        return domain_of(self.op, name).kind == "sizes"

    def from_end(self, name: str, value: Any) -> Any:
        if self.any_numbers(name):
            return None
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or not all(isinstance(n, int) for n in numbers):
            return None
        for rank in dict.fromkeys((self.result.rank, *(kind.rank for kind in self.types[:1]))):
            if rank and self._alike(name, value, -rank) and not self._alike(name, value, -rank - 1):
                return tuple(n - rank for n in numbers) if isinstance(value, tuple) else value - rank
        return None

    def _alike(self, name: str, value: Any, by: int) -> bool:
        """Whether the attribute says the same with each number so much greater."""
        other = tuple(n + by for n in value) if isinstance(value, tuple) else value + by
        try:
            return self._attributes(name, other) == self._attributes(name, value)
        except Untypable:
            return False

    def _attributes(self, name: str, value: Any) -> tuple[tuple[str, Any], ...]:
        return self.op.canonical(self.types, {**self.attrs, name: value})

    def said(self, given: Sequence[str], output: str = "") -> str:
        text = f"{self.op.name}({', '.join(given)})"
        return f"{text}[{output or self.output}]" if self.outputs > 1 else text

    def node(self, args: Sequence[Node]) -> Node:
        made = apply(self.op, args, self.attrs, outputs=self.outputs)
        return item(made, self.output) if self.outputs > 1 else made

    def values(self, args: Sequence[Array], field: Field) -> Array:
        count = len(args[0]) if args else 1
        scope, tensors = self._batched(count)
        return interpret(scope, dict(zip(tensors, args, strict=True)), field)

    def _batched(self, count: int) -> tuple[Scope, tuple[Tensor, ...]]:
        if count not in self._scopes:
            attrs = self.op.canonical(self.types, self.attrs)
            scope = self.op.scopes(self.types, attrs)[self.output]
            own = [x for x in self.op.tensors(self.types) if x is not None]
            self._scopes.clear()
            self._scopes[count] = batched(scope, own, count)
        return self._scopes[count]


def batched(scope: Scope, tensors: Sequence[Tensor], count: int) -> tuple[Scope, tuple[Tensor, ...]]:
    """The scope for `count` values of each tensor at once, along an axis in front of all."""
    front = axis(count, "b")
    wide = {x: Tensor(x.name, (count, *x.shape), x.dtype) for x in tensors}
    return _Batched(wide, front).scope(scope), tuple(wide.values())


class _Batched(Rewriting):
    def __init__(self, wide: Mapping[Tensor, Tensor], front: Any):
        super().__init__()
        self.wide, self.front = wide, front

    def scope(self, scope: Scope) -> Scope:
        found = self._scopes.get(id(scope))
        if found is None:
            made = Scope((self.front, *scope.axes), self.body(scope.body))
            found = self._scopes[id(scope)] = scope, made
        return found[1]

    def read(self, read: Read) -> Read:
        found = super().read(read)
        place = polynomial(self.front)
        if isinstance(read.source, Tensor):
            return Read(self.wide[read.source], (place, *found.indices), found.outside)
        if isinstance(read.source, Scope):
            return Read(found.source, (place, *found.indices), found.outside)
        return found
