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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, prod
from typing import Any, TypeAlias

from tensaurus.expr.analysis.index_map import place_of_number as digits_of
from tensaurus.expr.analysis.index_map import row_major_number
from tensaurus.expr.analysis.iterator_table import Pattern
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Body, Const, Read, Reduce, Scope, Select, axis
from tensaurus.expr.ir.walk import replace_axes
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.size import Atom, Axis, Size, polynomial
from tensaurus.finders.derive.operator_matching import Dimension, Operator, Role, Window, matchable_operators
from tensaurus.finders.derive.rewrite_step import axes_in, numeric_extent, product_of, with_zeros_outside

__all__ = ["OperatorMatch", "match_operators"]


@dataclass(frozen=True)
class OperatorMatch:
    """An operator on expressions that computes a scope.

    operands  one scope for each operand
    shape     smallest shape of the output; an operator with windows may produce more
    indices   where in the output the scope's elements are, over the scope's axes
    number    for an operator of one tensor: the factor by which the scope multiplies the sum
    """

    operator: Operator
    attrs: Mapping[str, Any]
    operands: tuple[Scope, ...]
    shape: tuple[int, ...]
    indices: tuple[Size, ...]
    number: Fraction = Fraction(1)


WindowAxes: TypeAlias = tuple[Axis, Axis, int]
"""A traversal iterator (place), a summation iterator (tap), and the dimension whose index adds the two."""


@dataclass(frozen=True)
class _Factors:
    """A sum of products of two reads: the operator's first operand is `data`, its second one `weights`.

    guards  conditions under which the product is not 0: over the data's axes, over the weights' axes
    number  of a sum of single elements, whose weights are made up: their one value; None for real weights
    """

    scope: Scope
    data: Read
    weights: Read
    guards: tuple[tuple[Size, ...], tuple[Size, ...]]
    reduced: tuple[Axis, ...]
    number: Fraction | None = None

    @property
    def free_axes(self) -> tuple[frozenset[Axis], frozenset[Axis]]:
        """The axes that the data and that the weights depend on."""
        found = []
        for read, guards in zip((self.data, self.weights), self.guards, strict=True):
            found.append(frozenset().union(axes_in(read), *map(axes_in, guards)))
        return found[0], found[1]

    def pattern(self, a: Axis) -> Pattern:
        """Return whether the axis is in the data, in the weights, in the output: its row of the table."""
        in_data, in_weights = self.free_axes
        return a in in_data, a in in_weights, a not in self.reduced

    @property
    def windows(self) -> tuple[WindowAxes, ...] | None:
        """The windows of the data; None where an index is not affine or an iterator is in several windows."""
        found: list[WindowAxes] = []
        for d, index in enumerate(self.data.indices):
            # taps are in data and weights and summed, places in the data and the output
            taps = [a for a in axes_in(index) if self.pattern(a) == (True, True, False) and a.extent != 1]
            places = [a for a in axes_in(index) if self.pattern(a) == (True, False, True)]
            if not taps or len(axes_in(index)) == 1:
                continue
            form = affine_coefficients(index, axes_in(index))
            if form is None or len(taps) > 1 or not all(isinstance(s, int) for s in form[0].values()):
                return None
            slopes = {a: abs(slope) for a, slope in form[0].items() if isinstance(slope, int)}
            # of several places the one with the largest slope belongs to the window: h in 2*h + h' + 2*r,
            # where h' stays a dimension of its own
            places.sort(key=lambda a: (-slopes[a], str(a)))
            if not places:
                return None
            found.append((places[0], taps[0], d))
        in_windows = {a for place, tap, _ in found for a in (place, tap)}
        uses = [a for index in self.data.indices for a in axes_in(index) if a in in_windows]
        return tuple(found) if len(uses) == len(in_windows) else None  # no iterator is in two indices


