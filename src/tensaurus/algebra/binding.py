"""Changes of axes: known sizes put in for symbols, and axes split where an index divides them.

    L[i:12](x[i // 4, i % 4])   ->   L[i:3, j:4](x[i, j])        (mixed radix: a reshape is a change of axes)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensaurus.algebra.expr import (
    Body,
    Call,
    Const,
    Looked,
    Read,
    Reduce,
    Scope,
    Select,
    axis,
    children,
    replace_axes,
    sizes,
)
from tensaurus.algebra.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Poly,
    Size,
    Symbol,
    atoms,
    polynomial,
    substitute,
    terms_of,
)


def bind(scope: Scope, values: Mapping[Atom, Any]) -> Scope:
    """The scope with symbols (or open axes) replaced by sizes, in extents, indices and inner scopes alike."""
    if not values and not _has_symbols(scope):
        return scope
    memo: dict[int, Scope] = {}

    def scope_of(source: Scope) -> Scope:
        if id(source) not in memo:
            known, axes = extended(values, source.axes)
            memo[id(source)] = Scope(axes, visit(source.body, known))
        return memo[id(source)]

    def extended(
        known: Mapping[Atom, Any], axes: tuple[Axis, ...]
    ) -> tuple[dict[Atom, Any], tuple[Axis, ...]]:
        fresh = tuple(Axis(a.name, substitute(a.extent, values)) for a in axes)
        changed: dict[Atom, Any] = {a: polynomial(b) for a, b in zip(axes, fresh, strict=True) if a != b}
        return {**known, **changed}, fresh

    def size(value: Any, known: Mapping[Atom, Any]) -> Any:
        if isinstance(value, Poly):
            looked = {a: a for a in atoms(value) if isinstance(a, Looked)}
            if looked:
                inner: dict[Atom, Any] = {
                    a: polynomial(Looked(_read(a.read, known), size(a.low, known), size(a.high, known)))
                    for a in looked
                }
                return substitute(value, {**known, **inner})
        return substitute(value, known)

    def _read(body: Read, known: Mapping[Atom, Any]) -> Read:
        source = scope_of(body.source) if isinstance(body.source, Scope) else body.source
        return Read(source, tuple(size(i, known) for i in body.indices), body.outside)

    def visit(body: Body, known: Mapping[Atom, Any]) -> Body:
        match body:
            case Const(value):
                return Const(size(value, known)) if isinstance(value, Poly) else body
            case Read():
                return _read(body, known)
            case Call(fn, args):
                return Call(fn, tuple(visit(a, known) for a in args))
            case Select(guard, then, other):
                return Select(tuple(size(g, known) for g in guard), visit(then, known), visit(other, known))
            case Reduce(monoid, axes, inner):
                wider, fresh = extended(known, axes)
                return Reduce(monoid, fresh, visit(inner, wider))
        raise TypeError(type(body))

    return scope_of(scope)


def _has_symbols(scope: Scope) -> bool:
    return any(not isinstance(extent, int) for extent in scope.shape)


def divisors(body: Body) -> Iterator[tuple[Axis, int]]:
    """(axis, k) for every index that divides an axis by a k that its extent is a multiple of."""
    for size in sizes(body):
        for atom in atoms(size):
            if isinstance(atom, Floor) and isinstance(atom.bottom, int) and isinstance(atom.top, Poly):
                terms = atom.top.terms
                if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
                    inner = terms[0][0][0]
                    extent = inner.extent if isinstance(inner, Axis) else None
                    if isinstance(inner, Axis) and isinstance(extent, int) and extent % atom.bottom == 0:
                        yield inner, atom.bottom
    for child in children(body):
        yield from divisors(child)


def split_axes(scope: Scope) -> Scope:
    """The same elements in the same order, with every evenly divided axis split into its digits."""
    axes, body = scope.axes, scope.body
    while True:
        found = sorted(set(divisors(body)), key=lambda pair: (pair[0].name, pair[1]))
        if not found:
            return Scope(axes, body)
        whole, step = found[0]
        assert isinstance(whole.extent, int)
        high, low = axis(whole.extent // step), axis(step)
        digits = {whole: (high, low)}
        value: dict[Atom, Any] = {whole: polynomial(high) * step + polynomial(low)}
        body = _respread(replace_axes(body, value), digits)
        axes = tuple(d for a in axes for d in digits.get(a, (a,)))


def _respread(body: Body, digits: Mapping[Axis, tuple[Axis, Axis]]) -> Body:
    match body:
        case Call(fn, args):
            return Call(fn, tuple(_respread(a, digits) for a in args))
        case Select(guard, then, other):
            return Select(guard, _respread(then, digits), _respread(other, digits))
        case Reduce(monoid, axes, inner):
            spread = tuple(d for a in axes for d in digits.get(a, (a,)))
            return Reduce(monoid, spread, _respread(inner, digits))
    return body


def symbols(scope: Scope) -> set[Symbol]:
    """The symbols in the extents of a scope's axes."""
    return {a for a in atoms_of_shape(scope.shape) if isinstance(a, Symbol)}


def atoms_of_shape(shape: tuple[Any, ...]) -> set[Atom]:
    return set().union(*(atoms(n) for n in shape)) if shape else set()


def open_atoms(size: Size) -> set[Atom]:
    """The axes and looked-up indices of a size, without what stands inside the latter."""
    found: set[Atom] = set()
    for factors, _ in terms_of(size):
        for atom in factors:
            if isinstance(atom, Floor):
                found |= open_atoms(atom.top) | open_atoms(atom.bottom)
            elif isinstance(atom, Largest):
                for arg in atom.args:
                    found |= open_atoms(arg)
            else:
                found.add(atom)
    return found
