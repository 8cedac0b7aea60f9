"""Strided views of arrays in which two axes walk over the same elements, as i and r of a window x[i + r].

    x[i + r], i:8, r:3, reads the 10 elements of an axis u:10; an array over u is read at u = i + r again

`contract` replaces i and r by u to multiply each element once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from numpy.lib.stride_tricks import as_strided

from tensaurus.expr.evaluate.labelled_arrays import LabelledArray, length
from tensaurus.expr.sizes.symbol import Axis


def axis_stride(item: LabelledArray, a: Axis) -> int:
    """Return the stride in bytes; 0 for an axis of length 1."""
    return item.data.strides[item.axes.index(a)] if length(a) > 1 else 0


def find_windows(item: LabelledArray, rows: Sequence[Axis], inner: Sequence[Axis]) -> list[tuple[Axis, Axis]]:
    """Return pairs (row, inner axis) that read elements more than once, as i and r of x[i + r] do."""
    pairs: list[tuple[Axis, Axis]] = []
    free_axes = [i for i in rows if axis_stride(item, i)]
    for r in inner:
        if not free_axes or not axis_stride(item, r):
            continue
        i = min(free_axes, key=lambda i: span_length(item, i, r) / length(i))
        if span_length(item, i, r) < length(i) * length(r):
            pairs.append((i, r))
            free_axes.remove(i)
    return pairs


def span_step(item: LabelledArray, i: Axis, r: Axis) -> int:
    """Return the step, in bytes, between the elements that both axes reach together."""
    return gcd(axis_stride(item, i), axis_stride(item, r))


def span_length(item: LabelledArray, i: Axis, r: Axis) -> int:
    """Return the number of elements that both axes reach together."""
    reach = sum(abs(axis_stride(item, x)) * (length(x) - 1) for x in (i, r))
    return reach // span_step(item, i, r) + 1


def span_view(item: LabelledArray, i: Axis, r: Axis, u: Axis) -> LabelledArray:
    """Return a view of the array in which u, all that i and r reach, replaces both, in memory order."""
    steps = {x: axis_stride(item, x) for x in (i, r)}
    # the first element in memory is the last one of an axis with a negative stride
    selector = tuple(slice(length(x) - 1 if steps.get(x, 0) < 0 else 0, None) for x in item.axes)
    axes = tuple(u if x == i else x for x in item.axes if x != r)
    strides = [span_step(item, i, r) if x == u else item.data.strides[item.axes.index(x)] for x in axes]
    data = as_strided(item.data[selector], [length(x) for x in axes], strides, writeable=False)
    return LabelledArray(data, axes)


def window_view(terms: LabelledArray, item: LabelledArray, i: Axis, r: Axis, u: Axis) -> LabelledArray:
    """Return a view over i and r of terms[u, r]: the point (i, r) has the u that both reach together.

    That is u = start + steps[i] * i + steps[r] * r, with the strides of `item`, of which u is the span.
    """
    common_step = span_step(item, i, r)
    steps = {x: axis_stride(item, x) // common_step for x in (i, r)}
    start = sum(-step * (length(x) - 1) for x, step in steps.items() if step < 0)
    strides = dict(zip(terms.axes, terms.data.strides, strict=True))
    u_stride = strides.pop(u)
    strides[r] += steps[r] * u_stride
    axes = tuple(i if x == u else x for x in terms.axes)
    selector = tuple(slice(start if x == u else 0, None) for x in terms.axes)
    strides[i] = steps[i] * u_stride
    shape = [length(x) for x in axes]
    return LabelledArray(
        as_strided(terms.data[selector], shape, [strides[x] for x in axes], writeable=False), axes
    )