def match_operators(scope: Scope) -> Iterator[OperatorMatch]:
    """Yield the operators that compute the scope.

    Of two operators of which one has all groups of iterators of the other and more, only the smaller counts.
    """
    if dtype_of(scope) != "float32" or not _has_numeric_extents(scope):
        return
    for factors in _factor_orders(scope):
        patterns = {a: factors.pattern(a) for a in (*scope.axes, *factors.reduced)}
        # each iterator must be in an index of an operand
        if any(a.extent == 0 for a in patterns) or not all(p[0] or p[1] for p in patterns.values()):
            continue
        for windows in dict.fromkeys(((), factors.windows or ())):  # places and taps as plain iterators, too
            in_windows = {a for place, tap, _ in windows for a in (place, tap)}
            groups = dict[Pattern, list[Axis]]()
            for a, pattern in patterns.items():
                if a not in in_windows and a.extent != 1:
                    groups.setdefault(pattern, []).append(a)
            for operator in _fitting_operators(groups, len(windows), factors.number is not None):
                match = _match_operator(factors, operator, groups, windows)
                if match is not None:
                    yield match


def _has_numeric_extents(scope: Scope) -> bool:
    body = scope.body
    axes = (*scope.axes, *(body.axes if isinstance(body, Reduce) else ()))
    return all(isinstance(a.extent, int) for a in axes)


