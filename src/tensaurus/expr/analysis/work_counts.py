"""Count the work of an expression, from which times are estimated, and list the functions that it calls.

    L[m:M, n:N](sum[k:K](a[m, k] * b[k, n]))      flops 2*M*N*K,  multiply-adds M*N*K,  functions mul, sum

Counts are sizes: numbers, or polynomials where the expression has open sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from tensaurus.expr.ir.scalar_functions import cast_target
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import bodies, children, reads, scopes
from tensaurus.expr.sizes.size import Atom, Floor, Size, atoms, evaluate, largest, product


def flops(scope: Scope) -> Size:
    """Return the number of scalar function calls plus steps of reductions, over all elements.

    An inner scope counts once per element of its own, however often it is read; of a select the dearer branch
    counts; indices and conversions count nothing.  Products with zeros that are put between elements, as
    strides of a transposed convolution put them, count nothing: kernels leave them out.
    """

    def count(body: Body) -> Any:
        match body:
            case Call(fn, args):
                return sum(map(count, args)) + (cast_target(fn) is None)
            case Select(_, then, other):
                return largest(count(then), count(other))
            case Reduce(_, axes, nested):
                density = reduce(mul, map(_source_density, _factors(nested) or ()), Fraction(1))
                return product(a.extent for a in axes) * density * (count(nested) + 1)
        return 0

    return sum(product(s.shape) * count(s.body) for s in scopes(scope))  # type: ignore[no-any-return]


def called_functions(scope: Scope) -> Iterator[str]:
    """Yield the scalar functions that a scope calls, and the monoids it reduces by, inner scopes included."""
    for body in bodies(scope):
        if isinstance(body, Call):
            yield body.fn
        elif isinstance(body, Reduce):
            yield body.monoid


def multiply_adds(scope: Scope) -> Size:
    """Return the number of products that are added up, over all elements, as in convolutions.

    If the same pair of elements is multiplied at several points, it counts once.  As is usual, zeros beyond
    the edges count; zeros between the elements of a factor, as in a transposed convolution, do not.
    """

    def count(body: Body, points: Any) -> Any:
        if not isinstance(body, Reduce):
            return sum(count(child, points) for child in children(body))
        points = points * product(axis.extent for axis in body.axes)
        factors = _factors(body.body) if body.monoid == "sum" else None
        return count(body.body, points) + (0 if factors is None else _product_count(factors, points))

    return sum(count(s.body, product(s.shape)) for s in scopes(scope))  # type: ignore[no-any-return]


def product_sizes(scope: Scope) -> tuple[tuple[Any, ...], ...]:
    """Return the sizes of each sum of products: of its results, of its sum, and of what it multiplies.

    They are equal for expressions that differ only in what is done with the sums:

    L[m:M, n:N](max(0, sum[k:K](a[m, k] * b[k, n])))      (((M, N), (K,), ((M, K), (K, N))),)
    """
    return tuple(
        (inner.shape, tuple(axis.extent for axis in body.axes), _shapes(factors))
        for inner in scopes(scope)
        for body in bodies(inner.body, nested=False)
        if isinstance(body, Reduce) and body.monoid == "sum" and (factors := _factors(body.body)) is not None
    )


def _shapes(factors: tuple[Read, ...]) -> tuple[Any, ...]:
    """Return the shapes of what the factors read, in an order that does not depend on theirs."""
    return tuple(sorted((read.source.shape for read in factors), key=str))


def _factors(term: Body) -> tuple[Read, ...] | None:
    """Return the reads that a term of a sum multiplies; None where it is no product."""
    match term:
        case Call("mul", args):
            return tuple(item for arg in args for item in reads(arg))
        case Reduce():
            return None
    return next((factors for child in children(term) if (factors := _factors(child)) is not None), None)


def _product_count(factors: tuple[Read, ...], points: Any) -> Any:
    """Return how many of the products at these points count: not those with zeros, and no pair twice."""
    amounts = []  # of each factor the elements that are not zeros put in between
    for read in factors:
        density = _source_density(read)
        points = points * density
        amounts.append(product(read.source.shape) * density)
    if len(factors) != 2:
        return points
    # pairs of elements that agree on the indices which both reads share: first * second / shared
    first, second = (dict(zip(read.indices, read.source.shape, strict=True)) for read in factors)
    shared = product(extent for index, extent in first.items() if second.get(index) == extent)
    counts = [*amounts, shared, points]
    if not all(isinstance(amount, int | Fraction) for amount in counts) or not shared:
        return points  # with symbols, or without elements, there is no smaller number
    return min(points, amounts[0] * amounts[1] / Fraction(shared))


def _source_density(read: Read) -> Fraction:
    """Return the fraction of elements that are not zeros put in between, of what a read takes them from."""
    return _density(read.source) if isinstance(read.source, Scope) else Fraction(1)


def _density(scope: Scope) -> Fraction:
    """Return the fraction of elements that a guard of the whole body does not set to 0; 1 for open sizes."""
    body = scope.body
    if not isinstance(body, Select) or body.other != Const(0):
        return Fraction(1)
    guard_atoms = {atom for size in body.guard for atom in atoms(size) if not isinstance(atom, Floor)}
    axes = [axis for axis in scope.axes if axis in guard_atoms]
    extents = [axis.extent for axis in axes if isinstance(axis.extent, int)]
    if len(extents) < len(guard_atoms):
        return Fraction(1)
    grid = np.indices(tuple(extents), sparse=True)
    point: dict[Atom, Any] = dict(zip(axes, grid, strict=True))
    holds = reduce(np.logical_and, (evaluate(size, point.__getitem__) >= 0 for size in body.guard))
    kept = np.broadcast_to(holds, tuple(extents))
    return Fraction(int(kept.sum()), max(1, kept.size))
