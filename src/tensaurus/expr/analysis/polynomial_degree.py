"""Bound the degree of an expression as a polynomial of everything that it reads, and of one tensor.

Two polynomials that differ agree at a random point of a finite field with probability at most their degree
over the size of the field (Schwartz 1980, Zippel 1979).  A value of an unknown function counts as a fresh
variable of degree 1: the bound needs the largest degree of a result, and of an argument of such a function.

    exp(x*w + b) * y       has degree 2 (a variable times y); the argument of exp, of degree 2, is recorded

`graph/analysis/program_degree` follows degrees through a program with `Degrees`, one scope after another.
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

__all__ = ["DEGREE_0", "DEGREE_1", "Degree", "Degrees", "linear_inputs"]


class Degree(NamedTuple):
    """The degrees of numerator and denominator of a rational function; bottom is 0 for a polynomial."""

    top: float = 0
    bottom: float = 0


DEGREE_0, DEGREE_1 = Degree(), Degree(1)


class Degrees:
    """Records the largest degree of the polynomials that must not vanish by chance (inf beyond floats)."""

    def __init__(self, laws: Laws):
        self.laws = laws
        self.largest = 1.0

    def record(self, degree: Degree) -> Degree:
        """Record that two values of this degree are compared; return the degree of the result, a variable.

        a/b and c/d are equal by chance where ad - bc, b or d vanishes: a product of degree top + 3 * bottom.
        """
        self.largest = max(self.largest, degree.top + 3 * degree.bottom)
        return DEGREE_1

    def of(self, scope: Scope, leaves: Mapping[Tensor, Degree]) -> Degree:
        """Return the degree of the elements of a scope, given those of the tensors that it reads."""
        return _DegreeAnalysis(self, leaves).scope(scope)


class _DegreeAnalysis:
    """The degree of one expression."""

    def __init__(self, degrees: Degrees, leaves: Mapping[Tensor, Degree]):
        self.degrees, self.leaves = degrees, leaves
        self.memo: dict[int, Degree] = {}

    def scope(self, scope: Scope) -> Degree:
        if id(scope) not in self.memo:
            self.memo[id(scope)] = self.body(scope.body)
        return self.memo[id(scope)]

    def body(self, body: Body) -> Degree:
        match body:
            case Const() | Read(Table()):
                return DEGREE_0
            case Read(source, _, _):
                assert not isinstance(source, Table)
                return self.leaves[source] if isinstance(source, Tensor) else self.scope(source)
            case Select(_, then, other):
                return _larger_degree(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                return self.reduction_degree(monoid, _count(axes), self.body(inner))
            case Call(fn, args):
                return self.call_degree(fn, args, [self.body(a) for a in args])
        raise TypeError(type(body))

    def reduction_degree(self, monoid: str, count: float, inner: Degree) -> Degree:
        match monoid:
            case "sum" if not inner.bottom:
                return inner
            case "sum":  # the terms over the product of all denominators
                return Degree(inner.top + (count - 1) * inner.bottom, count * inner.bottom)
            case "prod":
                return Degree(count * inner.top, count * inner.bottom)
        # max or min: one of its elements by the law of order, else an unknown function of them
        return inner if self.degrees.laws.order else self.degrees.record(inner)

    def call_degree(self, fn: str, args: Sequence[Body], degrees: Sequence[Degree]) -> Degree:
        first = degrees[0]
        second = degrees[1] if len(degrees) > 1 else DEGREE_0
        if fn == "neg" or _is_exact_cast(fn, args):
            return first
        if all(degree == DEGREE_0 for degree in degrees):
            return DEGREE_0  # a function of constants
        if fn in ("max", "min") and self.degrees.laws.order:
            return _larger_degree(first, second)
        if fn in ("add", "sub"):
            if not first.bottom and not second.bottom:
                return Degree(max(first.top, second.top))
            top = max(first.top + second.bottom, second.top + first.bottom)
            return Degree(top, first.bottom + second.bottom)
        if fn == "mul":
            return Degree(first.top + second.top, first.bottom + second.bottom)
        if fn == "div":
            if second == DEGREE_0:
                return first
            if self.degrees.laws.inverse or _is_single_element(args[1]):
                return Degree(first.top + second.bottom, first.bottom + second.top)
            self.degrees.record(second)
            return Degree(first.top + 1, first.bottom)  # 1 / second is a value of an unknown function
        # `PrimeField` multiplies out powers up to 64
        if fn == "pow" and isinstance(args[1], Const) and args[1].value in range(65):
            times = int(args[1].value)  # type: ignore[arg-type]
            return Degree(times * first.top, times * first.bottom)
        for degree in degrees:
            self.degrees.record(degree)
        return DEGREE_1


def _larger_degree(a: Degree, b: Degree) -> Degree:
    return Degree(max(a.top, b.top), max(a.bottom, b.bottom))


def _count(axes: Sequence[Any]) -> float:
    """Return the number of points of the axes, where 2^20 stands for an open size."""
    return float(prod(a.extent if isinstance(a.extent, int) else 1 << 20 for a in axes))


def _is_single_element(body: Body) -> bool:
    """Return whether the body is a single element, of which `PrimeFieldPairs` computes the inverse."""
    index_atoms = {a for read in reads(body) for index in read.indices for a in atoms(index)}
    return all(isinstance(a, Axis) and a.extent == 1 for a in index_atoms)


# ------------------------------------------------------------------------------------- in one tensor

_ANY = -1  # the degree of 0, which is homogeneous of every degree


def linear_inputs(scope: Scope) -> frozenset[Tensor]:
    """Return the tensors in which the scope is linear: f(a x + b y) = a f(x) + b f(y)."""
    return frozenset(t for t in tensors(scope) if _HomogeneousDegree(t).scope(scope) == 1)


class _HomogeneousDegree:
    """Computes the degree in one tensor's elements; None where terms differ in degree, or there is none."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.degree_by_scope: dict[int, int | None] = {}

    def scope(self, scope: Scope) -> int | None:
        if id(scope) not in self.degree_by_scope:
            self.degree_by_scope[id(scope)] = self.body(scope.body)
        return self.degree_by_scope[id(scope)]

    def body(self, body: Body) -> int | None:
        if self.is_read_as_index(body):
            return None
        match body:
            case Const(value):
                return _ANY if value == 0 and not isinstance(value, bool) else 0
            case Read(Table(_, values), _, outside):
                table_degree = 0 if any(values) else _ANY
                return (
                    table_degree if outside is None else self.common_degree(table_degree, self.body(outside))
                )
            case Read(source, _, outside):
                inside = self.scope(source) if isinstance(source, Scope) else int(source == self.tensor)
                return inside if outside is None else self.common_degree(inside, self.body(outside))
            case Select(_, then, other):
                return self.common_degree(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                degree = self.body(inner)
                if monoid == "sum" or degree in (0, _ANY):  # the operand is constant in the tensor
                    return degree if monoid == "sum" else 0
                count = prod(a.extent for a in axes)
                return degree * count if monoid == "prod" and degree and isinstance(count, int) else None
            case Call(fn, args):
                return self.call(fn, args)
        raise TypeError(type(body))

    def call(self, fn: str, args: tuple[Body, ...]) -> int | None:
        degrees = [self.body(a) for a in args]
        if fn == "neg" or _is_exact_cast(fn, args):
            return degrees[0]
        if fn in ("add", "sub"):
            return self.common_degree(*degrees)
        if fn == "where" and degrees[0] == 0:  # the condition does not depend on the tensor
            return self.common_degree(*degrees[1:])
        if fn == "mul" and None not in degrees:
            return _ANY if _ANY in degrees else sum(degrees)  # type: ignore[arg-type]
        if fn == "div" and degrees[1] == 0 and not _truncates(args):
            return degrees[0]
        if fn == "pow" and isinstance(args[1], Const) and args[1].value in (1, 2, 3, 4) and degrees[0]:
            return degrees[0] * int(args[1].value)  # type: ignore[arg-type]
        # any function of what does not depend on the tensor
        return 0 if all(f in (0, _ANY) for f in degrees) else None

    def common_degree(self, a: int | None, b: int | None) -> int | None:
        """Return the degree of a sum or select of two parts; None unless these have one degree."""
        if a is None or b is None or (a != b and _ANY not in (a, b)):
            return None
        return max(a, b)

    def is_read_as_index(self, body: Body) -> bool:
        """Return whether an index or a guard is read from the tensor."""
        return any(self.body(a.read) != 0 for s in sizes(body) for a in lookups_in(s))


def _is_exact_cast(fn: str, args: Sequence[Body]) -> bool:
    """Return whether this is a conversion to a float type that changes no number."""
    return is_float(cast_target(fn) or "") and not is_rounding_cast(Call(fn, tuple(args)))


def _truncates(args: tuple[Body, ...]) -> bool:
    """Return whether a quotient is rounded towards zero, as those of integers are."""
    return literal_dtype(Call("div", args)).startswith(("int", "uint"))
