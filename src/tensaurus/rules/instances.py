"""Typed instances of a rule: concrete nodes on which both of its sides exist.

Types and attributes are proposed from the examples of the operators in the rule, from a small pool, and
from what is already chosen (its broadcastable parts); those that the left side does not type, or that the
conditions refuse, are thrown away.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tensaurus.graph.node import Node, constant, source
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.ops.examples import parse as parse_example
from tensaurus.rules.match import Binding, Matcher, build
from tensaurus.rules.rule import Rule
from tensaurus.rules.term import Apply, Item, Term, Undefined, Variable

POOL: tuple[tuple[int, ...], ...] = (
    *((), (1,), (2,), (3,), (2, 3), (3, 2), (3, 3), (1, 3), (2, 2, 3), (2, 3, 2), (1, 2, 3), (1, 3, 4, 4)),
    *((2, 3, 4, 5), (2, 2, 5, 5), (3, 2, 3, 3), (2, 3, 1, 1), (4, 2, 3, 3), (4, 1, 3, 3), (1, 4, 5, 5)),
    *((3, 1, 1), (1, 3, 1, 1), (4, 1, 1)),
)
LARGEST = 400  # elements of one tensor of an instance
ATTEMPTS = 6000


@dataclass(frozen=True)
class Instance:
    """Both sides of a rule on concrete leaves.  `pinned` leaves keep the values that conditions saw."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    leaves: tuple[Node, ...]
    pinned: frozenset[Node]

    def __str__(self) -> str:
        return ", ".join(str(leaf.type) for leaf in self.leaves)


@cache
def _examples(op: Op) -> tuple[tuple[tuple[TensorType | None, ...], tuple[tuple[str, Any], ...]], ...]:
    """Types and canonical attributes of an operator's examples, on floats of known sizes."""
    found = []
    for text in op.examples:
        example = parse_example(text)
        kinds = tuple(None if k is None else TensorType(k.dtype, k.shape) for k in example.types)
        if any(k is not None and not k.static for k in kinds):
            continue
        try:
            found.append((kinds, op.canonical(kinds, example.attrs)))
        except Untypable:
            continue
    return tuple(found)


def _asked(rule: Rule, function: str) -> set[str]:
    """Variables x with function(x) in a condition (not under `not`) or in the right side."""
    names: set[str] = set()

    def visit(tree: ast.AST, positive: bool) -> None:
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            positive = not positive
        match tree:
            case ast.Call(func=ast.Name(id=name), args=args) if name == function and positive:
                names.update(a.id for a in args if isinstance(a, ast.Name))
        for child in ast.iter_child_nodes(tree):
            visit(child, positive)

    for condition in rule.where:
        visit(condition, True)
    for term in _applications(rule.rhs):
        for _, tree in term.attrs:
            visit(tree, True)
    return names


def _applications(roots: tuple[Term | None, ...]) -> Iterator[Apply]:
    for root in roots:
        if isinstance(root, Item):
            root = root.term
        if isinstance(root, Apply):
            yield root
            yield from _applications(root.args)


def instances(rule: Rule, wanted: int, seed: int = 0) -> Iterator[Instance]:
    """Up to `wanted` different instances of a rule, the same for the same seed."""
    rng = np.random.default_rng(seed)
    matcher = Matcher(rule)
    fixed = _asked(rule, "value") | _asked(rule, "positive")
    static = _asked(rule, "const") | fixed
    applications = list(_applications(rule.lhs))
    seen: set[Any] = set()
    for _ in range(ATTEMPTS):
        if len(seen) == wanted:
            return
        types, values = _proposal(rule, applications, rng)
        if types is None:
            continue
        binding = Binding({}, values)
        for name, kind in types.items():
            if name in static:
                binding.nodes[name] = constant(_data(kind, rng, name in fixed))
            else:
                binding.nodes[name] = source(name, kind)
        made = _built(rule, matcher, binding)
        if made is None:
            continue
        left, right, bound = made
        key = tuple(source(n, b.types[0]) for n, b in sorted(bound.nodes.items()))
        if (key, left[0].attrs) in seen:
            continue
        seen.add((key, left[0].attrs))
        leaves = tuple(bound.nodes[name] for name in sorted(bound.nodes))
        yield Instance(left, right, leaves, frozenset(bound.nodes[n] for n in fixed if n in bound.nodes))


def elements(kind: TensorType) -> int:
    """How many elements a tensor of known sizes has."""
    return prod(n for n in kind.shape if isinstance(n, int))


