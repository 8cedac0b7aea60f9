"""Find a guard by which a function of selects becomes a select of functions.

    max[r](x if g else y)   ->   max[r](x) if g else max[r](y)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.normal.guards import is_negated_form
from tensaurus.expr.normal.normal_form import Choose, Core, Sum
from tensaurus.expr.sizes.size import Axis, Size

__all__ = ["complementary_guard"]

MAX_CASES = 4  # a function of selects with more independent guards is left as it is


def complementary_guard(args: Sequence[Sum], bound: Sequence[Axis] = ()) -> Size | None:
    """Return a guard that some terms stand under, and others under its negation; None if there is none.

    The guard contains neither axes in `bound` (those that are reduced) nor axes of the terms' own sums.  The
    normal form of a select, [g] x + [-1 - g] y, has such a guard g.
    """
    cores = [core for a in args for core in _cores(a)]
    guards = dict.fromkeys(g for core in cores for g in core.guards)
    # guards that occur with their negation -1 - g; `is_negated_form` leaves one of the two
    pairs = [
        g for g in guards if is_negated_form(-1 - g) and -1 - g in guards and axes_in(g).isdisjoint(bound)
    ]
    inner = {a for core in cores for a in core.axes}
    usable = [g for g in pairs if axes_in(g).isdisjoint(inner)]
    return min(usable, key=str) if 0 < len(usable) <= MAX_CASES else None


def _cores(inner: Sum) -> Iterator[Core]:
    """Yield the cores of all terms, and of the branches of selects in them, as in a padded concatenation."""
    for _, core in inner.terms:
        yield core
        for factor in core.factors:
            if isinstance(factor, Choose):
                yield from _cores(factor.then)
                yield from _cores(factor.other)
