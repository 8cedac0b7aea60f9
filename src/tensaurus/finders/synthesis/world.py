"""A world: the types that terms may have, and the uses of operators that stay within them (TASO, table 1).

Which uses there are follows from the operators' declarations: those that type, on types of the world, with an
attribute's values from the world or from the operator's examples.
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

from tensaurus.finders.synthesis.operator_use import Call, Number, Use
from tensaurus.graph.ir.node import apply, source
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import parse_example
from tensaurus.runtimes.price.operation_counts import number_of

__all__ = ["WORLDS", "World"]


@dataclass(frozen=True)
class World:
    """What terms are made of.

    types      of their values, as examples write them
    variables  how many there may be of each type
    operators  as examples write them: a name, and the attributes that it is used with, and where it is used
               at some types alone, these; or a number
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
            if name[0].isdigit():
                scalars = [kind for kind in self.kinds if not kind.shape]
                found += (Number((), kind, len(found), value=Fraction(name)) for kind in scalars)
            else:
                example = parse_example(rest)
                own = tuple(kind for kind in example.types if kind is not None)
                if own != example.types:
                    raise ValueError(f"{self.name}: {text}: inputs that are left out come last")
                found += self._uses(registry[name], example.attrs, len(found), own)
        return tuple(found)

    def _uses(
        self, op: Op, attrs: Mapping[str, Any], first: int, own: tuple[TensorType, ...] = ()
    ) -> Iterator[Use]:
        place = first
        for kinds in [own] if own else self._typings(op):
            leaves = [source(f"x{k}", kind) for k, kind in enumerate(kinds)]
            try:
                made = apply(op, leaves, attrs, outputs=0)
            except (Untypable, ValueError):
                if own:
                    raise
                continue
            for output, kind in enumerate(made.types):
                if kind in self.kinds and isinstance(kind, TensorType):
                    yield Call(kinds, kind, place, attrs, output, len(made.types), op=op)
                    place += 1

    def _typings(self, op: Op) -> Iterator[tuple[TensorType, ...]]:
        """The world's types for so many inputs as the operator takes; two where it takes any number."""
        least = sum(not given.is_optional and not given.is_variadic for given in op.inputs)
        most = len(op.inputs)
        variadic = any(given.is_variadic for given in op.inputs)
        for count in [2] if variadic else range(max(least, min(1, most)), most + 1):
            yield from product(self.kinds, repeat=count)


def _shipped() -> dict[str, World]:
    """Those of `worlds.toml`, by name."""
    text = files("tensaurus.finders.synthesis").joinpath("worlds.toml").read_text("utf-8")
    return {
        name: World(
            name, tuple(own["types"]), tuple(own["variables"]), tuple(own["operators"]), size=own["size"]
        )
        for name, own in tomllib.loads(text).items()
    }


WORLDS = _shipped()