def _factor_orders(scope: Scope) -> Iterator[_Factors]:
    """Yield the scope as a product of two reads, in both orders.

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
            one_number = number if weights is uniform and not weight_guards else None
            both_guards = tuple(data_guards), tuple(weight_guards)
            yield _Factors(scope, data, weights, both_guards, body.axes, one_number)


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
    groups: Mapping[Pattern, Any], windows: int, has_uniform_weights: bool
) -> list[Operator]:
    """Return the operators with these groups and windows; of two tensors those with the fewest groups."""
    with_windows = (o for o in matchable_operators() if len(o.windows) == windows)
    fitting = [o for o in with_windows if o.groups.keys() >= groups.keys()]
    binary = [o for o in fitting if not o.is_unary]
    smallest = [o for o in binary if not any(other.groups.keys() < o.groups.keys() for other in binary)]
    return [*smallest, *(o for o in fitting if o.is_unary and has_uniform_weights)]


def _match_operator(
    factors: _Factors, operator: Operator, groups: Mapping[Pattern, list[Axis]],
    window_axes: Sequence[WindowAxes]
) -> OperatorMatch | None:
    """Return the scope as this operator, None where no attributes or no layout of the operands fit.

    `groups` and `window_axes` are the scope's iterators: by pattern, and for each of the operator's windows.
    """
    # for each iterator of the operator the scope's iterators that become it; none where its extent is 1
    scope_axes: dict[Axis, tuple[Axis, ...]] = dict.fromkeys(operator.iterators, ())
    scope_axes |= {a: tuple(groups.get(pattern, ())) for pattern, a in operator.groups.items()}
    extents: dict[Axis, int] = {a: prod(numeric_extent(b) for b in axes) for a, axes in scope_axes.items()}
    # what the operator's attributes must set: stride, dilation and padding of windows, extents
    numbers: dict[Role, int] = {}
    windows: dict[Window, _WindowLayout] = {}
    flipped = dict[Axis, bool]()
    for window, (place, tap, d) in zip(operator.windows, window_axes, strict=True):
        layout = _lay_out_window(factors, place, tap, d)
        if layout is None:
            return None
        windows[window] = layout
        flipped[tap] = layout.is_flipped
        extents[window.place], extents[window.tap] = numeric_extent(place), numeric_extent(tap)
        scope_axes[window.place], scope_axes[window.tap] = (place,), (tap,)
        # elements that the windows span; what the operand lacks of them is padding at the end
        reach = layout.stride * (extents[window.place] - 1) + layout.dilation * (extents[window.tap] - 1) + 1
        numbers |= {
            Role("stride", window): layout.stride,
            Role("dilation", window): layout.dilation,
            Role("begin", window): layout.begin,
            Role("end", window): max(0, reach - layout.extent - layout.begin),
        }
    numbers |= {Role("extent", a): extent for a, extent in extents.items()}
    attrs = operator.attributes(numbers)
    if attrs is None:
        return None
    # lay out both operands, and find the scope's elements in the operator's output
    data = _lay_out(factors.data, factors.guards[0], operator.operands[0], scope_axes, windows, flipped)
    weights = _lay_out(factors.weights, factors.guards[1], operator.operands[1], scope_axes, {}, flipped)
    if data is None or weights is None:
        return None
    shape, indices = list[int](), list[Size]()
    for dimension in operator.operands[2]:
        assert isinstance(dimension, tuple)
        axes = [b for a in dimension for b in scope_axes[a]]
        shape.append(prod(map(numeric_extent, axes)))
        indices.append(row_major_number(axes, [b.extent for b in axes]))
    if not operator.is_unary:
        return OperatorMatch(operator, attrs, (data, weights), tuple(shape), tuple(indices))
    assert factors.number is not None
    return OperatorMatch(operator, attrs, (data,), tuple(shape), tuple(indices), factors.number)


@dataclass(frozen=True)
class _WindowLayout:
    """The operand's dimension for a window, and the window's numbers.

    extent      of the operand's dimension, whose axis is p
    dimension   the dimension of the source from which it is laid out
    index       the index into the source's dimension, over p
    stride      of the window over the operand, at least 1; so is the dilation
    begin       elements of padding before the operand's first one
    is_flipped  whether the taps are in reverse order: the source is read with a negative dilation
    """

    extent: int
    p: Axis
    dimension: int
    index: Size
    stride: int
    dilation: int
    begin: int
    is_flipped: bool


def _lay_out_window(factors: _Factors, place: Axis, tap: Axis, d: int) -> _WindowLayout | None:
    """Return how the operator reads dimension d of the data; None where it cannot.

    Where the window begins at a fixed index and only lacks padding, it reads the source's dimension from
    there on.  Else an operand is laid out of exactly the elements that the windows reach, every `spacing`-th.
    """
    # index = stride * place + dilation * tap + rest
    index, extent = factors.data.indices[d], factors.data.source.shape[d]
    form = affine_coefficients(index, [place, tap])
    assert form is not None
    stride, dilation, rest = form[0][place], form[0][tap], form[1]
    assert isinstance(stride, int) and isinstance(dilation, int)
    guarded = frozenset().union(*map(axes_in, factors.guards[0]))
    if stride < 1 or not isinstance(extent, int):
        return None
    if place in guarded or tap in guarded:  # the operand has one axis for both, over which no guard can be
        return None
    # taps in reverse order: the lowest index is that of the last tap
    if dilation < 0:
        rest = rest + dilation * (numeric_extent(tap) - 1)
    step = abs(dilation)
    spacing = gcd(stride, step)
    if isinstance(rest, int) and spacing == 1:
        begin, first = max(0, -rest), max(0, rest)
        if extent > first:
            n = extent - first
            p = axis(n, "p")
            return _WindowLayout(n, p, d, polynomial(p) + first, stride, step, begin, dilation < 0)
    n = (stride * (numeric_extent(place) - 1) + step * (numeric_extent(tap) - 1)) // spacing + 1
    p = axis(n, "p")
    index = rest + polynomial(p) * spacing
    return _WindowLayout(n, p, d, index, stride // spacing, step // spacing, 0, dilation < 0)


def _lay_out(
    read: Read, guards: Sequence[Size], dimensions: Sequence[Dimension],
    scope_axes: Mapping[Axis, Sequence[Axis]], windows: Mapping[Window, _WindowLayout],
    flipped: Mapping[Axis, bool]
) -> Scope | None:
    """Return the read laid out as the operand's dimensions, None where it depends on other iterators."""
    axes: list[Axis] = []
    values: dict[Atom, Any] = {}
    indices = list(read.indices)
    for dimension in dimensions:
        if isinstance(dimension, Window):
            layout = windows[dimension]
            axes.append(layout.p)
            indices[layout.dimension] = layout.index
            continue
        inside = [b for a in dimension for b in scope_axes[a]]
        axes.append(axis(prod(map(numeric_extent, inside)), "d"))
        digits = digits_of(polynomial(axes[-1]), [b.extent for b in inside])
        for b, digit in zip(inside, digits, strict=True):
            values[b] = b.extent - 1 - digit if flipped.get(b) else digit
    outside = read.outside
    body: Body = Read(read.source, tuple(indices), outside)
    if guards:
        body = Select(tuple(guards), body, Const(0))
    others = axes_in(body).difference(axes, values)
    if any(a.extent != 1 for a in others):
        return None
    values |= dict.fromkeys(others, 0)  # an axis of extent 1 is in no group
    return Scope(tuple(axes), with_zeros_outside(replace_axes(body, values)))
