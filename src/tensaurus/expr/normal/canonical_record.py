"""Records that compare by a text in which bound axes are named by their position in the structure.

Alpha-equal records, and records that differ in an order without meaning, have equal texts.  The normal form
(`expr.normal.normal_form`) and interned scopes (`expr.normal.intern`) are made of such records.

    sum[r:3, s:3](x[r, s] * w[s])  and  sum[a:3, b:3](w[a] * x[b, a])      both    S[3, 3]w[~0] * x[~1, ~0]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import factorial, prod
from typing import Any

from tensaurus.expr.ir.printer import REDUCED_AXIS_LETTERS, SCOPE_AXIS_LETTERS, Names, letters, show_size
from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial, substitute

MAX_AXIS_ORDERS = 720  # 6! orders of indistinguishable axes are tried; where there are more, any one is taken


class Record:
    """Base of records: caches the free axes, the texts by naming, and the number of records inside.

    Subclasses define `sizes`, `parts`, `bound` (the axes that they bind) and `_print`, of which `text` is the
    cached result.
    """

    __slots__ = ("_free", "_key", "_binder_depth", "_texts", "_weight")

    def __init__(self) -> None:
        self._free: frozenset[Axis] | None = None
        self._texts: dict[tuple[Any, ...], str] = {}
        self._key: str | None = None
        self._weight = 0
        self._binder_depth: int | None = None

    def sizes(self) -> tuple[Size, ...]:
        """Return the sizes directly inside."""
        return ()

    def parts(self) -> Sequence[Record]:
        """Return the records directly inside."""
        return ()

    def bound(self) -> tuple[Axis, ...]:
        return ()

    def walk(self) -> Iterator[Record]:
        """Yield the record and all records inside."""
        yield self
        for part in self.parts():
            yield from part.walk()

    def _print(self, names: Names, depth: int) -> str:
        raise NotImplementedError

    @property
    def free(self) -> frozenset[Axis]:
        if self._free is None:
            axis_sets = [axes_in(s) for s in self.sizes()] + [p.free for p in self.parts()]
            self._free = frozenset().union(*axis_sets).difference(self.bound())
        return self._free

    @property
    def weight(self) -> int:
        """The number of records inside, this one included."""
        if not self._weight:
            self._weight = 1 + sum(p.weight for p in self.parts())
        return self._weight

    @property
    def binder_depth(self) -> int:
        """The depth to which binders of axes are nested: the time to order axes is exponential in it."""
        if self._binder_depth is None:
            self._binder_depth = max((p.binder_depth for p in self.parts()), default=0) + bool(self.bound())
        return self._binder_depth

    def text(self, names: Names, depth: int = 0) -> str:
        """Return the text under these names of free axes; other free axes keep their names.

        Bound axes are named by numbers from `depth` on.
        """
        own_names = [(a.name, names[a]) for a in self.free if a in names] if names else ()
        key = (depth, *sorted(own_names))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._print(names, depth)
        return text

    @property
    def key(self) -> str:
        """The text under the axes' own names."""
        if self._key is None:
            self._key = self.text({})
        return self._key


def name_bound_axes(
    axes: Sequence[Axis], parts: Sequence[Record], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Names, str]:
    """Return names for bound axes by their position in the structure, and the text of their ranges."""
    if not axes:
        return names, ""
    order = canonical_axis_order(axes, parts, guards, names, depth)
    wider = names_by_position(order, names, depth)
    return wider, "[" + ", ".join(show_size(a.extent, names) for a in order) + "]"


def canonical_axis_order(
    axes: Sequence[Axis], parts: Sequence[Record], guards: Sequence[Size], names: Names, depth: int
) -> tuple[Axis, ...]:
    """Return bound axes in an order that depends neither on their names nor on the order of parts.

    By colour refinement, as for graph isomorphism: colours (numbers) are refined by the texts of the parts in
    which an axis occurs; every order of the axes that still have equal colours is tried, and the least text
    wins.
    """
    if len(axes) < 2:
        return tuple(axes)
    inner = depth + len(axes)

    def texts(wider: Names, marked: Axis | None = None) -> list[str]:
        all_texts = [p.text(wider, inner) for p in parts if marked is None or marked in p.free]
        all_texts += [show_size(g, wider) for g in guards if marked is None or marked in axes_in(g)]
        return sorted(all_texts)

    # axes of one extent begin with one colour; refine until all colours differ, or none is split any more
    signature: dict[Axis, Any] = {a: show_size(a.extent, names) for a in axes}
    colours = _colours_of(signature)
    while max(colours.values()) < len(axes) - 1:
        # a signature: the texts of the parts with this axis, where axes are named by colour, this one marked
        wider = {**names, **{a: f"?{colours[a]}" for a in axes}}
        signature = {a: (colours[a], tuple(texts({**wider, a: f"*{colours[a]}"}, a))) for a in axes}
        refined = _colours_of(signature)
        if len(set(refined.values())) == len(set(colours.values())):
            break
        colours = refined
    groups = [[a for a in axes if colours[a] == c] for c in sorted(set(colours.values()))]
    if all(len(g) == 1 for g in groups):
        return tuple(g[0] for g in groups)
    if prod(factorial(len(g)) for g in groups) > MAX_AXIS_ORDERS:
        return tuple(a for g in groups for a in g)
    orders = _orders_within_groups(groups)
    return min(orders, key=lambda order: texts(names_by_position(order, names, depth)))


def names_by_position(order: Sequence[Axis], names: Names, depth: int) -> Names:
    """Return the names with numbers from `depth` on for these axes."""
    return {**names, **{a: f"~{number}" for number, a in enumerate(order, depth)}}


def _orders_within_groups(groups: Sequence[Sequence[Axis]]) -> Iterator[tuple[Axis, ...]]:
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        yield tuple(a for group in choice for a in group)


def _colours_of(signature: Mapping[Axis, Any]) -> dict[Axis, int]:
    distinct = sorted(set(signature.values()))
    return {a: distinct.index(s) for a, s in signature.items()}


class AxisNaming:
    """Gives axes the names that `printer.show` prints, except `taken` ones; `axes` are those of the scope."""

    def __init__(self, axes: Sequence[Axis], taken: set[str]):
        scope_names = (name for name in letters(SCOPE_AXIS_LETTERS) if name not in taken)
        self.reduced_names = (name for name in letters(REDUCED_AXIS_LETTERS) if name not in taken)
        self.known: dict[Atom, Any] = {}
        self.axes = self._rename(axes, scope_names)

    def _rename(self, axes: Sequence[Axis], names: Iterator[str]) -> tuple[Axis, ...]:
        renamed = tuple(Axis(next(names), a.extent) for a in axes)
        self.known.update({a: polynomial(b) for a, b in zip(axes, renamed, strict=True)})
        return renamed

    def bind(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Return new names for the axes that a reduction binds."""
        return self._rename(axes, self.reduced_names)

    def size(self, size: Size) -> Size:
        return substitute(size, self.known)  # type: ignore[no-any-return]
