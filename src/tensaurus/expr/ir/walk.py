"""What stands inside bodies and scopes, and maps of them: the one place that knows where to go.

A scope is closed: axes outside it mean nothing inside.  Scopes are shared, and a tree of them may be
exponential, so each is visited, and rewritten, once.

What gives every constructor a meaning of its own (the evaluator, types, degrees, normal forms, texts) matches
on them itself: a fold would only rename its cases.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tensaurus.expr.ir.scalar_functions import VARIADIC
from tensaurus.expr.ir.scope import Body, Call, Const, Looked, Read, Reduce, Scope, Select, Source, Tensor
from tensaurus.expr.sizes.size import Atom, Axis, Poly, Size, atoms, polynomial, substitute, terms_of


def children(body: Body) -> tuple[Body, ...]:
    """The bodies directly inside (not that of a source)."""
    match body:
        case Call(_, args):
            return args
        case Select(_, then, other):
            return (then, other)
        case Reduce(_, _, inner):
            return (inner,)
    return ()


def operands(body: Body, fn: str = "") -> tuple[Body, ...]:
    """(a, b, c) of f(f(a, b), c) and f(a, f(b, c)), of an associative f; (a, b) of another g(a, b).

    `fn`: of this f, (body,) for any other body.
    """
    if not isinstance(body, Call) or fn not in ("", body.fn):
        return (body,)
    if body.fn not in VARIADIC:
        return body.args
    return tuple(part for arg in body.args for part in operands(arg, body.fn))


def sizes(body: Body) -> tuple[Size, ...]:
    """The sizes that stand directly in this body: indices, guards, a literal; extents of axes do not."""
    match body:
        case Read(_, indices, outside):
            return indices if outside is None else (*indices, *sizes(outside))
        case Select(guard, _, _):
            return guard
        case Const(value) if isinstance(value, Poly):
            return (value,)
    return ()


def binds(body: Body) -> tuple[Axis, ...]:
    """The axes that it binds."""
    return body.axes if isinstance(body, Reduce) else ()


@lru_cache(maxsize=100_000)
def axes_in(size: Size) -> frozenset[Axis]:
    """The axes of a size, those inside of indices that are read, too."""
    return frozenset(a for a in atoms(size) if isinstance(a, Axis))


def free_axes(body: Body) -> set[Axis]:
    """The axes that a body depends on, those that it binds excepted."""
    found = set[Axis]().union(*map(axes_in, sizes(body)))
    for child in children(body):
        found |= free_axes(child)
    return found.difference(binds(body))


@lru_cache(maxsize=100_000)
def looked(size: Size) -> tuple[Looked, ...]:
    """The indices in a size that are read, those inside such reads excepted; from left to right."""
    found: list[Looked] = []
    for factors, _ in terms_of(size):
        for atom in factors:
            if isinstance(atom, Looked):
                found.append(atom)
            else:
                found.extend(part for inner in atom.nested_sizes() for part in looked(inner))
    return tuple(found)


def walk(item: Scope | Body, nested: bool = True) -> Iterator[tuple[Body, frozenset[Axis]]]:
    """Every body inside, readers first, with the axes bound around it; those of indices that are read, too.

    `nested`: those of the scopes that are read as well, each scope once.
    """
    met: set[int] = set()
    waiting: list[tuple[Body, frozenset[Axis]]] = []

    def enter(scope: Scope) -> None:
        if id(scope) not in met:
            met.add(id(scope))
            waiting.append((scope.body, frozenset(scope.axes)))

    if isinstance(item, Scope):
        enter(item)
    else:
        waiting.append((item, frozenset()))
    while waiting:
        body, bound = waiting.pop()
        yield body, bound
        inside = bound.union(binds(body)) if isinstance(body, Reduce) else bound
        waiting += [(child, inside) for child in reversed(children(body))]
        read = [atom.read for size in sizes(body) if isinstance(size, Poly) for atom in looked(size)]
        waiting += [(index, bound) for index in reversed(read)]
        if nested and isinstance(body, Read) and isinstance(body.source, Scope):
            enter(body.source)


def bodies(item: Scope | Body, nested: bool = True) -> Iterator[Body]:
    """As `walk`, the bodies alone."""
    return (body for body, _ in walk(item, nested))


def reads(item: Scope | Body, nested: bool = False) -> Iterator[Read]:
    """Every read, those inside indices included."""
    return (body for body, _ in walk(item, nested) if isinstance(body, Read))


def scopes(scope: Scope) -> tuple[Scope, ...]:
    """The scope and those that it reads, directly or not, each once, readers first."""
    found = {id(scope): scope}
    for read in reads(scope, nested=True):
        if isinstance(read.source, Scope):
            found.setdefault(id(read.source), read.source)
    return tuple(found.values())


def innermost_first(scope: Scope, known: Container[Scope]) -> Iterator[Scope]:
    """The scope and those that it reads, directly or not, sources before readers, but those that are known.

    Each must be known before the next is asked for.  A program's scopes are nested as deep as it is long, so
    what is computed of the inner ones first need not recur.
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
    """The tensors an expression reads, each once, in order of their first appearance."""
    found = (read.source for read in reads(scope, nested=True))
    return tuple(dict.fromkeys(source for source in found if isinstance(source, Tensor)))


