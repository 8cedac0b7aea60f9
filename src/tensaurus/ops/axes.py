"""Bring attributes that name axes, or hold one number, into one form; replace one index among many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Size


def one_axis(axis: int, rank: int) -> int:
    """Return the axis counted from the front.  Raises Untypable where there is no such axis."""
    if not -rank <= axis < rank:
        raise Untypable(f"axis {axis} of rank {rank}")
    return axis % rank


def axis_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attribute `axis` counted from the front of the first tensor (`Op.canonicalize`)."""
    return {"axis": one_axis(attrs["axis"], tensors[0].rank)}


def distinct_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front, in the given order.  Raises Untypable if two are equal."""
    normalized = tuple(one_axis(a, rank) for a in axes)
    if len(set(normalized)) != len(normalized):
        raise Untypable(f"axes {tuple(axes)} repeat")
    return normalized


def replace_index(indices: Sequence[Size], axis: int, index: Size) -> tuple[Size, ...]:
    """Return the indices with one of them replaced."""
    return (*indices[:axis], index, *indices[axis + 1 :])


def only_number(value: Any, label: str) -> Any:
    """Return a number, or the only one of a vector.  Raises Untypable where the vector is longer."""
    if not isinstance(value, tuple):
        return value
    if len(value) != 1:
        raise Untypable(f"a {label} of {len(value)} elements")
    return value[0]
