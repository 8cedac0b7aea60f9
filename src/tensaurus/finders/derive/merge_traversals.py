"""Traversal merging: a nested scope is computed where it is read (EINNET, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, axis, within
from tensaurus.expr.ir.walk import Rewriting, children, rebuild_body, replace_axes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Size, interval, is_nonnegative, polynomial
from tensaurus.finders.derive.rewrite_step import Product, Step, contained, hint, inside, product_of

__all__ = ["merged", "read_through"]

ROUNDS = 16  # moves may come to be read by others only when those between are gone


def read_through(scope: Scope) -> Scope:
    """The scope without nested ones that only move elements, interned.

    L[i](L[j](x[j + 1] | 0)[2*i])   ->   L[i](x[2*i + 1] | 0)
    """
    scope = intern_scope(scope)
    for _ in range(ROUNDS):
        before, scope = scope, intern_scope(_Through().scope(scope))
        if scope is before:
            break
    return scope


class _Through(Rewriting):
    def read(self, read: Read) -> Read:
        """An index that is read stays a read."""
        made = _bounded(super().read(read))
        found = _moved(made)
        return found if isinstance(found, Read) else made

    def body(self, body: Body) -> Body:
        if not isinstance(body, Read):
            return _once(super().body(body))
        made = _bounded(super().read(body))
        return _moved(made) or made


def _once(body: Body) -> Body:
    """A choice inside another one with the same other side is one, in which each guard stands once."""
    match body:
        case Select(outer, Select(inner, then, Const() as other), Const() as last) if other == last:
            return Select(tuple(dict.fromkeys((*outer, *inner))), then, other)
    return body


def _bounded(read: Read) -> Read:
    """The read, of which nothing is said about what is beyond an edge that it never leaves."""
    if read.outside is None or not all(map(inside, read.indices, read.source.shape)):
        return read
    return Read(read.source, read.indices)


def _moved(read: Read) -> Body | None:
    """What is read through a nested scope that only moves elements; None for any other."""
    inner = read.source
    if not isinstance(inner, Scope) or not isinstance(inner.body, Read):
        return None
    if isinstance(inner.body.outside, Const) and read.outside not in (None, inner.body.outside):
        return None
    if literal_dtype(inner.body) != dtype_of(inner):
        return None
    at: dict[Atom, Any] = dict(zip(inner.axes, read.indices, strict=True))
    made = replace_axes(inner.body, at)
    assert isinstance(made, Read)
    guards = _needed(read, inner, inner.body)
    if read.outside is not None and made.outside is None:
        made = Read(made.source, made.indices, read.outside)
    return Select(guards, made, read.outside) if guards and read.outside is not None else made


def _needed(read: Read, inner: Scope, body: Read) -> tuple[Size, ...]:
    """Guards for indices that may leave the inner scope's range where what is read there is inside still."""
    if read.outside is None:
        return ()
    guards: list[Size] = []
    for a, index in zip(inner.axes, read.indices, strict=True):
        ends = zip(body.indices, body.source.shape, strict=True)
        if inside(index, a.extent) or any(_leaves(a, spot, n) for spot, n in ends):
            continue
        guards += within(index, 0, a.extent)
    return tuple(guard for guard in guards if not is_nonnegative(guard))


def _leaves(a: Any, spot: Size, extent: Size) -> bool:
    """Whether an index leaves a range of this extent wherever the axis leaves its own."""
    found = affine_coefficients(spot, [a])
    if found is None or found[0].get(a) != 1:
        return False
    low, high = interval(found[1])
    if low is None or high is None:
        return False
    return is_nonnegative(0 - high) and is_nonnegative(a.extent + low - extent)


def merged(scope: Scope) -> Iterator[Step]:
    """A nested scope's expression where it is read; sums in a sum of products become one with it.

        L[i](sum[r](f[i, r] * {L[j, s](sum[c](g[j, s, c]))}[i, r]))
     -> L[i](sum[r, c](f[i, r] * g[i, r, c]))
    """
    found = dict[int, Scope]()
    for read in _reads(scope.body):
        assert isinstance(read.source, Scope)
        found.setdefault(id(read.source), read.source)
    for inner in found.values():
        yield Step("traversal merging", str(inner.shape), Scope(scope.axes, _inlined(scope.body, inner)))


def _reads(body: Body) -> Iterator[Read]:
    if isinstance(body, Read) and isinstance(body.source, Scope):
        yield body
    if isinstance(body, Read):
        return
    for child in children(body):
        yield from _reads(child)


def _inlined(body: Body, inner: Scope) -> Body:
    def visit(part: Body) -> Body:
        if isinstance(part, Read) and part.source is inner:
            at: dict[Atom, Any] = dict(zip(inner.axes, part.indices, strict=True))
            made = replace_axes(_fresh(inner.body), at)
            if part.outside is None:
                return made
            guards = tuple(
                guard
                for index, n in zip(part.indices, inner.shape, strict=True)
                for guard in within(index, 0, n)
                if not is_nonnegative(guard)
            )
            return Select(guards, contained(made), part.outside) if guards else made
        return rebuild_body(part, visit, lambda size: size)

    return _pulled(visit(body))


def _fresh(body: Body) -> Body:
    """The body with new axes in its reductions."""
    if isinstance(body, Reduce):
        axes = tuple(axis(a.extent, hint(a)) for a in body.axes)
        values: dict[Atom, Any] = {a: polynomial(b) for a, b in zip(body.axes, axes, strict=True)}
        return Reduce(body.monoid, axes, _fresh(replace_axes(body.body, values)))
    return rebuild_body(body, _fresh, lambda size: size)


def _pulled(body: Body) -> Body:
    """The body with a sum of a product in front of the product: f * sum[c](g) = sum[c](f * g)."""
    body = rebuild_body(body, _pulled, lambda size: size)
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return body
    product = product_of(body.body)
    sums = [f for f in product.factors if isinstance(f, Reduce) and f.monoid == "sum"]
    if not sums:
        return body
    axes, factors = body.axes, list[Body]()
    for factor in product.factors:
        if factor in sums:
            assert isinstance(factor, Reduce)
            axes += factor.axes
            factors.append(factor.body)
        else:
            factors.append(factor)
    return _pulled(Reduce("sum", axes, Product(product.guards, tuple(factors)).body))
