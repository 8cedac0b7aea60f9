"""What an expression costs and of which degree it is: all computed from its records."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from tensaurus.algebra.expr import (
    Body,
    Call,
    Const,
    Looked,
    Read,
    Reduce,
    Scope,
    Select,
    Tensor,
    children,
    reads,
    sizes,
    tensors,
)
from tensaurus.algebra.functions import ORDER, cast_target
from tensaurus.algebra.size import Atom, Floor, Size, atoms, evaluate, largest, product
from tensaurus.algebra.typing import literal_dtype

_FREE = -1  # the degree of 0: it is homogeneous of every degree
Quotient: TypeAlias = tuple[int, int]  # degrees of numerator and denominator


def flops(scope: Scope) -> Size:
    """Scalar functions evaluated plus steps of reductions, over all elements.

    An inner scope counts once per element of its own, however often it is read; of a guarded choice the
    dearer branch counts; indices and conversions count nothing.
    """

    def count(body: Body) -> Any:
        match body:
            case Call(fn, args):
                return sum(map(count, args)) + (cast_target(fn) is None)
            case Select(_, then, other):
                return largest(count(then), count(other))
            case Reduce(_, axes, nested):
                return product(a.extent for a in axes) * (count(nested) + 1)
        return 0

    return sum(product(s.shape) * count(s.body) for s in _scopes(scope))  # type: ignore[no-any-return]


def _scopes(scope: Scope) -> list[Scope]:
    """The scope and those that it reads, directly or not, each once."""
    inner: dict[int, Scope] = {}

    def collect(body: Body) -> None:
        for item in reads(body):
            if isinstance(item.source, Scope) and id(item.source) not in inner:
                inner[id(item.source)] = item.source
                collect(item.source.body)

    collect(scope.body)
    return [scope, *inner.values()]


def functions(scope: Scope) -> Iterator[str]:
    """The scalar functions that it calls, and the monoids that it reduces by; those of inner scopes, too."""
    for inner in _scopes(scope):
        waiting = [inner.body]
        while waiting:
            body = waiting.pop()
            if isinstance(body, Call):
                yield body.fn
            elif isinstance(body, Reduce):
                yield body.monoid
            waiting.extend(children(body))


def multiply_adds(scope: Scope) -> Size:
    """Products that are added up, over all elements: what convolutions and matrix products do.

    One of the same two elements counts once. As is usual, zeros beyond the edges count; zeros between the
    elements of a factor (a transposed convolution has them) do not.
    """

    def count(body: Body, points: Any) -> Any:
        if not isinstance(body, Reduce):
            return sum(count(child, points) for child in children(body))
        points = points * product(axis.extent for axis in body.axes)
        factors = _factors(body.body) if body.monoid == "sum" else None
        return count(body.body, points) + (0 if factors is None else _products(factors, points))

    return sum(count(s.body, product(s.shape)) for s in _scopes(scope))  # type: ignore[no-any-return]


def _factors(term: Body) -> tuple[Read, ...] | None:
    """What a term of a sum multiplies; None where it is no product."""
    match term:
        case Call("mul", args):
            return tuple(item for arg in args for item in reads(arg))
        case Reduce():
            return None
    return next((found for child in children(term) if (found := _factors(child)) is not None), None)


def _products(factors: tuple[Read, ...], points: Any) -> Any:
    """How many products there are where the term is evaluated at so many points."""
    amounts = []
    for read in factors:
        density = _density(read.source) if isinstance(read.source, Scope) else Fraction(1)
        points = points * density
        amounts.append(product(read.source.shape) * density)
    if len(factors) != 2:
        return points
    # Two elements meet where they agree on the indices that both reads share.
    first, second = (dict(zip(read.indices, read.source.shape, strict=True)) for read in factors)
    shared = product(extent for index, extent in first.items() if second.get(index) == extent)
    pairs = [*amounts, shared, points]
    if not all(isinstance(amount, int | Fraction) for amount in pairs) or not shared:
        return points
    return min(points, amounts[0] * amounts[1] / Fraction(shared))


def _density(scope: Scope) -> Fraction:
    """The share of the elements that a guard of the whole body does not set to 0; 1 where sizes are open."""
    body = scope.body
    if not isinstance(body, Select) or body.other != Const(0):
        return Fraction(1)
    found = {atom for size in body.guard for atom in atoms(size) if not isinstance(atom, Floor)}
    axes = [axis for axis in scope.axes if axis in found]
    extents = [axis.extent for axis in axes if isinstance(axis.extent, int)]
    if len(extents) < len(found):
        return Fraction(1)
    grid = np.indices(tuple(extents), sparse=True)
    place: dict[Atom, Any] = dict(zip(axes, grid, strict=True))
    held = reduce(np.logical_and, (evaluate(size, place.__getitem__) >= 0 for size in body.guard))
    points = np.broadcast_to(held, tuple(extents))
    return Fraction(int(points.sum()), max(1, points.size))


def degree(scope: Scope, tensor: Tensor) -> int | None:
    """The degree of every element as a polynomial in the tensor's elements; None where it is none."""
    found = _Degrees(tensor, homogeneous=False).scope(scope)
    return 0 if found == _FREE else found


