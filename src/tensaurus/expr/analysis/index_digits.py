"""Quasi-affine indices over digits of their axes, where they are affine, and as linear forms of variables.

    (i:6)  ->  (i // 3, i % 3)          with  i = 3*h + d         (h:2, d:3)  ->  (h, d)
    (h:2, d:3)  ->  (3*h + d) // 2      with  3*h + d = t         (t:6)  ->  t // 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

from tensaurus.expr.ir.scope import axis
from tensaurus.expr.sizes.affine import affine_coefficients
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
    substitute,
    terms_of,
)


@dataclass(frozen=True)
class Digits:
    """Indices over digits of their axes.

    axes      the digits
    indices   the indices over them
    places    the axes themselves over them, one to one
    exact     every choice of digits is a point of the axes' ranges (else those are a part of the choices)
    """

    axes: tuple[Axis, ...]
    indices: tuple[Size, ...]
    places: tuple[Size, ...]
    exact: bool = True

    def replaced(self, axes: Sequence[Axis], values: dict[Atom, Any], exact: bool = True) -> Digits:
        indices, places = (
            tuple(substitute(size, values) for size in group) for group in (self.indices, self.places)
        )
        return Digits(tuple(axes), indices, places, self.exact and exact)


@lru_cache(maxsize=4096)
def digits(axes: tuple[Axis, ...], indices: tuple[Size, ...]) -> Digits:
    """The indices over digits in which more of them are affine; axes of one point are gone."""
    places: tuple[Size, ...] = tuple(map(polynomial, axes))
    if any(is_same_size(a.extent, 0) for a in axes):
        return Digits(axes, indices, places)
    single: dict[Atom, Any] = {a: 0 for a in axes if is_same_size(a.extent, 1)}
    form = Digits((), indices, places).replaced([a for a in axes if a not in single], single)
    while (one := _merged_pair(form)) is not None:
        form = one
    while values := _turned(form):
        form = form.replaced(form.axes, values)
    for a in form.axes:
        form = _divided(form, a)
    return form


def _merged_pair(f: Digits) -> Digits | None:
    """Two axes that occur only as D*h + d, with d over D values, as one."""
    for high, low in permutations(f.axes, 2):
        one = axis(high.extent * low.extent)
        forth: dict[Atom, Any] = {high: 0, low: polynomial(one)}
        back: dict[Atom, Any] = {one: polynomial(high) * low.extent + polynomial(low)}
        if not all(is_same_size(substitute(substitute(i, forth), back), i) for i in f.indices):
            continue
        values: dict[Atom, Any] = {high: one // low.extent, low: one % low.extent}
        merged = f.replaced([one if a == high else a for a in f.axes if a != low], values)
        indices = tuple(substitute(i, forth) for i in f.indices)
        return Digits(merged.axes, indices, merged.places, f.exact)
    return None


def _turned(f: Digits) -> dict[Atom, Any]:
    """Quotients as those of an axis alone, where they are: (i + 1) // 2 is i - i // 2.

    t // k = -((k - 1 - t) // k): what is divided after it was negated.
    """
    values: dict[Atom, Any] = {}
    for atom in set().union(*map(atoms, f.indices)):
        if isinstance(atom, Floor) and isinstance(atom.bottom, int) and not _is_axis(atom.top):
            other = 0 - floordiv(atom.bottom - 1 - atom.top, atom.bottom)
            if all(_is_axis(part.top) for part in atoms(other) if isinstance(part, Floor)):
                values[atom] = other
    return values


def _is_axis(size: Size) -> bool:
    terms = terms_of(size)
    return len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and isinstance(terms[0][0][0], Axis)


def _divided(f: Digits, a: Axis) -> Digits:
    """The axis as its digits, where it is divided by numbers that divide each other."""
    steps: list[Size] = []
    for index in f.indices:
        for atom in sorted(atoms(index), key=str) if not isinstance(index, int) else ():
            if isinstance(atom, Floor) and terms_of(atom.top) == terms_of(a) and atom.bottom not in steps:
                steps.append(atom.bottom)
    chain: list[Size] = [1]
    while steps:
        next_ = next((s for s in steps if all(is_same_size(t % s, 0) for t in steps)), None)
        if next_ is None or not is_same_size(next_ % chain[-1], 0):
            return f
        steps.remove(next_)
        chain.append(next_)
    if len(chain) == 1:
        return f
    counts = [floordiv(b, s) for s, b in zip(chain, chain[1:], strict=False)]
    counts.append(0 - floordiv(0 - a.extent, chain[-1]))
    parts = [axis(count) for count in counts]
    value = sum((polynomial(d) * s for d, s in zip(parts, chain, strict=True)), start=polynomial(0))
    spread = [d for b in f.axes for d in (reversed(parts) if b == a else (b,))]
    return f.replaced(spread, {a: value}, is_same_size(counts[-1] * chain[-1], a.extent))


@dataclass(frozen=True)
class Variable:
    """What linear forms are of: an axis, or what is no form of axes, as (i + 1) // 2; with its bounds."""

    axes: frozenset[Axis]
    low: Size | None
    high: Size | None

    @property
    def count(self) -> Size | None:
        """How many values lie within the bounds."""
        return None if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True)
