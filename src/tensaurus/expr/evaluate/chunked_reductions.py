"""Split a reduction whose terms would not fit into memory: compute it for one range of results after another.

    max[r, s](exp(x[i + r, j + s])), of 4096x4096 results and 9x9 terms: i from 0 to 101, from 101 to 202, ...

Most reductions need no array of all their terms: reads are views, and sums of products are contracted in
chunks (`contract`).  Only terms that are computed first, like the exponentials above, become such an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tensaurus.expr.evaluate.labelled_arrays import length
from tensaurus.expr.ir.axis_binding import unnested_atoms
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce
from tensaurus.expr.ir.walk import lookups_in, sizes, walk
from tensaurus.expr.sizes.size import Axis

__all__ = ["split_reduction"]

MAX_COMPUTED_ELEMENTS = 1 << 25  # most computed terms that exist at the same time: 256 MB of float64


def split_reduction(
    parts: Sequence[Body], reduced_axes: Sequence[Axis]
) -> tuple[Axis, list[tuple[int, int]]] | None:
    """Return the result axis to cut and its ranges, for a reduction of the product of the parts.

    None where the terms of all results fit, or there is only one result.
    """
    # the axes of the largest array that would be computed
    computed_axes = max(map(_computed_axes, parts), key=_point_count, default=frozenset[Axis]())
    results = [a for a in computed_axes if a not in reduced_axes and length(a) > 1]
    if _point_count(computed_axes) <= MAX_COMPUTED_ELEMENTS or not results:
        return None
    cut = max(results, key=lambda a: (length(a), a.name))
    step = max(1, length(cut) * MAX_COMPUTED_ELEMENTS // _point_count(computed_axes))
    return cut, [(start, min(start + step, length(cut))) for start in range(0, length(cut), step)]


def _computed_axes(body: Body) -> frozenset[Axis]:
    """Return the axes of the array that is computed for a body; inner reductions are split by themselves."""
    if isinstance(body, (Const, Reduce)):
        return frozenset()
    if isinstance(body, Read) and not any(map(lookups_in, body.indices)):  # a view of its source
        return frozenset()
    return frozenset(
        atom
        for inner, bound in walk(body, nested=False)
        for size in sizes(inner)
        for atom in unnested_atoms(size)
        if isinstance(atom, Axis) and atom not in bound
    )


def _point_count(axes: Iterable[Axis]) -> int:
    return prod(map(length, axes))
