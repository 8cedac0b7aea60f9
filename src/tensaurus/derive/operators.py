"""Operators that expressions are matched to: sums of products of two tensors, as their declarations say.

    O[n, f, h, w] = sum[c, r, s](A[n, c, h*sh + r*dh - top, w*sw + s*dw - left] * B[f, c, r, s])

    A: n | c | window h, r | window w, s        B: f | c | r | s        O: n | f | h | w

EINNET, section 5.1, table 2: which iterator enters which dimension of which operand.  Nothing is written here
about any operator: the iterators come from its examples, and what an attribute does is seen by changing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias

from tensaurus.algebra.digits import Linear, ordered
from tensaurus.algebra.expr import Call, Const, Read, Reduce, Scope, Tensor
from tensaurus.algebra.iterator_table import IteratorTable, Pattern, iterator_table
from tensaurus.algebra.size import Axis
from tensaurus.algebra.walk import operands
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import examples_of

__all__ = ["Operator", "Role", "Window", "operators"]

PRIMES = (2, 3, 5, 7, 11, 13)
CHANGES = (1, 2, 3, 4)  # of an attribute's number, until they show what it decides
WIDER = 16
MOVED = ("stride", "dilation", "begin")


@dataclass(frozen=True)
class Window:
    """A dimension of the first operand in which an iterator of the output meets a reduced one."""

    place: Axis
    tap: Axis


Dimension: TypeAlias = tuple[Axis, ...] | Window
"""The iterators that a dimension is made of, the slowest first; or a window."""


@dataclass(frozen=True)
class Role:
    """What an attribute's number decides: of a window its "stride", "dilation", "begin" or "end" of the
    padding; or the extent of an iterator."""

    quantity: str
    of: Window | Axis


Place: TypeAlias = tuple[str, int | None]  # an attribute, and which of its numbers


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of two tensors at some rank.

    operands  the dimensions of both inputs and of the output
    groups    the iterators by pattern: whether they enter both inputs and the output; windows' are not among
              them
    attrs     attributes, of which `roles` says what their numbers decide
    """

    op: Op
    operands: tuple[tuple[Dimension, ...], ...]
    groups: Mapping[Pattern, Axis]
    attrs: Mapping[str, Any]
    roles: Mapping[Place, Role]

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(d for d in self.operands[0] if isinstance(d, Window))

    def attributes(self, numbers: Mapping[Role, int]) -> dict[str, Any] | None:
        """The attributes with these numbers; None where one has no number."""
        made: dict[str, Any] = dict(self.attrs)
        for (name, place), role in self.roles.items():
            if role not in numbers:
                return None
            if place is None:
                made[name] = numbers[role]
            else:
                made[name] = (*made[name][:place], numbers[role], *made[name][place + 1 :])
        return made

    def __str__(self) -> str:
        return str(self.op)


@cache
def operators() -> tuple[Operator, ...]:
    """All that the registry has, each once for every rank and grouping of its iterators."""
    found: dict[Any, Operator] = {}
    for op in registry.values():
        for types, attrs in examples_of(op):
            given = tuple(kind for kind in types[:2] if kind is not None and kind.dtype == "float32")
            if op.domain or len(given) < 2 or not all(one.optional for one in op.inputs[2:]):
                continue
            made = _operator(op, _enlarged(op, given, dict(attrs)), dict(attrs))
            if made is not None:
                found.setdefault((len(made.windows), frozenset(made.groups)), made)
    return tuple(found.values())


