"""Defines worlds: the types that terms may have, and the operators that compute on them (TASO, table 1).

An operator's uses follow from its declaration: it is used on all of the world's types on which it types.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from itertools import product
from typing import Any

from tensaurus.finders.synthesis.operator_use import NumberUse, OperatorUse, Use
from tensaurus.graph.ir.node import apply, source
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import parse_example
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["WORLDS", "World"]


@dataclass(frozen=True)
class World:
    """The types, variables and operators from which terms are enumerated.

    types      of values, as the operators' examples write them: "f32[3,4]"
    variables  greatest number of variables of each type
    operators  a number, or a name with attributes: "Concat axis=1"; with types if it is used on these alone
    size       greatest number of operators in a term when the shipped rules are generated
    """

    name: str
    types: tuple[str, ...]
    variables: tuple[int, ...]
    operators: tuple[str, ...]
    size: int = 3

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone: the cached uses compare by identity, and belong to one process."""
        return World, (self.name, self.types, self.variables, self.operators, self.size)

    @cached_property
    def kinds(self) -> tuple[TensorType, ...]:
        """The parsed `types`."""
        return tuple(kind for kind in parse_example(" ".join(self.types)).types if kind is not None)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each type."""
        return tuple(tuple(map(number_of, kind.shape)) for kind in self.kinds)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """All uses of operators on the world's types, in the order of `operators`."""
        found: list[Use] = []
        for text in self.operators:
            name, _, rest = text.partition(" ")
            if name[0].isdigit():
                scalars = [kind for kind in self.kinds if not kind.shape]
                found += (NumberUse((), kind, len(found), value=Fraction(name)) for kind in scalars)
            else:
                example = parse_example(rest)
                only = tuple(kind for kind in example.types if kind is not None)
                if only != example.types:
                    raise ValueError(f"{self.name}: {text}: inputs that are left out come last")
                found += self._uses_of(registry[name], example.attrs, len(found), only)
        return tuple(found)

    def _uses_of(
        self, op: Op, attrs: Mapping[str, Any], first: int, only: tuple[TensorType, ...] = ()
    ) -> Iterator[Use]:
        """Yield the uses of an operator, numbered from `first`, on `only` these types if any are given."""
        place = first
        for kinds in [only] if only else self._input_types(op):
            leaves = [source(f"x{k}", kind) for k, kind in enumerate(kinds)]
            try:
                node = apply(op, leaves, attrs, outputs=0)
            except (Untypable, ValueError):
                if only:
                    raise
                continue
            for output, kind in enumerate(node.types):
                if kind in self.kinds and isinstance(kind, TensorType):
                    yield OperatorUse(kinds, kind, place, attrs, output, len(node.types), op=op)
                    place += 1

    def _input_types(self, op: Op) -> Iterator[tuple[TensorType, ...]]:
        """Yield all choices of types for each possible number of inputs, two for a variadic operator."""
        least = sum(not given.is_optional and not given.is_variadic for given in op.inputs)
        most = len(op.inputs)
        variadic = any(given.is_variadic for given in op.inputs)
        for count in [2] if variadic else range(max(least, min(1, most)), most + 1):
            yield from product(self.kinds, repeat=count)


def _read_worlds() -> dict[str, World]:
    """Return the worlds of `worlds.toml` by name."""
    text = files("tensaurus.finders.synthesis").joinpath("worlds.toml").read_text("utf-8")
    return {
        name: World(name, tuple(t["types"]), tuple(t["variables"]), tuple(t["operators"]), size=t["size"])
        for name, t in tomllib.loads(text).items()
    }


WORLDS = _read_worlds()
