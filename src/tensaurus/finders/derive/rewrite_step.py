"""A step of a derivation: an expression, and what a rule says that it equals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensaurus.expr.ir import walk
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, axis
from tensaurus.expr.ir.walk import Rewriting, children, free_axes, operands, replace_axes
from tensaurus.expr.sizes.size import Atom, Axis, Size, interval, is_nonnegative, polynomial

__all__ = [
    "JointRule",
    "JointStep",
    "Product",
    "Rule",
    "Step",
    "axes_in",
    "contained",
    "hint",
    "inside",
    "nested",
    "product_of",
    "replaced",
]


class Step(NamedTuple):
    """What a scope became, by which rule, and where in it."""

    rule: str
    where: str
    scope: Scope


Rule: TypeAlias = Callable[[Scope], Iterator[Step]]
"""The scopes that one is equal to, by one application of one law; its own nested scopes are left alone."""


class JointStep(NamedTuple):
    """What several scopes became together, by which rule, and where in them."""

    rule: str
    where: str
    scopes: tuple[tuple[Scope, Scope], ...]
    """Each with what it became; what they share now is one object."""


JointRule: TypeAlias = Callable[[Sequence[Scope]], Iterator[JointStep]]
"""The scopes that independent ones are equal to, by one application of one law."""


class Product(NamedTuple):
    """guards -> factor * factor * ...: zero where a guard is below 0."""

    guards: tuple[Size, ...]
    factors: tuple[Body, ...]

    @property
    def body(self) -> Body:
        """It as a body."""
        made = self.factors[0] if self.factors else Const(1)
        for factor in self.factors[1:]:
            made = Call("mul", (made, factor))
        return Select(self.guards, made, Const(0)) if self.guards else made


def product_of(body: Body) -> Product:
    """The body as a product, each choice that is else zero as a guard of all.

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


def hint(a: Axis) -> str:
    """The axis's name, without what makes it unique."""
    return a.name.split("_")[0]


def axes_in(part: Body | Size) -> frozenset[Axis]:
    """The axes that a body or a size depends on, those that it binds excepted."""
    return frozenset(free_axes(part) if isinstance(part, Body) else walk.axes_in(part))


def nested(axes: Sequence[Axis], body: Body) -> Read:
    """The body as a scope of its own over those of the axes that it depends on, read where it stood.

    What it reads beyond an edge, where a guard around kept it from that, is zero: nobody reads it there.
    """
    kept = tuple(a for a in axes if a in axes_in(body))
    fresh = tuple(axis(a.extent, hint(a)) for a in kept)
    values: dict[Atom, Any] = {a: polynomial(b) for a, b in zip(kept, fresh, strict=True)}
    inner = Scope(fresh, contained(replace_axes(body, values)))
    return Read(inner, tuple(map(polynomial, kept)))


def contained(body: Body) -> Body:
    """The body, which may be asked for anywhere: what it may read beyond an edge is zero."""
    return _Contained().body(body)


class _Contained(Rewriting):
    def scope(self, scope: Scope) -> Scope:
        return scope

    def read(self, read: Read) -> Read:
        if read.outside is not None or all(map(inside, read.indices, read.source.shape)):
            return read
        return Read(read.source, read.indices, Const(0))

    def size(self, size: Size) -> Size:
        return size


def inside(index: Size, extent: Size) -> bool:
    """Whether bounds alone keep an index within a range of this extent."""
    low, high = interval(index)
    return low is not None and high is not None and is_nonnegative(low) and is_nonnegative(extent - 1 - high)


def replaced(roots: Sequence[Scope], values: Sequence[tuple[Scope, Scope]]) -> tuple[Scope, ...]:
    """Scopes with others in the place of those among and in them, which are told apart as objects."""
    replacing = _Replacing({id(old): new for old, new in values})
    return tuple(map(replacing.scope, roots))


class _Replacing(Rewriting):
    def __init__(self, values: Mapping[int, Scope]):
        super().__init__()
        self.values = values

    def scope(self, scope: Scope) -> Scope:
        return self.values.get(id(scope)) or super().scope(scope)


def reductions(body: Body) -> Iterator[tuple[Reduce, Callable[[Body], Body]]]:
    """The outermost reductions, each with what puts another body in its place."""
    if isinstance(body, Reduce):
        yield body, lambda made: made
        return
    parts = children(body)
    for place, child in enumerate(parts):
        for found, put in reductions(child):

            def within(made: Body, place: int = place, put: Callable[[Body], Body] = put) -> Body:
                changed = [put(made) if k == place else part for k, part in enumerate(parts)]
                if isinstance(body, Call):
                    return Call(body.fn, tuple(changed))
                assert isinstance(body, Select)
                return Select(body.guard, *changed)

            yield found, within
