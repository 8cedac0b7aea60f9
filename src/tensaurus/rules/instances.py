"""Typed instances of a rule: concrete nodes on which both of its sides exist, drawn to break the law.

Types and attributes are proposed from the examples of the operators in the rule, from a small pool, and
from what is already known (its broadcastable parts); sizes are made to coincide, or to be 1.  What the left
side does not type, or the conditions refuse, is thrown away.

From each instance others are made by one or two changes: a size of one tensor, or of all that have it, an
element of an attribute, a sign, a rank, an element type.  What has been the same in all instances (two
sizes, an attribute) is tried to be made different before any other change: see `coverage`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tensaurus.algebra.integers import limits
from tensaurus.graph.node import CONSTANT, Node, constant, source
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.change import Change, examples_of
from tensaurus.rules.coverage import Coverage, flat
from tensaurus.rules.match import Binding, Matcher, build
from tensaurus.rules.rule import Rule
from tensaurus.rules.term import Apply, Item, Term, Undefined, Variable, outputs_named, variables

POOL: tuple[tuple[int, ...], ...] = (
    *((), (1,), (2,), (3,), (2, 3), (3, 2), (3, 3), (1, 3), (2, 2, 3), (2, 3, 2), (1, 2, 3), (1, 3, 4, 4)),
    *((2, 3, 4, 5), (2, 2, 5, 5), (3, 2, 3, 3), (2, 3, 1, 1), (4, 2, 3, 3), (4, 1, 3, 3), (1, 4, 5, 5)),
    *((3, 1, 1), (1, 3, 1, 1), (4, 1, 1), (1, 2, 1, 3, 2), (2, 2, 2, 2, 2)),
)
LARGEST = 400  # elements of one tensor of an instance
ATTEMPTS = 6000
FOCUS = 12  # tries of each example of each operator, before they are drawn at random
LAST = 100  # tries of a change of attributes that never changed
CHANGES = 12  # tries of a change for each instance that is wanted
TINY = tuple(shape for rank in range(4) for shape in product((1, 2), repeat=rank))
# what building a proposal without meaning raises
UNBUILT = (Untypable, Undefined, KeyError, TypeError, ValueError, ArithmeticError)


@dataclass(frozen=True)
class Instance:
    """Both sides of a rule on concrete leaves.  `pinned` leaves keep the values that conditions saw.

    `nodes` are the leaves by the variables' names, `values` the attributes by theirs.
    """

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    nodes: Mapping[str, Node]
    values: Mapping[str, Any]
    pinned: frozenset[Node]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """In the order of their names."""
        return tuple(self.nodes[name] for name in sorted(self.nodes))

    def __str__(self) -> str:
        said = [f"{name} {self.nodes[name].type}" for name in sorted(self.nodes)]
        said += [f"{name}={value}" for name, value in sorted(flat(self.values).items())]
        return ", ".join(said)


def _asked(rule: Rule, *functions: str, negated: bool = False) -> set[str]:
    """Variables x with function(x) in the right side or in a condition; under `not` only where `negated`."""
    names: set[str] = set()

    def visit(tree: ast.AST) -> None:
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and not negated:
            return
        match tree:
            case ast.Call(func=ast.Name(id=name), args=args) if name in functions:
                names.update(a.id for a in args if isinstance(a, ast.Name))
        for child in ast.iter_child_nodes(tree):
            visit(child)

    for condition in rule.where:
        visit(condition)
    for term in _applications(rule.rhs):
        for _, tree in term.attrs:
            visit(tree)
    return names


def _held_equal(rule: Rule) -> dict[str, frozenset[str]]:
    """Of each name, those that a condition holds equal to it."""
    found: dict[str, frozenset[str]] = {}
    for condition in rule.where:
        match condition:
            case ast.Compare(left=ast.Name(id=a), ops=[ast.Eq()], comparators=[ast.Name(id=b)]):
                group = found.get(a, frozenset({a})) | found.get(b, frozenset({b}))
                found.update(dict.fromkeys(group, group))
    return found


def _applications(roots: tuple[Term | None, ...]) -> Iterator[Apply]:
    for root in roots:
        if isinstance(root, Item):
            root = root.term
        if isinstance(root, Apply):
            yield root
            yield from _applications(root.args)


def instances(rule: Rule, wanted: int, seed: int = 0) -> Iterator[Instance]:
    """Up to `wanted` different instances of a rule, the same for the same seed."""
    return Maker(rule, seed).instances(wanted)


class Maker:
    """Instances of one rule, none of them twice, and what they cover."""

    def __init__(self, rule: Rule, seed: int):
        self.rule = rule
        self.rng = np.random.default_rng(seed)
        self.matcher = Matcher(rule)
        self.filled = _asked(rule, "filled", negated=True)
        self.fixed = _asked(rule, "value", "positive", negated=True) | self.filled
        self.static = _asked(rule, "const") | self.fixed
        self.applications = list(_applications(rule.lhs))
        self.seen: set[Any] = set()
        self.made: list[Instance] = []
        self.coverage = Coverage()
        self.tied = _held_equal(rule)
        # the examples of each operator that no instance was made of; each is given some tries
        ops = dict.fromkeys(term.op for term in self.applications)
        self.waiting = [(op, place) for op in ops for place in range(len(examples_of(op)))] * FOCUS

    def instances(self, wanted: int) -> Iterator[Instance]:
        """Up to so many; half of them are proposed, the others are made of those before.

        Beyond them some in which an attribute is another that was the same in all.
        """
        for _ in range(ATTEMPTS):
            if len(self.made) * 2 >= wanted:
                break
            found = self.proposed()
            if found is not None:
                yield found
        for _ in range(CHANGES * wanted):
            if not self.made or len(self.made) >= wanted:
                break
            found = self.changed()
            if found is not None:
                yield found

        for _ in range(LAST if self.made else 0):
            if not self.coverage.constant:
                break
            found = self.changed(self.coverage.constant)
            if found is not None:
                yield found

    def proposed(self) -> Instance | None:
        """One from the operators' examples; None where this one is none."""
        proposal = Proposal(self.rule, self.rng)
        first = self.waiting.pop(0) if self.waiting else None
        proposal.draw(self.applications, dict([first]) if first else {})
        found = self._instance(proposal.types, proposal.values)
        if found is not None:
            self.waiting = [other for other in self.waiting if other != first]
        return found

    def changed(self, names: Sequence[str] = ()) -> Instance | None:
        """One that differs a little from one that there is, in one of these attributes where some are named.

        None where this one is none.
        """
        rng = self.rng
        old = self.made[int(rng.integers(len(self.made)))]
        types = {name: node.tensor for name, node in old.nodes.items()}
        change = Change(types, dict(old.values), self.applications, rng, self.tied)
        tied, unvaried = self.coverage.tied, self.coverage.unvaried
        draw = rng.random()
        if names:
            change.attribute(names[int(rng.integers(len(names)))])
        elif tied and draw < 0.4:
            change.untie(tied[int(rng.integers(len(tied)))])
        elif unvaried and draw < 0.7:
            change.attribute(unvaried[int(rng.integers(len(unvaried)))])
        else:
            change.anything("any" in self.rule.tags)
        while rng.random() < 0.4:
            change.anything("any" in self.rule.tags)
        return self._instance(change.types, change.values)

    def _instance(self, types: Mapping[str, TensorType], values: Mapping[str, Any]) -> Instance | None:
        if not all(_usable(kind, self.rule) for kind in types.values()):
            return None
        binding = Binding({}, dict(values))
        for name, kind in types.items():
            if name in self.static:
                data = _data(kind, self.rng, name in self.fixed)
                if name in self.filled and data.size and self.rng.random() < 0.9:
                    data = np.full_like(data, data.flat[0])
                binding.nodes[name] = constant(data)
            else:
                binding.nodes[name] = source(name, kind)
        made = _built(self.rule, self.matcher, binding)
        if made is None:
            return None
        left, right, bound = made
        if any(elements(root.tensor) > LARGEST for root in left):
            return None
        kinds = tuple(bound.nodes[name].types[0] for name in sorted(bound.nodes))
        data = tuple(n.attribute("data") for k, n in sorted(bound.nodes.items()) if k in self.fixed)
        key = (kinds, data, repr(sorted(flat(bound.values).items())))
        if key in self.seen:
            return None
        self.seen.add(key)
        # commutative arguments may have changed places
        pinned = frozenset(
            bound.nodes[n] for n in self.fixed & {*bound.nodes} if bound.nodes[n].op is CONSTANT
        )
        found = Instance(left, right, bound.nodes, bound.values, pinned)
        self.made.append(found)
        self.coverage.add(found.nodes, flat(found.values))
        return found


