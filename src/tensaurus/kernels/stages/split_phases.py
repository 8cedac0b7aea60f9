"""Removes strides from guards: a sum over every s-th element becomes dense sums, one for each of s phases.

    s[i:8] = sum[r:4] (x[(i + r) // 2] if (i + r) % 2 == 0) * w[r]
 -> s[i:4, p:2] = sum[r:3] (x[i + r] * w[2*r - p] if 0 <= 2*r - p < 4)

Transposed convolutions need this. A phase is a remainder modulo s: each phase p of the output needs only the
terms of one phase of r (ETO section 4.1 splits them so by hand).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from tensaurus.expr.ir.axis_binding import axis_divisors
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Select, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import bodies, map_reads, rebuild_body, replace_axes, sizes
from tensaurus.expr.normal.flatten import select_undecided
from tensaurus.expr.sizes.affine import affine_coefficients
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
from tensaurus.kernels.stages.stage import Stage, extent, neutral_element, source_name

__all__ = ["split_phases", "split_axis"]


def split_phases(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Removes strides from the guards of reductions; axes, also of the output, may be split in two.

    First axes of which reductions use quotients are split, then those that decide strided guards.
    """
    result = tuple(stages)
    for find_splits in (_divided_axes, _strided_guards):
        while (split := next(find_splits(result), None)) is not None:
            result = split_axis(result, *split)
    return result


class _AxisSplit(NamedTuple):
    """The arguments of `split_axis`."""

    stage: Stage
    a: Axis
    step: int
    r: Axis | None = None


def _strided_guards(stages: Sequence[Stage]) -> Iterator[_AxisSplit]:
    """Yields the splits of axes that decide at which remainder modulo `step` of r a guard holds: at one only.
    """
    for stage in stages:
        for guard in _guards(stage) if stage.reduced else ():
            if not _is_neutral_outside(stage, stage.body, guard):
                continue
            for atom in atoms(guard):
                if not isinstance(atom, Floor) or not isinstance(atom.bottom, int):
                    continue
                here = [a for a in stage.axes if a in atoms(guard)]
                inner = [r for r in stage.reduced if r in atoms(guard)]
                for a, r in product(here, inner):
                    if extent(a) % atom.bottom or extent(a) == atom.bottom:
                        continue  # no whole blocks, or a single one: nothing to split
                    # `whole` is the axis, written as bottom * quotient + low
                    _, low, whole = digit_axes(a, atom.bottom)
                    split_guard = substitute(guard, {a: whole})
                    if _remainder_where_guard_holds(split_guard, low, r, atom.bottom) is not None:
                        yield _AxisSplit(stage, a, atom.bottom, r)


def _divided_axes(stages: Sequence[Stage]) -> Iterator[_AxisSplit]:
    """Yields the splits of axes by k where an index of a reduction contains axis // k or a shifted quotient.
    """
    for stage in stages:
        found = {*axis_divisors(stage.body), *_shifted_halves(stage)} if stage.reduced else ()
        for whole, step in sorted(found, key=str):
            if whole in stage.axes and 1 < step < extent(whole):
                yield _AxisSplit(stage, whole, step)


def _shifted_halves(stage: Stage) -> Iterator[tuple[Axis, int]]:
    """Yields (axis, 2) for (axis + c) // 2, as in transposed convolutions whose phases have one tap."""
    for body in bodies(stage.body):
        for atom in (atom for size in sizes(body) for atom in atoms(size)):
            if isinstance(atom, Floor) and atom.bottom == 2:
                for a in stage.axes:
                    if isinstance(atom.top - polynomial(a), int) and extent(a) % 2 == 0:
                        yield a, 2


def _simplify_binary_quotients(body: Body) -> Body:
    """Writes quotients of an axis of extent 2 as linear forms: (p + 1) // 2 is p."""

    def linearized(size: Size) -> Size:
        values: dict[Atom, Size] = {}
        for atom in atoms(size):
            inside = atoms(atom.top) if isinstance(atom, Floor) else ()
            if len(inside) == 1 and isinstance(a := next(iter(inside)), Axis) and a.extent == 2:
                ends = [substitute(polynomial(atom), {a: n}) for n in (0, 1)]
                values[atom] = ends[0] + polynomial(a) * (ends[1] - ends[0])
        return substitute(size, values) if values else size

    return rebuild_body(body, _simplify_binary_quotients, linearized)


