"""A world: the types that terms may have, and the uses of operators that stay within them (TASO, table 1).

A use is an operator with attributes on arguments of given types.  Which there are follows from the operators'
declarations: those that type, on types of the world, with an attribute's values from the world or from the
operator's examples.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import product
from typing import Any

from tensaurus.algebra.arithmetic import Array, Field
from tensaurus.algebra.expr import Read, Scope, Tensor, axis
from tensaurus.algebra.interpret import interpret
from tensaurus.algebra.size import polynomial
from tensaurus.algebra.walk import Rewriting
from tensaurus.cost.demand import number_of
from tensaurus.graph.node import Node, apply, item, source
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import parse_example

__all__ = ["WORLDS", "Use", "World"]


@dataclass(frozen=True, eq=False)
class Use:
    """An operator on arguments of these types; `output` is which of its outputs is meant, of `outputs`.

    place  its place among those of its world: earlier ones are smaller
    """

    op: Op
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    result: TensorType
    place: int
    output: int = 0
    outputs: int = 1
    _scopes: dict[int, tuple[Scope, tuple[Tensor, ...]]] = field(default_factory=dict, repr=False)

    def node(self, args: Sequence[Node]) -> Node:
        """The use on these arguments, of whatever types.  Raises Untypable."""
        made = apply(self.op, args, self.attrs, outputs=self.outputs)
        return item(made, self.output) if self.outputs > 1 else made

    def values(self, args: Sequence[Array], field: Field) -> Array:
        """Of many arguments at once, of which each has an axis in front, its values."""
        count = len(args[0])
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

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={value!r}" for name, value in self.attrs.items())
        said = f"{self.op.name}({attrs})"
        return f"{said}[{self.output}]" if self.outputs > 1 else said


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


@dataclass(frozen=True)
class World:
    """What terms are made of.

    types      of their values, as examples write them
    variables  how many there may be of each type
    operators  as examples write them: a name, and the attributes that it is used with
    size       operators of a term, as far as its rules are shipped
    """

    name: str
    types: tuple[str, ...]
    variables: tuple[int, ...]
    operators: tuple[str, ...]
    size: int = 3

    def __reduce__(self) -> tuple[Any, ...]:
        """What it is made of: its uses are of this process."""
        return World, (self.name, self.types, self.variables, self.operators, self.size)

    @cached_property
    def kinds(self) -> tuple[TensorType, ...]:
        """The types."""
        (found,) = [parse_example(" ".join(self.types)).types]
        return tuple(kind for kind in found if kind is not None)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of the types."""
        return tuple(tuple(map(number_of, kind.shape)) for kind in self.kinds)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """All of them, in the order of the operators."""
        found: list[Use] = []
        for text in self.operators:
            name, _, rest = text.partition(" ")
            example = parse_example(rest)
            found += self._uses(registry[name], example.attrs, len(found))
        return tuple(found)

    def _uses(self, op: Op, attrs: Mapping[str, Any], first: int) -> Iterator[Use]:
        place = first
        least = sum(not given.optional and not given.variadic for given in op.inputs)
        variadic = any(given.variadic for given in op.inputs)
        counts = [2] if variadic else range(max(1, least), len(op.inputs) + 1)
        for count in counts:
            for kinds in product(self.kinds, repeat=count):
                leaves = [source(f"x{k}", kind) for k, kind in enumerate(kinds)]
                try:
                    made = apply(op, leaves, attrs, outputs=0)
                except (Untypable, ValueError):
                    continue
                for output, kind in enumerate(made.types):
                    if kind in self.kinds and isinstance(kind, TensorType):
                        yield Use(op, attrs, kinds, kind, place, output, len(made.types))
                        place += 1


def _shipped() -> dict[str, World]:
    """Those of `worlds.toml`, by name."""
    text = files("tensaurus.synthesis").joinpath("worlds.toml").read_text("utf-8")
    return {
        name: World(
            name, tuple(own["types"]), tuple(own["variables"]), tuple(own["operators"]), size=own["size"]
        )
        for name, own in tomllib.loads(text).items()
    }


WORLDS = _shipped()
