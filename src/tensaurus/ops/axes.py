"""Axes counted from the front, and changes of one index among many."""

from __future__ import annotations

from collections.abc import Sequence

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Size


def one_axis(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise Untypable(f"axis {axis} of rank {rank}")
    return axis % rank


def distinct_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in the order given, no two the same."""
    found = tuple(one_axis(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise Untypable(f"axes {tuple(axes)} repeat")
    return found


def replaced(place: Sequence[Size], axis: int, index: Size) -> tuple[Size, ...]:
    """The indices with one of them replaced."""
    return (*place[:axis], index, *place[axis + 1 :])
