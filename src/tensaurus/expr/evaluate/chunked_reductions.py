"""Reductions whose terms no memory holds: some results after others.

    max[r, s](exp(x[i + r, j + s])), of 4096x4096 results and 9x9 terms: i from 0 to 101, from 101 to 202, ...

What a reduction reads is a view, and a sum of products is contracted in pieces; what is computed of each term
before it is reduced is an array of all terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tensaurus.expr.evaluate.labelled_arrays import length
from tensaurus.expr.ir.axis_binding import unnested_atoms
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce
from tensaurus.expr.ir.walk import lookups_in, sizes, walk
from tensaurus.expr.sizes.size import Axis

__all__ = ["pieces"]

ROOM = 1 << 25  # elements that are computed at a time


def pieces(parts: Sequence[Body], gone: Sequence[Axis]) -> tuple[Axis, list[tuple[int, int]]] | None:
    """The axis of results that is cut, and the ranges of it, for a reduction of the product of the parts.

    None where there is room for the terms of all results, or there is but one.
    """
    largest = max(map(_computed, parts), key=_points, default=frozenset[Axis]())
    results = [a for a in largest if a not in gone and length(a) > 1]
    if _points(largest) <= ROOM or not results:
        return None
    cut = max(results, key=lambda a: (length(a), a.name))
    step = max(1, length(cut) * ROOM // _points(largest))
    return cut, [(start, min(start + step, length(cut))) for start in range(0, length(cut), step)]


def _computed(body: Body) -> frozenset[Axis]:
    """The axes of the array that is computed for a body; a reduction in it comes to less."""
    if isinstance(body, (Const, Reduce)):
        return frozenset()
    if isinstance(body, Read) and not any(map(lookups_in, body.indices)):
        return frozenset()
    return frozenset(
        atom
        for inner, bound in walk(body, nested=False)
        for size in sizes(inner)
        for atom in unnested_atoms(size)
        if isinstance(atom, Axis) and atom not in bound
    )


def _points(axes: Iterable[Axis]) -> int:
    return prod(map(length, axes))
