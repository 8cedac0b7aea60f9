"""Bodies without what is trivial: neutral elements, arithmetic on literals, reductions inside reductions.

    sum[r:2](sum[s:3](add(x[r, s], 0)))   ->   sum[r:2, s:3](x[r, s])

No name is bound twice on one path in the result, and scopes that are read have been mapped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from tensaurus.expr.ir.element_types import literal_dtype
from tensaurus.expr.ir.scalar_functions import VARIADIC
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, axis
from tensaurus.expr.ir.walk import Rewriting, operands, replace_axes
from tensaurus.expr.sizes.size import Axis, Number, Poly, polynomial

# the order of literals is not used, GF(p) has none: a maximum of numbers stays one
NEUTRAL: dict[str, Any] = {
    "add": 0, "mul": 1, "max": float("-inf"), "min": float("inf"), "and": True, "or": False,
}  # fmt: skip


class Trivial(Rewriting):
    """A rewriting of what stands in one scope; `mapped` is what becomes of those that it reads.

    `literals`: neutral ones go, and arithmetic on them is done, which may turn reals into an integer.
    """

    def __init__(self, mapped: Callable[[Scope], Scope], axes: Sequence[Axis], literals: bool = True):
        super().__init__()
        self.mapped, self.literals = mapped, literals
        self.bound = frozenset(a.name for a in axes)

    def source(self, source: Source) -> Source:
        return self.mapped(source) if isinstance(source, Scope) else source

    def body(self, body: Body) -> Body:
        match body:
            case Read():
                return self.element(self.read(body))
            case Call(fn, args) if fn in VARIADIC:
                return self.chain(fn, [self.body(a) for a in operands(body)])
            case Call(fn, args):
                return self.call(fn, [self.body(a) for a in args])
            case Select():
                return self.select(body)
            case Reduce(monoid, axes, inner):
                return self.reduction(monoid, axes, inner)
        return super().body(body)

    def element(self, read: Read) -> Body:
        """An element of a table, where it is known which."""
        if self.literals and isinstance(read.source, Table) and all(isinstance(i, int) for i in read.indices):
            found = read.source.element(read.indices)  # type: ignore[arg-type]
            return read if found is None else Const(found)
        return read

    def chain(self, fn: str, args: Sequence[Body]) -> Body:
        flat = [part for arg in args for part in operands(arg, fn)]
        if self.literals and fn in ("add", "mul"):
            flat = _folded(operator.add if fn == "add" else operator.mul, flat)
        if self.literals:
            flat = [arg for arg in flat if not _is(arg, NEUTRAL[fn])] or flat[:1]
        return reduce(lambda a, b: Call(fn, (a, b)), flat)

    def call(self, fn: str, args: Sequence[Body]) -> Body:
        numbers: list[Any] = [a.value for a in args if isinstance(a, Const) and _plain(a.value)]
        if self.literals and len(numbers) == len(args):
            match fn, numbers:
                case "neg", [a]:
                    return Const(-a)
                case "sub", [a, b]:
                    return Const(a - b)
                case "div", [a, b] if b != 0:
                    return Const(Fraction(a) / b)
        if self.literals and (fn == "sub" and _is(args[1], 0) or fn == "div" and _is(args[1], 1)):
            return args[0]
        return Call(fn, tuple(args))

    def select(self, select: Select) -> Body:
        guard = dict.fromkeys(self.size(size) for size in select.guard)
        left = tuple(size for size in guard if not isinstance(size, int) or size < 0)
        then, other = self.body(select.then), self.body(select.other)
        found = Select(left, then, other)
        never = any(isinstance(size, int) for size in left)
        if left and not never:
            return found
        chosen = other if never else then
        # where(0 >= 0, 7, x) / 2 is truncated as x is, and 7 / 2 is not
        return chosen if literal_dtype(chosen) == literal_dtype(found) else found

    def reduction(self, monoid: str, axes: tuple[Axis, ...], inner: Body) -> Body:
        around = self.bound
        fresh: tuple[Axis, ...] = ()
        for a in axes:
            fresh += (axis(a.extent, "r") if a.name in self.bound else a,)
            self.bound |= {fresh[-1].name}
        pairs = zip(axes, fresh, strict=True)
        body = self.body(replace_axes(inner, {a: polynomial(b) for a, b in pairs if a is not b}))
        self.bound = around
        if isinstance(body, Reduce) and body.monoid == monoid:
            fresh, body = fresh + body.axes, body.body
        return Reduce(monoid, fresh, body) if fresh else body


def _plain(value: Any) -> bool:
    return isinstance(value, (int, Fraction)) and not isinstance(value, bool)


def _is(body: Body, value: Any) -> bool:
    """Whether it is this literal; True is not 1."""
    return isinstance(body, Const) and type(body.value) is type(value) and body.value == value


def _folded(combine: Callable[[Any, Any], Any], args: Sequence[Body]) -> list[Body]:
    """The arguments with their numbers combined to one, and sizes to one: 1/2 of a size is no size."""
    numbers: list[Number] = []
    whole: list[Poly] = []
    others: list[Body] = []
    for arg in args:
        value = arg.value if isinstance(arg, Const) else None
        if _plain(value):
            numbers.append(value)  # type: ignore[arg-type]
        elif isinstance(value, Poly):
            whole.append(value)
        else:
            others.append(arg)
    literals: list[Any] = [reduce(combine, numbers)] if numbers else []
    if whole:
        literals.append(reduce(combine, whole))
        if numbers and Fraction(literals[0]).denominator == 1:
            literals = [combine(literals[1], int(literals[0]))]
    return others + [Const(value) for value in literals]
