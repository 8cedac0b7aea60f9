"""Operators that expressions are matched to: sums of products of two tensors, as their declarations say, and
sums over windows of one, which is multiplied with one number.

    O[n, f, h, w] = sum[c, r, s](A[n, c, h*sh + r*dh - top, w*sw + s*dw - left] * B[f, c, r, s])

    A: n | c | window h, r | window w, s        B: f | c | r | s        O: n | f | h | w

EINNET, section 5.1, table 2: which iterator enters which dimension of which operand.  Nothing is written here
about any operator: the iterators come from its examples, and what an attribute does is seen by changing it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias

from tensaurus.expr.analysis.index_digits import LinearForm, order_by_slope
from tensaurus.expr.analysis.iterator_table import IteratorTable, Pattern, iterator_table
from tensaurus.expr.ir.scope import Call, Const, Read, Reduce, Scope, Tensor
from tensaurus.expr.ir.walk import operands
from tensaurus.expr.sizes.size import Axis, polynomial
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.examples import examples_of

__all__ = ["Operator", "Role", "Window", "operators", "scaled"]

PRIMES = (2, 3, 5, 7, 11, 13)
CHANGES = (1, 2, 3, 4)  # of an attribute's number, until they show what it decides
WIDER = 16
MOVED = ("stride", "dilation", "begin", "extent")
UNDECIDED = {"stride": 1, "dilation": 1, "begin": 0, "end": 0}  # of a window that no attribute changes


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
Kind: TypeAlias = tuple[bool, int, frozenset[Pattern]]
_Quantities: TypeAlias = tuple[Any, ...]  # of a window those that MOVED names, and how many places it has


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of two tensors at some rank, or of one as if it were multiplied with another of ones.

    operands  the dimensions of both inputs and of the output
    groups    the iterators by pattern: whether they enter both inputs and the output; windows' are not among
              them
    attrs     attributes, of which `roles` says what their numbers decide
    single    whether it is of one tensor
    """

    op: Op
    operands: tuple[tuple[Dimension, ...], ...]
    groups: Mapping[Pattern, Axis]
    attrs: Mapping[str, Any]
    roles: Mapping[Place, Role]
    single: bool = False

    @property
    def kind(self) -> Kind:
        """What two operators that do the same have in common."""
        return kind(self.single, self.windows, self.groups)

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(d for d in self.operands[0] if isinstance(d, Window))

    @property
    def iterators(self) -> frozenset[Axis]:
        """Of all dimensions but windows."""
        return frozenset(a for each in self.operands for d in each if isinstance(d, tuple) for a in d)

    def attributes(self, numbers: Mapping[Role, int]) -> dict[str, Any] | None:
        """The attributes with these numbers; None where one has no number, and where a window has one that no
        attribute decides."""
        made: dict[str, Any] = dict(self.attrs)
        decided = set(self.roles.values())
        for role, number in numbers.items():
            if role.quantity in UNDECIDED and role not in decided and number != UNDECIDED[role.quantity]:
                return None
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


def kind(single: bool, windows: Sequence[Window], groups: Iterable[Pattern]) -> Kind:
    """Of how many tensors, over how many windows, with iterators of which patterns."""
    return single, len(windows), frozenset(groups)


@cache
def operators() -> tuple[Operator, ...]:
    """All that the registry has, each once for every rank and grouping of its iterators: the first one of two
    tensors, and that of one whose attributes decide most, as some have no padding."""
    found: dict[Kind, Operator] = {}
    for op in registry.values():
        for types, attrs in examples_of(op):
            given = tuple(kind for kind in types[:2] if kind is not None and kind.dtype == "float32")
            if op.domain or not given or not all(one.is_optional for one in op.inputs[len(given) :]):
                continue
            if _product(op, given, dict(attrs)) is None:
                continue
            made = _operator(op, _enlarged(op, given, dict(attrs)), dict(attrs), found)
            if made is not None and (
                made.kind not in found or len(made.roles) > len(found[made.kind].roles)
            ):
                found[made.kind] = made
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
            if _product(op, larger, attrs) is not None:
                types, left = larger, [place for place in left if place not in chosen]
    return types


