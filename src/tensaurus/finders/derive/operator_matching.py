"""Lists the operators that expressions are matched to, by their iterators (EINNET, section 5.1, table 2).

These are sums of products of two tensors (A and B), such as Conv and MatMul, and sums over windows of one
tensor, such as AveragePool: such a sum is taken for a product whose second tensor B is all ones.

    O[n, f, h, w] = sum[c, r, s](A[n, c, h*sh + r*dh - top, w*sw + s*dw - left] * B[f, c, r, s])

    A: n | c | window h, r | window w, s        B: f | c | r | s        O: n | f | h | w

A window is a dimension of A whose index adds an iterator of the output, its place (h), and a summed one, its
tap (r).  The pattern of an iterator says whether it enters A, B and O: that of n is (True, False, True).

No operator is named here.  Iterators come from an operator's declaration at one of its examples, enlarged so
that no two extents are equal.  What an attribute sets, its role, is found by changing it and comparing: if
pads=[1, ...] becomes [2, ...] and `top` becomes 2, that number is the padding before h.  The list is used by
`instantiate_operator`, which lays out tensors so that an expression becomes one of these operators.
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

__all__ = ["Operator", "Role", "Window", "matchable_operators", "split_scale"]

PRIMES = (2, 3, 5, 7, 11, 13)  # sizes of examples are multiplied by these, so that no two extents coincide
CHANGES = (1, 2, 3, 4)  # added to an attribute's number, in this order, until a window changes
WINDOW_ROOM = 16  # window dimensions are enlarged by this factor, so that larger strides still fit
QUANTITIES = ("stride", "dilation", "begin", "extent")  # of a window, as measured by `_window_quantities`
DEFAULTS = {"stride": 1, "dilation": 1, "begin": 0, "end": 0}  # of a quantity for which there is no attribute


@dataclass(frozen=True)
class Window:
    """A dimension of the first operand whose index adds multiples of an output iterator and a summed one."""

    place: Axis
    tap: Axis


Dimension: TypeAlias = tuple[Axis, ...] | Window
"""The iterators whose row-major number is the index in a dimension, the slowest first; or a window."""


@dataclass(frozen=True)
class Role:
    """What an attribute's number sets: a quantity of a window or of an iterator.

    quantity  of a window "stride", "dilation", or "begin" or "end" of its padding; of an iterator "extent"
    """

    quantity: str
    of: Window | Axis


AttributeEntry: TypeAlias = tuple[str, int | None]  # an attribute, and the position of a number in its tuple
Kind: TypeAlias = tuple[bool, int, frozenset[Pattern]]  # is_unary, number of windows, patterns of groups
_WindowQuantities: TypeAlias = tuple[Any, ...]  # QUANTITIES, then the number of places


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator at some rank, as a sum of products of two tensors.

    operands  the dimensions of A, of B and of the output
    groups    for each pattern the iterator with it that is in no window.  Of one tensor there may be several
              (N and C of a pool): the first is used, and the others get extent 1
    attrs     the attributes of the example, in which a match replaces the numbers that have roles
    roles     what the numbers in `attrs` set
    is_unary  whether the operator has one tensor, A, and B stands for ones
    """

    op: Op
    operands: tuple[tuple[Dimension, ...], ...]
    groups: Mapping[Pattern, Axis]
    attrs: Mapping[str, Any]
    roles: Mapping[AttributeEntry, Role]
    is_unary: bool = False

    @property
    def kind(self) -> Kind:
        """A key that is equal for operators that compute the same, apart from attributes and layouts."""
        return _make_kind(self.is_unary, self.windows, self.groups)

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(d for d in self.operands[0] if isinstance(d, Window))

    @property
    def iterators(self) -> frozenset[Axis]:
        """The iterators of all dimensions that are no windows; taps are among them where B has them."""
        return frozenset(a for each in self.operands for d in each if isinstance(d, tuple) for a in d)

    def attributes(self, numbers: Mapping[Role, int]) -> dict[str, Any] | None:
        """Return the attributes that set these numbers, None where no attribute can set one.

        `numbers` has every quantity of every window and the extent of every iterator.  An extent that no
        attribute sets is set by the shapes of the operands.
        """
        attrs: dict[str, Any] = dict(self.attrs)
        settable = set(self.roles.values())
        for role, number in numbers.items():
            if role.quantity in DEFAULTS and role not in settable and number != DEFAULTS[role.quantity]:
                return None
        for (name, position), role in self.roles.items():
            if role not in numbers:
                return None
            if position is None:
                attrs[name] = numbers[role]
            else:
                attrs[name] = (*attrs[name][:position], numbers[role], *attrs[name][position + 1 :])
        return attrs

    def __str__(self) -> str:
        return str(self.op)


def _make_kind(is_unary: bool, windows: Sequence[Window], groups: Iterable[Pattern]) -> Kind:
    return is_unary, len(windows), frozenset(groups)


