"""Make an instance of a rule from another one: change a size, an attribute, a rank or the element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tensaurus.ops import TensorType
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.term import Apply
from tensaurus.rules.test.coverage import Dimension, flatten_attributes

MAX_SIZE = 400  # largest new size near one of the law's numbers
INTEGER_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


@dataclass
class Mutation:
    """The types and attribute values of an instance, changed in place.

    equal_names   for each attribute, those that the rule's conditions require to be equal
    law_integers  the integers that the law names
    """

    types: dict[str, TensorType]
    values: dict[str, Any]
    applications: Sequence[Apply]
    rng: np.random.Generator
    equal_names: Mapping[str, frozenset[str]]
    law_integers: Sequence[int] = ()

    def change_anything(self, any_type: bool) -> None:
        """Make one random change of any kind."""
        names = [*flatten_attributes(self.values)]
        draw = self.rng.random()
        if names and draw < 0.45:
            self.change_attribute(names[int(self.rng.integers(len(names)))])
        elif draw < 0.85:
            self.resize()
        elif draw < 0.95 or not any_type:
            self._change_rank()
        else:
            dtype = str(self.rng.choice([*INTEGER_TYPES, "float32", "float64", "bool"]))
            self.types = {name: TensorType(dtype, kind.shape) for name, kind in self.types.items()}

    def untie(self, pair: tuple[Dimension, Dimension]) -> None:
        """Change the size of one of two dimensions, and of some others of the same size."""
        self.resize(pair[int(self.rng.integers(2))], pair)

    def resize(
        self, start: Dimension | None = None, apart: Sequence[Dimension] = (), new: int | None = None
    ) -> None:
        """Change one size and some, all or no others that are equal, in attributes, too.

        Starts at the dimension `start`, or a random one; leaves the dimensions in `apart` as they are.
        """
        places = [(name, k) for name, kind in self.types.items() for k in range(-kind.rank, 0)]
        if not places:
            return
        if start is None or start not in places:
            places = [place for place in places if place not in apart] or places
            start = places[int(self.rng.integers(len(places)))]
        old = self.types[start[0]].shape[start[1]]
        share = float(self.rng.choice([0.0, 0.3, 0.7, 1.0]))
        alike = [p for p in places if self.types[p[0]].shape[p[1]] == old and p not in apart]
        # equal sizes change together with the chance `share`, so that types may still fit
        moved = {start, *(p for p in alike if self.rng.random() < share)}
        options = [1, 2, 3, 4, 5, 7, *([2 * old, old + 1, max(old - 1, 0)] if isinstance(old, int) else [])]
        options += [n for n in self._nearby_numbers() if 0 < n <= MAX_SIZE]
        new = int(self.rng.choice(options)) if new is None else new
        for name, kind in self.types.items():
            shape = tuple(
                new if (name, k) in moved else n for k, n in enumerate(kind.shape, -kind.rank)
            )
            self.types[name] = TensorType(kind.dtype, shape)
        if self.rng.random() < share:
            self.values = {name: _replace_size(value, old, new) for name, value in self.values.items()}

    def _nearby_numbers(self) -> list[int]:
        """Return the law's integers and their neighbours."""
        return [n + step for n in self.law_integers for step in (-1, 0, 1)]

    def _change_rank(self) -> None:
        """Add or remove a leading dimension of some or all tensors."""
        share = float(self.rng.choice([0.0, 0.5, 1.0]))
        first = str(self.rng.choice(sorted(self.types))) if self.types else ""
        size, more = int(self.rng.integers(1, 4)), self.rng.random() < 0.5
        for name, kind in self.types.items():
            if name == first or self.rng.random() < share:
                shape = (size, *kind.shape) if more else kind.shape[1:]
                self.types[name] = TensorType(kind.dtype, shape)

    def change_attribute(self, name: str) -> None:
        """Change an attribute (as named by `flatten_attributes`), and often others with the same value."""
        rest, _, key = name.partition(".")
        if not key:
            old = self.values[rest]
            new = self._another_value(rest, old)
            tied = self.equal_names.get(rest, frozenset()) if self.rng.random() < 0.8 else frozenset()
            share = 0.0 if tied else float(self.rng.choice([0.0, 0.5, 1.0]))
            for other, value in self.values.items():
                alike = not isinstance(value, dict) and value == old
                if other == rest or other in tied or (alike and self.rng.random() < share):
                    self.values[other] = new
        elif key in self.values.get(rest, ()):
            given = self.values[rest]
            self.values[rest] = {**given, key: self._another_value(key, given[key])}

    def set_attribute(self, name: str, value: Any) -> bool:
        """Set an attribute, and those required to be equal, and return whether it exists.

        `name` is as in `flatten_attributes`.  A tuple is repeated or cut to the length of the attribute.
        """
        if name.endswith("]"):  # one element
            name, _, place = name[:-1].partition("[")
            whole, at = self.values.get(name), int(place)
            if not isinstance(whole, tuple) or at >= len(whole):
                return False
            return self.set_attribute(name, (*whole[:at], value, *whole[at + 1 :]))
        rest, _, key = name.partition(".")
        given = self.values.get(rest)
        if rest not in self.values or key and (not isinstance(given, dict) or key not in given):
            return False
        old = given[key] if key and given is not None else given
        if isinstance(value, tuple) and isinstance(old, tuple) and value:
            value = tuple(value[place % len(value)] for place in range(len(old)))
        if key:
            self.values[rest] = {**(given or {}), key: value}
        else:
            for other in (rest, *self.equal_names.get(rest, frozenset())):
                self.values[other] = value
        return True

    def _another_value(self, name: str, value: Any) -> Any:
        """Return another value of an attribute: of a tuple, in another order or with elements changed."""
        rng = self.rng
        if isinstance(value, tuple) and value:
            place = int(rng.integers(len(value)))
            if rng.random() < 0.2:
                return tuple(value[int(k)] for k in rng.permutation(len(value)))
            changed = self._another_value(name, value[place])
            if rng.random() < 0.3:
                return tuple(changed if item == value[place] else item for item in value)
            return (*value[:place], changed, *value[place + 1 :])
        if isinstance(value, bool) or value in (0, 1) and rng.random() < 0.5:
            return type(value)(1 - value)
        if isinstance(value, int):
            sizes = [n for kind in self.types.values() for n in kind.shape if isinstance(n, int)]
            small = (-2, -1, 0, 1, 2, 3, 4, value + 1, value - 1)
            return int(rng.choice([*small, *sizes, *self._nearby_numbers()]))
        if isinstance(value, (float, Fraction)):
            plain = (-3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 1e3, -float(value))
            return type(value)(float(rng.choice([*plain, *self._nearby_numbers()])))
        other = [
            dict(attrs)[name]
            for term in self.applications
            for _, attrs in examples_of(term.op)
            if name in dict(attrs)
        ]
        return other[int(rng.integers(len(other)))] if other else value


def _replace_size(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_size(inner, old, new) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_replace_size(inner, old, new) for inner in value)
    return new if isinstance(value, int) and not isinstance(value, bool) and value == old else value
