"""Changes of axes: known sizes put in for symbols, and axes split where an index divides them.

    L[i:12](x[i // 4, i % 4])   ->   L[i:3, j:4](x[i, j])        (mixed radix: a reshape is a change of axes)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensaurus.expr.ir.scope import Body, Scope, Source, digit_axes
from tensaurus.expr.ir.walk import Rewriting, bodies, sizes
from tensaurus.expr.sizes.size import Atom, Axis, Floor, Largest, Size, atoms, substitute, terms_of


class _Binding(Rewriting):
    """Symbols replaced by sizes, in what they stand in too: axes are of other extents then."""

    def __init__(self, values: Mapping[Atom, Any]):
        super().__init__()
        self.values = values

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.name, substitute(a.extent, self.values)) for a in axes)

    def size(self, size: Size) -> Size:
        return substitute(super().size(size), self.values)  # type: ignore[no-any-return]


def bind(scope: Scope, values: Mapping[Atom, Any]) -> Scope:
    """The scope with symbols replaced by sizes, in extents, indices and inner scopes alike."""
    return _Binding(values).scope(scope) if values else scope


def divisors(body: Body) -> Iterator[tuple[Axis, int]]:
    """(axis, k) for every index that divides an axis by a k that its extent is a multiple of."""
    for inner in bodies(body, nested=False):
        for size in sizes(inner):
            for atom in atoms(size):
                if isinstance(atom, Floor) and isinstance(atom.bottom, int):
                    match terms_of(atom.top):
                        case [((Axis(_, int(extent)) as whole,), 1)] if extent % atom.bottom == 0:
                            yield whole, atom.bottom


def split_axes(scope: Scope) -> Scope:
    """The same elements in the same order, with every evenly divided axis split into its digits."""
    axes, body = scope.axes, scope.body
    while True:
        found = sorted(set(divisors(body)), key=lambda pair: (pair[0].name, pair[1]))
        if not found:
            return Scope(axes, body)
        whole, step = found[0]
        respread = _Respread(whole, step)
        body, axes = respread.body(body), respread.axes(axes)


class _Respread(Rewriting):
    """An axis replaced by its two digits in one scope, where it is bound, too."""

    def __init__(self, whole: Axis, step: int):
        super().__init__()
        high, low, place = digit_axes(whole, step)
        self.digits = {whole: (high, low)}
        self.value: dict[Atom, Any] = {whole: place}

    def source(self, source: Source) -> Source:
        return source

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(d for a in axes for d in self.digits.get(a, (a,)))

    def size(self, size: Size) -> Size:
        return substitute(size, self.value)  # type: ignore[no-any-return]


def open_atoms(size: Size) -> set[Atom]:
    """The axes and looked-up indices of a size, without what stands inside the latter."""
    found: set[Atom] = set()
    for factors, _ in terms_of(size):
        for atom in factors:
            if isinstance(atom, (Floor, Largest)):
                found.update(*map(open_atoms, atom.nested_sizes()))
            else:
                found.add(atom)
    return found
