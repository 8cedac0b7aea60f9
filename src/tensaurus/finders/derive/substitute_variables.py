"""Variable substitution: computes an expression over other traversal iterators (EINNET, section 4.1).

The range of a new iterator is relaxed to one that contains all its values (boundary relaxing), so that the
substitution need not be a bijection: additional elements are computed and never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Scope, axis, digit_axes
from tensaurus.expr.ir.walk import bodies, rebuild_body, replace_axes
from tensaurus.expr.sizes.affine import LinearForm, affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    floordiv,
    interval,
    mod,
    polynomial,
    substitute,
)
from tensaurus.finders.derive.iterator_periods import candidate_periods
from tensaurus.finders.derive.rewrite_step import Step, axes_in, base_name, with_zeros_outside

__all__ = ["count_mixed_dimensions", "divided", "sheared"]


def sheared(scope: Scope) -> Iterator[Step]:
    """Replaces an index of several traversal iterators by one new iterator.

        L[r, h](A[2*h + r])   ->   L[r, h]({L[t](A[t])}[2*h + r])
    """
    for form in dict.fromkeys(_mixed_forms(scope)):
        low, high = interval(form)
        if low is None or high is None:
            continue
        t = axis(high - low + 1, "t")
        value = polynomial(t) + low  # what the form is, over t
        for a in sorted(axes_in(form), key=str):
            body = _eliminate_axis(scope.body, a, form, value)
            if body is None:
                continue
            axes = tuple(t if b == a else b for b in scope.axes)
            indices = tuple(form - low if b == a else polynomial(b) for b in scope.axes)
            used = axes_in(body)
            places = [(b, index) for b, index in zip(axes, indices, strict=True) if b in used]
            inner = Scope(tuple(b for b, _ in places), with_zeros_outside(body))
            new = Scope(scope.axes, Read(inner, tuple(index for _, index in places)))
            yield Step("variable substitution", f"t = {form - low} for {a}", new)


def count_mixed_dimensions(scope: Scope) -> int:
    """Return how many indices of reads contain several traversal iterators."""
    reads = [body for body in bodies(scope, nested=False) if isinstance(body, Read)]
    return sum(len(axes_in(index).intersection(scope.axes)) > 1 for read in reads for index in read.indices)


def _mixed_forms(scope: Scope) -> Iterator[Size]:
    """Yield the linear forms and quotients of several traversal iterators that occur in indices."""
    for body in bodies(scope, nested=False):
        if not isinstance(body, Read):
            continue
        for index in body.indices:
            for atom in sorted(atoms(index), key=str):
                inside = axes_in(polynomial(atom))
                if isinstance(atom, Floor) and len(inside) > 1 and inside <= set(scope.axes):
                    yield polynomial(atom)
            for size in (index, *(atom.top for atom in atoms(index) if isinstance(atom, Floor))):
                found = affine_coefficients(size, scope.axes)
                if found is not None and len(found.slopes) > 1:
                    slopes = found.slopes.items()
                    if all(isinstance(slope, int) for _, slope in slopes):
                        yield sum((polynomial(a) * slope for a, slope in slopes), start=polynomial(0))


class _CannotEliminate(Exception):
    """The axis remains in an index."""


def _eliminate_axis(body: Body, a: Axis, form: Size, value: Size) -> Body | None:
    """Solve form = value for the axis and return the body without the axis, None where that is impossible."""

    affine = affine_coefficients(form, [a])

    def visit(part: Body) -> Body:
        return rebuild_body(part, visit, lambda index: _eliminate_from_index(index, a, form, affine, value))

    try:
        return visit(body)
    except _CannotEliminate:
        return None


def _eliminate_from_index(index: Size, a: Axis, form: Size, affine: LinearForm | None, value: Size) -> Size:
    """Return the index with the axis as form = value gives it; `affine` is the form over the axis.

    With form = unit * a + others, the index's term (k * unit) * a becomes k * (value - others).
    """
    if a not in atoms(index):
        return index
    if affine is None:  # the form is a quotient: only the same quotient is replaced
        quotients: dict[Atom, Any] = {atom: value for atom in atoms(form) if polynomial(atom) == form}
        changed: Size = substitute(index, quotients)
        if a in atoms(changed):
            raise _CannotEliminate
        return changed
    unit, others = affine.slopes[a], affine.rest
    assert isinstance(unit, int)
    found = affine_coefficients(index, [a])
    if found is not None and isinstance(times := found.slopes[a], int) and times % unit == 0:
        return found.rest + (value - others) * (times // unit)
    if unit in (1, -1):
        values: dict[Atom, Any] = {a: (value - others) * unit}
        solved: Size = substitute(index, values)
        return solved
    raise _CannotEliminate


def divided(scope: Scope) -> Iterator[Step]:
    """Replaces a traversal iterator by two: its quotient and its remainder.

        L[h:5](A[h] * B[2*h])   ->   L[h:5]({L[h1:3, h2:2](A[2*h1 + h2] * B[4*h1 + 2*h2])}[h // 2, h % 2])
    """
    for a in scope.axes:
        for step in candidate_periods(scope, a):
            high, low, place = digit_axes(a, step, base_name(a))
            values: dict[Atom, Any] = {a: place}
            body = with_zeros_outside(replace_axes(scope.body, values))
            axes, indices = list[Axis](), list[Size]()
            for b in scope.axes:
                axes += [high, low] if b == a else [b]
                indices += [floordiv(b, step), mod(b, step)] if b == a else [polynomial(b)]
            new = Scope(scope.axes, Read(Scope(tuple(axes), body), tuple(indices)))
            yield Step("variable substitution", f"{a} by its digits, {step} of the lower", new)
