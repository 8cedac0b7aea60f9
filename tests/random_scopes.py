"""Random expressions with all that texts and interning must keep, and random ways to write them anew."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from random_expressions import Expressions

from tensaurus.expr.evaluate.fields import Array, Field
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.element_types import literal_dtype
from tensaurus.expr.ir.scalar_functions import ASSOCIATIVE, FUNCTIONS
from tensaurus.expr.ir.scope import (
    Body,
    Call,
    Const,
    Read,
    Reduce,
    Scope,
    Select,
    Tensor,
    axis,
    call,
    compute,
    lift,
    look,
    table,
)
from tensaurus.expr.ir.walk import Rewriting, operands, tensors
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial, substitute

NEUTRAL = {"add": 0, "mul": 1, "max": float("-inf"), "min": float("inf")}


class Everything(Expressions):
    """Besides, literal tables, indices that are read, bools, casts, names that are no identifiers."""

    def __init__(self, seed: int, order: bool = True, division: bool = True):
        super().__init__(seed, order, division)
        self.at = Tensor("where/at:0", (4,), "int64")
        self.tensors += [Tensor("i", (3,)), Tensor("a b;'c", (2, 2)), Tensor("sum", (4,))]
        self.tables = [table([[1, 0], [Fraction(1, 2), -1]]), table([3, 3, 3]), table([[[0, 1], [2, 5]]])]

    def read(self, depth: int, axes: tuple[Axis, ...]) -> Body:
        kind = self.rng.random()
        if kind < 0.2:
            source = self.rng.choice(self.tables)
            return Read(source, tuple(self.index(axes, n)[0] for n in source.shape), Const(Fraction(-1, 3)))
        if kind < 0.3 and axes:
            at: Tensor | Scope = self.at
            if self.rng.random() < 0.5:
                places = [self.rng.randint(0, 3) for _ in range(2)]
                at = compute((4,), lambda i: self.at[places[0]] + self.at[i] * self.at[places[1]])
            place = look(at.padded(0)[self.index(axes, 4)[0]], -99, 99)
            return Tensor("sum", (4,)).padded(2)[place + self.rng.randint(0, 1)]
        return super().read(depth, axes)

    def body(self, depth: int, axes: tuple[Axis, ...]) -> Body:
        if depth > 1 and self.rng.random() < 0.1:
            compared = [call(self.rng.choice(["eq", "lt", "le"] if self.order else ["eq"]), *self.pair(axes))]
            compared += [call("and", compared[0], call("not", call("or", compared[0], lift(False))))]
            return call("where", self.rng.choice(compared), *self.pair(axes))
        if depth > 0 and self.rng.random() < 0.05:
            return call("to_float32", super().body(depth - 1, axes))
        return super().body(depth, axes)

    def pair(self, axes: tuple[Axis, ...]) -> list[Body]:
        return [call("to_float32", self.body(1, axes)) for _ in range(2)]


class Rewritten(Rewriting):
    """The same expression written in another way that interning must not tell."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = random.Random(seed)
        self.names: dict[Atom, Any] = {}

    def scope(self, scope: Scope) -> Scope:
        around, self.names = self.names, {}  # it is closed
        found = super().scope(scope)
        self.names = around
        return found

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        fresh = tuple(axis(a.extent, self.rng.choice("ijrst")) for a in axes)
        self.names.update({a: polynomial(b) for a, b in zip(axes, fresh, strict=True)})
        return fresh

    def size(self, size: Size) -> Size:
        return substitute(super().size(size), self.names)  # type: ignore[no-any-return]

    def body(self, body: Body) -> Body:
        if self.rng.random() < 0.1 and literal_dtype(body) == "float32":
            fn = self.rng.choice(sorted(NEUTRAL))
            return Call(fn, tuple(self.shuffled([self.body(body), Const(NEUTRAL[fn])])))
        match body:
            case Call(fn, _) if fn in FUNCTIONS and FUNCTIONS[fn].commutative:
                found = self.shuffled([self.body(part) for part in operands(body)])
                if fn not in ASSOCIATIVE:
                    return Call(fn, tuple(found))
                while len(found) > 1:  # in any nesting
                    place = self.rng.randrange(len(found) - 1)
                    found[place : place + 2] = [Call(fn, (found[place], found[place + 1]))]
                return found[0]
            case Select(guard, then, other):
                sizes = self.shuffled([self.size(g) for g in (*guard, *guard[: self.rng.randint(0, 1)])])
                return Select(tuple(sizes), self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                while isinstance(inner, Reduce) and inner.monoid == monoid:
                    axes, inner = axes + inner.axes, inner.body
                parts = [(a,) for a in self.shuffled(list(self.axes(axes)))]
                while len(parts) > 1 and self.rng.random() < 0.5:
                    parts[:2] = [parts[0] + parts[1]]
                return reduce(lambda body, bound: Reduce(monoid, bound, body), parts, self.body(inner))
        return super().body(body)

    def shuffled(self, items: list[Any]) -> list[Any]:
        return self.rng.sample(items, len(items))


class Mistaken(Rewriting):
    """The same expression with one of its parts changed, which may change what it computes."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = random.Random(seed)
        self.left = self.rng.randint(1, 12)

    def hit(self) -> bool:
        self.left -= 1
        return self.left == 0

    def body(self, body: Body) -> Body:
        if self.hit():
            match body:
                case Read(source, indices, outside) if len(indices) == 2 and len({*source.shape}) == 1:
                    return Read(source, indices[::-1], outside)
                case Read(source, indices, Const(value)):
                    return Read(source, indices, Const(value + 1))  # type: ignore[operator]
                case Call(fn, (a, b)):
                    return Call(fn, (b, a))
                case Select(guard, then, other):
                    return Select(guard, other, then)
                case Reduce("sum", axes, inner) if len(axes) > 1:
                    return Reduce("sum", axes[:1], Reduce("prod", axes[1:], inner))
                case Const(value) if not isinstance(value, (bool, float)):
                    return Const(value + 1)
        return super().body(body)


def swapped(scope: Scope) -> Scope:
    """The scope with its first two axes exchanged where they are read, if they are alike."""
    match scope.axes:
        case (a, b, *_) if a.extent == b.extent:
            return Scope((b, a, *scope.axes[2:]), scope.body)
    return scope


def values(scope: Scope, field: Field) -> dict[Tensor, Array]:
    rng = np.random.default_rng(7)
    return {
        t: rng.integers(-9, 10, t.shape) if t.dtype == "int64" else field.random(t.shape, rng)  # type: ignore[arg-type]
        for t in tensors(scope)
    }


def agree(a: Scope, b: Scope, field: Field) -> bool:
    given = {**values(b, field), **values(a, field)}
    return field.equal(*(interpret(s, {t: given[t] for t in tensors(s)}, field) for s in (a, b)))
