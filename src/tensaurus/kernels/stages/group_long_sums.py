"""Sums of many terms as sums of sums: each rounds less than one sum of all.

    s[i] = sum[r:1024] x[i, r]   ->   g[q:4, i] = sum[w:256] x[i, 256*q + w],   s[i] = sum[q:4] g[q, i]

A sum of n terms one after the other may be off by n roundings, one of n/k groups by n/k + k (Higham, Accuracy
and Stability of Numerical Algorithms, section 4.2): equal terms all round the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tensaurus.expr.ir.scope import Read, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["grouped"]

FEWER = 8  # groups of less than this part of what was asked for are not worth their ends


def grouped(
    stage: Stage, order: Sequence[int], most: int, whole: int = 0
) -> tuple[Stage, Stage] | None:
    """Groups of at most so many terms, and their sum; None where there is one group or nothing divides.

    `order`: the reduced axes, innermost first, of which the first `whole` are in no parts.  Those of both
    stages stand outermost first; the groups have the axes of their sum before the stage's own.
    """
    axes = [stage.reduced[k] for k in order]
    count = whole
    terms = prod(extent(r) for r in axes[:whole])
    while count < len(axes) and terms * extent(axes[count]) <= most:
        terms *= extent(axes[count])
        count += 1
    if count == len(axes):
        return None
    inner, split, outer = axes[:count], axes[count], axes[count + 1 :]
    size = next(n for n in range(max(most // max(terms, 1), 1), 0, -1) if extent(split) % n == 0)
    if size * terms < most // FEWER:
        return None
    own = tuple(axis(a.extent) for a in stage.axes)
    within, group = axis(size, "r"), axis(extent(split) // size, "r")
    values: dict[Any, Any] = {a: polynomial(b) for a, b in zip(stage.axes, own, strict=True)}
    kept: list[Axis] = []
    for r in reversed(outer):
        kept.append(axis(r.extent))
        values[r] = polynomial(kept[-1])
    kept.append(axis(group.extent))
    values[split] = polynomial(kept[-1]) * size + polynomial(within)
    rest = tuple(axis(r.extent, "r") for r in inner)
    values |= {r: polynomial(s) for r, s in zip(inner, rest, strict=True)}
    places = (*kept, *own)
    tensor = replace(stage.tensor, name=f"{stage.tensor.name}_groups", shape=tuple(a.extent for a in places))
    body = replace_axes(stage.body, values)
    groups = Stage(tensor, places, body, (within, *reversed(rest)), stage.monoid)
    total = (*(axis(r.extent, "r") for r in reversed(outer)), group)
    read = Read(tensor, tuple(map(polynomial, (*total, *stage.axes))))
    return groups, Stage(stage.tensor, stage.axes, read, total, stage.monoid)