def _data(kind: TensorType, rng: np.random.Generator, pinned: bool) -> Any:
    """Dyadic numbers: exact in every field; those that a condition looks at are positive."""
    shape = tuple(n for n in kind.shape if isinstance(n, int))
    if not kind.dtype.startswith("float"):
        return rng.integers(-40, 41, shape).astype(kind.dtype)
    if pinned:
        return np.asarray(rng.integers(1, 40, shape) / 8).astype(kind.dtype)
    # odd 64ths: no literal of a rule is one, so no leaf is the same node as a literal
    return np.asarray((2 * rng.integers(-400, 400, shape) + 1) / 64).astype(kind.dtype)


def _proposal(
    rule: Rule, applications: list[Apply], rng: np.random.Generator
) -> tuple[dict[str, TensorType] | None, dict[str, Any]]:
    types: dict[str, TensorType] = {}
    values: dict[str, Any] = {}
    hints: list[TensorType] = []
    for place in rng.permutation(len(applications)):
        term = applications[place]
        choices = _examples(term.op)
        if not choices:
            continue
        kinds, attrs = choices[rng.integers(len(choices))]
        given = dict(attrs)
        loose = rng.random() < 0.3  # the attributes of the example, on other types
        for name, tree in term.attrs:
            if isinstance(tree, ast.Name) and tree.id not in values:
                values[tree.id] = _varied(given[name], [*types.values(), *hints], rng)
        if term.rest is not None:
            named = {n for n, _ in term.attrs}
            values.setdefault(term.rest, {n: v for n, v in attrs if n not in named})
        for arg, kind in zip(term.args, kinds, strict=False):
            if kind is None:
                continue
            if isinstance(arg, Variable) and arg.name not in types and not loose:
                types[arg.name] = kind
            else:
                hints.append(kind)
    if rng.random() < 0.25:
        # equal sizes everywhere: a wrong rule whose results have other shapes elsewhere types here
        side = int(rng.integers(2, 4))
        types = {name: TensorType(kind.dtype, (side,) * kind.rank) for name, kind in types.items()}
        hints = [TensorType(kind.dtype, (side,) * kind.rank) for kind in hints]
    dtype = "float32" if "any" not in rule.tags else str(rng.choice(["float32", "int64"]))
    for name in rule.variables:
        if name not in types:
            types[name] = TensorType(dtype, _shape([*types.values(), *hints], rng))
    for kind in types.values():
        if not kind.static or elements(kind) > LARGEST:
            return None, values
        if "any" not in rule.tags and kind.dtype not in ("float32", "float64"):
            return None, values
    return types, values


def _varied(value: Any, kinds: Sequence[TensorType], rng: np.random.Generator) -> Any:
    """An attribute as the example has it, or something like it that conditions may ask for."""
    draw = rng.random()
    if draw < 0.5:
        return value
    if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        known = [int(n) for k in kinds for n in k.shape if isinstance(n, int)] or [1]
        if sorted(value) == list(range(len(value))) and draw < 0.75:
            return tuple(int(v) for v in rng.permutation(len(value)))
        options = [
            (0,) * len(value),
            (1,) * len(value),
            tuple(sorted(value)),
            tuple(int(rng.choice(known)) for _ in value[: rng.integers(2, 4)]),
            *([kinds[int(rng.integers(len(kinds)))].shape] if kinds else []),
        ]
        return options[rng.integers(len(options))]
    if isinstance(value, int) and not isinstance(value, bool) and draw < 0.8:
        return int(rng.integers(0, 4))
    return value


def _shape(kinds: Sequence[TensorType], rng: np.random.Generator) -> tuple[int, ...]:
    """A shape from the pool, one already chosen, or a part of one that broadcasts."""
    known = [k.shape for k in kinds if k.static]
    draw = rng.random()
    if not known or draw < 0.2:
        return POOL[rng.integers(len(POOL))]
    shape = tuple(n for n in known[rng.integers(len(known))] if isinstance(n, int))
    if draw < 0.45 or not shape:
        return shape
    if draw < 0.6:
        return ()
    if draw < 0.75 and len(shape) >= 2:
        # one element per channel, of the channel axis or of the first axis (a weight's output channels)
        axis = int(rng.integers(2))
        rank = len(shape)
        return (shape[axis],) + (1,) * max(0, rank - 2)
    if draw < 0.85:
        return (shape[-1],)
    if draw < 0.93:
        return (shape[int(rng.integers(len(shape)))],)
    return tuple(n if rng.random() < 0.5 else int(rng.integers(1, 5)) for n in shape)


def _built(
    rule: Rule, matcher: Matcher, binding: Binding
) -> tuple[tuple[Node, ...], tuple[Node, ...], Binding] | None:
    try:
        left = tuple(build(root, binding, "float32") for root in rule.lhs)
    except (Untypable, Undefined, KeyError, TypeError):
        return None
    for found in matcher.bindings(left):  # type: ignore[arg-type]
        right = matcher.apply(left, found)  # type: ignore[arg-type]
        if right is not None:
            return left, right, found  # type: ignore[return-value]
    return None