def rebuilt(
    body: Body,
    child: Callable[[Body], Body],
    size: Callable[[Size], Size],
    source: Callable[[Source], Source] = lambda source: source,
    axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]] = lambda axes: axes,
) -> Body:
    """The body with what stands directly inside it changed."""
    match body:
        case Const(value):
            return Const(size(value)) if isinstance(value, Poly) else body
        case Read(read, indices, outside):
            beyond = outside if outside is None else rebuilt(outside, child, size)
            return Read(source(read), tuple(map(size, indices)), beyond)  # type: ignore[arg-type]
        case Call(fn, args):
            return Call(fn, tuple(map(child, args)))
        case Select(guard, then, other):
            return Select(tuple(map(size, guard)), child(then), child(other))
        case Reduce(monoid, bound, inner):
            return Reduce(monoid, axes(bound), child(inner))
    raise TypeError(type(body))


def with_reads(size: Size, change: Callable[[Read], Read]) -> Size:
    """The size with the reads changed that stand in it as indices, those inside such reads excepted."""
    found = set(looked(size)) if isinstance(size, Poly) else ()
    if not found:
        return size
    known: dict[Atom, Any] = {a: polynomial(Looked(change(a.read), a.low, a.high)) for a in found}
    return substitute(size, known)  # type: ignore[no-any-return]


class Rewriting:
    """A map of scopes and bodies that changes nothing; override what shall change."""

    def __init__(self) -> None:
        self._scopes: dict[int, tuple[Scope, Scope]] = {}

    def scope(self, scope: Scope) -> Scope:
        found = self._scopes.get(id(scope))
        if found is None:
            # the entry holds the scope, so that its id stays its own
            found = self._scopes[id(scope)] = scope, Scope(self.axes(scope.axes), self.body(scope.body))
        return found[1]

    def source(self, source: Source) -> Source:
        return self.scope(source) if isinstance(source, Scope) else source

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return axes

    def size(self, size: Size) -> Size:
        return with_reads(size, self.read)

    def read(self, read: Read) -> Read:
        return rebuilt(read, self.body, self.size, self.source)  # type: ignore[return-value]

    def body(self, body: Body) -> Body:
        if isinstance(body, Read):
            return self.read(body)
        return rebuilt(body, self.body, self.size, self.source, self.axes)


def replace_axes(body: Body, values: Mapping[Atom, Any]) -> Body:
    """The body with axes replaced by sizes, where they are not bound anew."""
    if not values.keys().isdisjoint(binds(body)):
        values = {a: value for a, value in values.items() if a not in binds(body)}
    if not values:
        return body
    return rebuilt(body, lambda inner: replace_axes(inner, values), lambda size: substitute(size, values))


class _Replacing(Rewriting):
    def __init__(self, values: Mapping[Tensor, Source]):
        super().__init__()
        self.values = values

    def source(self, source: Source) -> Source:
        return self.values.get(source, source) if isinstance(source, Tensor) else super().source(source)


def replace_tensors(scope: Scope, values: Mapping[Tensor, Source]) -> Scope:
    """The scope with tensors replaced by sources of the same shape: how nodes compose to expressions."""
    return _Replacing(values).scope(scope)
