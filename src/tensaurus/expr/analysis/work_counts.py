"""What an expression costs, and which functions it calls: all computed from its records."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import bodies, children, reads, scopes
from tensaurus.expr.sizes.size import Atom, Floor, Size, atoms, evaluate, largest, product


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

    return sum(product(s.shape) * count(s.body) for s in scopes(scope))  # type: ignore[no-any-return]


def functions(scope: Scope) -> Iterator[str]:
    """The scalar functions that it calls, and the monoids that it reduces by; those of inner scopes, too."""
    for body in bodies(scope):
        if isinstance(body, Call):
            yield body.fn
        elif isinstance(body, Reduce):
            yield body.monoid


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

    return sum(count(s.body, product(s.shape)) for s in scopes(scope))  # type: ignore[no-any-return]


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