@cache
def matchable_operators() -> tuple[Operator, ...]:
    """Return one operator of each kind: the first in the registry, or, of one tensor, that of most roles.

    An operator is of ONNX's own domain, its first one or two inputs are float32, and others may be absent.
    """
    found: dict[Kind, Operator] = {}
    for op in registry.values():
        for types, attrs in examples_of(op):
            given = tuple(kind for kind in types[:2] if kind is not None and kind.dtype == "float32")
            if op.domain or not given or not all(one.is_optional for one in op.inputs[len(given) :]):
                continue
            if _as_product(op, given, dict(attrs)) is None:
                continue
            operator = _make_operator(op, _enlarge_sizes(op, given, dict(attrs)), dict(attrs), found)
            if operator is not None and (
                operator.kind not in found or len(operator.roles) > len(found[operator.kind].roles)
            ):
                found[operator.kind] = operator
    return tuple(found.values())


def _enlarge_sizes(op: Op, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """Return the types with sizes multiplied by different primes, where the operator allows it.

    Iterators of extent 1 do not show in an index, and iterators of equal extents cannot be told apart.  First
    each size is multiplied alone, then two sizes together, which may have to be equal (the channels of both
    inputs).  Sizes of the second input alone are multiplied only where they are 1.
    """
    # (input, dimension) of each size that was not multiplied yet
    remaining = [(k, d) for k, kind in enumerate(types) for d in range(kind.rank)]
    for count in (1, 2):
        for chosen in combinations(remaining, count):
            is_weight_alone = count == 1 and chosen[0][0] == 1
            if not set(chosen) <= set(remaining) or is_weight_alone and types[1].shape[chosen[0][1]] != 1:
                continue
            prime = PRIMES[len(remaining) % len(PRIMES)]
            larger = tuple(
                TensorType(
                    kind.dtype,
                    tuple(n * (prime if (k, d) in chosen else 1) for d, n in enumerate(kind.shape)),
                )
                for k, kind in enumerate(types)
            )
            if _as_product(op, larger, attrs) is not None:
                types, remaining = larger, [place for place in remaining if place not in chosen]
    return types


def _make_operator(
    op: Op, types: Sequence[TensorType], attrs: dict[str, Any], known: Container[Kind]
) -> Operator | None:
    """Return the operator; None where nothing can be matched to it, or it is binary and of a known kind."""
    # each dimension must be digits or a window, windows in the first operand only
    table = _iterator_table(op, types, attrs)
    if table is None:
        return None
    is_unary = len(types) == 1
    found = [_operand_dimensions(table, number) for number in range(3)]
    dimensions = tuple(operand for operand in found if operand is not None)
    if len(dimensions) < len(found):
        return None
    windows = [d for operand in dimensions for d in operand if isinstance(d, Window)]
    if any(isinstance(d, Window) for operand in dimensions[1:] for d in operand):
        return None
    # what remains outside of windows, by pattern: of two tensors one iterator for each pattern
    in_windows = {a for w in windows for a in (w.place, w.tap)}
    groups = {pattern: axes for pattern, axes in table.groups.items() if not in_windows.issuperset(axes)}
    free = {pattern: tuple(a for a in axes if a not in in_windows) for pattern, axes in groups.items()}
    if is_unary and not windows:
        return None  # a matrix product with ones computes such a sum
    if any(len(axes) != 1 for axes in free.values()) and not is_unary:
        return None  # several iterators of one pattern cannot be told apart
    if not is_unary and _make_kind(is_unary, windows, free) in known:
        return None
    iterators = {pattern: axes[0] for pattern, axes in free.items()}  # see `Operator.groups`
    roles = _find_roles(op, types, attrs, table, windows, list(iterators.values()))
    if is_unary and not all(Role("extent", window.tap) in roles.values() for window in windows):
        return None  # a window of the whole input, as of GlobalAveragePool
    return Operator(op, dimensions, iterators, attrs, roles, is_unary)


def _iterator_table(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> IteratorTable | None:
    product = _as_product(op, types, attrs)
    return None if product is None else iterator_table(product)


def _as_product(op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Scope | None:
    """Return the operator as a sum of products of two tensors, or None; one tensor is multiplied by ones.

    A number by which a sum of one tensor is multiplied, as in a mean, is left out: the match has it.
    """
    try:
        canonical = op.canonical(tuple(types), dict(attrs))
        scopes = op.scopes(tuple(types), canonical)
    except (Untypable, ValueError):
        return None
    if len(scopes) != 1 or (split := split_scale(scopes[0])) is None:
        return None
    product, number = split
    if len(types) == 1:
        product = _times_ones(product)
    elif number != 1:
        return None  # a match of two tensors has no factor
    return product if _is_product(product) else None


def split_scale(scope: Scope) -> tuple[Scope, Fraction] | None:
    """Return (sum, factor) where the scope is a sum times a number, else None."""
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


def _times_ones(scope: Scope) -> Scope:
    """Return a sum of elements as a sum of products with a tensor over the summation axes."""
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
    zeros_outside = all(read.outside in (None, Const(0)) for read in reads)
    return body.body.fn == "mul" and len(reads) == len(factors) == 2 and zeros_outside


def _operand_dimensions(table: IteratorTable, number: int) -> tuple[Dimension, ...] | None:
    """Return the dimensions of an operand, None where one is neither mixed-radix digits nor a window.

    Digits are one iterator, or several as in 4*h + d with d < 4.
    """
    operand = table.operands[number]
    dimensions: list[Dimension] = []
    for form, extent in zip(operand.dimensions, operand.shape, strict=True):
        digits = _mixed_radix_digits(form, extent)
        if digits is not None:
            dimensions.append(digits)
            continue
        places = [a for a in form.slopes if not table.monoids[a]]
        taps = [a for a in form.slopes if table.monoids[a]]
        if len(places) != 1 or len(taps) != 1 or not all(isinstance(s, int) for s in form.slopes.values()):
            return None
        dimensions.append(Window(places[0], taps[0]))
    return tuple(dimensions)


def _mixed_radix_digits(form: LinearForm, extent: Any) -> tuple[Axis, ...] | None:
    """Return the iterators, slowest first, if the form takes each value below the extent once; else None."""
    order = order_by_slope(form, {a: a.extent for a in form.slopes}, dense=False)
    if order is None or form.rest != 0:
        return None
    stride: Any = 1
    for a in order:
        if form.slopes[a] != stride:
            return None
        stride = stride * a.extent
    return tuple(reversed(order)) if stride == extent else None


def _find_roles(
    op: Op, types: Sequence[TensorType], attrs: Mapping[str, Any], table: IteratorTable,
    windows: Sequence[Window], free: Sequence[Axis]
) -> dict[AttributeEntry, Role]:
    """Return the role of each number in the attributes, found by changing it.

    A number that cannot be changed while the operands keep their shapes (group of Conv) is the extent of an
    iterator: of the one that has this extent.
    """
    roles = dict[AttributeEntry, Role]()
    wide = _widen_windows(types, table, windows)
    unchanged = _iterator_table(op, wide, attrs)
    if unchanged is None:
        return roles
    before = _window_quantities(unchanged)
    for (name, position), value in _numeric_entries(attrs):
        for increase in CHANGES:  # until a window shows the change; the operator may refuse it (None)
            changed: Any = value + increase
            if position is not None:
                changed = (*attrs[name][:position], changed, *attrs[name][position + 1 :])
            other = _iterator_table(op, wide, {**attrs, name: changed})
            if other is None:
                same_extent = [a for a in free if a.extent == value]
                if len(same_extent) == 1:
                    roles[name, position] = Role("extent", same_extent[0])
                break
            after = _window_quantities(other)
            if len(before) != len(windows) or len(after) != len(windows):
                continue  # windows that do not overlap look like mixed-radix digits
            if (role := _compare_quantities(windows, before, after, value + increase)) is not None:
                roles[name, position] = role
                break
    return roles


def _compare_quantities(
    windows: Sequence[Window], before: Sequence[_WindowQuantities], after: Sequence[_WindowQuantities],
    number: int
) -> Role | None:
    """Return the role of a changed number: the quantity of a window that changed, and became equal to it.

    Where only the number of places changed, the role is the padding at the end.  None where nothing changed,
    or the quantity is not equal to the number.
    """
    for window, old, new in zip(windows, before, after, strict=True):
        changed = [q for q, x, y in zip(QUANTITIES, old, new, strict=False) if x != y]
        if changed:
            if new[QUANTITIES.index(changed[0])] != number:
                return None
            return Role(changed[0], window.tap if changed[0] == "extent" else window)
        if old != new:
            return Role("end", window)
    return None


def _widen_windows(
    types: Sequence[TensorType], table: IteratorTable, windows: Sequence[Window]
) -> tuple[TensorType, ...]:
    """Return the types with room for larger strides and dilations in the first operand's windows."""
    taps = {w.tap for w in windows}
    is_window = [any(a in taps for a in form.slopes) for form in table.operands[0].dimensions]
    shape = tuple(n * (WINDOW_ROOM if w else 1) for n, w in zip(types[0].shape, is_window, strict=True))
    return (TensorType(types[0].dtype, shape), *types[1:])


def _numeric_entries(attrs: Mapping[str, Any]) -> Iterator[tuple[AttributeEntry, int]]:
    for name, value in attrs.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield (name, None), value
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            yield from (((name, position), v) for position, v in enumerate(value))


def _window_quantities(table: IteratorTable) -> list[_WindowQuantities]:
    """Return for each window (stride, dilation, padding before, number of taps, number of places).

    The index of a window is stride * place + dilation * tap - padding.
    """
    found = []
    for form, extent in zip(table.operands[0].dimensions, table.operands[0].shape, strict=True):
        if _mixed_radix_digits(form, extent) is None:
            places = [a for a in form.slopes if not table.monoids[a]]
            taps = [a for a in form.slopes if table.monoids[a]]
            if len(places) == len(taps) == 1:
                place, tap = places[0], taps[0]
                slopes = form.slopes[place], form.slopes[tap]
                found.append((*slopes, -form.rest, tap.extent, place.extent))
    return found
