"""Rewrite quasi-affine indices over digits of their axes, where they become affine.

An axis that indices divide by 3 is split into two digits, its quotient and its remainder; two axes that only
occur as 3*h + d are the digits of one axis, and are merged into it.

    (i:6)  ->  (i // 3, i % 3)          with  i = 3*h + d         (h:2, d:3)  ->  (h, d)
    (h:2, d:3)  ->  (3*h + d) // 2      with  3*h + d = t         (t:6)  ->  t // 2

`index_map` and `iterator_table` ask their questions of the linear forms over these digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

from tensaurus.expr.ir.scope import axis
from tensaurus.expr.normal.axis_ranges import merge_axis_pair
from tensaurus.expr.sizes.affine import LinearForm, affine_coefficients
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Size,
    atoms,
    floordiv,
    interval,
    is_nonnegative,
    is_same_size,
    polynomial,
    single_atom,
    substitute,
    terms_of,
)


@dataclass(frozen=True)
class DigitForm:
    """Indices over digits of their axes.

    axes         the digits
    indices      the indices over the digits
    axis_values  each original axis as a size over the digits; two different choices of digits never give the
                 same values
    is_exact     every choice of digits is a point of the axes' ranges (else some choices are beyond them)
    """

    axes: tuple[Axis, ...]
    indices: tuple[Size, ...]
    axis_values: tuple[Size, ...]
    is_exact: bool = True

    def with_values(self, axes: Sequence[Axis], values: dict[Atom, Any], is_exact: bool = True) -> DigitForm:
        """Return the form over new digits `axes`; `values` gives the old digits as sizes over the new ones.

        `is_exact`: every choice of new digits gives old digits within their ranges.
        """
        indices, axis_values = (
            tuple(substitute(size, values) for size in group) for group in (self.indices, self.axis_values)
        )
        return DigitForm(tuple(axes), indices, axis_values, self.is_exact and is_exact)


@lru_cache(maxsize=4096)
def digit_form(axes: tuple[Axis, ...], indices: tuple[Size, ...]) -> DigitForm:
    """Return the indices over digits in which more of them are affine.

    Drops axes of one point, merges axes that are digits of one, rewrites quotients so that their dividends
    are single axes, and splits the axes that are divided, in this order.
    """
    axis_values: tuple[Size, ...] = tuple(map(polynomial, axes))
    if any(is_same_size(a.extent, 0) for a in axes):
        return DigitForm(axes, indices, axis_values)
    fixed_axes: dict[Atom, Any] = {a: 0 for a in axes if is_same_size(a.extent, 1)}
    open_axes = [a for a in axes if a not in fixed_axes]
    form = DigitForm((), indices, axis_values).with_values(open_axes, fixed_axes)
    while (merged := _merge_pair(form)) is not None:
        form = merged
    while values := _quotients_of_axes(form):
        form = form.with_values(form.axes, values)
    for a in form.axes:
        form = _split_axis(form, a)
    return form


def _merge_pair(form: DigitForm) -> DigitForm | None:
    """Return the form with two axes, which occur only as D*h + d with d < D, merged into one; else None."""
    for high, low in permutations(form.axes, 2):
        merged = merge_axis_pair(high, low, form.indices)
        if merged is None:
            continue
        merged_axis, to_merged = merged
        values: dict[Atom, Any] = {high: merged_axis // low.extent, low: merged_axis % low.extent}
        merged_form = form.with_values(
            [merged_axis if a == high else a for a in form.axes if a != low], values
        )
        indices = tuple(substitute(i, to_merged) for i in form.indices)
        return DigitForm(merged_form.axes, indices, merged_form.axis_values, form.is_exact)
    return None


def _quotients_of_axes(form: DigitForm) -> dict[Atom, Any]:
    """Return replacements for quotients whose dividend is no single axis: (i + 1) // 2 = i - i // 2.

    By t // k = -((k - 1 - t) // k): the negated dividend may split into multiples of k and one axis.
    """
    values: dict[Atom, Any] = {}
    for atom in set().union(*map(atoms, form.indices)):
        if isinstance(atom, Floor) and isinstance(atom.bottom, int) and not _is_axis(atom.top):
            negated = 0 - floordiv(atom.bottom - 1 - atom.top, atom.bottom)
            if all(_is_axis(floor.top) for floor in atoms(negated) if isinstance(floor, Floor)):
                values[atom] = negated
    return values


def _is_axis(size: Size) -> bool:
    return isinstance(single_atom(size), Axis)


def _split_axis(form: DigitForm, a: Axis) -> DigitForm:
    """Return the form with an axis split into digits, one more than there are divisors of the axis.

    The form is unchanged unless the divisors form a chain in which each divides the next.

        i:12 with i // 2 and i // 6     ->     i = 6*a + 2*b + c      with a:2, b:3, c:2
    """
    steps: list[Size] = []
    for index in form.indices:
        for atom in sorted(atoms(index), key=str) if not isinstance(index, int) else ():
            if isinstance(atom, Floor) and single_atom(atom.top) == a and atom.bottom not in steps:
                steps.append(atom.bottom)
    weights: list[Size] = [1]  # the axis is the sum of digit * weight: 1, 2, 6 for i // 2 and i // 6
    while steps:  # take the divisor that divides all that are left
        next_step = next((s for s in steps if all(is_same_size(t % s, 0) for t in steps)), None)
        if next_step is None or not is_same_size(next_step % weights[-1], 0):
            return form
        steps.remove(next_step)
        weights.append(next_step)
    if len(weights) == 1:
        return form
    counts = [floordiv(b, s) for s, b in zip(weights, weights[1:], strict=False)]
    counts.append(0 - floordiv(0 - a.extent, weights[-1]))  # rounded up: the last digit may leave the axis
    new_digits = [axis(count) for count in counts]
    value = sum((polynomial(d) * s for d, s in zip(new_digits, weights, strict=True)), start=polynomial(0))
    new_axes = [d for b in form.axes for d in (reversed(new_digits) if b == a else (b,))]
    return form.with_values(new_axes, {a: value}, is_same_size(counts[-1] * weights[-1], a.extent))


@dataclass(frozen=True)
class Variable:
    """A variable of linear forms: an axis, or an atom that is not linear, as (i + 1) // 2."""

    axes: frozenset[Axis]  # the axes that it depends on
    low: Size | None  # inclusive bounds, None where there is none
    high: Size | None

    @property
    def count(self) -> Size | None:
        """The number of values within the bounds."""
        return None if self.low is None or self.high is None else self.high - self.low + 1


