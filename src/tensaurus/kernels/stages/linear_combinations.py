"""Combinations by a literal table, written out without its zeros, and what their rows share once.

    y[0] = x0 + 3*x1 + 2*x2,  y[1] = x0 - 3*x1 + 2*x2
 ->
    e = x0 + 2*x2,  y[0] = e + 3*x1,  y[1] = e - 3*x1

Points of a fast algorithm come in pairs, a and -a, whose powers differ in sign alone: rows of the
combinations before, columns of those after.  What is shared is written in each place; compilers compute what
is equal once.
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

__all__ = ["shared", "written_out"]


@dataclass(frozen=True)
class Sum:
    """A sum of others, each by its coefficient; others are columns, by their places, and sums."""

    terms: tuple[tuple[Fraction, int | Sum], ...]


Row: TypeAlias = dict["int | Sum", Fraction]  # its terms without zeros


def written_out(combination: Combination) -> Stage:
    """The combination without its table: for each place of its axis a sum."""
    stage, table = combination.stage, combination.table
    (a,) = stage.reduced
    own = polynomial(stage.axes[combination.place])
    rows, columns = table.shape
    terms = [replace_axes(combination.body, {a: k}) for k in range(columns)]
    sums = [_body(each, terms) for each in shared(rows, table.values)]
    body = sums[-1]
    for p in reversed(range(rows - 1)):
        body = Select((p - own,), sums[p], body)
    return Stage(stage.tensor, stage.axes, body, linear=True)


def shared(rows: int, values: Sequence[Any]) -> list[Sum]:
    """The rows of a table in row-major order as sums of its columns, and of sums that several have.

    First of pairs of columns that are equal but for signs, then of pairs of rows that are.
    """
    columns = len(values) // rows
    table: list[Row] = [
        {k: Fraction(v) for k, v in enumerate(values[p * columns : (p + 1) * columns]) if v != 0}
        for p in range(rows)
    ]
    for k, m in combinations(range(columns), 2):
        _share_columns(table, k, m)
    left = set(range(rows))
    found: dict[int, Sum] = {}
    for p, q in combinations(range(rows), 2):
        if {p, q} <= left and (pair := _share_rows(table[p], table[q])):
            found[p], found[q] = pair
            left -= {p, q}
    return [found.get(p) or Sum(tuple((c, x) for x, c in table[p].items())) for p in range(rows)]


def _share_columns(table: list[Row], k: int, m: int) -> None:
    """Puts x[k] + x[m] and x[k] - x[m] in rows that have both, where all that have one do, and it pays."""
    having = [row for row in table if k in row or m in row]
    if any(abs(row.get(k, 0)) != abs(row.get(m, 0)) for row in having):
        return
    signs = {row[k] == row[m] for row in having}
    if len(having) <= len(signs):
        return
    for row in having:
        one, other = row.pop(k), row.pop(m)
        row[Sum(((Fraction(1), k), (Fraction(1 if one == other else -1), m)))] = one


def _share_rows(one: Row, other: Row) -> tuple[Sum, Sum] | None:
    """Both rows as a sum and a difference of what they share; None where they share nothing that pays."""
    if one.keys() != other.keys() or any(abs(one[x]) != abs(other[x]) for x in one):
        return None
    same = {x: c for x, c in one.items() if c == other[x]}
    opposite = {x: c for x, c in one.items() if c != other[x]}
    if not same or not opposite or len(one) < 3:
        return None
    (scale, even), (turned, odd) = _normal(same), _normal(opposite)
    return Sum(((scale, even), (turned, odd))), Sum(((scale, even), (-turned, odd)))


def _normal(row: Row) -> tuple[Fraction, int | Sum]:
    """A multiple of a sum, one of whose coefficients is 1; of a column, where it is one."""
    scale = next((c for c in row.values() if abs(c) == 1), next(reversed(row.values())))
    if len(row) == 1:
        ((x, scale),) = row.items()
        return scale, x
    return scale, Sum(tuple((c / scale, x) for x, c in row.items()))


def _body(item: int | Sum, columns: Sequence[Body]) -> Body:
    if isinstance(item, int):
        return columns[item]
    # what needs no product first: each other term is one multiplication with its addition
    terms = sorted(item.terms, key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    found: Body | None = None
    for c, inner in terms:
        body = _body(inner, columns)
        if found is None:
            found = body if c == 1 else Call("mul", (Const(c), body))
        elif abs(c) == 1:
            found = Call("add" if c == 1 else "sub", (found, body))
        else:
            found = Call("add" if c > 0 else "sub", (found, Call("mul", (Const(abs(c)), body))))
    return Const(0) if found is None else found
