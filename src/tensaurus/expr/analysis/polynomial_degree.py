"""Of which degree an expression is: as a polynomial of everything that it reads, and of one tensor.

Two polynomials that differ agree at a random point of a finite field with probability at most their degree
over the size of the field (Schwartz 1980, Zippel 1979).  A value of an unknown function counts as a fresh
variable, so it cuts the degree: what counts is the largest polynomial that is a result or the argument of an
unknown function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tensaurus.expr.evaluate.two_point_field import Laws
from tensaurus.expr.ir.element_types import is_rounding_cast, literal_dtype
from tensaurus.expr.ir.float_conversions import is_float
from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Table, Tensor
from tensaurus.expr.ir.walk import lookups_in, reads, sizes, tensors
from tensaurus.expr.sizes.size import Axis, atoms

__all__ = ["NONE", "ONE", "Degree", "Degrees", "multilinear"]


class Degree(NamedTuple):
    """Of a rational function: its numerator's and its denominator's."""

    top: float = 0
    bottom: float = 0


NONE, ONE = Degree(), Degree(1)


class Degrees:
    """The largest degree of what must not coincide by chance; inf if vast."""

    def __init__(self, laws: Laws):
        self.laws = laws
        self.largest = 1.0

    def met(self, degree: Degree) -> Degree:
        """Two such values, a/b and c/d, are equal by chance where ad - bc, b or d vanishes."""
        self.largest = max(self.largest, degree.top + 3 * degree.bottom)
        return ONE

    def of(self, scope: Scope, leaves: Mapping[Tensor, Degree]) -> Degree:
        """The degree of the elements of a scope, given those of the tensors that it reads."""
        return _Form(self, leaves).scope(scope)


class _Form:
    """The degree of one expression."""

    def __init__(self, walk: Degrees, leaves: Mapping[Tensor, Degree]):
        self.walk, self.leaves = walk, leaves
        self.memo: dict[int, Degree] = {}

    def scope(self, scope: Scope) -> Degree:
        if id(scope) not in self.memo:
            self.memo[id(scope)] = self.body(scope.body)
        return self.memo[id(scope)]

    def body(self, body: Body) -> Degree:
        match body:
            case Const() | Read(Table()):
                return NONE
            case Read(source, _, _):
                assert not isinstance(source, Table)
                return self.leaves[source] if isinstance(source, Tensor) else self.scope(source)
            case Select(_, then, other):
                return _most(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                return self.reduced(monoid, _count(axes), self.body(inner))
            case Call(fn, args):
                return self.called(fn, args, [self.body(a) for a in args])
        raise TypeError(type(body))

    def reduced(self, monoid: str, count: float, inner: Degree) -> Degree:
        match monoid:
            case "sum" if not inner.bottom:
                return inner
            case "sum":
                return Degree(inner.top + (count - 1) * inner.bottom, count * inner.bottom)
            case "prod":
                return Degree(count * inner.top, count * inner.bottom)
        return inner if self.walk.laws.order else self.walk.met(inner)

    def called(self, fn: str, args: Sequence[Body], degrees: Sequence[Degree]) -> Degree:
        first = degrees[0]
        second = degrees[1] if len(degrees) > 1 else NONE
        if fn == "neg" or _keeps(fn, args):
            return first
        if all(degree == NONE for degree in degrees):
            return NONE  # a function of constants
        if fn in ("max", "min") and self.walk.laws.order:
            return _most(first, second)
        if fn in ("add", "sub"):
            if not first.bottom and not second.bottom:
                return Degree(max(first.top, second.top))
            top = max(first.top + second.bottom, second.top + first.bottom)
            return Degree(top, first.bottom + second.bottom)
        if fn == "mul":
            return Degree(first.top + second.top, first.bottom + second.bottom)
        if fn == "div":
            if second == NONE:
                return first
            if self.walk.laws.inverse or _single(args[1]):
                return Degree(first.top + second.bottom, first.bottom + second.top)
            self.walk.met(second)
            return Degree(first.top + 1, first.bottom)
        if fn == "pow" and isinstance(args[1], Const) and args[1].value in range(65):
            times = int(args[1].value)  # type: ignore[arg-type]
            return Degree(times * first.top, times * first.bottom)
        for degree in degrees:
            self.walk.met(degree)
        return ONE


def _most(a: Degree, b: Degree) -> Degree:
    return Degree(max(a.top, b.top), max(a.bottom, b.bottom))


def _count(axes: Sequence[Any]) -> float:
    return float(prod(a.extent if isinstance(a.extent, int) else 1 << 20 for a in axes))


def _single(body: Body) -> bool:
    """Whether the body may be one element, of which `Pairs` knows the inverse."""
    found = {a for read in reads(body) for index in read.indices for a in atoms(index)}
    return all(isinstance(a, Axis) and a.extent == 1 for a in found)


# ------------------------------------------------------------------------------------- in one tensor

_FREE = -1  # the degree of 0: it is homogeneous of every degree


def multilinear(scope: Scope) -> frozenset[Tensor]:
    """The tensors in which the scope is linear: f(a x + b y) = a f(x) + b f(y)."""
    return frozenset(t for t in tensors(scope) if _Homogeneous(t).scope(scope) == 1)


class _Homogeneous:
    """The degree in one tensor's elements; None where there is none, or terms have different ones."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.known: dict[int, int | None] = {}

    def scope(self, scope: Scope) -> int | None:
        if id(scope) not in self.known:
            self.known[id(scope)] = self.body(scope.body)
        return self.known[id(scope)]

    def body(self, body: Body) -> int | None:
        if self.indexed(body):
            return None
        match body:
            case Const(value):
                return _FREE if value == 0 and not isinstance(value, bool) else 0
            case Read(Table(_, values), _, outside):
                known = 0 if any(values) else _FREE
                return known if outside is None else self.joined(known, self.body(outside))
            case Read(source, _, outside):
                inside = self.scope(source) if isinstance(source, Scope) else int(source == self.tensor)
                return inside if outside is None else self.joined(inside, self.body(outside))
            case Select(_, then, other):
                return self.joined(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                found = self.body(inner)
                if monoid == "sum" or found in (0, _FREE):
                    return found if monoid == "sum" else 0
                count = prod(a.extent for a in axes)
                return found * count if monoid == "prod" and found and isinstance(count, int) else None
            case Call(fn, args):
                return self.call(fn, args)
        raise TypeError(type(body))

    def call(self, fn: str, args: tuple[Body, ...]) -> int | None:
        found = [self.body(a) for a in args]
        if fn == "neg" or _keeps(fn, args):
            return found[0]
        if fn in ("add", "sub"):
            return self.joined(*found)
        if fn == "where" and found[0] == 0:
            return self.joined(*found[1:])
        if fn == "mul" and None not in found:
            return _FREE if _FREE in found else sum(found)  # type: ignore[arg-type]
        if fn == "div" and found[1] == 0 and not _truncates(args):
            return found[0]
        if fn == "pow" and isinstance(args[1], Const) and args[1].value in (1, 2, 3, 4) and found[0]:
            return found[0] * int(args[1].value)  # type: ignore[arg-type]
        return 0 if all(f in (0, _FREE) for f in found) else None

    def joined(self, a: int | None, b: int | None) -> int | None:
        if a is None or b is None or (a != b and _FREE not in (a, b)):
            return None
        return max(a, b)

    def indexed(self, body: Body) -> bool:
        """True where an index or a guard is read from the tensor."""
        return any(self.body(a.read) != 0 for s in sizes(body) for a in lookups_in(s))


def _keeps(fn: str, args: Sequence[Body]) -> bool:
    """Whether it is a conversion to floating-point numbers that keeps every number."""
    return is_float(cast_target(fn) or "") and not is_rounding_cast(Call(fn, tuple(args)))


def _truncates(args: tuple[Body, ...]) -> bool:
    """A quotient of integer tensors is rounded towards zero."""
    return literal_dtype(Call("div", args)).startswith(("int", "uint"))
