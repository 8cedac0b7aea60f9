"""Traverse and rewrite scopes and bodies.

A scope is closed: axes outside it have no meaning inside.  Scopes are shared, and the tree of their reads may
be exponential, so each scope is visited, or rewritten, once.

Code that treats all kinds of bodies (Read, Call, Select, ...) alike uses this module.  Code that gives each
kind its own meaning (evaluator, types, degrees, normal forms, texts) matches on the kinds itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tensaurus.expr.ir.scalar_functions import ASSOCIATIVE
from tensaurus.expr.ir.scope import Body, Call, Const, Lookup, Read, Reduce, Scope, Select, Source, Tensor
from tensaurus.expr.sizes.size import Atom, Axis, Poly, Size, atoms, polynomial, substitute, terms_of


def children(body: Body) -> tuple[Body, ...]:
    """Return the bodies directly inside; none of a Read, as a scope that it reads is closed."""
    match body:
        case Call(_, args):
            return args
        case Select(_, then, other):
            return (then, other)
        case Reduce(_, _, inner):
            return (inner,)
    return ()


def operands(body: Body, fn: str = "") -> tuple[Body, ...]:
    """Return the arguments of a call, those of nested calls of an associative function in one tuple.

    f(f(a, b), c) and f(a, f(b, c)) give (a, b, c).  Any other body gives (body,); with `fn`, so does a call
    of another function.
    """
    if not isinstance(body, Call) or fn not in ("", body.fn):
        return (body,)
    if body.fn not in ASSOCIATIVE:
        return body.args
    return tuple(operand for arg in body.args for operand in operands(arg, body.fn))


def sizes(body: Body) -> tuple[Size, ...]:
    """Return the sizes directly in a body: indices, guards, a literal; not the extents of axes."""
    match body:
        case Read(_, indices, outside):
            return indices if outside is None else (*indices, *sizes(outside))
        case Select(guard, _, _):
            return guard
        case Const(value) if isinstance(value, Poly):
            return (value,)
    return ()


def bound_axes(body: Body) -> tuple[Axis, ...]:
    """Return the axes that a body binds."""
    return body.axes if isinstance(body, Reduce) else ()


@lru_cache(maxsize=100_000)
def axes_in(size: Size) -> frozenset[Axis]:
    """Return the axes of a size, those inside lookups included."""
    return frozenset(a for a in atoms(size) if isinstance(a, Axis))


def free_axes(body: Body) -> set[Axis]:
    """Return the axes that a body depends on and does not bind."""
    axes = set[Axis]().union(*map(axes_in, sizes(body)))
    for child in children(body):
        axes |= free_axes(child)
    return axes.difference(bound_axes(body))


@lru_cache(maxsize=100_000)
def lookups_in(size: Size) -> tuple[Lookup, ...]:
    """Return the outermost lookups in a size, from left to right."""
    lookups: list[Lookup] = []
    for factors, _ in terms_of(size):
        for atom in factors:
            if isinstance(atom, Lookup):
                lookups.append(atom)
            else:
                lookups.extend(lookup for inner in atom.nested_sizes() for lookup in lookups_in(inner))
    return tuple(lookups)


def walk(item: Scope | Body, nested: bool = True) -> Iterator[tuple[Body, frozenset[Axis]]]:
    """Yield every body inside, readers before what they read, with the axes bound around it.

    Indices may read tensors themselves (`Lookup`, as in Gather); these reads are yielded, too.  With
    `nested`, so are the bodies of the scopes that are read, each scope once.
    """
    visited: set[int] = set()
    waiting: list[tuple[Body, frozenset[Axis]]] = []

    def enter(scope: Scope) -> None:
        if id(scope) not in visited:
            visited.add(id(scope))
            waiting.append((scope.body, frozenset(scope.axes)))

    if isinstance(item, Scope):
        enter(item)
    else:
        waiting.append((item, frozenset()))
    while waiting:
        body, bound = waiting.pop()
        yield body, bound
        inner_bound = bound.union(bound_axes(body)) if isinstance(body, Reduce) else bound
        waiting += [(child, inner_bound) for child in reversed(children(body))]
        lookup_reads = [
            atom.read for size in sizes(body) if isinstance(size, Poly) for atom in lookups_in(size)
        ]
        waiting += [(index, bound) for index in reversed(lookup_reads)]
        if nested and isinstance(body, Read) and isinstance(body.source, Scope):
            enter(body.source)


def bodies(item: Scope | Body, nested: bool = True) -> Iterator[Body]:
    """Yield every body that `walk` yields, without the axes bound around it."""
    return (body for body, _ in walk(item, nested))


def reads(item: Scope | Body, nested: bool = False) -> Iterator[Read]:
    """Yield every read, those inside indices included."""
    return (body for body, _ in walk(item, nested) if isinstance(body, Read))


def scopes(scope: Scope) -> tuple[Scope, ...]:
    """Return the scope and those that it reads, directly or not, each once, readers first."""
    scope_by_id = {id(scope): scope}
    for read in reads(scope, nested=True):
        if isinstance(read.source, Scope):
            scope_by_id.setdefault(id(read.source), read.source)
    return tuple(scope_by_id.values())


def innermost_first(scope: Scope, known: Container[Scope]) -> Iterator[Scope]:
    """Yield a scope and those that it reads, directly or not, sources before readers, without the known ones.

    The caller must add each scope to `known` before it asks for the next.  A program's scopes are nested as
    deep as it is long, so that computing by this order avoids deep recursion.
    """
    waiting = [scope]
    while waiting:
        last = waiting[-1]
        inner = [] if last in known else [r.source for r in reads(last) if isinstance(r.source, Scope)]
        unknown = [source for source in inner if source not in known]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        if last not in known:
            yield last


def tensors(scope: Scope) -> tuple[Tensor, ...]:
    """Return the tensors an expression reads, each once, in order of first appearance."""
    sources = (read.source for read in reads(scope, nested=True))
    return tuple(dict.fromkeys(source for source in sources if isinstance(source, Tensor)))


def rebuild_body(
    body: Body,
    child: Callable[[Body], Body],
    size: Callable[[Size], Size],
    source: Callable[[Source], Source] = lambda source: source,
    axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]] = lambda axes: axes,
) -> Body:
    """Return the body with its children, sizes, source and bound axes replaced by the given functions."""
    match body:
        case Const(value):
            return Const(size(value)) if isinstance(value, Poly) else body
        case Read(read, indices, outside):
            # `outside` is a number, in which only a size can change
            beyond = outside if outside is None else rebuild_body(outside, child, size)
            return Read(source(read), tuple(map(size, indices)), beyond)  # type: ignore[arg-type]
        case Call(fn, args):
            return Call(fn, tuple(map(child, args)))
        case Select(guard, then, other):
            return Select(tuple(map(size, guard)), child(then), child(other))
        case Reduce(monoid, bound, inner):
            return Reduce(monoid, axes(bound), child(inner))
    raise TypeError(type(body))


def map_reads(size: Size, change: Callable[[Read], Read]) -> Size:
    """Return the size with the reads of its outermost lookups changed."""
    lookups = set(lookups_in(size)) if isinstance(size, Poly) else ()
    if not lookups:
        return size
    replacements: dict[Atom, Any] = {a: polynomial(Lookup(change(a.read), a.low, a.high)) for a in lookups}
    return substitute(size, replacements)  # type: ignore[no-any-return]


class Rewriting:
    """Rewrites scopes and bodies, each shared scope once.

    The base class copies them; subclasses override `body`, `read`, `size`, `source` or `axes`.
    """

    def __init__(self) -> None:
        self._scopes: dict[int, tuple[Scope, Scope]] = {}

    def scope(self, scope: Scope) -> Scope:
        entry = self._scopes.get(id(scope))
        if entry is None:
            # the entry holds the scope, so that no other object gets its id
            entry = self._scopes[id(scope)] = scope, Scope(self.axes(scope.axes), self.body(scope.body))
        return entry[1]

    def source(self, source: Source) -> Source:
        return self.scope(source) if isinstance(source, Scope) else source

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return axes

    def size(self, size: Size) -> Size:
        return map_reads(size, self.read)

    def read(self, read: Read) -> Read:
        return rebuild_body(read, self.body, self.size, self.source)  # type: ignore[return-value]

    def body(self, body: Body) -> Body:
        if isinstance(body, Read):
            return self.read(body)
        return rebuild_body(body, self.body, self.size, self.source, self.axes)


def replace_axes(body: Body, values: Mapping[Atom, Any]) -> Body:
    """Return the body with its free axes replaced by sizes."""
    if not values.keys().isdisjoint(bound_axes(body)):
        values = {a: value for a, value in values.items() if a not in bound_axes(body)}
    if not values:
        return body
    return rebuild_body(
        body, lambda inner: replace_axes(inner, values), lambda size: substitute(size, values)
    )


class _Replacing(Rewriting):
    def __init__(self, values: Mapping[Tensor, Source]):
        super().__init__()
        self.values = values

    def source(self, source: Source) -> Source:
        return self.values.get(source, source) if isinstance(source, Tensor) else super().source(source)


def replace_tensors(scope: Scope, values: Mapping[Tensor, Source]) -> Scope:
    """Return the scope with tensors replaced by sources of the same shape: how nodes compose."""
    return _Replacing(values).scope(scope)
