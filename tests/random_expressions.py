"""Random expressions over a few small tensors."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
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
)
from tensaurus.expr.sizes.size import Axis, polynomial


class Expressions:
    """Draws expressions over a few small tensors: padded and guarded reads, inner scopes, all reductions."""

    def __init__(self, seed: int, order: bool = True, division: bool = True):
        self.rng = random.Random(seed)
        self.order, self.division = order, division
        self.tensors = [Tensor("x", (4, 6)), Tensor("y", (6,)), Tensor("w", (2, 3)), Tensor("s", ())]

    def scope(self, depth: int, shape: tuple[int, ...] | None = None) -> Scope:
        if shape is None:
            shape = tuple(self.rng.choice([1, 2, 3, 4, 6]) for _ in range(self.rng.randint(0, 2)))
        axes = tuple(axis(n) for n in shape)
        found = Scope(axes, self.body(depth, axes))
        return found if dtype_of(found) == "float32" else Scope(axes, call("to_float32", found.body))

    def index(self, axes: tuple[Axis, ...], extent: int) -> tuple[Any, bool]:
        """An index and whether it stays in range(extent)."""
        from tensaurus.expr.sizes.size import interval

        size: Any = self.rng.randint(-1, 1)
        for a in self.rng.sample(axes, min(len(axes), self.rng.randint(0, 2))):
            step = self.rng.choice([1, 1, 1, 2, -1])
            term = polynomial(a)
            if self.rng.random() < 0.25:
                term = term // self.rng.choice([2, 3])
            elif self.rng.random() < 0.2:
                term = term % self.rng.choice([2, 3])
            size = size + step * term
        low, high = interval(size)
        return size, bool(low >= 0 and high < extent)

    def read(self, depth: int, axes: tuple[Axis, ...]) -> Body:
        source: Tensor | Scope = self.rng.choice(self.tensors)
        if depth > 0 and self.rng.random() < 0.4:
            source = self.scope(depth - 1)
        found = [self.index(axes, n) for n in source.shape]  # type: ignore[arg-type]
        inside = all(ok for _, ok in found)
        outside = None if inside else Const(self.rng.choice([0, 0, 0, 2, Fraction(1, 3)]))
        return Read(source, tuple(i for i, _ in found), outside)

    def body(self, depth: int, axes: tuple[Axis, ...]) -> Body:
        if depth == 0:
            if self.rng.random() < 0.15:
                return Const(self.rng.choice([0, 1, 2, -1, Fraction(1, 2)]))
            if axes and self.rng.random() < 0.1:
                return Const(polynomial(self.rng.choice(axes)))
            return self.read(0, axes)
        kind = self.rng.random()
        if kind < 0.12:
            return self.read(depth, axes)
        if kind < 0.62:
            fns = ["add", "add", "sub", "mul", "mul", "neg", "exp"]
            fns += ["max", "min"] * self.order + ["div"] * self.division
            fn = self.rng.choice(fns)
            return Call(fn, tuple(self.body(depth - 1, axes) for _ in range(FUNCTIONS[fn].arity)))
        if kind < 0.75:
            guards = tuple(self.index(axes, 1)[0] for _ in range(self.rng.randint(1, 2)))
            return Select(guards, self.body(depth - 1, axes), self.body(depth - 1, axes))
        new = tuple(axis(self.rng.choice([1, 2, 3, 4, 6]), "r") for _ in range(self.rng.randint(1, 2)))
        monoid = self.rng.choice(["sum", "sum", "sum", "prod"] + ["max", "min"] * self.order)
        if monoid == "prod":
            new = new[:1]
        return Reduce(monoid, new, self.body(depth - 1, (*axes, *new)))
