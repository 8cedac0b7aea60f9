"""Writes linear combinations by a literal table as sums without zeros, and shares partial sums.

    y[0] = x0 + 3*x1 + 2*x2,  y[1] = x0 - 3*x1 + 2*x2
 ->
    e = x0 + 2*x2,  y[0] = e + 3*x1,  y[1] = e - 3*x1

Points of a fast algorithm come in pairs, a and -a, whose powers differ only in sign: in rows of the input
combinations and in columns of the output combinations. A shared sum is written out wherever it is used; the
compiler's common subexpression elimination computes it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, TypeAlias

from tensaurus.expr.ir.scope import Body, Call, Const, Select
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import polynomial
from tensaurus.kernels.stages.bilinear_chain import Combination
from tensaurus.kernels.stages.stage import Stage

__all__ = ["share_partial_sums", "write_out"]


@dataclass(frozen=True)
class Sum:
    """A sum of terms with coefficients; a term is a column of the table, by its number, or another sum."""

    terms: tuple[tuple[Fraction, int | Sum], ...]


Row: TypeAlias = dict["int | Sum", Fraction]  # the nonzero coefficient of each term


def write_out(combination: Combination) -> Stage:
    """Returns the combination as a stage without the table: one sum for each index of the combined axis."""
    stage, table = combination.stage, combination.table
    (a,) = stage.reduced
    place = polynomial(stage.axes[combination.place])
    rows, columns = table.shape
    terms = [replace_axes(combination.body, {a: k}) for k in range(columns)]
    sums = [_sum_body(each, terms) for each in share_partial_sums(rows, table.values)]
    body = sums[-1]  # guards choose the row: the first p with p - place >= 0, else the last row
    for p in reversed(range(rows - 1)):
        body = Select((p - place,), sums[p], body)
    return Stage(stage.tensor, stage.axes, body, linear=True)


def share_partial_sums(rows: int, values: Sequence[Any]) -> list[Sum]:
    """Returns each row of a table (`values` in row-major order) as a sum of columns and of shared sums.

    First pairs of columns that are equal up to signs are shared, then pairs of rows.
    """
    columns = len(values) // rows
    table: list[Row] = [
        {k: Fraction(v) for k, v in enumerate(values[p * columns : (p + 1) * columns]) if v != 0}
        for p in range(rows)
    ]
    for k, m in combinations(range(columns), 2):
        _share_columns(table, k, m)
    unpaired = set(range(rows))
    paired: dict[int, Sum] = {}
    for p, q in combinations(range(rows), 2):
        if {p, q} <= unpaired and (pair := _share_rows(table[p], table[q])):
            paired[p], paired[q] = pair
            unpaired -= {p, q}
    return [paired.get(p) or Sum(tuple((c, x) for x, c in table[p].items())) for p in range(rows)]


def _share_columns(table: list[Row], k: int, m: int) -> None:
    """Replaces columns k and m by x[k] + x[m] and x[k] - x[m] if every row that has one column has the other
    up to sign, and if that saves operations.
    """
    affected = [row for row in table if k in row or m in row]
    if any(abs(row.get(k, 0)) != abs(row.get(m, 0)) for row in affected):
        return
    # x[k] + x[m] and x[k] - x[m] take one operation each, if they occur, in place of one in each row
    signs = {row[k] == row[m] for row in affected}
    if len(affected) <= len(signs):
        return
    for row in affected:
        one, other = row.pop(k), row.pop(m)
        row[Sum(((Fraction(1), k), (Fraction(1 if one == other else -1), m)))] = one


def _share_rows(one: Row, other: Row) -> tuple[Sum, Sum] | None:
    """Returns the rows as sum and difference of an even and an odd part; None if that saves nothing."""
    if one.keys() != other.keys() or any(abs(one[x]) != abs(other[x]) for x in one):
        return None
    same = {x: c for x, c in one.items() if c == other[x]}
    opposite = {x: c for x, c in one.items() if c != other[x]}
    if not same or not opposite or len(one) < 3:  # two terms take one operation in each row anyway
        return None
    (scale, even), (turned, odd) = _factor_out(same), _factor_out(opposite)
    return Sum(((scale, even), (turned, odd))), Sum(((scale, even), (-turned, odd)))


def _factor_out(row: Row) -> tuple[Fraction, int | Sum]:
    """Returns (scale, sum): the row is scale * sum, and one coefficient of the sum is 1."""
    scale = next((c for c in row.values() if abs(c) == 1), next(reversed(row.values())))
    if len(row) == 1:
        ((x, scale),) = row.items()
        return scale, x
    return scale, Sum(tuple((c / scale, x) for x, c in row.items()))


def _sum_body(item: int | Sum, columns: Sequence[Body]) -> Body:
    if isinstance(item, int):
        return columns[item]
    # terms without a product come first, so that each other term is one fused multiply-add
    terms = sorted(item.terms, key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    result: Body | None = None
    for c, inner in terms:
        body = _sum_body(inner, columns)
        if result is None:
            result = body if c == 1 else Call("mul", (Const(c), body))
        elif abs(c) == 1:
            result = Call("add" if c == 1 else "sub", (result, body))
        else:
            result = Call("add" if c > 0 else "sub", (result, Call("mul", (Const(abs(c)), body))))
    return Const(0) if result is None else result
