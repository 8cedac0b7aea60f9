"""Operands as copies: padded, with strides turned to phases, the vector's dimension last.

    s[i:28] = sum[r:3] x[2*i + r - 1] | 0
 -> c[p:2, q:29] = x[2*q + p - 1] | 0,   s[i:28] = sum[r:3] c[r % 2, i + r // 2]

A copy is a stage as any other; a schedule says where it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensaurus.expr.ir.scope import Body, Const, Read, Tensor, axis
from tensaurus.expr.ir.walk import rebuild_body
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Axis, Size, floordiv, interval, mod, polynomial, substitute
from tensaurus.kernels.stages.stage import Stage

__all__ = ["copied", "replaced", "slopes", "span"]

# Steps up to which vectors are gathered out of dense ones where they are used: a depthwise convolution of
# stride 2 is twice as fast so, one of many channels as fast.
NARROW = 4


def slopes(index: Size, axes: Sequence[Axis]) -> dict[Axis, int] | None:
    """The coefficient of each axis, where the index is affine with numbers."""
    form = affine_coefficients(index, axes)
    if form is None or not isinstance(form[1], int):
        return None
    numbers = {a: c for a, c in form[0].items() if isinstance(c, int)}
    return numbers if len(numbers) == len(form[0]) else None


def copied(
    stage: Stage, read: Read, vector: Axis, name: str, width: int = 1
) -> tuple[tuple[Stage, ...], Stage] | None:
    """The copies of what a read reads, each of the one before, and the stage reading the last of them.

    One has the edges, and one the phases and the order.  They hold what the last vector, one of `width`
    elements, reads beyond its axis.  None where an index is not affine, or where the vector lies along
    several dimensions.
    """
    axes = (*stage.axes, *stage.reduced)
    forms = [slopes(index, axes) for index in read.indices]
    if not forms or any(form is None for form in forms):
        return None
    along = [d for d, form in enumerate(forms) if form and vector in form]
    steps = [abs((forms[d] or {}).get(vector, 1)) for d in range(len(forms))]
    if len(along) > 1:
        return None
    made: list[Stage] = []
    moved = read
    filled: dict[Atom, Size] = {vector: polynomial(axis(-(-_number(vector.extent) // width) * width))}
    lows, counts = zip(*(span(substitute(index, filled)) for index in read.indices), strict=True)
    turned = bool(along) and (along[0] != len(forms) - 1 or steps[along[0]] > NARROW)
    # a phase ends where the longest does: what nobody reads there is in the copy, too
    whole = [step if turned else 1 for step in steps]
    spans = [-(-n // step) * step for n, step in zip(counts, whole, strict=True)]
    sizes = map(_number, read.source.shape)
    short = any(low < 0 or low + n > size for low, n, size in zip(lows, spans, sizes, strict=True))
    if read.outside is not None or short or not turned:
        beyond = Const(0) if read.outside is None and short else read.outside
        made.append(_padded(replace(read, outside=beyond), lows, spans, name))
        moved = Read(made[-1].tensor, tuple(i - low for i, low in zip(read.indices, lows, strict=True)))
        lows = (0,) * len(lows)
    if turned:
        order = [d for d in range(len(forms)) if d not in along] + along
        made.append(_turned(moved, order, steps, lows, counts, f"{name}_turned"))
        places = []
        for d in order:
            shifted = moved.indices[d] - lows[d]
            step = steps[d]
            places += [mod(shifted, step), floordiv(shifted, step)] if step > 1 else [shifted]
        moved = Read(made[-1].tensor, tuple(places))
    return tuple(made), replace(stage, body=replaced(stage.body, {read: moved}))


def _number(size: Size) -> int:
    assert isinstance(size, int)
    return size


def span(index: Size) -> tuple[int, int]:
    """The first, and how many."""
    low, high = interval(index)
    assert isinstance(low, int) and isinstance(high, int)
    return low, high - low + 1


def _padded(read: Read, lows: Sequence[int], spans: Sequence[int], name: str) -> Stage:
    """All that is read, and what is read beyond the edges."""
    assert isinstance(read.source, Tensor)
    own = tuple(axis(span, "q") for span in spans)
    places = tuple(polynomial(a) + low for a, low in zip(own, lows, strict=True))
    tensor = Tensor(name, tuple(a.extent for a in own), read.source.dtype)
    return Stage(tensor, own, Read(read.source, places, read.outside))


def _turned(
    read: Read,
    order: Sequence[int],
    steps: Sequence[int],
    lows: Sequence[int],
    counts: Sequence[int],
    name: str,
) -> Stage:
    """The dimensions in this order, each in as many phases as it has steps."""
    assert isinstance(read.source, Tensor)
    own: list[Axis] = []
    indices: dict[int, Size] = {}
    for d in order:
        low, count, step = lows[d], counts[d], steps[d]
        if step > 1:
            own += [axis(step, "p"), axis(-(-count // step), "q")]
            indices[d] = polynomial(own[-1]) * step + polynomial(own[-2]) + low
        else:
            own.append(axis(count, "q"))
            indices[d] = polynomial(own[-1]) + low
    tensor = Tensor(name, tuple(a.extent for a in own), read.source.dtype)
    places = tuple(indices[d] for d in range(len(read.indices)))
    return Stage(tensor, tuple(own), Read(read.source, places))


def replaced(body: Body, values: Mapping[Read, Body]) -> Body:
    """The body with others in the place of some reads."""
    if isinstance(body, Read) and body in values:
        return values[body]
    return rebuild_body(body, lambda inner: replaced(inner, values), lambda size: size)
