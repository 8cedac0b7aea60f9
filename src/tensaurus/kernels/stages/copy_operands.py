"""Copies an operand so that a vector reads elements that lie side by side.

The copy is padded, its last dimension is the one that vectors go along, and a strided dimension is split in
two by quotient and remainder of the index: the remainders are called phases.

    s[i:28] = sum[r:3] x[2*i + r - 1] | 0
 -> c[p:2, q:29] = x[2*q + p - 1] | 0,   s[i:28] = sum[r:3] c[r % 2, i + r // 2]

A copy is a stage like any other; the schedule says where it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensaurus.expr.ir.scope import Body, Const, Read, Tensor, axis
from tensaurus.expr.ir.walk import rebuild_body
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Axis, Size, floordiv, interval, mod, polynomial, substitute
from tensaurus.kernels.stages.stage import Stage

__all__ = ["copy_operand", "replace_reads", "axis_coefficients", "index_range"]

# The largest stride, in elements, without a copy by phases: its vectors are gathered from dense vectors where
# they are used. A depthwise convolution of stride 2 is twice as fast so, and one of many channels as fast.
MAX_GATHER_STEP = 4


def axis_coefficients(index: Size, axes: Sequence[Axis]) -> dict[Axis, int] | None:
    """Returns the coefficient of each axis in an index, or None if the index is not affine with integers."""
    form = affine_coefficients(index, axes)
    if form is None or not isinstance(form[1], int):
        return None
    numbers = {a: c for a, c in form[0].items() if isinstance(c, int)}
    return numbers if len(numbers) == len(form[0]) else None


def copy_operand(
    stage: Stage, read: Read, vector: Axis, name: str, width: int = 1
) -> tuple[tuple[Stage, ...], Stage] | None:
    """Returns copies of a read's operand, each of the copy before, and the stage that reads the last.

    `vector` is the axis that vectors go along, `name` the name of the first copy. One copy adds the edges,
    the next splits phases and reorders dimensions, if vectors go along a dimension that is not the last or at
    a large stride. Copies also hold what the last vector of `width` elements reads beyond its axis. Returns
    None where an index is not affine, or where the vector's axis occurs in several indices.
    """
    # forms: by dimension, the coefficients of axes in its index; steps: by how much `vector` moves the index
    axes = (*stage.axes, *stage.reduced)
    forms = [axis_coefficients(index, axes) for index in read.indices]
    if not forms or any(form is None for form in forms):
        return None
    moving_dimensions = [d for d, form in enumerate(forms) if form and vector in form]
    steps = [abs((forms[d] or {}).get(vector, 1)) for d in range(len(forms))]
    if len(moving_dimensions) > 1:
        return None
    # lows, counts: the range of each index, when `vector` is rounded up to whole vectors
    copies: list[Stage] = []
    moved = read
    filled: dict[Atom, Size] = {vector: polynomial(axis(-(-_number(vector.extent) // width) * width))}
    lows, counts = zip(*(index_range(substitute(index, filled)) for index in read.indices), strict=True)
    is_reordered = any(d != len(forms) - 1 or steps[d] > MAX_GATHER_STEP for d in moving_dimensions)
    # every phase is as long as the longest one, although no reader needs the ends of shorter ones
    phase_steps = [step if is_reordered else 1 for step in steps]
    spans = [-(-n // step) * step for n, step in zip(counts, phase_steps, strict=True)]
    # the copy with edges: for a value outside, for reads beyond the operand, or if it is the only copy
    sizes = map(_number, read.source.shape)
    is_short = any(low < 0 or low + n > size for low, n, size in zip(lows, spans, sizes, strict=True))
    if read.outside is not None or is_short or not is_reordered:
        outside = Const(0) if read.outside is None and is_short else read.outside
        copies.append(_pad_stage(replace(read, outside=outside), lows, spans, name))
        moved = Read(copies[-1].tensor, tuple(i - low for i, low in zip(read.indices, lows, strict=True)))
        lows = (0,) * len(lows)
    # the copy that reorders: the vectors' dimension last, split in phases
    if is_reordered:
        order = [d for d in range(len(forms)) if d not in moving_dimensions] + moving_dimensions
        copies.append(_reorder_stage(moved, order, steps, lows, counts, f"{name}_turned"))
        places = []
        for d in order:
            shifted = moved.indices[d] - lows[d]
            step = steps[d]
            places += [mod(shifted, step), floordiv(shifted, step)] if step > 1 else [shifted]
        moved = Read(copies[-1].tensor, tuple(places))
    return tuple(copies), replace(stage, body=replace_reads(stage.body, {read: moved}))


def _number(size: Size) -> int:
    assert isinstance(size, int)
    return size


def index_range(index: Size) -> tuple[int, int]:
    """Returns the first value of an index, and the number of values up to the last."""
    low, high = interval(index)
    assert isinstance(low, int) and isinstance(high, int)
    return low, high - low + 1


def _pad_stage(read: Read, lows: Sequence[int], spans: Sequence[int], name: str) -> Stage:
    """Returns the stage that copies the range of indices that is read, with the values beyond the edges."""
    assert isinstance(read.source, Tensor)
    axes = tuple(axis(span, "q") for span in spans)
    places = tuple(polynomial(a) + low for a, low in zip(axes, lows, strict=True))
    tensor = Tensor(name, tuple(a.extent for a in axes), read.source.dtype)
    return Stage(tensor, axes, Read(read.source, places, read.outside))


def _reorder_stage(
    read: Read,
    order: Sequence[int],
    steps: Sequence[int],
    lows: Sequence[int],
    counts: Sequence[int],
    name: str,
) -> Stage:
    """Returns the stage that copies the dimensions in this order, each split in phases of its step."""
    assert isinstance(read.source, Tensor)
    axes: list[Axis] = []
    indices: dict[int, Size] = {}
    for d in order:
        low, count, step = lows[d], counts[d], steps[d]
        if step > 1:
            axes += [axis(step, "p"), axis(-(-count // step), "q")]
            indices[d] = polynomial(axes[-1]) * step + polynomial(axes[-2]) + low
        else:
            axes.append(axis(count, "q"))
            indices[d] = polynomial(axes[-1]) + low
    tensor = Tensor(name, tuple(a.extent for a in axes), read.source.dtype)
    places = tuple(indices[d] for d in range(len(read.indices)))
    return Stage(tensor, tuple(axes), Read(read.source, places))


def replace_reads(body: Body, values: Mapping[Read, Body]) -> Body:
    """Replaces some reads of the body by other bodies."""
    if isinstance(body, Read) and body in values:
        return values[body]
    return rebuild_body(body, lambda inner: replace_reads(inner, values), lambda size: size)