def _guards(stage: Stage) -> Iterator[Size]:
    for body in bodies(stage.body):
        if isinstance(body, Select):
            yield from body.guard


def _remainder_where_guard_holds(guard: Size, low: Axis, r: Axis, step: int) -> Size | None:
    """Returns the remainder of the reduced axis r modulo `step` at which the guard holds, as a size of `low`.

    `low` is the remainder of the other axis. Returns None unless the guard holds at just one remainder.

    For (i + r) % 2 == 0 and i = 2 * high + low it is -low: it may be negative, as it counts modulo `step`. It
    is sought in the form offset - slope * low. A slope is right if the guard no longer depends on
    r // step, and one offset makes it hold for each value of `low`, all others for none.
    """
    quotient = axis(1, "q")  # stands for r // step; its bound is not used
    for slope in range(step):
        places: list[Size] = [polynomial(low) * -slope + offset for offset in range(step)]
        values = [substitute(guard, {r: polynomial(quotient) * step + place}) for place in places]
        ends = [interval(value) for value in values]
        if any(quotient in atoms(value) for value in values):
            continue
        if not all(isinstance(n, int) for end in ends for n in end):
            continue
        fitting = [place for place, (low_end, _) in zip(places, ends, strict=True) if low_end >= 0]  # type: ignore[operator]
        if len(fitting) == 1 and sum(high_end < 0 for _, high_end in ends) == step - 1:  # type: ignore[operator]
            return fitting[0]
    return None


def _is_neutral_outside(stage: Stage, body: Body, guard: Size) -> bool:
    """Whether this part of the stage's body is the reduction's neutral element where the guard fails."""
    match body:
        case Const():
            return body == neutral_element(stage.monoid, stage.tensor.dtype)
        case Select(guards, then, other):
            return _is_neutral_outside(stage, other, guard) and (
                guard in guards or _is_neutral_outside(stage, then, guard)
            )
        case Call("mul", args) if stage.monoid == "sum":
            return any(_is_neutral_outside(stage, arg, guard) for arg in args)
        case Call("add" | "sub" | "neg", args) if stage.monoid == "sum":
            return all(_is_neutral_outside(stage, arg, guard) for arg in args)
    return False


def split_axis(
    stages: Sequence[Stage], stage: Stage, a: Axis, step: int, r: Axis | None = None
) -> tuple[Stage, ...]:
    """Splits an axis of a stage in blocks of `step` elements, and each axis of a reader that is its index.

    Other readers index the two new dimensions by quotient and remainder. If a reduced axis r is given, the
    reduction only goes over the values of r at which its guard holds.
    """
    # the axis to split in each stage: the given one, and in readers the axis by which they index such an axis
    chosen_axes: dict[str, Axis] = {stage.tensor.name: a}
    for reader in stages:
        for name, split in list(chosen_axes.items()):
            place = next(s for s in stages if s.tensor.name == name).axes.index(split)
            for body in bodies(reader.body):
                if isinstance(body, Read) and source_name(body) == name:
                    own = next((b for b in reader.axes if polynomial(b) == body.indices[place]), None)
                    if own is not None and extent(own) % step == 0:
                        chosen_axes.setdefault(reader.tensor.name, own)
    tensors: dict[str, tuple[Tensor, int]] = {}  # by name: the tensor in its new shape, the split dimension
    result: list[Stage] = []
    for old in stages:
        body, axes = old.body, old.axes
        reduced = old.reduced
        wide = chosen_axes.get(old.tensor.name)
        if wide is not None:
            high, low, digits = digit_axes(wide, step, "p")
            place = axes.index(wide)
            body = replace_axes(body, {wide: digits})
            body = _drop_guards(_simplify_binary_quotients(body)) if r is None else body
            axes = (*axes[:place], high, low, *axes[place + 1 :])
            tensor = replace(old.tensor, shape=tuple(b.extent for b in axes))
            tensors[old.tensor.name] = tensor, place
            if old is stage and r is not None:
                body, reduced = _step_reduced_axis(old, body, low, r, step)
        else:
            tensor = old.tensor
        result.append(Stage(tensor, axes, _read_both_digits(body, tensors, step), reduced, old.monoid))
    return tuple(result)


