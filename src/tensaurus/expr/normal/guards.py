"""Guards: sizes that must be >= 0 for an element to be read.

This module makes guards from ranges, and orders them so that equal sets of guards are written alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensaurus.expr.ir.printer import show_size
from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.sizes.size import Size, interval, is_nonnegative, terms_of


def range_guards(shape: Sequence[Size], indices: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes that must be >= 0 for the indices to lie in the shape, where that is not certain.

        x[i + r - 1] of 9 elements, i:9, r:3      ->      i + r - 1,  9 - i - r
    """
    guards: list[Size] = []
    for index, extent in zip(indices, shape, strict=True):
        low, high = interval(index)
        if low is None or not is_nonnegative(low):
            guards.append(index)
        if high is None or not is_nonnegative(extent - 1 - high):
            guards.append(extent - 1 - index)
    return tuple(guards)


def guard_order(guard: Size) -> tuple[str, str]:
    """Return a sort key by extents, then by the age of axes, which are made in the order of the output."""
    guard_axes = axes_in(guard)
    # `scope.axis` ends names with growing numbers; padded, their texts have the same order
    ages = {a: f"<{a.name.rpartition('_')[2]:>12}>" for a in guard_axes}
    return show_size(guard, {a: f"<{a.extent}>" for a in guard_axes}), show_size(guard, ages)


def is_negated_form(guard: Size) -> bool:
    """Return True for exactly one of g and not g, by their constant terms c and -1 - c."""
    return any(not factors and c < 0 for factors, c in terms_of(guard))
