"""The arithmetic of Slice along one dimension: which elements a start, an end and a step choose.

    start 1,  end -1,     step 2    of size 6    ->   first 1, length 2: the elements 1 and 3
    start -2, end 2^31,   step 1    of size n    ->   first max(n - 2, 0), length min(2, n)
    start -1, end -2^63,  step -1   of size n    ->   first n - 1, length n: all elements, backwards

As in ONNX, bounds below 0 count from the end, and bounds beyond an edge are moved to it; unlike in numpy, a
start before the front is moved to the front for negative steps, too.  All functions raise Untypable where
runtimes disagree, or where the symbols in a size do not decide.
"""

from __future__ import annotations

from typing import NamedTuple

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, largest, smallest

TO_LAST = 2**63 - 1  # as the end of a slice: up to the last element
TO_FIRST = -(2**63)  # as the end of a slice with a negative step: down to the first element
MIN_OPEN_END = 2**31 - 1  # exporters write "to the end" as any number from here on


class SliceBounds(NamedTuple):
    """The bounds of a slice as ONNX has them."""

    start: Size
    end: Size
    step: int


class SliceExtent(NamedTuple):
    """The index of the first element of a slice, and the number of its elements."""

    first: Size
    length: Size


WHOLE_DIMENSION = SliceBounds(0, TO_LAST, 1)
EMPTY_SLICE = SliceBounds(0, 0, 1)


def slice_extent(start: Size, end: Size, step: int, size: Size) -> SliceExtent:
    """Return which elements these bounds choose from a dimension of this size."""
    if step == 0:
        raise Untypable("a slice with step 0")
    return (_forward_extent if step > 0 else _backward_extent)(start, end, step, size)


def _forward_extent(start: Size, end: Size, step: int, size: Size) -> SliceExtent:
    """Return the extent for a positive step.

    The two special cases give the same numbers as the general formula at the end, as simpler sizes.
    """
    first = _from_front(start, size, 0) if _is_below_zero(start) else start
    # a start beyond a symbolic size stays: the length is 0 then
    first = smallest(first, size) if isinstance(size, int) else first
    stop: Size  # the index that ends the slice, itself excluded; at least 0
    if _is_below_zero(end):
        stop = _from_front(end, size, 0)
    else:
        stop = size if _is_far(end) else smallest(end, size)
    if is_same_size(first, 0):
        return SliceExtent(0, (stop + step - 1) // step)
    if _is_below_zero(start) and _is_far(end) and not _is_below_zero(end):  # x[-k:] has min(k, size) elements
        return SliceExtent(first, (smallest(0 - start, size) + step - 1) // step)
    return SliceExtent(first, largest((stop - first + step - 1) // step, 0))


def _backward_extent(start: Size, end: Size, step: int, size: Size) -> SliceExtent:
    """Return the extent for a negative step."""
    if _is_far(end) and not _is_below_zero(end):
        raise Untypable("a slice with a negative step to beyond the last element: runtimes disagree")
    if _is_below_zero(start):
        first = size - 1 if is_same_size(start, -1) else smallest(_from_front(start, size, 0), size - 1)
    else:
        first = size - 1 if _is_far(start) else smallest(start, size - 1)
    stop = _from_front(end, size, -1) if _is_below_zero(end) else end  # itself excluded; -1 is before index 0
    return SliceExtent(first, largest((first - stop - step - 1) // -step, 0))


def _from_front(index: Size, size: Size, lowest: int) -> Size:
    """Return an index from the end as one from the front, at least `lowest`."""
    return lowest if _is_far(index) else largest(size + index, lowest)


def _is_below_zero(size: Size) -> bool:
    """Return whether a size is negative.  Raises Untypable where its symbols do not decide."""
    if is_nonnegative(size):
        return False
    if is_nonnegative(-1 - size):
        return True
    raise Untypable(f"the sign of {size} is not known")


def _is_far(index: Size) -> bool:
    """Return whether an index is so large, or so far below 0, that it stands for an edge."""
    return isinstance(index, int) and abs(index) >= MIN_OPEN_END


def canonical_bounds(start: Size, end: Size, step: int, size: Size) -> SliceBounds:
    """Return the bounds that equal slices of numbers share; of symbols, only far bounds are changed.

    Of numbers, the end is the index after the last element in the slice's direction, TO_LAST or TO_FIRST if
    that is an edge.
    """
    if step == 0:
        raise Untypable("a slice with step 0")
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(size, int)):
        if _is_far(start):
            if _is_below_zero(start):
                start = 0 if step > 0 else start
            else:
                start = TO_LAST if step < 0 else start
        if _is_far(end):
            end = TO_FIRST if _is_below_zero(end) else TO_LAST
        return SliceBounds(start, end, step)
    first, length = slice_extent(start, end, step, size)
    assert isinstance(first, int) and isinstance(length, int)
    if length == 0:
        return EMPTY_SLICE
    if length == 1:
        step = 1
    last = first + (length - 1) * step
    if step > 0:
        return SliceBounds(first, TO_LAST if last == size - 1 else last + 1, step)
    return SliceBounds(first, TO_FIRST if last == 0 else last - 1, step)