class Linear:
    """rest + sum of slope * variable; variables are named by axes."""

    slopes: dict[Axis, Size]
    rest: Size


def linear(form: Digits) -> tuple[list[Linear], dict[Axis, Variable]] | None:
    """The indices as linear forms of variables; None where they are products of axes."""
    stands: dict[Atom, Axis] = {}
    variables = {a: Variable(frozenset({a}), 0, a.extent - 1) for a in form.axes}
    known = frozenset(form.axes)
    rows = []
    for index in form.indices:
        for factors, _ in terms_of(index):
            for atom in factors:
                inside = known & atoms(polynomial(atom))
                if atom not in known and atom not in stands and inside:
                    stands[atom] = axis(0, "v")
                    variables[stands[atom]] = Variable(inside, *interval(polynomial(atom)))
        values: dict[Atom, Any] = {atom: polynomial(one) for atom, one in stands.items()}
        row = affine_coefficients(substitute(index, values), [*form.axes, *stands.values()])
        if row is None:
            return None
        rows.append(Linear({a: s for a, s in row[0].items() if not is_same_size(s, 0)}, row[1]))
    return rows, variables


def sign_of(slope: Size) -> int | None:
    """The sign of a size that is not zero."""
    return 1 if is_nonnegative(slope - 1) else -1 if is_nonnegative(-1 - slope) else None


def ordered(row: Linear, counts: Mapping[Axis, Size], *, dense: bool) -> list[Axis] | None:
    """The variables by growing slope such that their values never give one index twice.

    Each slope is greater than what the smaller ones reach together; `dense` asks for multiples of the
    least one without gaps instead, possibly reached twice.  None where that is not so, or not known.
    """
    left = {a: abs_ for a, s in row.slopes.items() if (abs_ := _magnitude(s)) is not None}
    if len(left) < len(row.slopes):
        return None
    order: list[Axis] = []
    reach: Size = 0
    while left:
        least = next((a for a in left if all(is_nonnegative(s - left[a]) for s in left.values())), None)
        if least is None:
            return None
        slope = left.pop(least)
        unit = _magnitude(row.slopes[order[0]]) if order else slope
        assert unit is not None
        fits = is_same_size(slope % unit, 0) and is_nonnegative(reach + unit - slope)
        if not (fits or not order if dense else is_nonnegative(slope - reach - 1)):
            return None
        reach = reach + slope * (counts[least] - 1)
        order.append(least)
    return order


def _magnitude(slope: Size) -> Size | None:
    sign = sign_of(slope)
    return None if sign is None else slope * sign
