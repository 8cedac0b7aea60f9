"""Finds what the numbers in an operator's attributes set, by changing each number and comparing the result.

    AveragePool  kernel_shape=(3, 3), strides=(1, 1), pads=(0, 0, 0, 0)
    kernel_shape[0] = 4  ->  the first window has 4 taps       its role: the extent of that window's tap
    strides[1] = 2       ->  the second window's stride is 2   its role: the stride of the second window

So no operator's attributes are described by hand, and a match can set them (`Operator.attributes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensaurus.expr.analysis.iterator_table import IteratorTable
from tensaurus.expr.sizes.size import Axis
from tensaurus.graph.analysis.operator_product import Window, product_table, read_dimension
from tensaurus.ops import Op, TensorType

__all__ = ["AttributeNumber", "Role", "find_roles"]

INCREASES = (1, 2, 3, 4)  # added to an attribute's number, in this order, until a window changes
WINDOW_ROOM = 16  # window dimensions are enlarged by this factor, so that larger strides still fit


class AttributeNumber(NamedTuple):
    """Where a number stands: the name of an attribute, and the position in its tuple, None for no tuple."""

    name: str
    position: int | None

    def replaced_in(self, attrs: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the attributes with another number here."""
        old = attrs[self.name]
        k = self.position
        return {**attrs, self.name: number if k is None else (*old[:k], number, *old[k + 1 :])}


@dataclass(frozen=True)
class Role:
    """What an attribute's number sets: a quantity of a window or of an iterator.

    quantity  of a window "stride", "dilation", or "begin" or "end" of its padding; of an iterator "extent"
    """

    quantity: str
    target: Window | Axis


class _WindowNumbers(NamedTuple):
    """The numbers of one window: its index is stride * place + dilation * tap - begin."""

    stride: Any
    dilation: Any
    begin: Any
    tap_count: Any
    place_count: Any


def find_roles(
    op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any], table: IteratorTable,
    windows: Sequence[Window], free: Sequence[Axis]
) -> dict[AttributeNumber, Role]:
    """Return the roles of the numbers in the attributes; a number whose role is not found is left out.

    `table` is the operator's at these types and attributes, `free` its iterators that are in no window.
    """
    wide = _widen_windows(types, table, windows)
    unchanged = product_table(op, wide, attrs)
    if unchanged is None:
        return {}
    before = _window_numbers(unchanged)
    roles = dict[AttributeNumber, Role]()
    for place, value in _attribute_numbers(attrs):
        for increase in INCREASES:
            changed = product_table(op, wide, place.replaced_in(attrs, value + increase))
            if changed is None:
                # it cannot change while the operands keep their shapes, as group of Conv: it is an extent
                same_extent = [a for a in free if a.extent == value]
                if len(same_extent) == 1:
                    roles[place] = Role("extent", same_extent[0])
                break
            after = _window_numbers(changed)
            # windows that do not overlap look like mixed-radix digits: then nothing is learnt
            if len(before) == len(after) == len(windows):
                role = _compare_windows(windows, before, after, value + increase)
                if role is not None:
                    roles[place] = role
                    break
    return roles


def _widen_windows(
    types: Sequence[TensorType], table: IteratorTable, windows: Sequence[Window]
) -> tuple[TensorType, ...]:
    """Return the types with room for larger strides and dilations in the windows, which are in the data."""
    taps = {w.tap for w in windows}
    is_window = [any(a in taps for a in form.slopes) for form in table.operands[0].dimensions]
    shape = tuple(n * (WINDOW_ROOM if w else 1) for n, w in zip(types[0].shape, is_window, strict=True))
    return (TensorType(types[0].dtype, shape), *types[1:])


def _attribute_numbers(attrs: Mapping[str, Any]) -> Iterator[tuple[AttributeNumber, int]]:
    for name, value in attrs.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield AttributeNumber(name, None), value
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            yield from ((AttributeNumber(name, position), v) for position, v in enumerate(value))


def _window_numbers(table: IteratorTable) -> list[_WindowNumbers]:
    found = []
    for form, extent in zip(table.operands[0].dimensions, table.operands[0].shape, strict=True):
        window = read_dimension(form, extent, table)
        if isinstance(window, Window):
            place, tap = window.place, window.tap
            numbers = form.slopes[place], form.slopes[tap], -form.rest, tap.extent, place.extent
            found.append(_WindowNumbers(*numbers))
    return found


def _compare_windows(
    windows: Sequence[Window], before: Sequence[_WindowNumbers], after: Sequence[_WindowNumbers], number: int
) -> Role | None:
    """Return the role of an attribute's number that was changed to `number`: what now is equal to it.

    Where only the count of places changed, the role is the padding at the end.
    """
    for window, old, new in zip(windows, before, after, strict=True):
        candidates = (
            (old.stride, new.stride, Role("stride", window)),
            (old.dilation, new.dilation, Role("dilation", window)),
            (old.begin, new.begin, Role("begin", window)),
            (old.tap_count, new.tap_count, Role("extent", window.tap)),
        )
        for was, now, role in candidates:
            if was != now:
                return role if now == number else None
        if old.place_count != new.place_count:
            return Role("end", window)
    return None
