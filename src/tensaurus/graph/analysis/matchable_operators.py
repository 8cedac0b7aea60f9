"""Lists the operators that expressions are matched to, by their iterators (EINNET, section 5.1, table 2).

These are sums of products of data and weights, such as Conv and MatMul, and sums over windows of one tensor,
such as AveragePool, for which the weights are taken to be all ones:

    Conv: O[n, f, h, w] = sum[c, r, s](A[n, c, h*sh + r*dh - top, w*sw + s*dw - left] * B[f, c, r, s])

    A: n | c | window h, r | window w, s        B: f | c | r | s        O: n | f | h | w

The pattern of an iterator says whether it enters A, B and O: that of n is (True, False, True).

No operator is named here.  The iterators come from an operator's declaration at one of its examples, enlarged
so that no two extents are equal.  `match_operators` lays out tensors so that an expression becomes one of
these operators.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from tensaurus.expr.analysis.iterator_table import IteratorTable, Pattern
from tensaurus.expr.sizes.size import Axis
from tensaurus.graph.analysis.attribute_roles import AttributeNumber, Role, find_roles
from tensaurus.graph.analysis.operator_product import Dimension, Window, product_table, read_dimension
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.examples import examples_of

__all__ = ["Operator", "matchable_operators"]

PRIMES = (2, 3, 5, 7, 11, 13)  # sizes of examples are multiplied by these, so that no two extents coincide
DEFAULTS = {"stride": 1, "dilation": 1, "begin": 0, "end": 0}  # of a quantity for which there is no attribute


class OperatorKind(NamedTuple):
    """What operators that compute the same, apart from attributes and layouts, have in common."""

    is_unary: bool
    window_count: int
    patterns: frozenset[Pattern]


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator at some rank, as a sum of products of data and weights.

    data       the dimensions of the first operand: only these may be windows
    weights    the dimensions of the second operand, or of the ones in its place
    output     the dimensions of the result
    iterators  for each pattern the iterator with it that is in no window.  Of a unary operator there may be
               several (N and C of a pool): the first is here, and the others get extent 1
    attrs      the attributes of the example, in which a match replaces the numbers that have roles
    roles      what the numbers in `attrs` set
    is_unary   whether the operator has one operand, and the weights are ones
    """

    op: Op
    data: tuple[Dimension, ...]
    weights: tuple[Dimension, ...]
    output: tuple[Dimension, ...]
    iterators: Mapping[Pattern, Axis]
    attrs: Mapping[str, Any]
    roles: Mapping[AttributeNumber, Role]
    is_unary: bool = False

    @property
    def kind(self) -> OperatorKind:
        return OperatorKind(self.is_unary, len(self.windows), frozenset(self.iterators))

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(d for d in self.data if isinstance(d, Window))

    @property
    def digits(self) -> frozenset[Axis]:
        """The iterators of all dimensions that are no windows; taps are among them if weights have them."""
        dimensions = (*self.data, *self.weights, *self.output)
        return frozenset(a for d in dimensions if isinstance(d, tuple) for a in d)

    def attributes(self, numbers: Mapping[Role, int]) -> dict[str, Any] | None:
        """Return the attributes that set these numbers, None where no attribute can set one.

        `numbers` has every quantity of every window and the extent of every iterator.  An extent that no
        attribute sets is set by the shapes of the operands.
        """
        settable = set(self.roles.values())
        for role, number in numbers.items():
            if role.quantity in DEFAULTS and role not in settable and number != DEFAULTS[role.quantity]:
                return None
        attrs = dict(self.attrs)
        for place, role in self.roles.items():
            if role not in numbers:
                return None
            attrs = place.replaced_in(attrs, numbers[role])
        return attrs

    def __str__(self) -> str:
        return str(self.op)


@cache
def matchable_operators() -> tuple[Operator, ...]:
    """Return one operator of each kind: the first in the registry, or, of unary ones, that of most roles.

    An operator is of ONNX's own domain, its first one or two inputs are float32, and others may be absent.
    """
    found: dict[OperatorKind, Operator] = {}
    for op in registry.values():
        for types, example_attrs in examples_of(op):
            attrs = dict(example_attrs)
            given = tuple(kind for kind in types[:2] if kind is not None and kind.dtype == "float32")
            if op.domain or not given or not all(one.is_optional for one in op.inputs[len(given) :]):
                continue
            if product_table(op, given, attrs) is None:
                continue
            operator = _make_operator(op, _enlarge_sizes(op, given, attrs), attrs, found)
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
            if product_table(op, larger, attrs) is not None:
                types, remaining = larger, [place for place in remaining if place not in chosen]
    return types


def _make_operator(
    op: Op, types: Sequence[TensorType], attrs: dict[str, Any], known: Container[OperatorKind]
) -> Operator | None:
    """Return the operator; None where nothing can be matched to it, or it is binary and of a known kind."""
    table = product_table(op, types, attrs)
    if table is None:
        return None
    is_unary = len(types) == 1
    data, weights, output = (_read_dimensions(table, number) for number in range(3))
    if data is None or weights is None or output is None:
        return None
    if any(isinstance(d, Window) for d in (*weights, *output)):
        return None
    windows = [d for d in data if isinstance(d, Window)]
    # what remains outside of windows, by pattern: of a binary operator one iterator for each pattern
    in_windows = {a for w in windows for a in (w.place, w.tap)}
    outside = {p: tuple(a for a in axes if a not in in_windows) for p, axes in table.groups.items()}
    outside = {pattern: axes for pattern, axes in outside.items() if axes}
    if is_unary and not windows:
        return None  # a matrix product with ones computes such a sum
    if any(len(axes) != 1 for axes in outside.values()) and not is_unary:
        return None  # several iterators of one pattern cannot be told apart
    if not is_unary and OperatorKind(is_unary, len(windows), frozenset(outside)) in known:
        return None
    iterators = {pattern: axes[0] for pattern, axes in outside.items()}
    roles = find_roles(op, types, attrs, table, windows, list(iterators.values()))
    if is_unary and not all(Role("extent", window.tap) in roles.values() for window in windows):
        return None  # a window of the whole input, as of GlobalAveragePool
    return Operator(op, data, weights, output, iterators, attrs, roles, is_unary)


def _read_dimensions(table: IteratorTable, number: int) -> tuple[Dimension, ...] | None:
    """Return the dimensions of one operand, None where one is neither digits nor a window."""
    operand = table.operands[number]
    pairs = zip(operand.dimensions, operand.shape, strict=True)
    dimensions = [read_dimension(form, extent, table) for form, extent in pairs]
    found = tuple(d for d in dimensions if d is not None)
    return found if len(found) == len(dimensions) else None
