"""Bands as blocks: rows of a banded product, side by side, read the same places of what slides along them.

    s[i:32, j:9] = sum[r:64] q[i, r] * k[i + j, r]
 -> b[p:4, q:8, l:16] = sum[r:64] q[8*p + q, r] * k[8*p + l, r] | 0,   s[p:4, q:8, j:9] = b[p, q, q + j]

A block of rows is a dense product, a little wider than the band; where rows lie `step` apart that share
places (a dilated band) those of each phase are a block.  What of it is outside of the band nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensaurus.expr.ir.scope import Body, Const, Read, Select, Tensor, axis
from tensaurus.expr.ir.walk import bodies, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial
from tensaurus.kernels.stages.copy_operands import slopes
from tensaurus.kernels.stages.sketch import Band
from tensaurus.kernels.stages.split_phases import split
from tensaurus.kernels.stages.stage import Stage, extent

__all__ = ["Skew", "banded", "skews"]


@dataclass(frozen=True)
class Skew:
    """A band: axis `row` of a stage shifts what axis `column` reads; rows `step` apart by one column."""

    stage: str
    row: int
    column: int
    step: int


def skews(stages: Sequence[Stage]) -> Iterator[Skew]:
    """The bands among the reductions."""
    for stage in stages:
        if not stage.reduced or any(isinstance(body, Select) for body in bodies(stage.body)):
            continue
        found = [body for body in bodies(stage.body) if isinstance(body, Read)]
        axes = (*stage.axes, *stage.reduced)
        forms = [[f for i in read.indices if (f := slopes(i, axes)) is not None] for read in found]
        if any(len(places) < len(read.indices) for places, read in zip(forms, found, strict=True)):
            continue
        for row, i in enumerate(stage.axes):
            for column, j in enumerate(stage.axes):
                if i is not j and (step := _step(i, j, forms)):
                    yield Skew(stage.tensor.name, row, column, step)


def _step(i: Axis, j: Axis, forms: Sequence[Sequence[dict[Axis, int]]]) -> int:
    """How far apart rows are that are shifted by one column; 0 where this is no band."""
    steps: set[int] = set()
    shared = False  # whether what does not slide is read for a row, too
    for places in forms:
        with_row = [form for form in places if i in form]
        with_column = [form for form in places if j in form]
        if not with_column:
            shared |= bool(with_row)
            continue
        if with_row != with_column:
            return 0
        for form in with_row:
            if form[i] <= 0 or form[j] <= 0 or form[j] % form[i]:
                return 0
            steps.add(form[j] // form[i])
    return steps.pop() if len(steps) == 1 and shared else 0


def banded(stages: Sequence[Stage], band: Band) -> tuple[Stage, ...]:
    """The stages with a band in blocks of rows.  Raises ValueError where there is no such band."""
    skew = next((s for s in skews(stages) if (s.stage, s.row) == (band.stage, band.axis)), None)
    stage = next((s for s in stages if s.tensor.name == band.stage), None)
    if skew is None or stage is None or extent(stage.axes[band.axis]) % (band.rows * skew.step):
        raise ValueError(f"{band.text} of another expression")
    found = tuple(stages)
    if skew.step > 1:
        found = split(found, stage, stage.axes[band.axis], skew.step)
        stage = next(s for s in found if s.tensor.name == band.stage)
    if band.rows < extent(stage.axes[band.axis]):
        found = split(found, stage, stage.axes[band.axis], band.rows)
        stage = next(s for s in found if s.tensor.name == band.stage)
        row = stage.axes[band.axis + 1]
    else:
        row = stage.axes[band.axis]
    more = len(stage.axes) - _rank(stages, band.stage)
    column = stage.axes[skew.column + (more if skew.column > skew.row else 0)]
    return tuple(made for s in found for made in (_blocked(s, row, column) if s is stage else (s,)))


def _rank(stages: Sequence[Stage], name: str) -> int:
    return next(len(s.axes) for s in stages if s.tensor.name == name)


def _blocked(stage: Stage, row: Axis, column: Axis) -> tuple[Stage, Stage]:
    """The block, and what is read of it."""
    width = extent(column) + extent(row) - 1
    own = {a: axis(width if a is column else extent(a)) for a in stage.axes}
    places: dict[Atom, Size] = {a: polynomial(b) for a, b in own.items()}
    places[column] = polynomial(own[column]) - polynomial(own[row])
    body = _edged(replace_axes(stage.body, places), own[column])
    order = [own[a] for a in stage.axes if a is not row and a is not column] + [own[row], own[column]]
    tensor = replace(stage.tensor, name=f"{stage.tensor.name}_block", shape=tuple(a.extent for a in order))
    block = Stage(tensor, tuple(order), body, stage.reduced, stage.monoid)
    back = {b: polynomial(a) for a, b in own.items()}
    back[own[column]] = polynomial(row) + polynomial(column)
    read = Read(tensor, tuple(back[b] for b in order))
    return block, Stage(stage.tensor, stage.axes, read)


def _edged(body: Body, column: Axis) -> Body:
    """The body, which may be computed beyond the band: what it reads there is an edge."""
    if isinstance(body, Read) and isinstance(body.source, Tensor) and body.outside is None:
        if any(column in atoms(index) for index in body.indices):
            return replace(body, outside=Const(0))
        return body
    return rebuild_body(body, lambda inner: _edged(inner, column), lambda size: size)
