"""Rules on summations: split into two, iterators into digits, iterators that guards leave one value.

EINNET, section 4.1.
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
from tensaurus.finders.derive.iterator_periods import periods
from tensaurus.finders.derive.rewrite_step import Product, Step, axes_in, hint, nested, product_of, reductions

__all__ = ["collapsed", "divided", "reindexed", "split"]


def split(scope: Scope) -> Iterator[Step]:
    """Summation splitting: the inner part of a summation is computed once, in a scope of its own.

        L[h, f](sum[r, c](A[h + r, c] * K[r, f, c]))
     -> L[h, f](sum[r]({L[r, h, f](sum[c](A[h + r, c] * K[r, f, c]))}[r, h, f]))

    What the inner summation does not depend on stays outside, factors and guards alike.
    """
    for whole, put in reductions(scope.body):
        for inner in _groups(whole.axes):
            if len(inner) == len(whole.axes) and whole is scope.body:
                continue
            outer = tuple(a for a in whole.axes if a not in inner)
            outside, inside = _factored(whole, inner)
            if literal_dtype(inside.body) != dtype_of(scope):
                continue  # literals alone take their type from what is beside them
            read = nested((*outer, *scope.axes), Reduce(whole.monoid, inner, inside.body))
            made = Product(outside.guards, (*outside.factors, read)).body
            names = f"{_names(outer)} | {_names(inner)}"
            yield Step("summation splitting", names, Scope(scope.axes, put(_reduced(whole, outer, made))))


def _groups(axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, ...]]:
    return chain.from_iterable(combinations(axes, n) for n in range(1, len(axes) + 1))


def _names(axes: tuple[Axis, ...]) -> str:
    return ", ".join(map(str, axes))


def _reduced(whole: Reduce, axes: tuple[Axis, ...], body: Body) -> Body:
    return Reduce(whole.monoid, axes, body) if axes else body


def _factored(whole: Reduce, inner: tuple[Axis, ...]) -> tuple[Product, Product]:
    """What does not depend on the inner axes, and what does; of a sum alone factors may be moved out."""
    if whole.monoid != "sum":
        return Product((), ()), Product((), (whole.body,))
    guards, factors = product_of(whole.body)
    within = [not axes_in(part).isdisjoint(inner) for part in (*guards, *factors)]
    parts = list(zip((*guards, *factors), within, strict=True))
    first, second = (
        Product(
            tuple(part for part, held in parts[: len(guards)] if held is side),  # type: ignore[misc]
            tuple(part for part, held in parts[len(guards) :] if held is side),  # type: ignore[misc]
        )
        for side in (False, True)
    )
    return first, second


def divided(scope: Scope) -> Iterator[Step]:
    """Variable substitution in a summation: an iterator becomes two, its range relaxed to a multiple.

        sum[r:5](A[h + r] * K[r])
     -> sum[r1:2, r2:3](A[h + 3*r1 + r2] * K[3*r1 + r2] if 3*r1 + r2 < 5 else 0)
    """
    for whole, put in reductions(scope.body):
        for a in whole.axes:
            for step in periods(scope, a, inner=True):
                high, low, place = digit_axes(a, step, hint(a))
                body = replace_axes(whole.body, {a: place})
                if high.extent * step != a.extent:
                    if whole.monoid != "sum":
                        continue
                    body = Select((a.extent - 1 - place,), body, Const(0))
                axes = tuple(chain.from_iterable((high, low) if b == a else (b,) for b in whole.axes))
                made = Scope(scope.axes, put(Reduce(whole.monoid, axes, body)))
                yield Step("variable substitution", f"{a} by its digits, {step} of the lower", made)


def reindexed(scope: Scope) -> Iterator[Step]:
    """Variable substitution in a summation: replaces an iterator by the affine index that contains it.

        sum[m:8](A[m - r] * B[m])   ->   sum[j:5](A[j] * B[j + r])      A of 5 elements, 0 <= r < 4

    Beyond the edges of what is read there, the product is zero.
    """
    for whole, put in reductions(scope.body):
        guards, factors = product_of(whole.body)
        if whole.monoid != "sum":
            continue
        for a, index, extent in _shifted(factors, whole.axes):
            found = affine_coefficients(index, [a])
            assert found is not None
            j = axis(extent, hint(a))
            place = (polynomial(j) - found[1]) * found[0][a]  # the slope is 1 or -1
            values: dict[Atom, Any] = {a: place}
            inside = [guard for guard in within(place, 0, a.extent) if not is_nonnegative(guard)]
            moved = (*inside, *(substitute(guard, values) for guard in guards))
            body = Product(moved, tuple(replace_axes(factor, values) for factor in factors)).body
            axes = tuple(j if b == a else b for b in whole.axes)
            made = Scope(scope.axes, put(Reduce(whole.monoid, axes, body)))
            yield Step("variable substitution", f"{index} for {a}", made)


def _shifted(factors: tuple[Body, ...], axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, Size, Size]]:
    """Iterators that stand, once, in an index beside others of the traversal, and the extent there."""
    for factor in factors:
        if not isinstance(factor, Read) or factor.outside != Const(0):
            continue
        for index, extent in zip(factor.indices, factor.source.shape, strict=True):
            for a in axes_in(index).intersection(axes):
                found = affine_coefficients(index, [a])
                if found is None or found[0].get(a) not in (1, -1):
                    continue
                if axes_in(found[1]) and axes_in(found[1]).isdisjoint(axes):
                    yield a, index, extent


def collapsed(scope: Scope) -> Iterator[Step]:
    """Boundary tightening in a summation: a guard leaves one value of an iterator.

        sum[r:2](x[r] if (h + r) % 2 == 0 else 0)   ->   x[-h % 2]
    """
    for whole, put in reductions(scope.body):
        if whole.monoid != "sum":
            continue
        guards, factors = product_of(whole.body)
        for guard in guards:
            for a, value in _single(guard, whole.axes):
                values: dict[Atom, Any] = {a: value}
                left = tuple(substitute(g, values) for g in guards if g != guard)
                body = Product(left, tuple(replace_axes(f, values) for f in factors)).body
                axes = tuple(b for b in whole.axes if b != a)
                made = Scope(scope.axes, put(_reduced(whole, axes, body)))
                yield Step("boundary tightening", f"{a} = {value}", made)


def _single(guard: Size, axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, Size]]:
    """Yield an axis and its only value: a guard asks k to divide a + e, and a has k values.

    k * ((a + e) // k) - (a + e) >= 0 holds where a + e is a multiple of k.
    """
    for floor in atoms(guard):
        if not isinstance(floor, Floor) or not isinstance(floor.bottom, int):
            continue
        divisor, top = floor.bottom, floor.top
        if polynomial(guard) != polynomial(floor) * divisor - top:
            continue
        for a in axes:
            found = affine_coefficients(top, [a])
            if found is None or a.extent != divisor or found[0].get(a) not in (1, -1):
                continue
            rest = found[1] if found[0][a] == -1 else 0 - found[1]
            yield a, mod(rest, divisor)
