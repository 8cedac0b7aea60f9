"""Expression splitting: two parts of an iterator's range become two expressions (EINNET, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Read, Reduce, Scope, Select, axis
from tensaurus.expr.ir.walk import bodies, rebuild_body, replace_axes, sizes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    interval,
    is_nonnegative,
    polynomial,
    substitute,
)
from tensaurus.finders.derive.rewrite_step import Product, Step, base_name, product_of, with_zeros_outside

__all__ = ["split"]

MAX_PHASES = 4  # values of an iterator in a quotient that is split at each: it may number a stride's phases


def split(scope: Scope) -> Iterator[Step]:
    """Yield the scope split where a guard of one iterator changes, guards of nested scopes included.

        L[f:6](sum[c](A[c] * {L[f, c](W[f, c] if f < 4 else V[f - 4, c])}[f, c]))
     -> L[f:6](L[f:4](sum[c](A[c] * W[f, c]))[f] if f < 4 else L[f:2](sum[c](A[c] * V[f, c]))[f - 4])
    """
    for a in scope.axes:
        if not isinstance(a.extent, int):
            continue
        for cut in sorted(place for place in _split_points(scope, a, {}) if 0 < place < a.extent):
            first, second = (_restrict(scope, a, low, high) for low, high in ((0, cut), (cut, a.extent)))
            others = [polynomial(b) for b in scope.axes]
            beyond = [polynomial(b) - cut if b == a else polynomial(b) for b in scope.axes]
            body = Select((cut - 1 - polynomial(a),), Read(first, tuple(others)), Read(second, tuple(beyond)))
            yield Step("expression splitting", f"{a} at {cut}", Scope(scope.axes, body))


def _restrict(scope: Scope, a: Axis, low: int, high: int) -> Scope:
    """Return the scope's elements with low <= a < high, simplified."""
    b = axis(high - low, base_name(a))
    values: dict[Atom, Any] = {a: polynomial(b) + low}
    body = _simplify(replace_axes(scope.body, values))
    return Scope(tuple(b if c == a else c for c in scope.axes), body)


def _split_points(scope: Scope, a: Axis, cache: dict[tuple[int, Axis], frozenset[int]]) -> frozenset[int]:
    """Return the values at which a guard of this axis alone changes; for a short axis in a quotient, all."""
    key = id(scope), a
    if key not in cache:
        cache[key] = frozenset(_find_split_points(scope, a, cache))
    return cache[key]


def _find_split_points(scope: Scope, a: Axis, cache: dict[tuple[int, Axis], frozenset[int]]) -> Iterator[int]:
    for body in bodies(scope, nested=False):
        tops = (atom.top for size in sizes(body) for atom in atoms(size) if isinstance(atom, Floor))
        if isinstance(a.extent, int) and a.extent <= MAX_PHASES and any(a in atoms(top) for top in tops):
            yield from range(1, a.extent)
        if isinstance(body, Select):
            for guard in body.guard:
                yield from _guard_change(guard, a)
        elif isinstance(body, Read) and isinstance(body.source, Scope):
            for inner, index in zip(body.source.axes, body.indices, strict=True):
                # the nested scope's axis is a + offset: its split points are moved back by the offset
                form = affine_coefficients(index, [a])
                if form is not None and form.slopes == {a: 1} and isinstance(form.rest, int):
                    yield from (place - form.rest for place in _split_points(body.source, inner, cache))


def _guard_change(guard: Size, a: Axis) -> Iterator[int]:
    """Yield the first value of the axis from which on a guard of this axis alone holds, or fails."""
    form = affine_coefficients(guard, [a])
    if form is None or not isinstance(form.rest, int) or not isinstance(slope := form.slopes.get(a), int):
        return
    # slope * a + rest >= 0: from -(rest // slope) on, or up to rest // -slope
    if slope:
        yield -(form.rest // slope) if slope > 0 else form.rest // -slope + 1


def _simplify(body: Body) -> Body:
    """Return the body without choices that bounds of axes decide, and terms that guards make zero."""
    new = rebuild_body(body, _simplify, lambda size: size)
    match new:
        case Reduce("sum", reduced, inner):
            return _shorten_sum(reduced, product_of(inner)) or new
        case Select(guard, then, other):
            chosen = _decide(guard, then, other)
            # literals alone take their type from their neighbours, so that the type might change
            return new if chosen is None or literal_dtype(chosen) != literal_dtype(new) else chosen
        case Read(Scope(axes, Select(guard, then, other)) as source, indices, outside):
            at: dict[Atom, Any] = dict(zip(axes, indices, strict=True))
            chosen = _decide(tuple(substitute(size, at) for size in guard), then, other)
            if chosen is not None and literal_dtype(chosen) == dtype_of(source):
                # elements of the other choice may lie beyond an edge now, but are not read
                return _simplify(Read(Scope(axes, with_zeros_outside(chosen)), indices, outside))
    return new


def _shorten_sum(axes: tuple[Axis, ...], product: Product) -> Body | None:
    """Return the sum over the ranges to which guards of one axis restrict it, None where none does."""
    # narrow (first, last) of each axis by the guards of that axis alone: slope * a + rest >= 0
    ranges = {a: (0, a.extent - 1) for a in axes if isinstance(a.extent, int)}
    other_guards = list[Size]()
    for guard in product.guards:
        alone = [a for a in ranges if a in atoms(guard)]
        form = affine_coefficients(guard, alone) if len(alone) == 1 else None
        slope = form.slopes.get(alone[0]) if form is not None else None
        if form is None or not isinstance(slope, int) or not isinstance(form.rest, int) or not slope:
            other_guards.append(guard)
            continue
        low, high = ranges[alone[0]]
        least, most = (-(form.rest // slope), high) if slope > 0 else (low, form.rest // -slope)
        ranges[alone[0]] = max(low, least), min(high, most)
    if len(other_guards) == len(product.guards) or any(low > high for low, high in ranges.values()):
        return None
    # replace each axis by one that counts from its first value; an axis of symbolic extent stays
    values, fresh = dict[Atom, Any](), list[Axis]()
    for a in axes:
        low, high = ranges.get(a, (0, -1))
        fresh.append(axis(high - low + 1, base_name(a)) if a in ranges else a)
        values |= {a: polynomial(fresh[-1]) + low} if a in ranges else {}
    guards = tuple(substitute(guard, values) for guard in other_guards)
    return Reduce("sum", tuple(fresh), replace_axes(Product(guards, product.factors).body, values))


def _decide(guard: tuple[Size, ...], then: Body, other: Body) -> Body | None:
    """Return the branch that bounds of axes decide for, or None."""
    if all(map(is_nonnegative, guard)):
        return then
    ends = [interval(size)[1] for size in guard]
    return other if any(isinstance(high, int) and high < 0 for high in ends) else None
