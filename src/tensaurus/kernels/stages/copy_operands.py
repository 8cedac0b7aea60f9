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
from typing import NamedTuple

from tensaurus.expr.ir.scope import Body, Const, Read, Tensor, axis
from tensaurus.expr.ir.walk import rebuild_body
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Axis, Size, floordiv, interval, mod, polynomial
from tensaurus.kernels.stages.stage import Stage, define_stage

__all__ = ["copy_operand", "replace_reads", "axis_coefficients", "index_range", "pad_stage"]

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


class IndexRange(NamedTuple):
    """The values of an index: `size` values from `low` on."""

    low: int
    size: int


def index_range(index: Size) -> IndexRange:
    """Returns the range from the first value of an index to the last."""
    low, high = interval(index)
    assert isinstance(low, int) and isinstance(high, int)
    return IndexRange(low, high - low + 1)


def copy_operand(
    stage: Stage, read: Read, vector: Axis, name: str
) -> tuple[tuple[Stage, ...], Stage] | None:
    """Returns copies of a read's operand, each of the copy before, and the stage that reads the last.

    `vector` is the axis that vectors go along, `name` the name of the first copy. One copy adds the edges,
    the next splits phases and moves the vectors' dimension to the end, if that is not the last dimension or
    the stride is large. Returns None where an index is not affine, or where the vector's axis occurs in
    several indices.
    """
    axes = (*stage.axes, *stage.reduced)
    steps: list[int] = []  # by how much `vector` moves the index of each dimension
    for index in read.indices:
        coefficients = axis_coefficients(index, axes)
        if coefficients is None:
            return None
        steps.append(abs(coefficients.get(vector, 0)))
    moving = [d for d, step in enumerate(steps) if step]
    if not steps or len(moving) > 1:
        return None
    dimension = moving[0] if moving else len(steps) - 1  # the dimension that becomes the last
    step = steps[dimension]
    is_moved = dimension != len(steps) - 1 or step > MAX_GATHER_STEP
    ranges = [index_range(index) for index in read.indices]
    if is_moved:  # every phase is as long as the longest, although no reader needs the ends of shorter ones
        low, size = ranges[dimension]
        ranges[dimension] = IndexRange(low, -(-size // step) * step)
    # the copy with edges: for a value outside, for reads beyond the operand, or if it is the only copy
    copies: list[Stage] = []
    moved = read
    is_short = any(not _is_inside(*pair) for pair in zip(ranges, read.source.shape, strict=True))
    if read.outside is not None or is_short or not is_moved:
        outside = Const(0) if read.outside is None and is_short else read.outside
        copies.append(pad_stage(replace(read, outside=outside), ranges, name))
        shifted = (index - low for index, (low, _) in zip(read.indices, ranges, strict=True))
        moved = Read(copies[-1].tensor, tuple(shifted))
        ranges = [IndexRange(0, size) for _, size in ranges]
    if is_moved:
        copy, moved = _move_dimension_last(moved, ranges, dimension, step, f"{name}_turned")
        copies.append(copy)
    return tuple(copies), replace(stage, body=replace_reads(stage.body, {read: moved}))


def _is_inside(values: IndexRange, extent: Size) -> bool:
    assert isinstance(extent, int)
    return values.low >= 0 and values.low + values.size <= extent


def pad_stage(read: Read, ranges: Sequence[IndexRange], name: str) -> Stage:
    """Returns the stage that copies the ranges of indices, with the values beyond the edges."""
    assert isinstance(read.source, Tensor)
    axes = tuple(axis(size, "q") for _, size in ranges)
    places = tuple(polynomial(a) + low for a, (low, _) in zip(axes, ranges, strict=True))
    return define_stage(name, read.source.dtype, axes, Read(read.source, places, read.outside))


def _move_dimension_last(
    read: Read, ranges: Sequence[IndexRange], dimension: int, step: int, name: str
) -> tuple[Stage, Read]:
    """Copies an operand with a dimension last that is split in phases; returns the copy and its read.

    x[2*i + r, j] by step 2   ->   copy[j, r % 2, i + r // 2]
    """
    assert isinstance(read.source, Tensor)
    axes: list[Axis] = []
    copied: dict[int, Size] = {}  # by dimension: the index that the copy reads
    places: list[Size] = []  # the indices of the copy that the given read takes
    for d in [*(d for d in range(len(ranges)) if d != dimension), dimension]:
        low, size = ranges[d]
        place = read.indices[d] - low
        if d == dimension and step > 1:
            phase, block = axis(step, "p"), axis(size // step, "q")
            axes += [phase, block]
            copied[d] = polynomial(block) * step + polynomial(phase) + low
            places += [mod(place, step), floordiv(place, step)]
        else:
            axes.append(axis(size, "q"))
            copied[d] = polynomial(axes[-1]) + low
            places.append(place)
    body = Read(read.source, tuple(copied[d] for d in range(len(ranges))))
    copy = define_stage(name, read.source.dtype, tuple(axes), body)
    return copy, Read(copy.tensor, tuple(places))


def replace_reads(body: Body, values: Mapping[Read, Body]) -> Body:
    """Replaces some reads of the body by other bodies."""
    if isinstance(body, Read) and body in values:
        return values[body]
    return rebuild_body(body, lambda inner: replace_reads(inner, values), lambda size: size)
