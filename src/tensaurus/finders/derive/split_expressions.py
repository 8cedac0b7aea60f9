"""Expression splitting: parts of the range of an iterator are computed apart (EINNET, section 4.2)."""

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
from tensaurus.finders.derive.rewrite_step import Product, Step, contained, hint, product_of

__all__ = ["split"]

PHASES = 4  # values at most of an iterator of which each is computed apart


def split(scope: Scope) -> Iterator[Step]:
    """Where a guard of one iterator begins or ends to hold, what is read through other expressions included.

        L[f:6](sum[c](A[c] * {L[f, c](W[f, c] if f < 4 else V[f - 4, c])}[f, c]))
     -> L[f:6](L[f:4](sum[c](A[c] * W[f, c]))[f] if f < 4 else L[f:2](sum[c](A[c] * V[f, c]))[f - 4])
    """
    for a in scope.axes:
        if not isinstance(a.extent, int):
            continue
        for cut in sorted(place for place in _ends(scope, a, {}) if 0 < place < a.extent):
            first, second = (_part(scope, a, low, high) for low, high in ((0, cut), (cut, a.extent)))
            others = [polynomial(b) for b in scope.axes]
            beyond = [polynomial(b) - cut if b == a else polynomial(b) for b in scope.axes]
            body = Select((cut - 1 - polynomial(a),), Read(first, tuple(others)), Read(second, tuple(beyond)))
            yield Step("expression splitting", f"{a} at {cut}", Scope(scope.axes, body))


def _part(scope: Scope, a: Axis, low: int, high: int) -> Scope:
    """The scope where low <= a < high."""
    b = axis(high - low, hint(a))
    values: dict[Atom, Any] = {a: polynomial(b) + low}
    body = _narrowed(replace_axes(scope.body, values))
    return Scope(tuple(b if c == a else c for c in scope.axes), body)


def _ends(scope: Scope, a: Axis, known: dict[tuple[int, Axis], frozenset[int]]) -> frozenset[int]:
    """Values of the axis at which a guard of it alone becomes true, or false; all of one of few values whose
    remainders matter.  Scopes are shared: what is known of one is not looked for again."""
    key = id(scope), a
    if key not in known:
        known[key] = frozenset(_found(scope, a, known))
    return known[key]


def _found(scope: Scope, a: Axis, known: dict[tuple[int, Axis], frozenset[int]]) -> Iterator[int]:
    for body in bodies(scope, nested=False):
        tops = (atom.top for size in sizes(body) for atom in atoms(size) if isinstance(atom, Floor))
        if isinstance(a.extent, int) and a.extent <= PHASES and any(a in atoms(top) for top in tops):
            yield from range(1, a.extent)
        if isinstance(body, Select):
            for guard in body.guard:
                yield from _turns(guard, a)
        elif isinstance(body, Read) and isinstance(body.source, Scope):
            for inner, index in zip(body.source.axes, body.indices, strict=True):
                form = affine_coefficients(index, [a])
                if form is not None and form[0] == {a: 1} and isinstance(form[1], int):
                    yield from (place - form[1] for place in _ends(body.source, inner, known))


def _turns(guard: Size, a: Axis) -> Iterator[int]:
    form = affine_coefficients(guard, [a])
    if form is None or not isinstance(form[1], int) or not isinstance(slope := form[0].get(a), int):
        return
    # slope * a + rest >= 0: from -(rest // slope) on, or up to rest // -slope
    if slope:
        yield -(form[1] // slope) if slope > 0 else form[1] // -slope + 1


def _narrowed(body: Body) -> Body:
    """The body without choices that bounds of axes decide, in expressions that are read there, too, and
    without terms of sums that guards leave out."""
    made = rebuild_body(body, _narrowed, lambda size: size)
    match made:
        case Reduce("sum", reduced, inner):
            return _shorter(reduced, product_of(inner)) or made
        case Select(guard, then, other):
            chosen = _decided(guard, then, other)
            # literals alone take their type from what is beside them
            return made if chosen is None or literal_dtype(chosen) != literal_dtype(made) else chosen
        case Read(Scope(axes, Select(guard, then, other)) as source, indices, outside):
            at: dict[Atom, Any] = dict(zip(axes, indices, strict=True))
            chosen = _decided(tuple(substitute(size, at) for size in guard), then, other)
            if chosen is not None and literal_dtype(chosen) == dtype_of(source):
                # read elsewhere it would be beyond an edge: nobody reads it there
                return _narrowed(Read(Scope(axes, contained(chosen)), indices, outside))
    return made


def _shorter(axes: tuple[Axis, ...], product: Product) -> Body | None:
    """The sum over the ranges that guards of one axis leave; None where that is all."""
    ranges = {a: (0, a.extent - 1) for a in axes if isinstance(a.extent, int)}
    left = list[Size]()
    for guard in product.guards:
        alone = [a for a in ranges if a in atoms(guard)]
        form = affine_coefficients(guard, alone) if len(alone) == 1 else None
        slope = form[0].get(alone[0]) if form is not None else None
        if form is None or not isinstance(slope, int) or not isinstance(form[1], int) or not slope:
            left.append(guard)
            continue
        low, high = ranges[alone[0]]
        least, most = (-(form[1] // slope), high) if slope > 0 else (low, form[1] // -slope)
        ranges[alone[0]] = max(low, least), min(high, most)
    if len(left) == len(product.guards) or any(low > high for low, high in ranges.values()):
        return None
    values, fresh = dict[Atom, Any](), list[Axis]()
    for a in axes:
        low, high = ranges.get(a, (0, -1))
        fresh.append(axis(high - low + 1, hint(a)) if a in ranges else a)
        values |= {a: polynomial(fresh[-1]) + low} if a in ranges else {}
    guards = tuple(substitute(guard, values) for guard in left)
    return Reduce("sum", tuple(fresh), replace_axes(Product(guards, product.factors).body, values))


def _decided(guard: tuple[Size, ...], then: Body, other: Body) -> Body | None:
    if all(map(is_nonnegative, guard)):
        return then
    ends = [interval(size)[1] for size in guard]
    return other if any(isinstance(high, int) and high < 0 for high in ends) else None
