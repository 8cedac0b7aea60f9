"""Guards: sizes that must be >= 0."""

from __future__ import annotations

from collections.abc import Sequence

from tensaurus.expr.ir.printer import show_size
from tensaurus.expr.normal.canonical_record import axes_in
from tensaurus.expr.sizes.size import Size, interval, is_nonnegative, terms_of


def range_guards(shape: Sequence[Size], indices: Sequence[Size]) -> tuple[Size, ...]:
    """What must be >= 0 for the indices to lie in the shape, without what their bounds decide."""
    guards: list[Size] = []
    for index, extent in zip(indices, shape, strict=True):
        low, high = interval(index)
        if low is None or not is_nonnegative(low):
            guards.append(index)
        if high is None or not is_nonnegative(extent - 1 - high):
            guards.append(extent - 1 - index)
    return tuple(guards)


def rank(guard: Size) -> tuple[str, str]:
    """An order of guards by extents, then by the age of axes: those of the output are made in their order."""
    inside = axes_in(guard)
    ages = {a: f"<{a.name.rpartition('_')[2]:>12}>" for a in inside}
    return show_size(guard, {a: f"<{a.extent}>" for a in inside}), show_size(guard, ages)


def turned(guard: Size) -> bool:
    """True for one of g and not g, by their constant terms c and -1 - c alone."""
    return any(not factors and c < 0 for factors, c in terms_of(guard))