def multilinear(scope: Scope) -> frozenset[Tensor]:
    """The tensors in which the scope is linear: f(a x + b y) = a f(x) + b f(y)."""
    return frozenset(t for t in tensors(scope) if _Degrees(t, homogeneous=True).scope(scope) == 1)


class _Degrees:
    """Degrees in one tensor's elements; homogeneous: None too where terms have different degrees."""

    def __init__(self, tensor: Tensor, homogeneous: bool):
        self.tensor, self.homogeneous = tensor, homogeneous
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
            case Read(source, _, outside):
                inside = self.scope(source) if isinstance(source, Scope) else int(source == self.tensor)
                return inside if outside is None else self.joined(inside, self.body(outside))
            case Select(_, then, other):
                return self.joined(self.body(then), self.body(other))
            case Reduce(monoid, axes, inner):
                found = self.body(inner)
                if monoid == "sum" or found in (0, _FREE):
                    return found if monoid == "sum" else 0
                count = product(a.extent for a in axes)
                return found * count if monoid == "prod" and found and isinstance(count, int) else None
            case Call(fn, args):
                return self.call(fn, args)
        raise TypeError(type(body))

    def call(self, fn: str, args: tuple[Body, ...]) -> int | None:
        found = [self.body(a) for a in args]
        target = cast_target(fn)
        if fn in ("neg",) or (target is not None and target.startswith(("float", "bfloat"))):
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
        if a is None or b is None:
            return None
        if self.homogeneous and a != b and _FREE not in (a, b):
            return None
        return max(a, b)

    def indexed(self, body: Body) -> bool:
        """True where an index or a guard is read from the tensor."""
        looked = (a for s in sizes(body) for a in atoms(s) if isinstance(a, Looked))
        return any(self.body(a.read) != 0 for a in looked)


def _truncates(args: tuple[Body, ...]) -> bool:
    """A quotient of integer tensors is rounded towards zero."""
    return literal_dtype(Call("div", args)).startswith(("int", "uint"))


def total_degree(scope: Scope) -> int | None:
    """A number d with: two scopes that differ agree at a random point of GF(p) with probability at most
    (d1 + d2) / p per trial (Schwartz-Zippel), and None where d depends on a symbolic extent.

    d is the degree of the numerator plus twice that of the denominator: a/b = c/d is tested as ad - bc,
    and where b or d is 0 the test says nothing.  An unknown function is a fresh variable, since it has an
    independent value at every argument: that is exact unless two arguments, different as polynomials, meet
    at the random point, which adds at most (their degree) / p for each pair of applications.  max and min
    return one of their arguments, in an order that is independent of them.
    """
    known: dict[int, Quotient | None] = {}

    def of(body: Body) -> Quotient | None:
        match body:
            case Const():
                return 0, 0
            case Read(Scope() as source, _, _):
                if id(source) not in known:
                    known[id(source)] = of(source.body)
                return known[id(source)]
            case Read():
                return 1, 0
            case Reduce(monoid, axes, inner):
                return _reduced(monoid, of(inner), product(a.extent for a in axes))
        found = [of(child) for child in children(body)]
        if None in found:
            return None
        parts: list[Quotient] = [f for f in found if f is not None]
        if isinstance(body, Select):
            return max(n for n, _ in parts), max(d for _, d in parts)
        assert isinstance(body, Call)
        return _applied(body, parts)

    found = of(scope.body)
    return None if found is None else found[0] + 2 * found[1]


def _applied(body: Call, parts: list[Quotient]) -> Quotient:
    if body.fn in ("add", "sub"):
        (n, d), (m, e) = parts
        return max(n + e, m + d), d + e
    if body.fn == "mul":
        return sum(n for n, _ in parts), sum(d for _, d in parts)
    if body.fn == "div":
        (n, d), (m, e) = parts
        return n + e, d + m
    if body.fn == "neg" or body.fn in ORDER or body.fn == "where" or cast_target(body.fn):
        return max(n for n, _ in parts), max(d for _, d in parts)
    if body.fn == "pow" and isinstance(body.args[1], Const) and body.args[1].value in range(65):
        times = int(body.args[1].value)  # type: ignore[arg-type]
        return parts[0][0] * times, parts[0][1] * times
    return 1, 0


def _reduced(monoid: str, found: Quotient | None, count: Size) -> Quotient | None:
    if found is None or monoid in ORDER or found == (0, 0) or (monoid == "sum" and found[1] == 0):
        return found
    if not isinstance(count, int) or count == 0:
        return None if count != 0 else (0, 0)
    # n1/d1 + n2/d2 + ... over the common denominator d1 d2 ...
    n, d = found
    return (n + (count - 1) * d, count * d) if monoid == "sum" else (n * count, d * count)
