"""Simplify a body: drop neutral elements, compute with literals, merge nested reductions.

    sum[r:2](sum[s:3](add(x[r, s], 0)))   ->   sum[r:2, s:3](x[r, s])

In the result no reduction binds a name that is bound around it.  The caller gives a function that replaces
each scope that is read: `expr.normal.intern` interns scopes so, the innermost first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from tensaurus.expr.ir.element_types import literal_dtype
from tensaurus.expr.ir.scalar_functions import ASSOCIATIVE
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Source, Table, axis
from tensaurus.expr.ir.walk import Rewriting, operands, replace_axes
from tensaurus.expr.sizes.size import Axis, Number, Poly, polynomial

# operands that are dropped; but max(2, 3) stays: GF(p) has no order, and the result must hold in every field
NEUTRAL_OPERANDS: dict[str, Any] = {
    "add": 0, "mul": 1, "max": float("-inf"), "min": float("inf"), "and": True, "or": False,
}  # fmt: skip


class Simplification(Rewriting):
    """Simplifies the bodies of one scope; `map_scope` is applied to the scopes that it reads.

    With `literals`, neutral literals are dropped and arithmetic on literals is done.  That may change a type,
    as 1/2 + 1/2 is an integer: the caller compares types.
    """

    def __init__(self, map_scope: Callable[[Scope], Scope], axes: Sequence[Axis], literals: bool = True):
        super().__init__()
        self.map_scope, self.literals = map_scope, literals
        self.bound = frozenset(a.name for a in axes)

    def source(self, source: Source) -> Source:
        return self.map_scope(source) if isinstance(source, Scope) else source

    def body(self, body: Body) -> Body:
        match body:
            case Read():
                return self.element(self.read(body))
            case Call(fn, args) if fn in ASSOCIATIVE:
                return self.chain(fn, [self.body(a) for a in operands(body)])
            case Call(fn, args):
                return self.call(fn, [self.body(a) for a in args])
            case Select():
                return self.select(body)
            case Reduce(monoid, axes, inner):
                return self.reduction(monoid, axes, inner)
        return super().body(body)

    def element(self, read: Read) -> Body:
        """Return the number that an element of a table is, where its indices are numbers."""
        if self.literals and isinstance(read.source, Table) and all(isinstance(i, int) for i in read.indices):
            number = read.source.element(read.indices)  # type: ignore[arg-type]
            return read if number is None else Const(number)
        return read

    def chain(self, fn: str, args: Sequence[Body]) -> Body:
        flat_args = [operand for arg in args for operand in operands(arg, fn)]
        if self.literals and fn in ("add", "mul"):
            flat_args = _fold_literals(operator.add if fn == "add" else operator.mul, flat_args)
        if self.literals:  # drop neutral operands; one stays if there is no other
            flat_args = [arg for arg in flat_args if not _is_literal(arg, NEUTRAL_OPERANDS[fn])] or flat_args[
                :1
            ]
        return reduce(lambda a, b: Call(fn, (a, b)), flat_args)

    def call(self, fn: str, args: Sequence[Body]) -> Body:
        numbers: list[Any] = [a.value for a in args if isinstance(a, Const) and _is_number(a.value)]
        if self.literals and len(numbers) == len(args):
            match fn, numbers:
                case "neg", [a]:
                    return Const(-a)
                case "sub", [a, b]:
                    return Const(a - b)
                case "div", [a, b] if b != 0:
                    return Const(Fraction(a) / b)
        if self.literals and (
            fn == "sub" and _is_literal(args[1], 0) or fn == "div" and _is_literal(args[1], 1)
        ):
            return args[0]
        return Call(fn, tuple(args))

    def select(self, select: Select) -> Body:
        guard = dict.fromkeys(self.size(size) for size in select.guard)
        undecided = tuple(size for size in guard if not isinstance(size, int) or size < 0)
        then, other = self.body(select.then), self.body(select.other)
        simplified = Select(undecided, then, other)
        is_never = any(isinstance(size, int) for size in undecided)
        if undecided and not is_never:
            return simplified
        branch = other if is_never else then  # the guard is decided: one branch replaces the select
        # where(0 >= 0, 7, x) has the integer type of x; 7 alone has no type, and 7 / 2 would not be truncated
        return branch if literal_dtype(branch) == literal_dtype(simplified) else simplified

    def reduction(self, monoid: str, axes: tuple[Axis, ...], inner: Body) -> Body:
        """Return the reduction merged with one by its monoid inside, axes renamed where names are bound."""
        outer_names = self.bound
        fresh: tuple[Axis, ...] = ()
        for a in axes:
            fresh += (axis(a.extent, "r") if a.name in self.bound else a,)
            self.bound |= {fresh[-1].name}
        pairs = zip(axes, fresh, strict=True)
        body = self.body(replace_axes(inner, {a: polynomial(b) for a, b in pairs if a is not b}))
        self.bound = outer_names
        if isinstance(body, Reduce) and body.monoid == monoid:
            fresh, body = fresh + body.axes, body.body
        return Reduce(monoid, fresh, body) if fresh else body


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Fraction)) and not isinstance(value, bool)


def _is_literal(body: Body, value: Any) -> bool:
    """Return whether the body is this literal; True is not 1."""
    return isinstance(body, Const) and type(body.value) is type(value) and body.value == value


def _fold_literals(combine: Callable[[Any, Any], Any], args: Sequence[Body]) -> list[Body]:
    """Combine the numbers among the operands to one, and the symbolic sizes to one.

    A fraction and a size stay two literals: half a size need not be a size.
    """
    numbers: list[Number] = []
    symbolic: list[Poly] = []
    others: list[Body] = []
    for arg in args:
        value = arg.value if isinstance(arg, Const) else None
        if _is_number(value):
            numbers.append(value)  # type: ignore[arg-type]
        elif isinstance(value, Poly):
            symbolic.append(value)
        else:
            others.append(arg)
    literals: list[Any] = [reduce(combine, numbers)] if numbers else []
    if symbolic:
        literals.append(reduce(combine, symbolic))
        if numbers and Fraction(literals[0]).denominator == 1:
            literals = [combine(literals[1], int(literals[0]))]
    return others + [Const(value) for value in literals]
