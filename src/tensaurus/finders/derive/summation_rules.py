"""Derivation rules on summations (EINNET, section 4.1).

    split        sum[r, c](...)          ->   sum[r](sum[c](...)), the inner sum in a scope of its own
    divided      sum[r:4](...)           ->   sum[r1:2, r2:2](...)
    reindexed    sum[m](A[m - r] * ...)  ->   sum[j](A[j] * ...)
    collapsed    a guard leaves one value of r:  sum[r](...)  ->  ...
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, axis, digit_axes, within
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    is_nonnegative,
    mod,
    polynomial,
    substitute,
)
from tensaurus.finders.derive.iterator_periods import candidate_periods
from tensaurus.finders.derive.rewrite_step import (
    Product,
    Step,
    as_nested_read,
    axes_in,
    base_name,
    outermost_reductions,
    product_of,
)

__all__ = ["collapsed", "divided", "reindexed", "split"]


def split(scope: Scope) -> Iterator[Step]:
    """Summation splitting: computes the inner part of a summation once, in a scope of its own.

        L[h, f](sum[r, c](A[h + r, c] * K[r, f, c]))
     -> L[h, f](sum[r]({L[r, h, f](sum[c](A[h + r, c] * K[r, f, c]))}[r, h, f]))

    Factors and guards that do not depend on the inner axes stay outside.
    """
    for whole, put in outermost_reductions(scope.body):
        for inner in _nonempty_subsets(whole.axes):
            if len(inner) == len(whole.axes) and whole is scope.body:
                continue  # the inner scope would be the whole one
            outer = tuple(a for a in whole.axes if a not in inner)
            outside, inside = _factor_out(whole, inner)
            if literal_dtype(inside.body) != dtype_of(scope):
                continue  # literals alone take their type from what is beside them
            read = as_nested_read((*outer, *scope.axes), Reduce(whole.monoid, inner, inside.body))
            body = Product(outside.guards, (*outside.factors, read)).body
            names = f"{_names(outer)} | {_names(inner)}"
            yield Step("summation splitting", names, Scope(scope.axes, put(_reduce(whole, outer, body))))


def _nonempty_subsets(axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, ...]]:
    return chain.from_iterable(combinations(axes, n) for n in range(1, len(axes) + 1))


def _names(axes: tuple[Axis, ...]) -> str:
    return ", ".join(map(str, axes))


def _reduce(whole: Reduce, axes: tuple[Axis, ...], body: Body) -> Body:
    return Reduce(whole.monoid, axes, body) if axes else body


def _factor_out(whole: Reduce, inner: tuple[Axis, ...]) -> tuple[Product, Product]:
    """Return factors and guards that do not depend on the inner axes (of sums only), and the others."""
    if whole.monoid != "sum":
        return Product((), ()), Product((), (whole.body,))
    guards, factors = product_of(whole.body)
    independent, dependent = (
        Product(
            tuple(guard for guard in guards if axes_in(guard).isdisjoint(inner) is is_outside),
            tuple(factor for factor in factors if axes_in(factor).isdisjoint(inner) is is_outside),
        )
        for is_outside in (True, False)
    )
    return independent, dependent


def divided(scope: Scope) -> Iterator[Step]:
    """Variable substitution in a summation: replaces an iterator by quotient and remainder.

    The range is relaxed to a multiple of the divisor, and a guard makes the additional terms zero.

        sum[r:5](A[h + r] * K[r])
     -> sum[r1:2, r2:3](A[h + 3*r1 + r2] * K[3*r1 + r2] if 3*r1 + r2 < 5 else 0)
    """
    for whole, put in outermost_reductions(scope.body):
        for a in whole.axes:
            for step in candidate_periods(scope, a, summation=True):
                high, low, place = digit_axes(a, step, base_name(a))
                body = replace_axes(whole.body, {a: place})
                if high.extent * step != a.extent:
                    if whole.monoid != "sum":
                        continue
                    body = Select((a.extent - 1 - place,), body, Const(0))
                axes = tuple(chain.from_iterable((high, low) if b == a else (b,) for b in whole.axes))
                new = Scope(scope.axes, put(Reduce(whole.monoid, axes, body)))
                yield Step("variable substitution", f"{a} by its digits, {step} of the lower", new)


def reindexed(scope: Scope) -> Iterator[Step]:
    """Variable substitution in a summation: replaces an iterator by the affine index that contains it.

        sum[m:8](A[m - r] * B[m])   ->   sum[j:5](A[j] * B[j + r])      A of 5 elements, 0 <= r < 4

    The sum over the values of the index is complete: beyond the edges of A the product is zero.
    """
    for whole, put in outermost_reductions(scope.body):
        guards, factors = product_of(whole.body)
        if whole.monoid != "sum":
            continue
        for a, index, extent in _shifted_indices(factors, whole.axes):
            form = affine_coefficients(index, [a])
            assert form is not None
            j = axis(extent, base_name(a))
            place = (polynomial(j) - form.rest) * form.slopes[a]  # the slope is 1 or -1
            values: dict[Atom, Any] = {a: place}
            inside = [guard for guard in within(place, 0, a.extent) if not is_nonnegative(guard)]
            moved = (*inside, *(substitute(guard, values) for guard in guards))
            body = Product(moved, tuple(replace_axes(factor, values) for factor in factors)).body
            axes = tuple(j if b == a else b for b in whole.axes)
            new = Scope(scope.axes, put(Reduce(whole.monoid, axes, body)))
            yield Step("variable substitution", f"{index} for {a}", new)


def _shifted_indices(factors: tuple[Body, ...], axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, Size, Size]]:
    """Yield (summation iterator, index, extent) for indices that add traversal iterators to the iterator."""
    for factor in factors:
        if not isinstance(factor, Read) or factor.outside != Const(0):
            continue
        for index, extent in zip(factor.indices, factor.source.shape, strict=True):
            for a in axes_in(index).intersection(axes):
                form = affine_coefficients(index, [a])
                if form is None or form.slopes.get(a) not in (1, -1):
                    continue
                if axes_in(form.rest) and axes_in(form.rest).isdisjoint(axes):
                    yield a, index, extent


def collapsed(scope: Scope) -> Iterator[Step]:
    """Boundary tightening in a summation: removes an iterator of which a guard allows one value.

        sum[r:2](x[r] if (h + r) % 2 == 0 else 0)   ->   x[(-h) % 2]
    """
    for whole, put in outermost_reductions(scope.body):
        if whole.monoid != "sum":
            continue
        guards, factors = product_of(whole.body)
        for guard in guards:
            for a, value in _single_values(guard, whole.axes):
                values: dict[Atom, Any] = {a: value}
                others = tuple(substitute(g, values) for g in guards if g != guard)
                body = Product(others, tuple(replace_axes(f, values) for f in factors)).body
                axes = tuple(b for b in whole.axes if b != a)
                new = Scope(scope.axes, put(_reduce(whole, axes, body)))
                yield Step("boundary tightening", f"{a} = {value}", new)


def _single_values(guard: Size, axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, Size]]:
    """Yield an axis a of k values and the only value at which the guard holds, which is: k divides a + e.

    Such a guard reads k * ((a + e) // k) - (a + e) >= 0.
    """
    for floor in atoms(guard):
        if not isinstance(floor, Floor) or not isinstance(floor.bottom, int):
            continue
        divisor, top = floor.bottom, floor.top
        if polynomial(guard) != polynomial(floor) * divisor - top:
            continue
        for a in axes:
            form = affine_coefficients(top, [a])
            if form is None or a.extent != divisor or form.slopes.get(a) not in (1, -1):
                continue
            rest = form.rest if form.slopes[a] == -1 else 0 - form.rest
            yield a, mod(rest, divisor)
