"""Computes banded products, such as sliding-window attention, in blocks of rows that share their reads.

    s[i:32, j:9] = sum[r:64] q[i, r] * k[i + j, r]
 -> b[p:4, q:8, l:16] = sum[r:64] q[8*p + q, r] * k[8*p + l, r] | 0,   s[p:4, q:8, j:9] = b[p, q, q + j]

Neighbouring rows of s read mostly the same rows of k. A block of rows is a dense product, a little wider
than the band; no reader uses its elements outside the band. In a dilated band, k[i + 2*j, r], the rows that
share reads lie `step` = 2 apart: i is split by its remainder first, and rows of one remainder form blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensaurus.expr.ir.scope import Body, Const, Read, Select, Tensor, axis
from tensaurus.expr.ir.walk import bodies, rebuild_body, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial
from tensaurus.kernels.stages.copy_operands import axis_coefficients
from tensaurus.kernels.stages.sketch import BlockedBand
from tensaurus.kernels.stages.split_phases import split_axis
from tensaurus.kernels.stages.stage import Stage, define_stage, extent

__all__ = ["BandedProduct", "block_band", "find_banded_products"]


@dataclass(frozen=True)
class BandedProduct:
    """A reduction in which a row at column c reads what the row `step` rows below reads at column c - 1.

    `row` and `column` number axes of the stage: i and j in k[i + j, r] (step 1) and k[i + 2*j, r] (step 2).
    """

    stage: str
    row: int
    column: int
    step: int


def find_banded_products(stages: Sequence[Stage]) -> Iterator[BandedProduct]:
    """Yields the banded products among the reductions."""
    for stage in stages:
        if not stage.reduced or any(isinstance(body, Select) for body in bodies(stage.body)):
            continue
        operand_reads = [body for body in bodies(stage.body) if isinstance(body, Read)]
        axes = (*stage.axes, *stage.reduced)
        coefficients = [[axis_coefficients(i, axes) for i in read.indices] for read in operand_reads]
        # by operand, then by dimension: the coefficient of each axis
        forms = [[form for form in of_read if form is not None] for of_read in coefficients]
        if any(None in of_read for of_read in coefficients):
            continue
        for row, i in enumerate(stage.axes):
            for column, j in enumerate(stage.axes):
                if i is not j and (step := _row_step(i, j, forms)):
                    yield BandedProduct(stage.tensor.name, row, column, step)


def _row_step(i: Axis, j: Axis, forms: Sequence[Sequence[dict[Axis, int]]]) -> int:
    """Returns the `step` of a banded product with rows i and columns j, or 0 where this is none.

    `forms` has the coefficients of axes for each operand's dimensions. In an operand that columns move, each
    such index moves as far by one column as by `step` rows. At least one other operand is read by rows alone.
    """
    steps: set[int] = set()
    shared = False  # whether an operand that does not slide is read by rows
    for index_forms in forms:
        with_row = [form for form in index_forms if i in form]
        with_column = [form for form in index_forms if j in form]
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


def block_band(stages: Sequence[Stage], band: BlockedBand) -> tuple[Stage, ...]:
    """Computes a banded product in blocks of rows. Raises ValueError where there is no such band."""
    product = next(
        (s for s in find_banded_products(stages) if (s.stage, s.row) == (band.stage, band.axis)), None
    )
    stage = next((s for s in stages if s.tensor.name == band.stage), None)
    if product is None or stage is None or extent(stage.axes[band.axis]) % (band.rows * product.step):
        raise ValueError(f"{band.text} of another expression")
    result = tuple(stages)
    if product.step > 1:  # a dilated band: i becomes (i // step, i % step)
        result = split_axis(result, stage, stage.axes[band.axis], product.step)
        stage = next(s for s in result if s.tensor.name == band.stage)
    if band.rows < extent(stage.axes[band.axis]):  # split rows into blocks; `row` is the axis within a block
        result = split_axis(result, stage, stage.axes[band.axis], band.rows)
        stage = next(s for s in result if s.tensor.name == band.stage)
        row = stage.axes[band.axis + 1]
    else:
        row = stage.axes[band.axis]
    added = len(stage.axes) - _axis_count(stages, band.stage)  # axes that splitting added, at the row's place
    column = stage.axes[product.column + (added if product.column > product.row else 0)]
    return tuple(made for s in result for made in (_split_off_block(s, row, column) if s is stage else (s,)))


def _axis_count(stages: Sequence[Stage], name: str) -> int:
    return next(len(s.axes) for s in stages if s.tensor.name == name)


def _split_off_block(stage: Stage, row: Axis, column: Axis) -> tuple[Stage, Stage]:
    """Returns the stage of the dense block, and the stage that reads the band from it.

    Element (row, column) of the band is element (row, row + column) of the block.
    """
    width = extent(column) + extent(row) - 1  # each row of the band begins one column further
    fresh = {a: axis(width if a is column else extent(a)) for a in stage.axes}
    values: dict[Atom, Size] = {a: polynomial(b) for a, b in fresh.items()}
    values[column] = polynomial(fresh[column]) - polynomial(fresh[row])
    body = _with_zero_edges(replace_axes(stage.body, values), fresh[column])
    others = (fresh[a] for a in stage.axes if a is not row and a is not column)
    order = (*others, fresh[row], fresh[column])
    name, dtype = f"{stage.tensor.name}_block", stage.tensor.dtype
    block = define_stage(name, dtype, order, body, stage.reduced, stage.monoid)
    back = {b: polynomial(a) for a, b in fresh.items()}  # the block's indices, by the band's axes
    back[fresh[column]] = polynomial(row) + polynomial(column)
    return block, Stage(stage.tensor, stage.axes, Read(block.tensor, tuple(back[b] for b in order)))


def _with_zero_edges(body: Body, column: Axis) -> Body:
    """Gives reads that move with the column an edge of 0, as the block reads beyond the band."""
    if isinstance(body, Read) and isinstance(body.source, Tensor) and body.outside is None:
        if any(column in atoms(index) for index in body.indices):
            return replace(body, outside=Const(0))
        return body
    return rebuild_body(body, lambda inner: _with_zero_edges(inner, column), lambda size: size)
