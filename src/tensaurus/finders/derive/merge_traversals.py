"""Traversal merging: a nested scope's expression takes the place of a read of it (EINNET, section 4.1).

Scopes that only move elements are merged at once (`read_through`), so that states that differ in moves alone
are equal; merging a scope that computes is a rule of the search (`merged`), as it computes more often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.expr.ir.element_types import dtype_of, literal_dtype
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, axis, within
from tensaurus.expr.ir.walk import Rewriting, children, rebuild_body, replace_axes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Size, interval, is_nonnegative, polynomial
from tensaurus.finders.derive.rewrite_step import (
    Product,
    Step,
    base_name,
    is_in_range,
    product_of,
    with_zeros_outside,
)

__all__ = ["merged", "read_through"]

MAX_ROUNDS = 16  # one round may bring two moves together that only the next one merges


def read_through(scope: Scope) -> Scope:
    """Return the scope, interned, with reads of nested scopes that only move elements replaced.

    L[i](L[j](x[j + 1] | 0)[2*i])   ->   L[i](x[2*i + 1] | 0)
    """
    scope = intern_scope(scope)
    for _ in range(MAX_ROUNDS):
        before, scope = scope, intern_scope(_ReadThrough().scope(scope))
        if scope is before:
            break
    return scope


class _ReadThrough(Rewriting):
    def read(self, read: Read) -> Read:
        """Rewrite a read within an index: only a read may take its place, not a choice (`Select`)."""
        read = _drop_unused_outside(super().read(read))
        direct = _read_of_source(read)
        return direct if isinstance(direct, Read) else read

    def body(self, body: Body) -> Body:
        if not isinstance(body, Read):
            return _merge_selects(super().body(body))
        read = _drop_unused_outside(super().read(body))
        return _read_of_source(read) or read


def _merge_selects(body: Body) -> Body:
    """Return nested choices with the same alternative as one choice, each guard once."""
    match body:
        case Select(outer, Select(inner, then, Const() as other), Const() as last) if other == last:
            return Select(tuple(dict.fromkeys((*outer, *inner))), then, other)
    return body


def _drop_unused_outside(read: Read) -> Read:
    """Return the read without its value outside where the indices never leave the source."""
    if read.outside is None or not all(map(is_in_range, read.indices, read.source.shape)):
        return read
    return Read(read.source, read.indices)


def _read_of_source(read: Read) -> Body | None:
    """Return the read of a moving scope as a read of that scope's source, None for any other read."""
    inner = read.source
    if not isinstance(inner, Scope) or not isinstance(inner.body, Read):
        return None
    if isinstance(inner.body.outside, Const) and read.outside not in (None, inner.body.outside):
        return None  # one read has one value outside
    if literal_dtype(inner.body) != dtype_of(inner):
        return None  # literals alone take their type from their neighbours
    at: dict[Atom, Any] = dict(zip(inner.axes, read.indices, strict=True))
    direct = replace_axes(inner.body, at)
    assert isinstance(direct, Read)
    guards = _range_guards(read, inner, inner.body)
    if read.outside is not None and direct.outside is None:
        direct = Read(direct.source, direct.indices, read.outside)
    return Select(guards, direct, read.outside) if guards and read.outside is not None else direct


def _range_guards(read: Read, inner: Scope, body: Read) -> tuple[Size, ...]:
    """Return guards against indices that leave the inner scope but not the source that it reads."""
    if read.outside is None:
        return ()
    guards: list[Size] = []
    for a, index in zip(inner.axes, read.indices, strict=True):
        ends = zip(body.indices, body.source.shape, strict=True)
        if is_in_range(index, a.extent) or any(_leaves_with(a, place, n) for place, n in ends):
            continue
        guards += within(index, 0, a.extent)
    return tuple(guard for guard in guards if not is_nonnegative(guard))


def _leaves_with(a: Any, index: Size, extent: Size) -> bool:
    """Return whether the index is outside 0 <= index < extent wherever the axis is outside its own range."""
    # with index = a + rest: rest <= 0 makes it negative where a is, a.extent + rest >= extent puts it beyond
    form = affine_coefficients(index, [a])
    if form is None or form.slopes.get(a) != 1:
        return False
    low, high = interval(form.rest)
    if low is None or high is None:
        return False
    return is_nonnegative(0 - high) and is_nonnegative(a.extent + low - extent)


def merged(scope: Scope) -> Iterator[Step]:
    """Yield the scope with one nested scope's expression in place of its reads; nested sums become one sum.

        L[i](sum[r](f[i, r] * {L[j, s](sum[c](g[j, s, c]))}[i, r]))
     -> L[i](sum[r, c](f[i, r] * g[i, r, c]))
    """
    for inner in {id(source): source for source in _nested_scopes(scope.body)}.values():
        yield Step("traversal merging", str(inner.shape), Scope(scope.axes, _inline(scope.body, inner)))


def _nested_scopes(body: Body) -> Iterator[Scope]:
    if not isinstance(body, Read):
        for child in children(body):
            yield from _nested_scopes(child)
    elif isinstance(body.source, Scope):
        yield body.source


def _inline(body: Body, inner: Scope) -> Body:
    """Return the body with the inner scope's expression in place of its reads, and sums merged."""
    def visit(part: Body) -> Body:
        if isinstance(part, Read) and part.source is inner:
            at: dict[Atom, Any] = dict(zip(inner.axes, part.indices, strict=True))
            inlined = replace_axes(_with_fresh_axes(inner.body), at)
            if part.outside is None:
                return inlined
            guards = tuple(
                guard
                for index, n in zip(part.indices, inner.shape, strict=True)
                for guard in within(index, 0, n)
                if not is_nonnegative(guard)
            )
            return Select(guards, with_zeros_outside(inlined), part.outside) if guards else inlined
        return rebuild_body(part, visit, lambda size: size)

    return _merge_sums(visit(body))


def _with_fresh_axes(body: Body) -> Body:
    """Return the body with new axes in its reductions: each use of an inlined scope needs its own."""
    if isinstance(body, Reduce):
        axes = tuple(axis(a.extent, base_name(a)) for a in body.axes)
        values: dict[Atom, Any] = {a: polynomial(b) for a, b in zip(body.axes, axes, strict=True)}
        return Reduce(body.monoid, axes, _with_fresh_axes(replace_axes(body.body, values)))
    return rebuild_body(body, _with_fresh_axes, lambda size: size)


def _merge_sums(body: Body) -> Body:
    """Return the body with sums of sums as one sum: sum[r](f * sum[c](g)) = sum[r, c](f * g)."""
    body = rebuild_body(body, _merge_sums, lambda size: size)
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
    return _merge_sums(Reduce("sum", axes, Product(product.guards, tuple(factors)).body))
