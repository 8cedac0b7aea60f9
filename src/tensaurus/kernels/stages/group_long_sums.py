"""Splits sums of many terms into sums of groups, which lose less to rounding.

    s[i] = sum[r:1024] x[i, r]   ->   g[q:4, i] = sum[w:256] x[i, 256*q + w],   s[i] = sum[q:4] g[q, i]

A sum of n terms one after the other may be off by n roundings, which does happen where equal terms all round
the same way. A sum of n/k groups of k terms is off by at most n/k + k (Higham, Accuracy and Stability of
Numerical Algorithms, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tensaurus.expr.ir.scope import Read, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.kernels.stages.stage import Stage, define_stage, extent

__all__ = ["group_long_sum"]

# Groups of fewer than 1/8 of the allowed terms are not worth the additions at their ends.
MIN_GROUP_DIVISOR = 8


def group_long_sum(
    stage: Stage, order: Sequence[int], max_terms: int, unsplit: int = 0
) -> tuple[Stage, Stage] | None:
    """Returns the stage of groups of at most `max_terms` terms, and the stage that adds up the groups.

    `order` numbers the reduced axes, innermost first; the first `unsplit` axes of these stay whole. Both
    results have their reduced axes outermost first; the stage of groups begins with the axes over groups.
    Returns None where one group would hold all terms, or no fitting group size divides an axis.
    """
    # a group has the innermost axes that fit (`inner`), and `size` elements of the next axis (`split`)
    axes = [stage.reduced[k] for k in order]
    count = unsplit
    terms = prod(extent(r) for r in axes[:unsplit])
    while count < len(axes) and terms * extent(axes[count]) <= max_terms:
        terms *= extent(axes[count])
        count += 1
    if count == len(axes):
        return None
    inner, split, outer = axes[:count], axes[count], axes[count + 1 :]
    size = next(n for n in range(max(max_terms // max(terms, 1), 1), 0, -1) if extent(split) % n == 0)
    if size * terms < max_terms // MIN_GROUP_DIVISOR:
        return None
    # the stage of groups: `group_axes` go over `outer` and the groups of `split`
    fresh_axes = tuple(axis(a.extent) for a in stage.axes)
    within, group = axis(size, "r"), axis(extent(split) // size, "r")
    values: dict[Any, Any] = {a: polynomial(b) for a, b in zip(stage.axes, fresh_axes, strict=True)}
    group_axes: list[Axis] = []
    for r in reversed(outer):
        group_axes.append(axis(r.extent))
        values[r] = polynomial(group_axes[-1])
    group_axes.append(axis(group.extent))
    values[split] = polynomial(group_axes[-1]) * size + polynomial(within)
    inner_axes = tuple(axis(r.extent, "r") for r in inner)
    values |= {r: polynomial(s) for r, s in zip(inner, inner_axes, strict=True)}
    name, dtype, body = f"{stage.tensor.name}_groups", stage.tensor.dtype, replace_axes(stage.body, values)
    reduced = (within, *reversed(inner_axes))
    groups = define_stage(name, dtype, (*group_axes, *fresh_axes), body, reduced, stage.monoid)
    # the stage that adds up the groups
    sum_axes = (*(axis(r.extent, "r") for r in reversed(outer)), group)
    read = Read(groups.tensor, tuple(map(polynomial, (*sum_axes, *stage.axes))))
    return groups, Stage(stage.tensor, stage.axes, read, sum_axes, stage.monoid)