def _operator(
    op: Op, types: Sequence[TensorType], attrs: dict[str, Any], known: Container[Kind]
) -> Operator | None:
    """What the operator is; None where it is something else, or of two tensors and of a known kind."""
    table = _table(op, types, attrs)
    if table is None:
        return None
    single = len(types) == 1
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
    if single and not windows:
        return None  # a product with ones says the same
    if any(len(axes) != 1 for axes in free.values()) and not single:
        return None  # of several iterators of one kind it is not said which is which
    if not single and kind(single, windows, free) in known:
        return None
    roles = _roles(op, types, attrs, table, windows, [axes[0] for axes in free.values()])
    least = {pattern: axes[0] for pattern, axes in free.items()}
    if single and not all(Role("extent", window.tap) in roles.values() for window in windows):
        return None  # its windows' sizes are those of its input
    return Operator(op, dimensions, least, attrs, roles, single)


def _table(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> IteratorTable | None:
    """The iterators of the operator where it is a sum of products of its inputs, or one of its only input."""
    made = _product(op, types, attrs)
    return None if made is None else iterator_table(made)


def _product(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Scope | None:
    """The operator as a sum of products of its inputs, the only one beside ones; None where it is none."""
    try:
        canonical = op.canonical(tuple(types), dict(attrs))
        scopes = op.scopes(tuple(types), canonical)
    except (Untypable, ValueError):
        return None
    if len(scopes) != 1 or (found := scaled(scopes[0])) is None:
        return None
    made, number = found
    if len(types) == 1:
        made = _beside_ones(made)
    elif number != 1:
        return None  # which no number of what it is matched to says
    return made if _is_product(made) else None


def scaled(scope: Scope) -> tuple[Scope, Fraction] | None:
    """The sum that a scope is, and a number with which it is multiplied; None where it is none."""
    body, number = scope.body, Fraction(1)
    if isinstance(body, Call) and body.fn in ("mul", "div") and isinstance(body.args[1], Const):
        value = body.args[1].value
        if isinstance(value, bool) or not isinstance(value, int | Fraction) or not value:
            return None
        number = Fraction(value) if body.fn == "mul" else 1 / Fraction(value)
        body = body.args[0]
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return None
    return Scope(scope.axes, body), number


def _beside_ones(scope: Scope) -> Scope:
    """A sum of single elements as one of products with a tensor of its own axes."""
    body = scope.body
    assert isinstance(body, Reduce)
    ones = Read(Tensor("ones", tuple(a.extent for a in body.axes)), tuple(map(polynomial, body.axes)))
    return Scope(scope.axes, Reduce(body.monoid, body.axes, Call("mul", (body.body, ones))))


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


def _radix(form: LinearForm, extent: Any) -> tuple[Axis, ...] | None:
    """The iterators whose mixed-radix number a dimension of this extent is."""
    order = order_by_slope(form, {a: a.extent for a in form.slopes}, dense=False)
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
            after = _quantities(other)
            if len(before) != len(windows) or len(after) != len(windows):
                continue  # windows beside one another have the form of digits
            if (role := _decided(windows, before, after, value + more)) is not None:
                roles[name, place] = role
                break
    return roles


def _decided(
    windows: Sequence[Window], before: Sequence[_Quantities], after: Sequence[_Quantities], number: int
) -> Role | None:
    """What a number of an attribute decides, by what changed when it became this one."""
    for window, old, new in zip(windows, before, after, strict=True):
        moved = [q for q, x, y in zip(MOVED, old, new, strict=False) if x != y]
        if moved:
            if new[MOVED.index(moved[0])] != number:
                return None
            return Role(moved[0], window.tap if moved[0] == "extent" else window)
        if old != new:
            return Role("end", window)
    return None


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


def _quantities(table: IteratorTable) -> list[_Quantities]:
    """Of each window the slopes of its iterators, how far before the tensor it begins, and how many taps and
    places there are."""
    found = []
    for form, extent in zip(table.operands[0].dimensions, table.operands[0].shape, strict=True):
        if _radix(form, extent) is None:
            places = [a for a in form.slopes if not table.monoids[a]]
            taps = [a for a in form.slopes if table.monoids[a]]
            if len(places) == len(taps) == 1:
                place, tap = places[0], taps[0]
                slopes = form.slopes[place], form.slopes[tap]
                found.append((*slopes, -form.rest, tap.extent, place.extent))
    return found
