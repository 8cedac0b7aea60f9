"""An expression without inner scopes and without edges: what is read beyond an edge is chosen by a guard.

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

PARTS = 4096  # records that a flat body may have


class TooLarge(Exception):
    """A body of too many parts."""


def flat(scope: Scope) -> Body:
    """The body over the scope's axes: reads of tensors inside their edges only.  Raises TooLarge."""
    return _Flattening().body(scope.body, {})


class _Flattening:
    """Counts the parts that it makes."""

    def __init__(self) -> None:
        self.parts = 0

    def body(self, body: Body, values: Mapping[Atom, Any], *, inner: bool = False) -> Body:
        """The flat body under sizes for its axes; inside a scope that is read, reduced axes are new ones."""
        self.parts += 1
        if self.parts > PARTS:
            raise TooLarge
        match body:
            case Const():
                return replace_axes(body, values)
            case Read(source, indices, outside):
                places = tuple(substitute(i, values) for i in indices)
                inside: Body = Read(source, places)
                if isinstance(source, Scope):
                    known: dict[Atom, Any] = dict(zip(source.axes, places, strict=True))
                    inside = self.body(source.body, known, inner=True)
                if outside is None:
                    return inside
                pairs = zip(places, source.shape, strict=True)
                return chosen([g for i, n in pairs for g in within(i, 0, n)], inside, outside)
            case Call(fn, args):
                return Call(fn, tuple(self.body(a, values, inner=inner) for a in args))
            case Select(guard, then, other):
                parts = (self.body(part, values, inner=inner) for part in (then, other))
                return chosen([substitute(g, values) for g in guard], *parts)
            case Reduce(monoid, axes, part):
                if inner:
                    fresh = tuple(axis(substitute(a.extent, values), "r") for a in axes)
                    values = {**values, **{a: polynomial(b) for a, b in zip(axes, fresh, strict=True)}}
                    axes = fresh
                return Reduce(monoid, axes, self.body(part, values, inner=inner))
        raise TypeError(type(body))


def chosen(guard: list[Size], then: Body, other: Body) -> Body:
    """The choice, without what bounds decide; one of two that have the same other side is one choice."""
    left = []
    for size in guard:
        low, high = interval(size)
        if high is not None and is_negative(high):
            return other
        if low is None or not is_nonnegative(low):
            left.append(polynomial(size))
    if not left:
        return then
    if isinstance(other, Const) and isinstance(then, Select) and then.other == other:
        return Select((*left, *then.guard), then.then, other)
    return Select(tuple(left), then, other)
