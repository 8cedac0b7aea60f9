"""Inline the scopes that an expression reads, and turn the values of reads beyond edges into guards.

In this example, `| 0` says that a read beyond the edge of its source yields 0:

    L[i:9](sum[r:3]((L[j:9](x[j] * 2))[i + r - 1] | 0))
 -> L[i:9](sum[r:3](x[i + r - 1] * 2  if i + r - 1 >= 0 and 9 - i - r >= 0 else  0))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, axis, within
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.size import (
    Atom,
    Size,
    interval,
    is_negative,
    is_nonnegative,
    polynomial,
    substitute,
)

MAX_FLAT_RECORDS = 4096  # inlining may grow a body exponentially; analyses give up beyond


class FlatBodyTooLarge(Exception):
    """Raised for a flat body of more than `MAX_FLAT_RECORDS` records."""


def flatten(scope: Scope) -> Body:
    """Return the body over the scope's axes without inner scopes and edges.  Raises FlatBodyTooLarge."""
    return _Flattening().body(scope.body, {})


class _Flattening:
    """Inlines scopes, counting the records that it makes."""

    def __init__(self) -> None:
        self.record_count = 0

    def body(self, body: Body, values: Mapping[Atom, Any], *, inner: bool = False) -> Body:
        """Return the flat body with sizes for its axes.

        With `inner`, reduced axes become new ones: a scope that is read twice would bind the same axes twice.
        """
        self.record_count += 1
        if self.record_count > MAX_FLAT_RECORDS:
            raise FlatBodyTooLarge
        match body:
            case Const():  # its value may be a size in terms of axes
                return replace_axes(body, values)
            case Read(source, indices, outside):
                index_values = tuple(substitute(i, values) for i in indices)
                inlined: Body = Read(source, index_values)
                if isinstance(source, Scope):
                    inner_values: dict[Atom, Any] = dict(zip(source.axes, index_values, strict=True))
                    inlined = self.body(source.body, inner_values, inner=True)
                if outside is None:
                    return inlined
                pairs = zip(index_values, source.shape, strict=True)
                return select_undecided([g for i, n in pairs for g in within(i, 0, n)], inlined, outside)
            case Call(fn, args):
                return Call(fn, tuple(self.body(a, values, inner=inner) for a in args))
            case Select(guard, then, other):
                parts = (self.body(part, values, inner=inner) for part in (then, other))
                return select_undecided([substitute(g, values) for g in guard], *parts)
            case Reduce(monoid, axes, part):
                if inner:
                    fresh = tuple(axis(substitute(a.extent, values), "r") for a in axes)
                    values = {**values, **{a: polynomial(b) for a, b in zip(axes, fresh, strict=True)}}
                    axes = fresh
                return Reduce(monoid, axes, self.body(part, values, inner=inner))
        raise TypeError(type(body))


def select_undecided(guard: list[Size], then: Body, other: Body) -> Body:
    """Return the select of a conjunction of sizes >= 0, without the conditions that bounds decide.

    Where a condition never holds, that is `other`; where all always hold, `then`.  If `then` is a select with
    the same constant `other`, one select with both guards replaces the two.
    """
    undecided = []
    for size in guard:
        low, high = interval(size)
        if high is not None and is_negative(high):
            return other
        if low is None or not is_nonnegative(low):
            undecided.append(polynomial(size))
    if not undecided:
        return then
    if isinstance(other, Const) and isinstance(then, Select) and then.other == other:
        return Select((*undecided, *then.guard), then.then, other)
    return Select(tuple(undecided), then, other)
