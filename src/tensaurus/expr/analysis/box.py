"""Boxes are products of arithmetic progressions of indices, one for each dimension.

    side  ::=  start, start + step, ..., start + step * (count - 1)
    box   ::=  side * side * ...

A side of step 1 is an interval; others are the lattices that strides and dilations leave.  The regions of an
output and the values of an index map are boxes.  Operations on numbers always have an answer; with symbols
they return None where the bounds of the symbols do not decide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Any

import numpy as np

from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size, largest, product, smallest


@dataclass(frozen=True)
class Progression:
    """The indices start + step * k for k in range(count), where step is positive.

    With one index the step is 1, and with none the start is 0, so that equal progressions are equal records.
    """

    start: Size
    count: Size  # at least 0, whatever its symbols are
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"a step of {self.step}")
        if isinstance(self.count, int) and self.count <= 1:
            object.__setattr__(self, "step", 1)
            if self.count <= 0:
                object.__setattr__(self, "start", 0)
                object.__setattr__(self, "count", 0)

    @property
    def last(self) -> Size:
        """The greatest index; of an empty progression start - step."""
        return self[self.count - 1]

    @property
    def stop(self) -> Size:
        """The exclusive end, last + 1, as that of a Python range of step 1."""
        return self.last + 1

    def __getitem__(self, k: Size) -> Size:
        return self.start + k * self.step

    def __contains__(self, index: int) -> bool:
        """Return whether a number is one of the indices.  Raises ValueError where these have symbols."""
        start, count = _numbers(self)
        return 0 <= index - start <= self.step * (count - 1) and (index - start) % self.step == 0

    def __str__(self) -> str:
        step = "" if self.step == 1 else f":{self.step}"
        return f"{self.start}:{self.stop}{step}"


def interval_progression(start: Size, stop: Size) -> Progression:
    """Return start, start + 1, ... stop - 1; no index where stop is below start."""
    return Progression(start, largest(stop - start, 0))


def _have_numbers(*sides: Progression) -> bool:
    return all(isinstance(n, int) for side in sides for n in (side.start, side.count))


def _numbers(side: Progression) -> tuple[int, int]:
    if not isinstance(side.start, int) or not isinstance(side.count, int):
        raise ValueError(f"{side} has symbols")
    return side.start, side.count


def intersect_progressions(a: Progression, b: Progression) -> Progression | None:
    """Return the indices of both; None where symbols do not decide."""
    if not _have_numbers(a, b):
        if a.step != 1 or b.step != 1:
            return None
        return interval_progression(largest(a.start, b.start), smallest(a.stop, b.stop))
    (first, count), (second, other_count) = _numbers(a), _numbers(b)
    if count == 0 or other_count == 0:
        return Progression(0, 0)
    # Chinese remainders: first + steps_to_common * a.step is an index of both, were they endless; the common
    # indices recur at the least common multiple of the steps; the result begins with the first from low on
    step_gcd = gcd(a.step, b.step)
    if (second - first) % step_gcd:
        return Progression(0, 0)
    step_lcm = a.step // step_gcd * b.step
    steps_to_common = (second - first) // step_gcd * pow(a.step // step_gcd, -1, b.step // step_gcd)
    low = max(first, second)
    high = min(first + a.step * (count - 1), second + b.step * (other_count - 1))
    return progression_between(low + (first + steps_to_common * a.step - low) % step_lcm, high, step_lcm)


def subtract_progression(a: Progression, b: Progression) -> tuple[Progression, ...] | None:
    """Return the indices of a that are not in b as disjoint sides; None where symbols do not decide.

    For example 0:10 without 2:9:3 (2, 5, 8) is 0:2, 3:7:3, 4:8:3 and 9:10.
    """
    common = intersect_progressions(a, b)
    if common is None:
        return None
    if not _have_numbers(a, b):  # then both are intervals: others have no known intersection
        head = interval_progression(a.start, smallest(a.stop, common.start))
        tail = interval_progression(largest(a.start, common.stop), a.stop)
        return tuple(s for s in (head, tail) if not is_same_size(s.count, 0))
    (start, count), (first, common_count) = _numbers(a), _numbers(common)
    if common_count == 0:
        return (a,) if count else ()
    # every `ratio`-th index of a is common, from the index number `before` to the one before `after`
    ratio = max(common.step // a.step, 1) if common_count > 1 else 1
    before = (first - start) // a.step
    after = before + (common_count - 1) * ratio + 1
    sides = [Progression(start, before, a.step), Progression(a[after], count - after, a.step)]
    sides += [Progression(first + a.step * k, common_count - 1, a.step * ratio) for k in range(1, ratio)]
    return tuple(sorted((p for p in sides if p.count != 0), key=lambda p: _numbers(p)[0]))


@dataclass(frozen=True)
class Box:
    """The index tuples with an index from each side; of rank 0, the one empty tuple."""

    sides: tuple[Progression, ...]

    @property
    def points(self) -> Size:
        """The number of index tuples."""
        return product(side.count for side in self.sides)  # type: ignore[no-any-return]

    @property
    def first(self) -> tuple[Size, ...]:
        """The least index tuple, where there is one."""
        return tuple(side.start for side in self.sides)

    @property
    def last(self) -> tuple[Size, ...]:
        """The greatest index in each dimension."""
        return tuple(side.last for side in self.sides)

    def __contains__(self, point: Sequence[int]) -> bool:
        return len(point) == len(self.sides) and all(i in s for i, s in zip(point, self.sides, strict=True))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.sides))}]"


def full_box(shape: Iterable[Size]) -> Box:
    """Return the box of every index tuple of a tensor."""
    return Box(tuple(Progression(0, size) for size in shape))


def is_empty(box: Box) -> bool | None:
    """Return whether the box has no index tuple; None where symbols do not decide."""
    if any(is_same_size(side.count, 0) for side in box.sides):
        return True
    return False if all(is_nonnegative(side.count - 1) for side in box.sides) else None


def intersection(a: Box, b: Box) -> Box | None:
    """Return the index tuples of both; None where symbols do not decide."""
    sides = [intersect_progressions(x, y) for x, y in zip(a.sides, b.sides, strict=True)]
    return Box(tuple(s for s in sides if s is not None)) if None not in sides else None


def difference(a: Box, b: Box) -> tuple[Box, ...] | None:
    """Return the index tuples of a that are not in b as disjoint boxes; None where symbols do not decide."""
    boxes: list[Box] = []
    common_sides: list[Progression] = []
    if (common := intersection(a, b)) is not None and is_empty(common):
        return () if is_empty(a) else (a,)
    for d, (x, y) in enumerate(zip(a.sides, b.sides, strict=True)):
        outside, common_side = subtract_progression(x, y), intersect_progressions(x, y)
        if outside is None or common_side is None:
            return None
        # inside b in the dimensions before d, outside it in d, anywhere in a after d: disjoint for each d
        boxes += [Box((*common_sides, side, *a.sides[d + 1 :])) for side in outside]
        common_sides.append(common_side)
    return tuple(piece for piece in boxes if not is_empty(piece))


def subtract_boxes(box: Box, others: Iterable[Box]) -> tuple[Box, ...] | None:
    """Return the part of the box that no other covers as disjoint boxes; None where symbols do not decide."""
    uncovered: tuple[Box, ...] = () if is_empty(box) else (box,)
    for other in others:
        pieces = [difference(piece, other) for piece in uncovered]
        if None in pieces:
            return None
        uncovered = tuple(part for piece in pieces if piece is not None for part in piece)
    return uncovered


def is_partition(boxes: Sequence[Box], box: Box) -> bool | None:
    """Return whether each index tuple of the box is in exactly one of the boxes, which have no others.

    None where symbols do not decide.
    """
    # the boxes are a partition if all of these are empty: what no box covers, what boxes have outside `box`,
    # and what two boxes share
    rest = subtract_boxes(box, boxes)
    outside = [subtract_boxes(piece, [box]) for piece in boxes]
    overlaps = [intersection(a, b) for a, b in combinations(boxes, 2)]
    if rest is None or None in outside or None in overlaps:
        return None
    empty: list[bool | None] = [is_empty(piece) for group in outside if group for piece in group]
    empty += [is_empty(piece) for piece in (*rest, *(s for s in overlaps if s is not None))]
    return False if False in empty else None if None in empty else True


def split_into_progressions(indices: np.ndarray[Any, Any]) -> Iterator[Progression]:
    """Split sorted distinct indices into few disjoint progressions: greedily the longest run of one step.

    For example 0, 1, 2, 5, 8 are 0:3 and 5:9:3.
    """
    steps = np.diff(indices)
    ends = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]  # position of each run's last index
    start = 0
    while start < len(indices):
        # the run goes on to the first end beyond its start; the last index may be left alone
        stop = ends[bisect_left(ends, start + 1)] + 1 if start < len(steps) else start + 1
        step = int(steps[start]) if stop > start + 1 else 1
        if stop - start == 2 and step > 1 and stop < len(indices):
            stop -= 1  # two indices with a gap between them: the second may begin a longer run
        yield Progression(int(indices[start]), stop - start, step)
        start = stop


def progression_between(low: Size, high: Size, step: int = 1) -> Progression:
    """Return the progression from low, of this step, up to high at most."""
    return Progression(low, (high - low) // step + 1, step)
