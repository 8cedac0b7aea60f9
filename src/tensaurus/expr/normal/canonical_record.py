"""Records that compare by a text which names bound axes by their place in the structure.

Alpha-equal records, and those whose parts are in another order where that means nothing, have equal texts.
The normal form (`expr.normal.normal_form`) and interned scopes (`expr.normal.intern`) are made of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import factorial, prod
from typing import Any

from tensaurus.expr.ir.printer import REDUCED_AXIS_LETTERS, SCOPE_AXIS_LETTERS, Names, letters, show_size
from tensaurus.expr.sizes.size import Atom, Axis, Size, atoms, polynomial, substitute

PERMUTATIONS = 720  # orders of indistinguishable axes that are tried; beyond, the order is arbitrary


@lru_cache(maxsize=100_000)
def axes_in(size: Size) -> frozenset[Axis]:
    """The axes of a size, those inside looked-up indices included."""
    if isinstance(size, int):
        return frozenset()
    return frozenset(a for a in atoms(size) if isinstance(a, Axis))


class Record:
    """The axes that occur free, texts by naming, the number of records inside."""

    __slots__ = ("_free", "_key", "_nest", "_texts", "_weight")

    def __init__(self) -> None:
        self._free: frozenset[Axis] | None = None
        self._texts: dict[tuple[Any, ...], str] = {}
        self._key: str | None = None
        self._weight = 0
        self._nest: int | None = None

    def sizes(self) -> tuple[Size, ...]:
        """The sizes directly inside."""
        return ()

    def parts(self) -> Sequence[Record]:
        """The records directly inside."""
        return ()

    def bound(self) -> tuple[Axis, ...]:
        return ()

    def _print(self, names: Names, depth: int) -> str:
        raise NotImplementedError

    @property
    def free(self) -> frozenset[Axis]:
        if self._free is None:
            inside = [axes_in(s) for s in self.sizes()] + [p.free for p in self.parts()]
            self._free = frozenset().union(*inside).difference(self.bound())
        return self._free

    @property
    def weight(self) -> int:
        if not self._weight:
            self._weight = 1 + sum(p.weight for p in self.parts())
        return self._weight

    @property
    def nest(self) -> int:
        """How deep binders of axes stand in each other: ordering axes costs a power of it."""
        if self._nest is None:
            self._nest = max((p.nest for p in self.parts()), default=0) + bool(self.bound())
        return self._nest

    def text(self, names: Names, depth: int = 0) -> str:
        """The text under these names of free axes (others keep their own); bound ones count from depth."""
        named = [(a.name, names[a]) for a in self.free if a in names] if names else ()
        key = (depth, *sorted(named))
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self._print(names, depth)
        return found

    @property
    def key(self) -> str:
        """The text under the axes' own names."""
        if self._key is None:
            self._key = self.text({})
        return self._key


def bind_names(
    axes: Sequence[Axis], parts: Sequence[Record], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Names, str]:
    """Names for bound axes by their place in the structure, and the text of their ranges."""
    if not axes:
        return names, ""
    order = ordered(axes, parts, guards, names, depth)
    wider = dict(names)
    for place, a in enumerate(order):
        wider[a] = f"~{depth + place}"
    return wider, "[" + ", ".join(show_size(a.extent, names) for a in order) + "]"


def ordered(
    axes: Sequence[Axis], parts: Sequence[Record], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Axis, ...]:
    """Bound axes in an order that does not depend on their names nor on the order of parts.

    Colours are refined by the texts of the parts in which an axis occurs; what remains tied is tried in
    every order, and the least text wins.
    """
    if len(axes) < 2:
        return tuple(axes)
    inner = depth + len(axes)

    def texts(wider: Names, marked: Axis | None = None) -> list[str]:
        found = [p.text(wider, inner) for p in parts if marked is None or marked in p.free]
        found += [show_size(g, wider) for g in guards if marked is None or marked in axes_in(g)]
        return sorted(found)

    signature: dict[Axis, Any] = {a: show_size(a.extent, names) for a in axes}
    colours = _ranked(signature)
    while max(colours.values()) < len(axes) - 1:
        wider = {**names, **{a: f"?{colours[a]}" for a in axes}}
        signature = {a: (colours[a], tuple(texts({**wider, a: f"*{colours[a]}"}, a))) for a in axes}
        finer = _ranked(signature)
        if len(set(finer.values())) == len(set(colours.values())):
            break
        colours = finer
    groups = [[a for a in axes if colours[a] == c] for c in sorted(set(colours.values()))]
    if all(len(g) == 1 for g in groups):
        return tuple(g[0] for g in groups)
    if prod(factorial(len(g)) for g in groups) > PERMUTATIONS:
        return tuple(a for g in groups for a in g)
    return min(_orders(groups), key=lambda order: texts(_numbered(order, names, depth)))


def _numbered(order: Sequence[Axis], names: Names, depth: int) -> dict[Axis, str]:
    return {**names, **{a: f"~{depth + place}" for place, a in enumerate(order)}}


def _orders(groups: Sequence[Sequence[Axis]]) -> Iterator[tuple[Axis, ...]]:
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        yield tuple(a for group in choice for a in group)


def _ranked(signature: Mapping[Axis, Any]) -> dict[Axis, int]:
    levels = sorted(set(signature.values()))
    return {a: levels.index(s) for a, s in signature.items()}


class Naming:
    """Axes with the names that `show` gives, for those of records; `axes` are the scope's."""

    def __init__(self, axes: Sequence[Axis], taken: set[str]):
        kept = (name for name in letters(SCOPE_AXIS_LETTERS) if name not in taken)
        self.letters = (name for name in letters(REDUCED_AXIS_LETTERS) if name not in taken)
        self.known: dict[Atom, Any] = {}
        self.axes = self._named(axes, kept)

    def _named(self, axes: Sequence[Axis], names: Iterator[str]) -> tuple[Axis, ...]:
        named = tuple(Axis(next(names), a.extent) for a in axes)
        self.known.update({a: polynomial(b) for a, b in zip(axes, named, strict=True)})
        return named

    def bind(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Those that a reduction binds."""
        return self._named(axes, self.letters)

    def size(self, size: Size) -> Size:
        return substitute(size, self.known)  # type: ignore[no-any-return]