def _step_reduced_axis(
    stage: Stage, body: Body, low: Axis, r: Axis, step: int
) -> tuple[Body, tuple[Axis, ...]]:
    """Replaces r by an axis over its values, `step` apart, at which the guard holds: r is 2 * new - low."""
    guard = next(
        g
        for inner in bodies(body)
        if isinstance(inner, Select)
        for g in inner.guard
        if r in atoms(g)
        and _is_neutral_outside(stage, body, g)
        and _remainder_where_guard_holds(g, low, r, step) is not None
    )
    shift = _remainder_where_guard_holds(guard, low, r, step)
    lowest, highest = interval(shift)
    assert isinstance(lowest, int) and isinstance(highest, int)
    # from the first to the last value that r takes in any phase; a guard drops values beyond r's own range
    first = -(highest // step)
    last = (extent(r) - 1 - lowest) // step
    new = axis(last - first + 1, "r")
    place = (polynomial(new) + first) * step + shift
    inner = _drop_guards(replace_axes(body, {r: place}))
    beyond = neutral_element(stage.monoid, stage.tensor.dtype)
    guarded = select_undecided([place, extent(r) - 1 - place], inner, beyond)
    return guarded, tuple(new if b == r else b for b in stage.reduced)


def _drop_guards(body: Body) -> Body:
    """Drops guards that always hold, and turns guards that keep a read in range into edges of the read."""
    match body:
        case Select(guard, then, Const() as other):
            then = _drop_guards(then)
            undecided = [g for g in guard if not _always_holds(g)]
            if isinstance(then, Read) and then.outside in (None, other):
                kept = [g for g in undecided if not _is_implied_by_read(g, then)]
                then = Read(then.source, then.indices, other) if kept != undecided else then
                return select_undecided(kept, then, other)
            return select_undecided(undecided, then, other)
    return rebuild_body(body, _drop_guards, lambda size: size)


def _always_holds(guard: Size) -> bool:
    low, _ = interval(guard)
    return isinstance(low, int) and low >= 0


def _is_implied_by_read(guard: Size, read: Read) -> bool:
    """Whether the guard holds wherever the read is in range, as 3 - i - r >= 0 for x[i + r] of 4 elements."""
    for index, size in zip(read.indices, read.source.shape, strict=True):
        inside = [a for a in atoms(index) if isinstance(a, Axis)]
        forms = affine_coefficients(index, inside), affine_coefficients(guard, inside)
        if not inside or forms[0] is None or forms[1] is None:
            continue
        a = inside[0]
        scale, slope = forms[0][0].get(a), forms[1][0].get(a, 0)
        if not isinstance(scale, int) or not isinstance(slope, int) or slope == 0 or slope % scale:
            continue
        # guard = times * index + rest, where times * index is `least` or more for an index in range
        times = slope // scale
        rest, _ = interval(guard - times * index)
        assert isinstance(size, int)
        least = 0 if times > 0 else times * (size - 1)
        if isinstance(rest, int) and rest + least >= 0:
            return True
    return False


def _read_both_digits(body: Body, tensors: dict[str, tuple[Tensor, int]], step: int) -> Body:
    """Reads tensors whose dimension was split by the quotient and the remainder of the index."""

    def changed(read: Read) -> Read:
        found = _read_both_digits(read, tensors, step)
        assert isinstance(found, Read)
        return found

    if isinstance(body, Read) and source_name(body) in tensors:
        tensor, place = tensors[source_name(body)]
        index = body.indices[place]
        digits = (floordiv(index, step), mod(index, step))
        body = Read(tensor, (*body.indices[:place], *digits, *body.indices[place + 1 :]), body.outside)
    return rebuild_body(
        body, lambda inner: _read_both_digits(inner, tensors, step), lambda size: map_reads(size, changed)
    )