def _enlarged(op: Op, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """The types with larger sizes, each times a prime of its own, alone or together with another one, where
    that is allowed: an iterator of one point shows nothing, and equal extents are not told apart."""
    left = [(k, d) for k, kind in enumerate(types) for d in range(kind.rank)]
    for count in (1, 2):
        for chosen in combinations(left, count):
            alone = count == 1 and chosen[0][0] == 1
            if not set(chosen) <= set(left) or alone and types[1].shape[chosen[0][1]] != 1:
                continue
            prime = PRIMES[len(left) % len(PRIMES)]
            larger = tuple(
                TensorType(
                    kind.dtype,
                    tuple(n * (prime if (k, d) in chosen else 1) for d, n in enumerate(kind.shape)),
                )
                for k, kind in enumerate(types)
            )
            if _table(op, larger, attrs) is not None:
                types, left = larger, [place for place in left if place not in chosen]
    return types


def _operator(op: Op, types: Sequence[TensorType], attrs: dict[str, Any]) -> Operator | None:
    """What the operator is; None where it is something else."""
    table = _table(op, types, attrs)
    if table is None:
        return None
    found = [_dimensions(table, number) for number in range(3)]
    if any(operand is None for operand in found):
        return None
    dimensions: tuple[tuple[Dimension, ...], ...] = tuple(operand for operand in found if operand is not None)
    windows = [d for operand in dimensions for d in operand if isinstance(d, Window)]
    if any(isinstance(d, Window) for operand in dimensions[1:] for d in operand):
        return None
    within = {a for w in windows for a in (w.place, w.tap)}
    groups = {pattern: axes for pattern, axes in table.groups.items() if not within.issuperset(axes)}
    free = {pattern: tuple(a for a in axes if a not in within) for pattern, axes in groups.items()}
    if any(len(axes) != 1 for axes in free.values()):
        return None  # of several iterators of one kind it is not said which is which
    roles = _roles(op, types, attrs, table, windows, [axes[0] for axes in free.values()])
    return Operator(op, dimensions, {pattern: axes[0] for pattern, axes in free.items()}, attrs, roles)


def _table(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> IteratorTable | None:
    """The iterators of the operator where it is a sum of products of both inputs."""
    try:
        canonical = op.canonical(tuple(types), dict(attrs))
        scopes = op.scopes(tuple(types), canonical)
    except (Untypable, ValueError):
        return None
    if len(scopes) != 1 or not _is_product(scopes[0]):
        return None
    return iterator_table(scopes[0])


def _is_product(scope: Scope) -> bool:
    body = scope.body
    if not isinstance(body, Reduce) or body.monoid != "sum" or not isinstance(body.body, Call):
        return False
    factors = operands(body.body)
    reads = [f for f in factors if isinstance(f, Read) and isinstance(f.source, Tensor)]
    edges = all(read.outside in (None, Const(0)) for read in reads)
    return body.body.fn == "mul" and len(reads) == len(factors) == 2 and edges


def _dimensions(table: IteratorTable, number: int) -> tuple[Dimension, ...] | None:
    """What each dimension of an operand is made of; None where one is made of something else."""
    operand = table.operands[number]
    made: list[Dimension] = []
    for form, extent in zip(operand.dimensions, operand.shape, strict=True):
        radix = _radix(form, extent)
        if radix is not None:
            made.append(radix)
            continue
        places = [a for a in form.slopes if not table.monoids[a]]
        taps = [a for a in form.slopes if table.monoids[a]]
        if len(places) != 1 or len(taps) != 1 or not all(isinstance(s, int) for s in form.slopes.values()):
            return None
        made.append(Window(places[0], taps[0]))
    return tuple(made)


def _radix(form: Linear, extent: Any) -> tuple[Axis, ...] | None:
    """The iterators whose mixed-radix number a dimension of this extent is."""
    order = ordered(form, {a: a.extent for a in form.slopes}, dense=False)
    if order is None or form.rest != 0:
        return None
    reach: Any = 1
    for a in order:
        if form.slopes[a] != reach:
            return None
        reach = reach * a.extent
    return tuple(reversed(order)) if reach == extent else None


def _roles(
    op: Op,
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    table: IteratorTable,
    windows: Sequence[Window],
    free: Sequence[Axis],
) -> dict[Place, Role]:
    """What each number of the attributes decides, as far as changing it shows."""
    roles = dict[Place, Role]()
    wide = _widened(types, table, windows)
    first = _table(op, wide, attrs)
    if first is None:
        return roles
    before = _quantities(first)
    for (name, place), value in _entries(attrs):
        for more in CHANGES:
            changed: Any = value + more
            if place is not None:
                changed = (*attrs[name][:place], changed, *attrs[name][place + 1 :])
            other = _table(op, wide, {**attrs, name: changed})
            if other is None:
                alike = [a for a in free if a.extent == value]
                if len(alike) == 1:
                    roles[name, place] = Role("extent", alike[0])
                break
            for window, old, new in zip(windows, before, _quantities(other), strict=False):
                if old != new:
                    moved = [q for q, x, y in zip(MOVED, old, new, strict=False) if x != y]
                    roles[name, place] = Role(moved[0] if moved else "end", window)
            if (name, place) in roles:
                break
    return roles


def _widened(
    types: Sequence[TensorType], table: IteratorTable, windows: Sequence[Window]
) -> tuple[TensorType, ...]:
    """With room for larger strides and dilations in the first operand's windows."""
    taps = {w.tap for w in windows}
    inside = [any(a in taps for a in form.slopes) for form in table.operands[0].dimensions]
    shape = tuple(n * (WIDER if held else 1) for n, held in zip(types[0].shape, inside, strict=True))
    return (TensorType(types[0].dtype, shape), *types[1:])


def _entries(attrs: Mapping[str, Any]) -> Iterator[tuple[Place, int]]:
    for name, value in attrs.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield (name, None), value
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            yield from (((name, place), v) for place, v in enumerate(value))


def _quantities(table: IteratorTable) -> list[tuple[Any, ...]]:
    """Of each window the slopes of its iterators, its offset, and how many places there are."""
    found = []
    for form, extent in zip(table.operands[0].dimensions, table.operands[0].shape, strict=True):
        if _radix(form, extent) is None:
            places = [a for a in form.slopes if not table.monoids[a]]
            taps = [a for a in form.slopes if table.monoids[a]]
            if len(places) == len(taps) == 1:
                rows = form.slopes[places[0]], form.slopes[taps[0]], form.rest, places[0].extent
                found.append(rows)
    return found
