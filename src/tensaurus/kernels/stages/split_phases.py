"""Strides taken out of guards: what is computed of every s-th element becomes dense, s phases side by side.

    s[i:8] = sum[r:4] (x[(i + r) // 2] if (i + r) % 2 == 0) * w[r]
 -> s[i:4, p:2] = sum[r:3] (x[i + r] * w[2*r - p] if 0 <= 2*r - p < 4)

Transposed convolutions need it: each phase of the output reads its own phase of the kernel (ETO section 4.1
makes the same of them by hand).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensaurus.expr.ir.axis_binding import axis_divisors
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Select, Tensor, axis, digit_axes
from tensaurus.expr.ir.walk import bodies, map_reads, rebuild_body, replace_axes, sizes
from tensaurus.expr.normal.flatten import chosen
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
from tensaurus.kernels.stages.stage import Stage, extent, neutral

__all__ = ["phased", "split"]


def phased(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages with strides out of the guards of reductions; the output may have its axes split in two."""
    found = tuple(stages)
    while (digit := next(_digits(found), None)) is not None:
        found = split(found, *digit)
    while True:
        change = next(_splits(found), None)
        if change is None:
            return found
        found = split(found, *change)


def _splits(stages: Sequence[Stage]) -> Iterator[tuple[Stage, Axis, int, Axis]]:
    """(stage, axis, s, reduced axis): a guard holds at each s-th place of the reduced axis only, by the
    axis.
    """
    for stage in stages:
        for guard in _guards(stage) if stage.reduced else ():
            if not _vanishes(stage, stage.body, guard):
                continue
            for atom in atoms(guard):
                if not isinstance(atom, Floor) or not isinstance(atom.bottom, int):
                    continue
                here = [a for a in stage.axes if a in atoms(guard)]
                inner = [r for r in stage.reduced if r in atoms(guard)]
                for a in here:
                    if extent(a) % atom.bottom or extent(a) == atom.bottom:
                        continue
                    for r in inner:
                        _, low, whole = digit_axes(a, atom.bottom)
                        if _aligned(substitute(guard, {a: whole}), low, r, atom.bottom) is not None:
                            yield stage, a, atom.bottom, r


def _digits(stages: Sequence[Stage]) -> Iterator[tuple[Stage, Axis, int]]:
    """(stage, axis, k): an index of a reduction has the axis, or a place beside it, divided by k, which
    divides its extent.
    """
    for stage in stages:
        found = {*axis_divisors(stage.body), *_shifted(stage)} if stage.reduced else ()
        for whole, step in sorted(found, key=str):
            if whole in stage.axes and 1 < step < extent(whole):
                yield stage, whole, step


def _shifted(stage: Stage) -> Iterator[tuple[Axis, int]]:
    """(axis, 2) where the body has (axis + c) // 2, as a transposed convolution whose phases have one tap."""
    for body in bodies(stage.body):
        for atom in (atom for size in sizes(body) for atom in atoms(size)):
            if isinstance(atom, Floor) and atom.bottom == 2:
                for a in stage.axes:
                    if isinstance(atom.top - polynomial(a), int) and extent(a) % 2 == 0:
                        yield a, 2


def _of_pairs(body: Body) -> Body:
    """The body with quotients of an axis of two places as what they are: (p + 1) // 2 is p."""

    def settled(size: Size) -> Size:
        values: dict[Atom, Size] = {}
        for atom in atoms(size):
            inside = atoms(atom.top) if isinstance(atom, Floor) else ()
            if len(inside) == 1 and isinstance(a := next(iter(inside)), Axis) and a.extent == 2:
                ends = [substitute(polynomial(atom), {a: n}) for n in (0, 1)]
                values[atom] = ends[0] + polynomial(a) * (ends[1] - ends[0])
        return substitute(size, values) if values else size

    return rebuild_body(body, _of_pairs, settled)


def _guards(stage: Stage) -> Iterator[Size]:
    for body in bodies(stage.body):
        if isinstance(body, Select):
            yield from body.guard


def _aligned(guard: Size, low: Axis, r: Axis, step: int) -> Size | None:
    """The place of the reduced axis, in steps, at which the guard always holds, and at no other."""
    whole = axis(1, "q")  # no bound of it is used
    for slope in range(step):
        places: list[Size] = [polynomial(low) * -slope + offset for offset in range(step)]
        values = [substitute(guard, {r: polynomial(whole) * step + place}) for place in places]
        ends = [interval(value) for value in values]
        if any(whole in atoms(v) for v in values) or not all(isinstance(n, int) for end in ends for n in end):
            continue
        fitting = [place for place, (least, _) in zip(places, ends, strict=True) if least >= 0]  # type: ignore[operator]
        if len(fitting) == 1 and sum(most < 0 for _, most in ends) == step - 1:  # type: ignore[operator]
            return fitting[0]
    return None


def _vanishes(stage: Stage, body: Body, guard: Size) -> bool:
    """Whether a part of the stage's body is its monoid's neutral element wherever the guard does not hold."""
    match body:
        case Const():
            return body == neutral(stage.monoid, stage.tensor.dtype)
        case Select(guards, then, other):
            return _vanishes(stage, other, guard) and (guard in guards or _vanishes(stage, then, guard))
        case Call("mul", args) if stage.monoid == "sum":
            return any(_vanishes(stage, arg, guard) for arg in args)
        case Call("add" | "sub" | "neg", args) if stage.monoid == "sum":
            return all(_vanishes(stage, arg, guard) for arg in args)
    return False


