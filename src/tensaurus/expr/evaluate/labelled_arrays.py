"""Arrays whose dimensions are axes, with functions and reductions of them in any field.

    (i, j) of shape 3, 5   times   (j, k) of shape 5, 2      is      (i, j, k) of shape 3, 5, 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from tensaurus.expr.evaluate.field_protocol import REDUCTION_UFUNCS, Array, Field
from tensaurus.expr.sizes.symbol import Axis


@dataclass(frozen=True)
class LabelledArray:
    """An array whose dimensions are named by axes."""

    data: Array
    axes: tuple[Axis, ...]

    def align(self, axes: Sequence[Axis]) -> Array:
        """Return the data with its dimensions in this order, of length 1 for axes it lacks."""
        order = [self.axes.index(a) for a in axes if a in self.axes]
        data = self.data.transpose(order) if order != list(range(len(order))) else self.data
        return data.reshape([1 if a not in self.axes else length(a) for a in axes])

    def at_point(self, point: Mapping[Axis, int]) -> LabelledArray:
        """Return the array at one index of each of some axes, which it loses if it has them."""
        data = self.data[tuple(point.get(a, slice(None)) for a in self.axes)]
        return LabelledArray(data, tuple(a for a in self.axes if a not in point))

    def in_range(self, cut: Axis, chunk: Axis, start: int) -> LabelledArray:
        """Return the range of the axis `cut` from `start` on, as axis `chunk`; all of an array without it."""
        if cut not in self.axes:
            return self
        selector = tuple(slice(start, start + length(chunk)) if a == cut else slice(None) for a in self.axes)
        return LabelledArray(self.data[selector], tuple(chunk if a == cut else a for a in self.axes))


def length(a: Axis) -> int:
    """Return the extent of an axis.  Raises ValueError where it is a symbol."""
    if not isinstance(a.extent, int):
        raise ValueError(f"the size {a.extent} is not known: fixing sizes of inputs (--shape) may tell it")
    return a.extent


class ArrayOperations:
    """Operations on labelled arrays of one field."""

    def __init__(self, field: Field):
        self.field = field

    def call(self, fn: str, args: Sequence[LabelledArray], dtype: str = "int64") -> LabelledArray:
        """Apply a function; `dtype` is the type of integers among the arguments, not needed for +, -, *."""
        axes = union_of_axes(args)
        data = self.field.call(fn, [a.align(axes) for a in args], dtype)
        return LabelledArray(np.broadcast_to(data, [length(a) for a in axes]), axes)

    def reduce_over(self, monoid: str, item: LabelledArray, axes: Sequence[Axis]) -> LabelledArray:
        """Reduce over axes; those the array lacks repeat its value."""
        present = tuple(item.axes.index(a) for a in axes if a in item.axes)
        data, kept_axes = item.data, tuple(a for a in item.axes if a not in axes)
        if present:  # elements by the field's own arithmetic, integers and bools by numpy's
            if self.field.has_elements(data):
                data = self.field.reduce(monoid, data, present)
            else:
                data = np.asarray(REDUCTION_UFUNCS[monoid].reduce(data, axis=present))
        result = LabelledArray(data, kept_axes)
        repeats = prod(length(a) for a in axes if a not in item.axes)
        if repeats == 1 or monoid in ("max", "min"):
            return result
        if monoid == "sum":
            return self.call("mul", [result, LabelledArray(np.asarray(repeats), ())])
        return reduce(lambda a, b: self.call("mul", [a, b]), [result] * repeats)


def union_of_axes(items: Sequence[LabelledArray]) -> tuple[Axis, ...]:
    """Return the axes of all arrays, beginning with those of the array that has most."""
    axes: dict[Axis, None] = {}
    for item in sorted(items, key=lambda x: -len(x.axes)):
        axes.update(dict.fromkeys(item.axes))
    return tuple(axes)
