"""Holds what derivation rules share: the records of a rewrite step, and functions on bodies and scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensaurus.expr.ir import walk
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, axis
from tensaurus.expr.ir.walk import Rewriting, children, free_axes, operands, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, interval, is_nonnegative, polynomial

__all__ = [
    "JointRule", "JointStep", "Product", "Rule", "Step", "as_nested_read", "axes_in", "base_name",
    "is_in_range", "numeric_extent", "outermost_reductions", "product_of", "replace_scopes",
    "with_zeros_outside",
]  # fmt: skip


class Step(NamedTuple):
    """An equal scope, the rule that produced it, and where in the old scope the rule was applied."""

    rule: str
    where: str
    scope: Scope


Rule: TypeAlias = Callable[[Scope], Iterator[Step]]
"""Yields the scopes that follow by one application of one law; nested scopes are not changed."""


class JointStep(NamedTuple):
    """Pairs (old scope, equal new scope); the new ones may share a nested scope, as one object."""

    rule: str
    where: str
    scopes: tuple[tuple[Scope, Scope], ...]


JointRule: TypeAlias = Callable[[Sequence[Scope]], Iterator[JointStep]]
"""Yields the steps that one law makes possible on several independent scopes at once."""


class Product(NamedTuple):
    """A product of factors where all guards are at least 0, and zero elsewhere."""

    guards: tuple[Size, ...]
    factors: tuple[Body, ...]

    @property
    def body(self) -> Body:
        """The product as a body."""
        body = self.factors[0] if self.factors else Const(1)
        for factor in self.factors[1:]:
            body = Call("mul", (body, factor))
        return Select(self.guards, body, Const(0)) if self.guards else body


def product_of(body: Body) -> Product:
    """Return the body as a product; a factor that is zero where a guard fails gives its guard to the product.

    (x if g else 0) * y  =  (x * y if g else 0)     over the reals
    """
    guards: list[Size] = []
    factors: list[Body] = []
    waiting = list(reversed(operands(body, "mul")))
    while waiting:
        part = waiting.pop()
        if isinstance(part, Select) and part.other == Const(0):
            guards += part.guard
            waiting += reversed(operands(part.then, "mul"))
        else:
            factors.append(part)
    return Product(tuple(dict.fromkeys(guards)), tuple(factors))


def base_name(a: Axis) -> str:
    """Return the axis's name without the suffix that makes it unique."""
    return a.name.split("_")[0]


def numeric_extent(a: Axis) -> int:
    """Return the extent of an axis that is known to be a number."""
    assert isinstance(a.extent, int)
    return a.extent


def axes_in(part: Body | Size) -> frozenset[Axis]:
    """Return the free axes of a body or a size."""
    return frozenset(free_axes(part) if isinstance(part, Body) else walk.axes_in(part))


def as_nested_read(axes: Sequence[Axis], body: Body) -> Read:
    """Return a read of a new scope that computes the body, over those of the axes that the body depends on.

    Elements of the scope that nobody reads may lie beyond edges that a guard around the body excluded: there
    the sources are read as 0.
    """
    used = tuple(a for a in axes if a in axes_in(body))
    fresh = tuple(axis(a.extent, base_name(a)) for a in used)
    values: dict[Atom, Any] = {a: polynomial(b) for a, b in zip(used, fresh, strict=True)}
    inner = Scope(fresh, with_zeros_outside(replace_axes(body, values)))
    return Read(inner, tuple(map(polynomial, used)))


def with_zeros_outside(body: Body) -> Body:
    """Return the body with 0 for each read that may leave its tensor, so that it can be computed anywhere."""
    return _ZerosOutside().body(body)


class _ZerosOutside(Rewriting):
    def scope(self, scope: Scope) -> Scope:
        return scope

    def read(self, read: Read) -> Read:
        if read.outside is not None or all(map(is_in_range, read.indices, read.source.shape)):
            return read
        return Read(read.source, read.indices, Const(0))

    def size(self, size: Size) -> Size:
        return size


def is_in_range(index: Size, extent: Size) -> bool:
    """Return whether 0 <= index < extent follows from the bounds of the axes."""
    low, high = interval(index)
    return low is not None and high is not None and is_nonnegative(low) and is_nonnegative(extent - 1 - high)


def replace_scopes(roots: Sequence[Scope], values: Sequence[tuple[Scope, Scope]]) -> tuple[Scope, ...]:
    """Return the roots with each old scope, at any depth, replaced by its new one; compared by identity."""
    replacing = _Replacing({id(old): new for old, new in values})
    return tuple(map(replacing.scope, roots))


class _Replacing(Rewriting):
    def __init__(self, values: Mapping[int, Scope]):
        super().__init__()
        self.values = values

    def scope(self, scope: Scope) -> Scope:
        return self.values.get(id(scope)) or super().scope(scope)


def outermost_reductions(body: Body) -> Iterator[tuple[Reduce, Callable[[Body], Body]]]:
    """Yield each outermost reduction with a function that puts another body in its place."""
    if isinstance(body, Reduce):
        yield body, lambda new: new
        return
    parts = children(body)
    for number, child in enumerate(parts):
        for reduction, put in outermost_reductions(child):

            def put_in_body(new: Body, number: int = number, put: Callable[[Body], Body] = put) -> Body:
                changed = [put(new) if k == number else part for k, part in enumerate(parts)]
                if isinstance(body, Call):
                    return Call(body.fn, tuple(changed))
                assert isinstance(body, Select)
                return Select(body.guard, *changed)

            yield reduction, put_in_body