def _usable(kind: TensorType, rule: Rule) -> bool:
    plain = "any" in rule.tags or kind.dtype in ("float32", "float64")
    return kind.static and plain and elements(kind) <= LARGEST


def elements(kind: TensorType) -> int:
    """How many elements a tensor of known sizes has."""
    return prod(n for n in kind.shape if isinstance(n, int))


def _numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Multiples of 1/8, mostly above zero: all of them, all but a few, or as it comes."""
    draw = rng.random()
    if draw < 0.6:
        return rng.integers(1, 40, shape) / 8
    if draw < 0.8:
        return rng.integers(-12, 13, shape) / 8
    return rng.integers(0, 3, shape) / 2


def _data(kind: TensorType, rng: np.random.Generator, pinned: bool) -> Any:
    """Dyadic numbers: exact in every field."""
    shape = tuple(n for n in kind.shape if isinstance(n, int))
    if not kind.dtype.startswith("float"):
        return drawn_integers(kind.dtype, shape, rng)
    if pinned:
        return np.asarray(_numbers(rng, shape)).astype(kind.dtype)
    # odd 64ths: no literal of a rule is one, so no leaf is the same node as a literal
    return np.asarray((2 * rng.integers(-400, 400, shape) + 1) / 64).astype(kind.dtype)


def drawn_integers(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Small ones, and where the draw says so those next to the ends of the type."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low, high = limits(dtype)
    small = rng.integers(max(low, -40), min(high, 40) + 1, shape).astype(dtype)
    if rng.random() < 0.5:
        return small
    ends = np.array([low, low + 1, high - 1, high, high // 2, high // 2 + 1], dtype)
    return np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), small).astype(dtype)


@dataclass
class Proposal:
    """Types of the variables and values of the attributes that a rule's left side may be built on.

    known    the types met so far: those of variables, of the examples' other inputs, of inner terms
    wishes   of a variable: the types that the terms around it and beside it ask for
    """

    rule: Rule
    rng: np.random.Generator
    types: dict[str, TensorType] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    known: list[TensorType] = field(default_factory=list)
    wishes: dict[str, list[TensorType]] = field(default_factory=lambda: defaultdict(list))

    def draw(self, applications: Sequence[Apply], chosen: dict[Op, int]) -> None:
        """Propose everything, from examples of the operators in random order.

        Of those in `chosen` from that example; half of the time one is the example of all its calls.
        """
        for place in self.rng.permutation(len(applications)):
            kept = dict(chosen)
            self._from_example(applications[place], chosen)
            if self.rng.random() < 0.5:
                chosen = kept
        if self.rng.random() < 0.15:
            # small shapes of ones and twos: what broadcasts, coincides by chance
            self.types, self.known = {}, [TensorType("float32", shape) for shape in TINY]
            self.wishes.clear()
        self._resize()
        for term in reversed(applications):
            self._learn(term)
        for root in self.rule.lhs:
            for name, _ in outputs_named(root):
                self.values.setdefault(name, int(self.rng.integers(3)))
        integers = "any" in self.rule.tags and self.rng.random() < 0.5
        for name in self.rule.variables:
            if name not in self.types:
                dtype = "int64" if integers else "float32"
                wished = self.wishes.get(name)
                draw = self.rng.random()
                if wished and draw < 0.5:  # several variables at once are rarely right by chance
                    shape: tuple[Any, ...] = wished[self.rng.integers(len(wished))].shape
                else:
                    shape = _shape(wished if wished and draw < 0.8 else self.known, self.rng)
                self.types[name] = TensorType(dtype, shape)
                self.known.append(self.types[name])
        if self.rng.random() < 0.1 and not integers:
            # in double precision, everything or some of it
            share = self.rng.choice([0.5, 1.0])
            self.types = {
                name: TensorType("float64", kind.shape) if self.rng.random() < share else kind
                for name, kind in self.types.items()
            }

    def _from_example(self, term: Apply, chosen: dict[Op, int]) -> None:
        choices = examples_of(term.op)
        if not choices:
            return
        kinds, attrs = choices[chosen.setdefault(term.op, int(self.rng.integers(len(choices))))]
        given = dict(attrs)
        loose = self.rng.random() < 0.3  # the attributes of the example, on other types
        for name, tree in term.attrs:
            if isinstance(tree, ast.Name) and tree.id not in self.values:
                self.values[tree.id] = self._varied(term.op, name, given[name])
        if term.rest is not None and term.rest not in self.values:
            named = {n for n, _ in term.attrs}
            self.values[term.rest] = {
                n: self._other(term.op, n, v) if self.rng.random() < 0.1 else v
                for n, v in attrs
                if n not in named
            }
        for arg, kind in zip(term.args, kinds, strict=False):
            if kind is None:
                continue
            if isinstance(arg, Variable) and arg.name not in self.types and not loose:
                self.types[arg.name] = kind
            else:
                self.known.append(kind)
                for inner in variables(arg):
                    self.wishes[inner].append(kind)

    def _resize(self) -> None:
        """Sizes as they are; or sizes that coincide; or ones.  Equal sizes stay equal."""
        draw = self.rng.random()
        if draw < 0.5:
            return
        kinds = [*self.types.values(), *self.known]
        sizes = sorted({n for kind in kinds for n in kind.shape if isinstance(n, int)})
        if draw < 0.65:
            side = int(self.rng.integers(1, 4))
            new = dict.fromkeys(sizes, side)
        elif draw < 0.85:
            few = self.rng.integers(1, 5, 2)
            new = {n: int(self.rng.choice(few)) for n in sizes}
        else:
            new = {n: 1 if self.rng.random() < 0.4 else n for n in sizes}
        self.types = {name: _renamed(kind, new) for name, kind in self.types.items()}
        self.known = [_renamed(kind, new) for kind in self.known]
        for name, wished in self.wishes.items():
            self.wishes[name] = [_renamed(kind, new) for kind in wished]

    def _learn(self, term: Apply) -> None:
        """The types of inner terms whose variables have theirs: what stands beside them may broadcast."""
        leaves = {name: source(name, kind) for name, kind in self.types.items()}
        for arg in term.args:
            if not isinstance(arg, Apply) or not all(name in self.types for name in variables(arg)):
                continue
            try:
                made = build(arg, Binding(leaves, self.values), "float32")
            except UNBUILT:
                continue
            if made is not None and isinstance(made.types[0], TensorType):
                self.known.append(made.types[0])
                for name in {name for other in term.args for name in variables(other)} - {*self.types}:
                    self.wishes[name].append(made.types[0])

    def _other(self, op: Op, name: str, value: Any) -> Any:
        """What another example gives an attribute, of the same length."""
        found = [dict(attrs)[name] for _, attrs in examples_of(op)]
        alike = [v for v in found if isinstance(v, tuple) == isinstance(value, tuple)]
        if isinstance(value, tuple):
            alike = [v for v in alike if len(v) == len(value)]
        return alike[self.rng.integers(len(alike))]

    def _varied(self, op: Op, name: str, value: Any) -> Any:
        """An attribute as the example has it, or something like it that conditions may ask for."""
        rng, draw = self.rng, self.rng.random()
        if draw < 0.4:
            return value
        if draw < 0.5:
            return self._other(op, name, value)
        if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            kinds = [*self.types.values(), *self.known]
            sizes = [int(n) for k in kinds for n in k.shape if isinstance(n, int)] or [1]
            if sorted(value) == list(range(len(value))) and draw < 0.75:
                return tuple(int(v) for v in rng.permutation(len(value)))
            options = [
                (0,) * len(value),
                (1,) * len(value),
                tuple(sorted(value)),
                tuple(int(v) for v in rng.integers(0, 3, len(value))),
                *[self._one_changed(kinds, len(value))] * 8,
                tuple(int(rng.choice(sizes)) for _ in value[: rng.integers(2, 4)]),
                *([kinds[int(rng.integers(len(kinds)))].shape] if kinds else []),
            ]
            return options[rng.integers(len(options))]
        if isinstance(value, int) and not isinstance(value, bool) and draw < 0.8:
            return int(rng.integers(0, 4))
        return value


    def _one_changed(self, kinds: Sequence[TensorType], length: int) -> tuple[int, ...]:
        """Zeros or ones but for a place, or a begin and its end; as many as in the attribute or in pads."""
        ranks = [2 * kind.rank for kind in kinds]
        value = [int(self.rng.integers(2))] * int(self.rng.choice([length, *ranks]))
        if value:
            place, change = int(self.rng.integers(len(value))), int(self.rng.integers(-1, 3))
            value[place] += change
            if self.rng.random() < 0.3:  # pads that keep the size, and move what is inside
                value[place - len(value) // 2] -= change
        return tuple(value)


def _renamed(kind: TensorType, sizes: dict[int, int]) -> TensorType:
    return TensorType(kind.dtype, tuple(sizes.get(n, n) if isinstance(n, int) else n for n in kind.shape))


def _shape(kinds: Sequence[TensorType], rng: np.random.Generator) -> tuple[int, ...]:
    """A shape from the pool, one already known, or one that broadcasts with a known one."""
    known = [k.shape for k in kinds if k.static]
    draw = rng.random()
    if not known or draw < 0.1:
        return POOL[rng.integers(len(POOL))]
    shape = tuple(n for n in known[rng.integers(len(known))] if isinstance(n, int))
    if draw < 0.4 or not shape:
        return shape
    if draw < 0.7:
        # any part that broadcasts: leading dimensions left out, others cut to 1, or ones put in front
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


def _built(
    rule: Rule, matcher: Matcher, binding: Binding
) -> tuple[tuple[Node, ...], tuple[Node, ...], Binding] | None:
    dtype = next((node.tensor.dtype for node in binding.nodes.values()), "float32")
    try:
        left = tuple(build(root, binding, dtype) for root in rule.lhs)
    except UNBUILT:
        return None
    for found in matcher.bindings(left):  # type: ignore[arg-type]
        right = matcher.apply(left, found)  # type: ignore[arg-type]
        if right is not None:
            return left, right, found  # type: ignore[return-value]
    return None