class LinearForms(NamedTuple):
    """Indices as linear forms of variables.

    rows       the form of each index
    variables  the variables by the axes that name them: an axis names itself, any other atom has a new axis
    """

    rows: list[LinearForm]
    variables: dict[Axis, Variable]


def linear_forms(form: DigitForm) -> LinearForms | None:
    """Return the indices as linear forms; None where there are products of axes."""
    variable_of: dict[Atom, Axis] = {}
    variables = {a: Variable(frozenset({a}), 0, a.extent - 1) for a in form.axes}
    form_axes = frozenset(form.axes)
    rows = []
    for index in form.indices:
        for factors, _ in terms_of(index):
            for atom in factors:
                own_axes = form_axes & atoms(polynomial(atom))
                if atom not in form_axes and atom not in variable_of and own_axes:
                    variable_of[atom] = axis(0, "v")  # only a name: its bounds are in `variables`
                    variables[variable_of[atom]] = Variable(own_axes, *interval(polynomial(atom)))
        values: dict[Atom, Any] = {atom: polynomial(variable) for atom, variable in variable_of.items()}
        row = affine_coefficients(substitute(index, values), [*form.axes, *variable_of.values()])
        if row is None:
            return None
        rows.append(LinearForm({a: s for a, s in row.slopes.items() if not is_same_size(s, 0)}, row.rest))
    return LinearForms(rows, variables)


def sign_of(slope: Size) -> int | None:
    """Return the sign of a size that is not zero, None where it is not decided."""
    return 1 if is_nonnegative(slope - 1) else -1 if is_nonnegative(-1 - slope) else None


def order_by_slope(row: LinearForm, counts: Mapping[Axis, Size], *, dense: bool) -> list[Axis] | None:
    """Return the variables by growing slope if the row provably takes no value twice; None otherwise.

    `counts` says how many values each variable has.  Each slope must be greater than the span that the
    smaller ones reach together.  With `dense`, the row's values must instead provably form one progression,
    and may be taken twice: each slope is a multiple of the least one, and at most that much greater than the
    span of the smaller ones.

        4*h + d, d:3    no value twice, not dense        i + r, i:5, r:3    values twice, dense
    """
    magnitudes = {a: magnitude for a, s in row.slopes.items() if (magnitude := _magnitude(s)) is not None}
    if len(magnitudes) < len(row.slopes):
        return None
    order: list[Axis] = []
    reached_span: Size = 0
    while magnitudes:
        least = next(
            (a for a in magnitudes if all(is_nonnegative(s - magnitudes[a]) for s in magnitudes.values())),
            None,
        )
        if least is None:
            return None
        slope = magnitudes.pop(least)
        smallest_slope = _magnitude(row.slopes[order[0]]) if order else slope
        assert smallest_slope is not None
        fits = is_same_size(slope % smallest_slope, 0) and is_nonnegative(
            reached_span + smallest_slope - slope
        )
        if not (fits or not order if dense else is_nonnegative(slope - reached_span - 1)):
            return None
        reached_span = reached_span + slope * (counts[least] - 1)
        order.append(least)
    return order


def _magnitude(slope: Size) -> Size | None:
    sign = sign_of(slope)
    return None if sign is None else slope * sign