def split(
    stages: Sequence[Stage], stage: Stage, a: Axis, step: int, r: Axis | None = None
) -> tuple[Stage, ...]:
    """The stages with an axis of one in two, the outer one and `step` places of it, and those axes that
    readers of the stage read it by; with the reduced axis r in steps, where its guard holds."""
    chosen_axes: dict[str, Axis] = {stage.tensor.name: a}
    for reader in stages:
        for name, split in list(chosen_axes.items()):
            place = _dimension(stages, name, split)
            for body in bodies(reader.body):
                if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source.name == name:
                    own = next((b for b in reader.axes if polynomial(b) == body.indices[place]), None)
                    if own is not None and extent(own) % step == 0:
                        chosen_axes.setdefault(reader.tensor.name, own)
    tensors: dict[str, tuple[Tensor, int]] = {}
    found: list[Stage] = []
    for old in stages:
        body, axes = old.body, old.axes
        reduced = old.reduced
        whole = chosen_axes.get(old.tensor.name)
        if whole is not None:
            high, low, digits = digit_axes(whole, step, "p")
            place = axes.index(whole)
            body = replace_axes(body, {whole: digits})
            body = _dropped(_of_pairs(body)) if r is None else body
            axes = (*axes[:place], high, low, *axes[place + 1 :])
            tensor = replace(old.tensor, shape=tuple(b.extent for b in axes))
            tensors[old.tensor.name] = tensor, place
            if old is stage and r is not None:
                body, reduced = _dense(old, body, low, r, step)
        else:
            tensor = old.tensor
        found.append(Stage(tensor, axes, _read_split(body, tensors, step), reduced, old.monoid))
    return tuple(found)


def _dimension(stages: Sequence[Stage], name: str, a: Axis) -> int:
    return next(s for s in stages if s.tensor.name == name).axes.index(a)


def _dense(stage: Stage, body: Body, low: Axis, r: Axis, step: int) -> tuple[Body, tuple[Axis, ...]]:
    """The body and the reduced axes with r in steps, at the places where the guard holds."""
    guard = next(
        g
        for inner in bodies(body)
        if isinstance(inner, Select)
        for g in inner.guard
        if r in atoms(g) and _vanishes(stage, body, g) and _aligned(g, low, r, step) is not None
    )
    shift = _aligned(guard, low, r, step)
    least, most = interval(shift)
    assert isinstance(least, int) and isinstance(most, int)
    first = -(most // step)
    last = (extent(r) - 1 - least) // step
    new = axis(last - first + 1, "r")
    place = (polynomial(new) + first) * step + shift
    inner = _dropped(replace_axes(body, {r: place}))
    beyond = neutral(stage.monoid, stage.tensor.dtype)
    whole = chosen([place, extent(r) - 1 - place], inner, beyond)
    return whole, tuple(new if b == r else b for b in stage.reduced)


def _dropped(body: Body) -> Body:
    """The body without guards that always hold, and with those that say what an edge says turned to edges."""
    match body:
        case Select(guard, then, Const() as other):
            then = _dropped(then)
            left = [g for g in guard if not _holds(g)]
            if isinstance(then, Read) and then.outside in (None, other):
                kept = [g for g in left if not _implied(g, then)]
                then = Read(then.source, then.indices, other) if kept != left else then
                return chosen(kept, then, other)
            return chosen(left, then, other)
    return rebuild_body(body, _dropped, lambda size: size)


def _holds(guard: Size) -> bool:
    low, _ = interval(guard)
    return isinstance(low, int) and low >= 0


def _implied(guard: Size, read: Read) -> bool:
    """Whether the guard holds wherever the indices are in range."""
    for index, size in zip(read.indices, read.source.shape, strict=True):
        inside = [a for a in atoms(index) if isinstance(a, Axis)]
        forms = affine_coefficients(index, inside), affine_coefficients(guard, inside)
        if not inside or forms[0] is None or forms[1] is None:
            continue
        a = inside[0]
        scale, slope = forms[0][0].get(a), forms[1][0].get(a, 0)
        if not isinstance(scale, int) or not isinstance(slope, int) or slope == 0 or slope % scale:
            continue
        times = slope // scale
        rest, _ = interval(guard - times * index)
        assert isinstance(size, int)
        least = 0 if times > 0 else times * (size - 1)
        if isinstance(rest, int) and rest + least >= 0:
            return True
    return False


def _read_split(body: Body, tensors: dict[str, tuple[Tensor, int]], step: int) -> Body:
    """Reads of split tensors by both digits."""

    def changed(read: Read) -> Read:
        found = _read_split(read, tensors, step)
        assert isinstance(found, Read)
        return found

    if isinstance(body, Read) and isinstance(body.source, Tensor) and body.source.name in tensors:
        tensor, place = tensors[body.source.name]
        index = body.indices[place]
        digits = (floordiv(index, step), mod(index, step))
        body = Read(tensor, (*body.indices[:place], *digits, *body.indices[place + 1 :]), body.outside)
    return rebuild_body(
        body, lambda inner: _read_split(inner, tensors, step), lambda size: map_reads(size, changed)
    )
