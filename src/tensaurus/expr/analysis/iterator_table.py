"""Build the iterator mapping table of an expression: which iterator enters which dimension of which operand.

    L[b, m, n](sum[k](A[b, m, k] * B[b, k, n]))

    Y/Y/Y  b        Y/N/Y  m        N/Y/Y  n        Y/Y/N  k            (in A / in B / in the output)

EINNET, section 5.1 and table 2.  `finders/derive` matches expressions to operators by this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tensaurus.expr.analysis.condition import sorted_axes
from tensaurus.expr.analysis.index_digits import DigitForm, digit_form, linear_forms
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Source
from tensaurus.expr.ir.walk import children
from tensaurus.expr.sizes.affine import LinearForm
from tensaurus.expr.sizes.size import Axis, Size, polynomial

Pattern = tuple[bool, ...]


@dataclass(frozen=True)
class Operand:
    """A read, or the output, whose dimensions are linear forms of iterators.

    source    the tensor that is read, None for the output
    outside   the value of the read beyond its source's edges, None where it stays inside
    """

    source: Source | None
    shape: tuple[Size, ...]
    dimensions: tuple[LinearForm, ...]
    outside: Const | None = None


@dataclass(frozen=True)
class IteratorTable:
    """The iterators of an expression and its operands, in order of their reads, the output last.

    form      all indices, rewritten over the iterators; an iterator is an axis, or one digit of an axis that
              some index divides, and digits of extent 1 are left out
    monoids   the monoid that reduces each iterator, "" for one of the output
    """

    scope: Scope
    form: DigitForm
    monoids: Mapping[Axis, str]
    operands: tuple[Operand, ...]

    @property
    def iterators(self) -> tuple[Axis, ...]:
        return self.form.axes

    def pattern(self, iterator: Axis, order: Sequence[int] | None = None) -> Pattern:
        """Return whether the iterator enters each operand, in this order of the operands."""
        operands = self.operands if order is None else [self.operands[k] for k in order]
        return tuple(
            any(iterator in dimension.slopes for dimension in operand.dimensions) for operand in operands
        )

    @property
    def groups(self) -> dict[Pattern, tuple[Axis, ...]]:
        """The iterators by their patterns."""
        groups: dict[Pattern, tuple[Axis, ...]] = {}
        for a in self.iterators:
            groups[self.pattern(a)] = (*groups.get(self.pattern(a), ()), a)
        return groups

    def __str__(self) -> str:
        rows = ("/".join("NY"[y] for y in p) + f"  {', '.join(map(str, g))}" for p, g in self.groups.items())
        return "\n".join(rows)


def iterator_table(scope: Scope) -> IteratorTable | None:
    """Return the table; None where an index is not affine in digits of the axes.

    Such an index is that of a Gather, or i // 2 for an axis of extent 7, which 2 does not divide.
    """
    reads = list(_reads(scope.body))
    monoids = {**dict.fromkeys(scope.axes, ""), **_monoid_by_axis(scope.body)}
    indices = (*(i for r in reads for i in r.indices), *map(polynomial, scope.axes))
    # `digit_form` merges axes that only occur together.  Axes of different reductions must stay apart, so
    # with several reductions each axis is also passed as an index by itself.
    kept_apart = () if _reduction_count(scope.body) < 2 else tuple(map(polynomial, monoids))
    form = digit_form(tuple(monoids), (*indices, *kept_apart))
    forms = linear_forms(form)
    if forms is None or not form.is_exact or not set(forms.variables) <= set(form.axes):
        return None
    rows = iter(forms.rows)
    operands = [
        Operand(r.source, r.source.shape, tuple(next(rows) for _ in r.indices), r.outside) for r in reads
    ]
    operands.append(Operand(None, scope.shape, tuple(islice(rows, scope.rank))))
    monoid_of: dict[Axis, str] = {}  # the digits of an axis are reduced by the monoid of the axis
    for monoid, axis_value in zip(monoids.values(), form.axis_values, strict=True):
        monoid_of.update(dict.fromkeys(sorted_axes(axis_value), monoid))
    return IteratorTable(scope, form, monoid_of, tuple(operands))


def _reads(body: Body) -> Iterator[Read]:
    if isinstance(body, Read):
        yield body
    for child in children(body):
        yield from _reads(child)


def _monoid_by_axis(body: Body) -> dict[Axis, str]:
    monoids = dict.fromkeys(body.axes, body.monoid) if isinstance(body, Reduce) else {}
    for child in children(body):
        monoids.update(_monoid_by_axis(child))
    return monoids


def _reduction_count(body: Body) -> int:
    """Return the number of reductions, counting directly nested ones by one monoid once."""
    inner = children(body)
    nested = isinstance(body, Reduce) and isinstance(inner[0], Reduce) and inner[0].monoid == body.monoid
    return sum(map(_reduction_count, inner)) + (isinstance(body, Reduce) and not nested)
