"""Where a function of choices is one of values: max[r](x if g else y) = max[r](x) if g else max[r](y)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensaurus.expr.normal.canonical_record import axes_in
from tensaurus.expr.normal.guards import turned
from tensaurus.expr.normal.normal_form import Choose, Core, Sum
from tensaurus.expr.sizes.size import Axis, Size

__all__ = ["alternative"]

CASES = 4  # a function of more independent choices than this stays a function of choices


def alternative(args: Sequence[Sum], bound: Sequence[Axis] = ()) -> Size | None:
    """A guard that some terms have and others have turned round: f of a concatenation is one of f's."""
    cores = [core for a in args for core in _cores(a)]
    guards = dict.fromkeys(g for core in cores for g in core.guards)
    pairs = [g for g in guards if turned(-1 - g) and -1 - g in guards and axes_in(g).isdisjoint(bound)]
    inner = {a for core in cores for a in core.axes}
    free = [g for g in pairs if axes_in(g).isdisjoint(inner)]
    return min(free, key=str) if 0 < len(free) <= CASES else None


def _cores(inner: Sum) -> Iterator[Core]:
    """Those of its terms, and of what is chosen among in them: a padded concatenation is a choice of sums."""
    for _, core in inner.terms:
        yield core
        for factor in core.factors:
            if isinstance(factor, Choose):
                yield from _cores(factor.then)
                yield from _cores(factor.other)


