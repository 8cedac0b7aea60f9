"""Substitute sizes for symbols, and split axes that an index divides evenly into digits.

    L[i:12](x[i // 4, i % 4])   ->   L[i:3, j:4](x[i, j])        (mixed radix: a reshape is a change of axes)

The evaluator (`interpret`) does both to each scope, since it reads affine indices without copying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensaurus.expr.ir.scope import Body, Scope, Source, digit_axes
from tensaurus.expr.ir.walk import Rewriting, bodies, sizes
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Floor,
    Largest,
    Size,
    atoms,
    single_atom,
    substitute,
    terms_of,
)


class _SymbolBinder(Rewriting):
    """Replaces symbols by sizes, also in the extents of axes."""

    def __init__(self, values: Mapping[Atom, Any]):
        super().__init__()
        self.values = values

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, substitute(a.extent, self.values)) for a in axes)

    def size(self, size: Size) -> Size:
        return substitute(super().size(size), self.values)  # type: ignore[no-any-return]


def bind_symbols(scope: Scope, values: Mapping[Atom, Any]) -> Scope:
    """Return the scope with symbols replaced by sizes in extents, indices and inner scopes."""
    return _SymbolBinder(values).scope(scope) if values else scope


def axis_divisors(body: Body) -> Iterator[tuple[Axis, int]]:
    """Yield (axis, k) for every index that divides an axis by a divisor k of its extent."""
    for inner in bodies(body, nested=False):
        for size in sizes(inner):
            for atom in atoms(size):
                if isinstance(atom, Floor) and isinstance(atom.bottom, int):
                    match single_atom(atom.top):
                        case Axis(_, int(extent)) as divided_axis if extent % atom.bottom == 0:
                            yield divided_axis, atom.bottom


def split_axes(scope: Scope) -> Scope:
    """Return the scope with every evenly divided axis split into two, its quotient and its remainder.

    Elements keep their row-major order; the shape becomes that of the split axes.
    """
    axes, body = scope.axes, scope.body
    while True:
        candidates = sorted(set(axis_divisors(body)), key=lambda pair: (pair[0].name, pair[1]))
        if not candidates:
            return Scope(axes, body)
        divided_axis, step = candidates[0]
        splitter = _AxisSplitter(divided_axis, step)
        body, axes = splitter.body(body), splitter.axes(axes)


class _AxisSplitter(Rewriting):
    """Replaces one axis by its two digits in one scope; scopes that are read keep their axes."""

    def __init__(self, divided_axis: Axis, step: int):
        super().__init__()
        high, low, recombined = digit_axes(divided_axis, step)
        self.digits = {divided_axis: (high, low)}
        self.values: dict[Atom, Any] = {divided_axis: recombined}

    def source(self, source: Source) -> Source:
        return source

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(d for a in axes for d in self.digits.get(a, (a,)))

    def size(self, size: Size) -> Size:
        return substitute(size, self.values)  # type: ignore[no-any-return]


def unnested_atoms(size: Size) -> set[Atom]:
    """Return the symbols, axes and lookups of a size, without the atoms inside those lookups."""
    unnested: set[Atom] = set()
    for factors, _ in terms_of(size):
        for atom in factors:
            if isinstance(atom, (Floor, Largest)):
                unnested.update(*map(unnested_atoms, atom.nested_sizes()))
            else:
                unnested.add(atom)
    return unnested
