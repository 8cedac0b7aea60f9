"""Random expressions over x0, x1, ...: nested scopes, reductions in reductions, edges, guards, tables, places
that are read, in every element type that kernels have.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod
from random import Random
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
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
    look,
    table,
)
from tensaurus.expr.sizes.size import Axis, interval, polynomial

__all__ = ["SIZES", "Scopes"]

SIZES = (1, 2, 3, 4, 7, 8, 16, 17, 33)
TYPES = ("float32",) * 6 + ("float64", "int32", "int64", "uint8", "bool")
POINTS, STEPS = 6000, 20000  # of one scope, and with its reductions
REAL = ("exp", "tanh", "erf", "sqrt", "abs", "floor", "div")
WHOLE = ("abs", "div", "mod", "sign")


class Scopes:
    """One expression of its seed alone; `tensors` are the inputs that it reads."""

    def __init__(self, seed: str):
        self.rng = Random(seed)
        self.tensors: list[Tensor] = []
        self.made: list[Scope] = []
        self.places: dict[Tensor, int] = {}  # the largest element of those that are read as places
        self.dtype = self.rng.choice(TYPES)
        self.infinite = self.rng.random() < 0.15  # then nothing is added up: sums are of numbers

    def whole(self) -> Scope:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 4))
        found = self.scope(self.rng.randint(1, 4), self.dtype, self.shape(rank, POINTS))
        # what is read last is the output: where nothing was, the whole is a literal
        return found

    def shape(self, rank: int, most: int) -> tuple[int, ...]:
        if self.rng.random() < 0.01:
            return tuple(self.rng.choice((0, 2)) for _ in range(rank))
        while True:
            found = tuple(self.rng.choice(SIZES) for _ in range(rank))
            if prod(found) <= most:
                return found

    def scope(self, depth: int, dtype: str, shape: Sequence[int]) -> Scope:
        axes = tuple(axis(n) for n in shape)
        body = self.body(depth, dtype, axes, max(1, STEPS // max(1, prod(shape))))
        if literal_dtype(body) != dtype:  # literals alone
            body = call(f"to_{dtype}", body)
        found = Scope(axes, body)
        self.made.append(found)
        return found

    def body(self, depth: int, dtype: str, axes: tuple[Axis, ...], steps: int) -> Body:
        rng = self.rng
        if depth == 0:
            return self.literal(dtype, axes) if rng.random() < 0.12 else self.read(0, dtype, axes)
        kind = rng.random()
        if kind < 0.3:
            return self.read(depth, dtype, axes)
        if kind < 0.4:
            guard = tuple(polynomial(self.index(axes)) for _ in range(rng.randint(1, 2)))
            return Select(guard, *(self.body(depth - 1, dtype, axes, steps) for _ in range(2)))
        if kind < 0.65 and steps > 1:
            sizes = [n for n in SIZES if n <= steps]
            bound = [axis(rng.choice(sizes), "r")]
            for _ in range(rng.choice((0, 0, 1, 2))):
                left = [n for n in SIZES if n * prod(a.extent for a in bound) <= steps]  # type: ignore[misc]
                bound += [axis(rng.choice(left), "r")]
            monoids = (
                ("max", "min")
                if dtype == "bool" or self.infinite
                else ("sum", "sum", "sum", "max", "min", "prod")
            )
            monoid = rng.choice(monoids)
            if monoid == "prod":  # in another order a product may overflow on its way
                bound = [axis(min(a.extent, 3), "r") for a in bound[:1]]  # type: ignore[type-var]
            left = steps // prod(a.extent for a in bound)  # type: ignore[operator]
            return Reduce(monoid, tuple(bound), self.body(depth - 1, dtype, (*axes, *bound), left))
        return self.called(depth - 1, dtype, axes, steps)

    def called(self, depth: int, dtype: str, axes: tuple[Axis, ...], steps: int) -> Body:
        rng = self.rng

        def part(own: str = dtype) -> Body:
            found = self.body(depth, own, axes, steps)
            return found if literal_dtype(found) == own else call(f"to_{own}", found)

        if rng.random() < 0.15:
            test = self.test(depth, axes, steps)
            return call("where", test, part(), part())
        if rng.random() < 0.07:
            other = rng.choice(TYPES)
            if other != dtype and not (
                other.startswith("float") and dtype not in ("float32", "float64", "bool")
            ):
                return call(f"to_{dtype}", part(other))
        if dtype == "bool":
            return self.test(depth, axes, steps)
        fns = ["add", "add", "sub", "mul", "mul", "mul", "max", "min"]
        fns += rng.choice((REAL, ("neg",))) if dtype.startswith("float") else rng.choice((WHOLE, ("neg",)))
        fn = rng.choice(fns)
        if fn == "sqrt":
            return call("sqrt", call("abs", part()))
        if fn == "exp":
            return call("exp", call("min", part(), 2))
        if fn == "div" and dtype.startswith("float"):
            return call("div", part(), rng.choice((2, 3, Fraction(1, 3), -8)))
        args = [part() for _ in range(FUNCTIONS[fn].arity)]
        if rng.random() < 0.2 and len(args) == 2 and fn not in ("div", "mod"):
            args[rng.randint(0, 1)] = self.literal(dtype, axes)
        return Call(fn, tuple(args))

    def test(self, depth: int, axes: tuple[Axis, ...], steps: int) -> Body:
        fn = self.rng.choice(("eq", "lt", "le", "and", "or", "not", "xor"))
        own = "bool" if fn in ("and", "or", "not", "xor") else self.rng.choice(("float32", "int64", "int32"))
        args = [self.body(depth, own, axes, steps) for _ in range(FUNCTIONS[fn].arity)]
        return Call(fn, tuple(a if literal_dtype(a) == own else call(f"to_{own}", a) for a in args))

    def literal(self, dtype: str, axes: tuple[Axis, ...]) -> Body:
        if dtype == "bool":
            return Const(self.rng.random() < 0.5)
        if axes and dtype != "uint8" and self.rng.random() < 0.3:
            return Const(polynomial(self.rng.choice(axes)))
        values: list[Any] = [0, 1, 2, 3]
        values += [] if dtype == "uint8" else [-1]
        values += [Fraction(1, 2), Fraction(-5, 4)] if dtype.startswith("float") else []
        return Const(self.rng.choice(values))

    def index(self, axes: tuple[Axis, ...]) -> Any:
        size: Any = self.rng.choice((0, 0, 0, -1, 1, -2, 2, 5))
        for a in self.rng.sample(axes, min(len(axes), self.rng.choice((0, 1, 1, 1, 2, 2, 3)))):
            step = self.rng.choice((1, 1, 1, 1, 1, 2, 3, -1, -1, -2))
            term: Any = polynomial(a)
            kind = self.rng.random()
            if kind < 0.12:
                term = (term + self.rng.choice((0, 0, 1))) // self.rng.choice((2, 3, 4))
            elif kind < 0.24:
                term = (term + self.rng.choice((0, 0, 1))) % self.rng.choice((2, 3, 4))
            size = size + step * term
        return size if self.rng.random() > 0.08 else (size // 2 if self.rng.random() < 0.5 else size % 3)

    def read(self, depth: int, dtype: str, axes: tuple[Axis, ...]) -> Body:
        """A source of a shape that the indices need, or need not."""
        rng = self.rng
        known = [s for s in self.made if dtype_of(s) == dtype and s.rank <= 3]
        known += [t for t in self.tensors if t.dtype == dtype]  # type: ignore[misc]
        if dtype not in ("bool", "uint8") and rng.random() < 0.06:
            rows = [[rng.randint(-2, 2) for _ in range(3)] for _ in range(rng.randint(1, 2))]
            source: Any = table(rows)
            indices = [self.index(axes), self.index(axes)]
        elif known and rng.random() < 0.35:
            source = rng.choice(known)
            indices = [self.index(axes) for _ in source.shape]
        else:
            rank = rng.choice((0, 1, 1, 2, 2, 3))
            indices = [self.index(axes) for _ in range(rank)]
            shape = self.fitting(indices)
            if depth and rng.random() < 0.6:
                source = self.scope(depth - 1, dtype, shape)
            else:
                source = Tensor(f"x{len(self.tensors)}", shape, dtype)
                self.tensors.append(source)
        for place, n in enumerate(source.shape):
            if rng.random() < 0.05 and n:
                at = Tensor(f"x{len(self.tensors)}", (rng.choice(SIZES),), rng.choice(("int64", "int32")))
                self.tensors.append(at)
                self.places[at] = n - 1
                indices[place] = look(at.padded(0)[self.index(axes)], 0, n - 1)
        places = tuple(polynomial(i) for i in indices)
        inside = all(
            isinstance(low, int) and isinstance(high, int) and low >= 0 and high < n
            for (low, high), n in zip(map(interval, places), source.shape, strict=True)
        )
        return Read(source, places, None if inside and rng.random() < 0.8 else self.outside(dtype))

    def fitting(self, indices: Sequence[Any]) -> tuple[int, ...]:
        """Sizes that hold the indices, about; a first index below 0 is an edge anyway."""
        sizes = []
        for index in indices:
            _, high = interval(polynomial(index))
            size = (high if isinstance(high, int) else 0) + 1 + self.rng.choice((0, 0, 0, 0, -1, 1, -3))
            sizes.append(min(max(size, 1), 40))
        while prod(sizes) > POINTS:
            sizes[sizes.index(max(sizes))] = self.rng.choice((1, 2, 7))
        return tuple(sizes)

    def outside(self, dtype: str) -> Const:
        if dtype == "bool":
            return Const(self.rng.random() < 0.5)
        values: list[Any] = [0, 0, 0, 1, 2]
        values += [Fraction(1, 3)] if dtype.startswith("float") else []
        values += [-inf, inf] if dtype.startswith("float") and self.infinite else []
        return Const(self.rng.choice(values))
