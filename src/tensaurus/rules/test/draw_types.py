"""Draw types and attributes for a rule's left side from the examples of its operators.

    Relu(Add(x, y))   ->   x float32[2, 3, 4], y float32[1, 4]      from an example of Add, with sizes changed

`instances` builds both sides of the rule at each draw, and drops the draws at which the rule does not apply.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tensaurus.graph.ir.node import source
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.match import Binding, build_term
from tensaurus.rules.language.occurrences import named_outputs, variables
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Undefined
from tensaurus.rules.language.term import Apply, Variable
from tensaurus.rules.test.mutate_instance import INTEGER_TYPES
from tensaurus.rules.test.thresholds import types_in

SHAPE_POOL: tuple[tuple[int, ...], ...] = (
    *((), (1,), (2,), (3,), (2, 3), (3, 2), (3, 3), (1, 3), (2, 2, 3), (2, 3, 2), (1, 2, 3), (1, 3, 4, 4)),
    *((2, 3, 4, 5), (2, 2, 5, 5), (3, 2, 3, 3), (2, 3, 1, 1), (4, 2, 3, 3), (4, 1, 3, 3), (1, 4, 5, 5)),
    *((3, 1, 1), (1, 3, 1, 1), (4, 1, 1), (1, 2, 1, 3, 2), (2, 2, 2, 2, 2)),
)
VARIED_SHARE = 0.3  # how often an attribute that a rule does not name differs from the example
SMALL_LIMIT = 3  # most dimensions, and the largest size, of small draws
SMALL_NUMBERS = range(-2, 5)  # of attributes in small draws
TRIES_PER_OPERATOR = 20  # small draws for one operator
TINY_SHAPES = tuple(shape for rank in range(4) for shape in product((1, 2), repeat=rank))
# errors raised when nodes are built from an assignment that the rule does not fit
BUILD_ERRORS = (Untypable, Undefined, KeyError, TypeError, ValueError, ArithmeticError)


@dataclass
class Assignment:
    """Drawn types of the variables and values of the attributes.

    known_types   types so far: of variables, of the examples' other inputs, of inner terms
    wished_types  for each variable the types that the terms around it and beside it need
    """

    rule: Rule
    rng: np.random.Generator
    types: dict[str, TensorType] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    known_types: list[TensorType] = field(default_factory=list)
    wished_types: dict[str, list[TensorType]] = field(default_factory=lambda: defaultdict(list))

    def draw(self, applications: Sequence[Apply], chosen: dict[Op, int]) -> None:
        """Draw everything, from examples of the operators in random order.

        An operator in `chosen` uses that example; half of the time all calls of one operator share an
        example.
        """
        # the variables and attributes of each call, from an example of its operator
        for place in self.rng.permutation(len(applications)):
            kept = dict(chosen)
            self._use_example(applications[place], chosen)
            if self.rng.random() < 0.5:
                chosen = kept
        if self.rng.random() < 0.15:
            # small shapes of ones and twos, in which many broadcast by chance
            self.types, self.known_types = {}, [TensorType("float32", shape) for shape in TINY_SHAPES]
            self.wished_types.clear()
        self._change_sizes()
        for term in reversed(applications):
            self._add_inner_types(term)
        self._draw_output_numbers()
        integers = "any" in self.rule.tags and self.rng.random() < 0.5
        self._draw_other_variables("int64" if integers else "float32")
        if "any" in self.rule.tags and self.rng.random() < 0.25:
            # an element type that the rule names, or any other
            pool = [*types_in(self.rule), str(self.rng.choice(INTEGER_TYPES))]
            dtype = pool[int(self.rng.integers(len(pool)))]
            self.types = {name: TensorType(dtype, kind.shape) for name, kind in self.types.items()}
        elif self.rng.random() < 0.1 and not integers:
            # double precision for all or some variables
            share = self.rng.choice([0.5, 1.0])
            self.types = {
                name: TensorType("float64", kind.shape) if self.rng.random() < share else kind
                for name, kind in self.types.items()
            }

    def _draw_other_variables(self, dtype: str) -> None:
        """Draw shapes for variables without a type: those that the terms around them need, or known ones."""
        for name in self.rule.variables:
            if name in self.types:
                continue
            wished = self.wished_types.get(name)
            draw = self.rng.random()
            if wished and draw < 0.5:  # random shapes of several variables rarely fit together
                shape: tuple[Any, ...] = wished[self.rng.integers(len(wished))].shape
            else:
                shape = _draw_shape(wished if wished and draw < 0.8 else self.known_types, self.rng)
            self.types[name] = TensorType(dtype, shape)
            self.known_types.append(self.types[name])

    def draw_small(self, applications: Sequence[Apply]) -> bool:
        """Draw small shapes and small numbers as attributes; return whether the left side types.

        Each operator is tried with several draws.  Among hundreds of results some have rare coincidences,
        such as a shape attribute that copies a size, or a slice of everything.
        """
        rank, most = (int(n) for n in self.rng.integers((1, 2), (SMALL_LIMIT + 1, SMALL_LIMIT + 2)))
        one_size = self.rng.random() < 0.5
        for term in reversed(applications):
            before = dict(self.types), dict(self.values)
            for _ in range(TRIES_PER_OPERATOR):
                self.types, self.values = dict(before[0]), dict(before[1])
                self._draw_small_parts(term, rank, most, one_size)
                leaves = {name: source(name, kind) for name, kind in self.types.items()}
                with suppress(*BUILD_ERRORS):
                    build_term(term, Binding(leaves, self.values), "float32", all_outputs=True)
                    break
            else:
                return False
        self._draw_output_numbers()
        return all(name in self.types for name in self.rule.variables)

    def _draw_output_numbers(self) -> None:
        """Draw the names that stand for the number of an output."""
        for root in self.rule.lhs:
            for name, _ in named_outputs(root):
                self.values.setdefault(name, int(self.rng.integers(3)))

    def _draw_small_parts(self, term: Apply, rank: int, most: int, one_size: bool) -> None:
        """Draw what the term names first, with the element types of one of the operator's examples."""
        choices = examples_of(term.op)
        kinds, given = choices[self.rng.integers(len(choices))] if choices else ((), ())
        attrs = dict(given)
        for place, arg in enumerate(term.args):
            if isinstance(arg, Variable) and arg.name not in self.types:
                count = int(self.rng.integers(rank + 1))
                sizes = [most] * count if one_size else self.rng.integers(1, most + 1, count)
                kind = kinds[place] if place < len(kinds) else None
                dtype = "float32" if kind is None else kind.dtype
                self.types[arg.name] = TensorType(dtype, tuple(int(n) for n in sizes))
        for name, tree in term.attrs:
            if isinstance(tree, ast.Name) and tree.id not in self.values and name in attrs:
                self.values[tree.id] = self._draw_small_value(term.op, name, attrs[name], rank)
        if term.rest is not None and term.rest not in self.values:
            fixed = {name for name, _ in term.attrs}
            free = ((name, value) for name, value in attrs.items() if name not in fixed)
            self.values[term.rest] = {n: self._draw_small_value(term.op, n, v, rank) for n, v in free}

    def _draw_small_value(self, op: Op, name: str, value: Any, rank: int) -> Any:
        """Return an example's value of an attribute, or numbers of its examples, or small numbers."""
        draw = self.rng.random()
        if draw < 0.3 or isinstance(value, bool):
            return value
        pool = _example_numbers(op, name)
        if not pool or draw < 0.5 and len(pool) > 2:
            pool = tuple(SMALL_NUMBERS)
        if isinstance(value, int):
            return pool[self.rng.integers(len(pool))]
        if isinstance(value, tuple) and all(isinstance(n, int) for n in value):
            places = self.rng.integers(len(pool), size=int(self.rng.integers(1, rank + 1)))
            return tuple(pool[place] for place in places)
        return value

    def _use_example(self, term: Apply, chosen: dict[Op, int]) -> None:
        """Draw what the term names first from an example of its operator: that in `chosen`, or any."""
        choices = examples_of(term.op)
        if not choices:
            return
        kinds, attrs = choices[chosen.setdefault(term.op, int(self.rng.integers(len(choices))))]
        given = dict(attrs)
        other_types = self.rng.random() < 0.3  # use only the attributes of the example, on other types
        for name, tree in term.attrs:
            if isinstance(tree, ast.Name) and tree.id not in self.values:
                self.values[tree.id] = self._vary(term.op, name, given[name])
        if term.rest is not None and term.rest not in self.values:
            named = {n for n, _ in term.attrs}
            self.values[term.rest] = {
                n: self._vary(term.op, n, v) if self.rng.random() < VARIED_SHARE else v
                for n, v in attrs
                if n not in named
            }
        for arg, kind in zip(term.args, kinds, strict=False):
            if kind is None:
                continue
            if isinstance(arg, Variable) and arg.name not in self.types and not other_types:
                self.types[arg.name] = kind
            else:
                self.known_types.append(kind)
                for inner in variables(arg):
                    self.wished_types[inner].append(kind)

    def _change_sizes(self) -> None:
        """Keep the sizes, or make some equal, or make some 1.  Equal sizes stay equal."""
        draw = self.rng.random()
        if draw < 0.5:
            return
        # `new` has the size that replaces each size: one for all, one of two, or 1 for some
        kinds = [*self.types.values(), *self.known_types]
        sizes = sorted({n for kind in kinds for n in kind.shape if isinstance(n, int)})
        if draw < 0.65:
            side = int(self.rng.integers(1, 4))
            new = dict.fromkeys(sizes, side)
        elif draw < 0.85:
            few = self.rng.integers(1, 5, 2)
            new = {n: int(self.rng.choice(few)) for n in sizes}
        else:
            new = {n: 1 if self.rng.random() < 0.4 else n for n in sizes}
        self.types = {name: _replace_sizes(kind, new) for name, kind in self.types.items()}
        self.known_types = [_replace_sizes(kind, new) for kind in self.known_types]
        for name, wished in self.wished_types.items():
            self.wished_types[name] = [_replace_sizes(kind, new) for kind in wished]

    def _add_inner_types(self, term: Apply) -> None:
        """Add the types of inner terms whose variables are drawn, so that operands beside them fit."""
        leaves = {name: source(name, kind) for name, kind in self.types.items()}
        for arg in term.args:
            if not isinstance(arg, Apply) or not all(name in self.types for name in variables(arg)):
                continue
            try:
                made = build_term(arg, Binding(leaves, self.values), "float32")
            except BUILD_ERRORS:
                continue
            if made is not None and isinstance(made.types[0], TensorType):
                self.known_types.append(made.types[0])
                for name in {name for other in term.args for name in variables(other)} - {*self.types}:
                    self.wished_types[name].append(made.types[0])

    def _other_example_value(self, op: Op, name: str, value: Any) -> Any:
        """Return the value of an attribute in another example, of the same length."""
        values = [dict(attrs)[name] for _, attrs in examples_of(op)]
        alike = [v for v in values if isinstance(v, tuple) == isinstance(value, tuple)]
        if isinstance(value, tuple):
            alike = [v for v in alike if len(v) == len(value)]
        return alike[self.rng.integers(len(alike))]

    def _vary(self, op: Op, name: str, value: Any) -> Any:
        """Return an attribute's value as in the example, or a similar one that conditions may ask for."""
        rng, draw = self.rng, self.rng.random()
        if draw < 0.4:
            return value
        if draw < 0.5:
            return self._other_example_value(op, name, value)
        if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            kinds = [*self.types.values(), *self.known_types]
            sizes = [int(n) for k in kinds for n in k.shape if isinstance(n, int)] or [1]
            if sorted(value) == list(range(len(value))) and draw < 0.75:
                return tuple(int(v) for v in rng.permutation(len(value)))
            options = [
                (0,) * len(value),
                (1,) * len(value),
                tuple(sorted(value)),
                tuple(int(v) for v in rng.integers(0, 3, len(value))),
                *[self._draw_mostly_equal(kinds, len(value))] * 8,  # eight times as likely as others
                tuple(int(rng.choice(sizes)) for _ in value[: rng.integers(2, 4)]),
                *([kinds[int(rng.integers(len(kinds)))].shape] if kinds else []),
            ]
            return options[rng.integers(len(options))]
        if isinstance(value, int) and not isinstance(value, bool) and draw < 0.8:
            return int(rng.integers(0, 4))
        return value

    def _draw_mostly_equal(self, kinds: Sequence[TensorType], length: int) -> tuple[int, ...]:
        """Return zeros or ones, except at one position or at a start and its end."""
        ranks = [2 * kind.rank for kind in kinds]
        value = [int(self.rng.integers(2))] * int(self.rng.choice([length, *ranks]))
        if value:
            place, change = int(self.rng.integers(len(value))), int(self.rng.integers(-1, 3))
            value[place] += change
            if self.rng.random() < 0.3:  # pads that keep the size and shift the elements
                value[place - len(value) // 2] -= change
        return tuple(value)


@cache
def _example_numbers(op: Op, name: str) -> tuple[int, ...]:
    """Return the small numbers that an attribute, or its elements, have in the operator's examples."""
    given = [dict(attrs)[name] for _, attrs in examples_of(op)]
    every = {n for v in given for n in (v if isinstance(v, tuple) else [v]) if type(n) is int}
    return tuple(sorted(every & {*SMALL_NUMBERS}))


def _replace_sizes(kind: TensorType, sizes: dict[int, int]) -> TensorType:
    return TensorType(kind.dtype, tuple(sizes.get(n, n) if isinstance(n, int) else n for n in kind.shape))


def _draw_shape(kinds: Sequence[TensorType], rng: np.random.Generator) -> tuple[int, ...]:
    """Return a shape from the pool, a known shape, or one that broadcasts with a known shape."""
    known = [k.shape for k in kinds if k.static]
    draw = rng.random()
    if not known or draw < 0.1:
        return SHAPE_POOL[rng.integers(len(SHAPE_POOL))]
    shape = tuple(n for n in known[rng.integers(len(known))] if isinstance(n, int))
    if draw < 0.4 or not shape:
        return shape
    if draw < 0.7:
        # a shape that broadcasts: fewer dimensions, some of size 1, or leading ones
        kept = shape[int(rng.integers(len(shape) + 1)) :] if rng.random() < 0.7 else shape
        share = rng.choice([0.0, 0.3, 0.7, 1.0])
        part = tuple(n if rng.random() < share else 1 for n in kept)
        return (1,) * int(rng.integers(1, 3)) + part if rng.random() < 0.15 else part
    if draw < 0.8:
        # one element per channel: of the channel axis, or of the first axis (a weight's output channels)
        return (shape[min(int(rng.integers(2)), len(shape) - 1)],) + (1,) * max(0, len(shape) - 2)
    if draw < 0.9:
        return (shape[int(rng.integers(len(shape)))],)
    return tuple(n if rng.random() < 0.5 else int(rng.integers(1, 5)) for n in shape)
