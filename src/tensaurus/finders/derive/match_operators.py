"""Matches a sum of products to operators on rearranged tensors (EINNET, section 5.1).

    L[n, f, t, r](sum[c](A[n, c, t] * K[f, c, r]))
 =  L[n, f, t, r](O[n*T + t, r*F + f])
    O = A' @ K',  A'[n*T + t, c] = A[n, c, t],  K'[c, r*F + f] = K[f, c, r]

Several iterators of the scope may become one iterator of the operator.  The operands are expressions that
only lay out elements: an eOperator each, unless the operand is the tensor itself.  A window, as of Conv,
is a dimension whose index adds a place (a traversal iterator) and a tap (a summation iterator).  A pattern
says in which of data, weights and output an iterator is; a group is all iterators of one pattern: n, t above.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, prod
from typing import Any, NamedTuple

from tensaurus.expr.analysis.iterator_table import Pattern
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.mixed_radix import ravel_index, unravel_index
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial
from tensaurus.finders.derive.rewrite_step import axes_in, numeric_extent, product_of, with_zeros_outside
from tensaurus.graph.analysis.attribute_roles import Role
from tensaurus.graph.analysis.matchable_operators import Operator, matchable_operators
from tensaurus.graph.analysis.operator_product import Dimension, Window

__all__ = ["OperatorMatch", "match_operators"]


@dataclass(frozen=True)
class OperatorMatch:
    """An operator on expressions that computes a scope.

    operands   one scope for each operand
    min_shape  smallest shape of the output; an operator with windows may produce more
    indices    where in the output the scope's elements are, over the scope's axes
    factor     of a unary operator: the number by which the scope multiplies the sum
    """

    operator: Operator
    attrs: Mapping[str, Any]
    operands: tuple[Scope, ...]
    min_shape: tuple[int, ...]
    indices: tuple[Size, ...]
    factor: Fraction = Fraction(1)


@dataclass(frozen=True)
class _Factor:
    """A read that is multiplied, and conditions over its axes under which the product is not 0."""

    read: Read
    guards: tuple[Size, ...]

    @cached_property
    def axes(self) -> frozenset[Axis]:
        return axes_in(self.read).union(*map(axes_in, self.guards))


class _IndexWindow(NamedTuple):
    """An index of the data that adds a traversal iterator (place) and a summation iterator (tap)."""

    place: Axis
    tap: Axis
    dimension: int


@dataclass(frozen=True)
class _Product:
    """A sum of products of two reads: the operator's first operand is `data`, its second one `weights`.

    reduced         the summation iterators
    uniform_weight  of a sum of single elements, whose weights are made up: their one value; None for others
    """

    data: _Factor
    weights: _Factor
    reduced: tuple[Axis, ...]
    uniform_weight: Fraction | None = None

    def pattern(self, a: Axis) -> Pattern:
        """Return whether the axis is in the data, in the weights, in the output: its row of the table."""
        return a in self.data.axes, a in self.weights.axes, a not in self.reduced

    @property
    def windows(self) -> tuple[_IndexWindow, ...] | None:
        """The windows of the data; None where an index is not affine or an iterator is in several windows."""
        found: list[_IndexWindow] = []
        for d, index in enumerate(self.data.read.indices):
            axes = axes_in(index)
            taps = [a for a in axes if self.pattern(a) == (True, True, False) and a.extent != 1]
            places = [a for a in axes if self.pattern(a) == (True, False, True)]
            if not taps or len(axes) == 1:
                continue
            form = affine_coefficients(index, axes)
            if form is None or len(taps) > 1 or not all(isinstance(s, int) for s in form.slopes.values()):
                return None
            slopes = {a: abs(slope) for a, slope in form.slopes.items() if isinstance(slope, int)}
            # of several places the one with the largest slope belongs to the window: h in 2*h + h' + 2*r,
            # where h' stays a dimension of its own
            places.sort(key=lambda a: (-slopes[a], str(a)))
            if not places:
                return None
            found.append(_IndexWindow(places[0], taps[0], d))
        in_windows = {a for window in found for a in (window.place, window.tap)}
        uses = [a for index in self.data.read.indices for a in axes_in(index) if a in in_windows]
        return tuple(found) if len(uses) == len(in_windows) else None  # no iterator is in two indices


def match_operators(scope: Scope) -> Iterator[OperatorMatch]:
    """Yield the operators that compute the scope.

    Of two operators of which one has all groups of iterators of the other and more, only the smaller counts.
    """
    axes = (*scope.axes, *(scope.body.axes if isinstance(scope.body, Reduce) else ()))
    if dtype_of(scope) != "float32" or not all(isinstance(a.extent, int) for a in axes):
        return
    for product in _products(scope):
        patterns = {a: product.pattern(a) for a in (*scope.axes, *product.reduced)}
        # each iterator must be in an index of an operand
        if any(a.extent == 0 for a in patterns) or not all(p[0] or p[1] for p in patterns.values()):
            continue
        for windows in dict.fromkeys(((), product.windows or ())):  # places and taps as plain iterators, too
            in_windows = {a for window in windows for a in (window.place, window.tap)}
            groups = dict[Pattern, list[Axis]]()
            for a, pattern in patterns.items():
                if a not in in_windows and a.extent != 1:
                    groups.setdefault(pattern, []).append(a)
            for operator in _fitting_operators(groups, len(windows), product.uniform_weight is not None):
                match = _match_operator(product, operator, groups, windows)
                if match is not None:
                    yield match


def _products(scope: Scope) -> Iterator[_Product]:
    """Yield the scope as a sum of products of two reads, in both orders of the reads.

    A sum of one read, as in pooling, becomes a product, too: with made-up weights that all are one number, so
    that operators of one tensor are matched by the same code.
    """
    body = scope.body
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return
    # the factors must be one or two reads; beside one read there may be numbers
    guards, factors = product_of(body.body)
    reads, others = list[Read](), list[Body]()
    for factor in factors:
        if isinstance(factor, Read) and factor.outside in (None, Const(0)):
            reads.append(factor)
        else:
            others.append(factor)
    uniform, number = None, _product_of_numbers(others)
    if number is None:
        return
    if len(reads) == 1:
        uniform = _uniform_weights(body.axes, number)
        reads.append(uniform)
    elif number != 1:
        return
    if len(reads) != 2:
        return
    # each guard must depend on the axes of one of the two reads alone
    for data, weights in (reads, reads[::-1]):
        data_guards, weight_guards = list[Size](), list[Size]()
        for guard in guards:
            if axes_in(guard) <= axes_in(weights):
                weight_guards.append(guard)
            elif axes_in(guard) <= axes_in(data):
                data_guards.append(guard)
        if len(data_guards) + len(weight_guards) == len(guards):
            uniform_weight = number if weights is uniform and not weight_guards else None
            factors_in_order = _Factor(data, tuple(data_guards)), _Factor(weights, tuple(weight_guards))
            yield _Product(*factors_in_order, body.axes, uniform_weight)


def _product_of_numbers(factors: Sequence[Body]) -> Fraction | None:
    """Return the product of the factors, None where one is no number."""
    product = Fraction(1)
    for factor in factors:
        if not isinstance(factor, Const) or not isinstance(factor.value, int | Fraction):
            return None
        product *= factor.value
    return product


def _uniform_weights(axes: tuple[Axis, ...], number: Fraction) -> Read:
    """Return a read at these axes of a made-up tensor whose elements all are `number`."""
    fresh = tuple(axis(a.extent) for a in axes)
    return Read(Scope(fresh, Const(number)), tuple(map(polynomial, axes)))


def _fitting_operators(
    groups: Mapping[Pattern, Any], window_count: int, has_uniform_weights: bool
) -> list[Operator]:
    """Return the operators with these groups and windows; of binary ones those with the fewest groups."""
    with_windows = (o for o in matchable_operators() if len(o.windows) == window_count)
    fitting = [o for o in with_windows if o.iterators.keys() >= groups.keys()]
    binary = [o for o in fitting if not o.is_unary]
    smallest = [o for o in binary if not any(other.iterators.keys() < o.iterators.keys() for other in binary)]
    return [*smallest, *(o for o in fitting if o.is_unary and has_uniform_weights)]


def _match_operator(
    product: _Product, operator: Operator, groups: Mapping[Pattern, list[Axis]],
    index_windows: Sequence[_IndexWindow]
) -> OperatorMatch | None:
    """Return the scope as this operator, None where no attributes or no layout of the operands fit.

    `groups` has the scope's iterators by pattern, `index_windows` those of each of the operator's windows.
    """
    # for each iterator of the operator the scope's iterators that become it; none where its extent is 1
    axes_of: dict[Axis, tuple[Axis, ...]] = dict.fromkeys(operator.digits, ())
    axes_of |= {a: tuple(groups.get(pattern, ())) for pattern, a in operator.iterators.items()}
    numbers: dict[Role, int] = {}  # what the operator's attributes must set
    windows: dict[Window, _WindowLayout] = {}
    flipped_taps = set[Axis]()
    for window, found in zip(operator.windows, index_windows, strict=True):
        layout = _lay_out_window(product.data, found)
        if layout is None:
            return None
        windows[window] = layout
        axes_of[window.place], axes_of[window.tap] = (found.place,), (found.tap,)
        if layout.is_flipped:
            flipped_taps.add(found.tap)
        # elements that the windows span; what the operand lacks of them is padding at the end
        places, taps = numeric_extent(found.place), numeric_extent(found.tap)
        span = layout.stride * (places - 1) + layout.dilation * (taps - 1) + 1
        numbers |= {
            Role("stride", window): layout.stride,
            Role("dilation", window): layout.dilation,
            Role("begin", window): layout.begin,
            Role("end", window): max(0, span - numeric_extent(layout.p) - layout.begin),
        }
    numbers |= {Role("extent", a): _extent_of(axes) for a, axes in axes_of.items()}
    attrs = operator.attributes(numbers)
    if attrs is None:
        return None
    # lay out both operands, and find the scope's elements in the operator's output
    data = _lay_out(product.data, operator.data, axes_of, windows, flipped_taps)
    weights = _lay_out(product.weights, operator.weights, axes_of, {}, flipped_taps)
    if data is None or weights is None:
        return None
    shape, indices = list[int](), list[Size]()
    for dimension in operator.output:
        assert isinstance(dimension, tuple)
        axes = [b for a in dimension for b in axes_of[a]]
        shape.append(_extent_of(axes))
        indices.append(ravel_index(axes, [b.extent for b in axes]))
    if not operator.is_unary:
        return OperatorMatch(operator, attrs, (data, weights), tuple(shape), tuple(indices))
    assert product.uniform_weight is not None
    return OperatorMatch(operator, attrs, (data,), tuple(shape), tuple(indices), product.uniform_weight)


def _extent_of(axes: Sequence[Axis]) -> int:
    """Return the extent of one iterator that stands for all of these axes."""
    return prod(map(numeric_extent, axes))


@dataclass(frozen=True)
class _WindowLayout:
    """The operand's dimension for a window, and the window's numbers.

    p           the axis of the operand's dimension
    dimension   the dimension of the source from which the operand's dimension is laid out
    index       the index into the source's dimension, over p
    stride      of the window over the operand, at least 1; so is the dilation
    begin       elements of padding before the operand's first one
    is_flipped  whether the taps are in reverse order: the source is read with a negative dilation
    """

    p: Axis
    dimension: int
    index: Size
    stride: int
    dilation: int
    begin: int
    is_flipped: bool


def _lay_out_window(data: _Factor, window: _IndexWindow) -> _WindowLayout | None:
    """Return how the operator reads the window's dimension of the data; None where it cannot.

    Where the window begins at a fixed index and only lacks padding, it reads the source's dimension from
    there on.  Else an operand is laid out of exactly the elements that the windows reach, every `spacing`-th.
    """
    place, tap, d = window
    # index = stride * place + dilation * tap + rest
    extent = data.read.source.shape[d]
    form = affine_coefficients(data.read.indices[d], [place, tap])
    assert form is not None
    stride, dilation, rest = form.slopes[place], form.slopes[tap], form.rest
    assert isinstance(stride, int) and isinstance(dilation, int)
    if stride < 1 or not isinstance(extent, int):
        return None
    if any(place in axes_in(guard) or tap in axes_in(guard) for guard in data.guards):
        return None  # the operand has one axis for both, over which no guard can be
    # taps in reverse order: the lowest index is that of the last tap
    if dilation < 0:
        rest = rest + dilation * (numeric_extent(tap) - 1)
    step = abs(dilation)
    spacing = gcd(stride, step)
    if isinstance(rest, int) and spacing == 1 and extent > max(0, rest):
        begin, first = max(0, -rest), max(0, rest)
        p = axis(extent - first, "p")
        return _WindowLayout(p, d, polynomial(p) + first, stride, step, begin, dilation < 0)
    span = stride * (numeric_extent(place) - 1) + step * (numeric_extent(tap) - 1)
    p = axis(span // spacing + 1, "p")
    index = rest + polynomial(p) * spacing
    return _WindowLayout(p, d, index, stride // spacing, step // spacing, 0, dilation < 0)


def _lay_out(
    factor: _Factor, dimensions: Sequence[Dimension], axes_of: Mapping[Axis, Sequence[Axis]],
    windows: Mapping[Window, _WindowLayout], flipped_taps: Container[Axis]
) -> Scope | None:
    """Return the factor laid out as the operand's dimensions, None where it depends on other iterators."""
    read = factor.read
    axes: list[Axis] = []
    values: dict[Atom, Any] = {}
    indices = list(read.indices)
    for dimension in dimensions:
        if isinstance(dimension, Window):
            layout = windows[dimension]
            axes.append(layout.p)
            indices[layout.dimension] = layout.index
            continue
        inside = [b for a in dimension for b in axes_of[a]]
        axes.append(axis(_extent_of(inside), "d"))
        digits = unravel_index(polynomial(axes[-1]), [b.extent for b in inside])
        for b, digit in zip(inside, digits, strict=True):
            values[b] = b.extent - 1 - digit if b in flipped_taps else digit
    body: Body = Read(read.source, tuple(indices), read.outside)
    if factor.guards:
        body = Select(factor.guards, body, Const(0))
    others = axes_in(body).difference(axes, values)
    if any(a.extent != 1 for a in others):
        return None
    values |= dict.fromkeys(others, 0)  # an axis of extent 1 is in no group
    return Scope(tuple(axes), with_zeros_outside(replace_axes(body, values)))
