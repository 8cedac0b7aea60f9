"""Ranges of bound axes: guards decided and taken into them, axes split into digits and digits merged.

    sum[k:8](k - 3 >= 0: f(k))            ->  sum[k:5](f(k + 3))
    sum[r:12](f(r // 4, r % 4))           ->  sum[h:3, d:4](f(h, d))
    sum[h:3, d:4](f(4*h + d))             ->  sum[r:12](f(r))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tensaurus.expr.ir.scope import axis
from tensaurus.expr.normal.canonical_record import Record, axes_in
from tensaurus.expr.normal.normal_form import Core, Sum
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

Values = Mapping[Atom, Any]
Kept = TypeVar("Kept", bound=Record)


def settle(
    axes: Sequence[Axis], guards: Sequence[Size]
) -> tuple[tuple[Axis, ...], tuple[Size, ...], dict[Atom, Any]] | None:
    """(axes, guards, values) with every decided guard gone and narrowed ranges; None for an empty range.

    `values` replaces axes in what stands under them; guards are replaced already.
    """
    values: dict[Atom, Any] = {}
    left, current = list(axes), list(guards)
    while True:
        change: dict[Atom, Any] = {}
        for a in left:
            if is_same_size(a.extent, 0):
                return None
            if is_same_size(a.extent, 1):
                left.remove(a)
                change = {a: 0}
                break
        reduced = _decided(current) if not change else current
        if reduced is None:
            return None
        if not change:
            current = reduced
            pinned = _pinned(current, left)
            if pinned is not None:
                whole, value = pinned
                left.remove(whole)
                current = [*current, value, whole.extent - 1 - value]
                change = {whole: value}
        if not change:
            for guard in current:
                narrowed = _narrowed(guard, left)
                if narrowed is not None:
                    whole, (piece, offset) = narrowed
                    current.remove(guard)
                    left[left.index(whole)] = piece
                    change = {whole: polynomial(piece) + offset}
                    break
        if not change:
            return tuple(left), tuple(current), values
        current = [substitute(g, change) for g in current]
        values = {**{a: substitute(v, change) for a, v in values.items()}, **change}


def _pinned(guards: Sequence[Size], axes: Sequence[Axis]) -> tuple[Axis, Size] | None:
    """(axis, value) where a guard and its negative leave a bound axis one point."""
    known = set(guards)
    for guard in guards:
        if 0 - guard not in known:
            continue
        for a in axes:
            found = affine_coefficients(guard, [a]) if a in axes_in(guard) else None
            if found is not None and found[0].get(a) in (1, -1):
                return a, -found[1] * found[0][a]
    return None


def _decided(guards: Iterable[Size]) -> list[Size] | None:
    """The guards that ranges and the other guards do not decide; None where they contradict."""
    kept: list[Size] = []
    for guard in dict.fromkeys(polynomial(g) for g in guards):
        holds = _holds(guard)
        if holds is False:
            return None
        if holds is None:
            kept.append(guard)
    for guard in list(kept):
        for other in kept:
            if other is guard:
                continue
            if _shared(guard, other) and _holds(-1 - (guard + other)):
                return None
            within = _within(guard, other)
            holds = None if within is None else _holds(within)
            if holds is False:
                return None
            if holds or _shared(guard, other) and _holds(guard - other):
                kept.remove(guard)
                break
    return kept


def _within(guard: Size, other: Size) -> Size | None:
    """The guard with its axis narrowed to the range that `other` gives; None where `other` gives none.

    Only of quotients of the axis, of which nothing else knows what the range makes of them.
    """
    inside = axes_in(other)
    quotients = (x for x in atoms(guard) if isinstance(x, Floor))
    if len(inside) != 1 or all(inside.isdisjoint(atoms(x)) for x in quotients):
        return None
    narrowed = _narrowed(other, tuple(inside))
    if narrowed is None:
        return None
    whole, (piece, offset) = narrowed
    within: Size = substitute(guard, {whole: polynomial(piece) + offset})
    return within


def _shared(a: Size, b: Size) -> bool:
    return not axes_in(a).isdisjoint(axes_in(b))


def _holds(guard: Size) -> bool | None:
    """Whether the bounds decide that a guard holds, everywhere or nowhere; None where they do not."""
    low, high = interval(guard)
    if low is not None and is_nonnegative(low):
        return True
    return False if high is not None and is_nonnegative(-1 - high) else None


def _narrowed(guard: Size, axes: Sequence[Axis]) -> tuple[Axis, tuple[Axis, Size]] | None:
    """(axis, (piece, offset)) where a guard on one bound axis alone is a range of it."""
    inside = axes_in(guard)
    if len(inside) != 1:
        return None
    (a,) = inside
    found = affine_coefficients(guard, [a]) if a in axes else None
    if found is None or not isinstance(found[0].get(a), int):
        return None
    slope, rest = found[0][a], found[1]
    assert isinstance(slope, int)
    if slope > 0:  # a >= ceil(-rest / slope)
        start = 0 - floordiv(rest, slope)
        if not is_nonnegative(start):
            return None
        extent = a.extent - start
        return (a, (axis(extent, "r"), start)) if is_nonnegative(extent) else None
    extent = floordiv(rest, -slope) + 1  # a <= rest // -slope
    if is_nonnegative(extent) and is_nonnegative(a.extent - extent):
        return a, (axis(extent, "r"), 0)
    return None


def _sizes(record: Record) -> Iterable[Size]:
    yield from record.sizes()
    for part in record.parts():
        yield from _sizes(part)


def split_digits(record: Record, axes: Sequence[Axis]) -> tuple[list[Axis], dict[Atom, Any]] | None:
    """A bound axis that is divided by a divisor of its extent, as two axes."""
    wanted = set(axes)
    best: tuple[int, str, Axis, Size] | None = None
    for size in _sizes(record):
        if isinstance(size, int):
            continue
        for atom in atoms(size):
            if not isinstance(atom, Floor):
                continue
            terms = terms_of(atom.top)
            if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1:
                continue
            inner = terms[0][0][0]
            if isinstance(inner, Axis) and inner in wanted and _divides(atom.bottom, inner.extent):
                candidate = (list(axes).index(inner), str(atom.bottom), inner, atom.bottom)
                best = min(best, candidate, key=lambda c: c[:2]) if best else candidate
    if best is None:
        return None
    _, _, whole, step = best
    high, low = axis(floordiv(whole.extent, step), "r"), axis(step, "r")
    spread = [d for a in axes for d in ((high, low) if a == whole else (a,))]
    return spread, {whole: polynomial(high) * step + polynomial(low)}


def _divides(step: Size, extent: Size) -> bool:
    return not is_same_size(step, 1) and is_same_size(floordiv(extent, step) * step, extent)


def merged_digits(
    record: Kept, axes: Sequence[Axis], change: Callable[[Kept, Values, Sequence[Axis]], Kept | None]
) -> tuple[list[Axis], dict[Atom, Any]] | None:
    """Two bound axes that occur only as D*h + d, with d over D values, as one."""
    if len(axes) < 2:
        return None
    sizes = [s for s in _sizes(record) if not isinstance(s, int)]
    for low in axes:
        for high in axes:
            if high == low or not _maybe_digits(high, low, sizes):
                continue
            one = axis(high.extent * low.extent, "r")
            values: dict[Atom, Any] = {high: 0, low: polynomial(one)}
            back: dict[Atom, Any] = {one: polynomial(high) * low.extent + polynomial(low)}
            if all(is_same_size(substitute(substitute(s, values), back), s) for s in sizes):
                spread = [one if a == high else a for a in axes if a != low]
                return spread, values
    return None


def _maybe_digits(high: Axis, low: Axis, sizes: Iterable[Size]) -> bool:
    """A quick look: wherever one occurs the other does, and with D times its slope where both are linear."""
    seen = False
    for size in sizes:
        inside = axes_in(size)
        if (high in inside) != (low in inside):
            return False
        if high not in inside:
            continue
        found = affine_coefficients(size, [high, low])
        if found is not None and not is_same_size(found[0].get(high, 0), found[0].get(low, 0) * low.extent):
            return False
        seen = True
    return seen


def joined(
    a: Core, k: Axis, b: Core, m: Axis, change: Callable[[Core, Values, Sequence[Axis]], Core | None]
) -> Sum | None:
    """The sum of two cores that are one over adjoining ranges of k (in a, first) and m (in b)."""
    wide = axis(k.extent + m.extent, "r")
    first = change(a, {k: polynomial(wide)}, [wide if x == k else x for x in a.axes])
    second = change(b, {m: polynomial(wide) - k.extent}, [wide if x == m else x for x in b.axes])
    if first is None or second is None or first.key != second.key:
        return None
    return Sum(((1, first),))
