"""Operator matching: a sum of products as an operator of rearranged tensors (EINNET, section 5.1).

    L[n, f, t, r](sum[c](A[n, c, t] * K[f, c, r]))
 =  L[n, f, t, r](O[n*T + t, r*F + f])
    O = A' @ K',  A'[n*T + t, c] = A[n, c, t],  K'[c, r*F + f] = K[f, c, r]

Iterators that the operator does not tell apart become one iterator of it: how they are laid out is said by
the expressions of its operands, which compute nothing (an eOperator each, unless it is the tensor itself).
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
from tensaurus.finders.derive.operator_matching import Dimension, Operator, Role, Window, operators
from tensaurus.finders.derive.rewrite_step import axes_in, contained, product_of

__all__ = ["Matched", "matches"]


@dataclass(frozen=True)
class Matched:
    """An operator of two expressions, and where in its output an element of the scope is.

    operands  as scopes, of which each is read as it is
    shape     of the output, at least; where windows are, operators may give more
    indices   of the output, over the scope's axes
    number    with which the scope multiplies what an operator of one tensor adds up
    """

    operator: Operator
    attrs: Mapping[str, Any]
    operands: tuple[Scope, ...]
    shape: tuple[int, ...]
    indices: tuple[Size, ...]
    number: Fraction = Fraction(1)


Pair: TypeAlias = tuple[Axis, Axis, int]  # of the scope: a place, a tap, and the dimension in which they meet


@dataclass(frozen=True)
class _Factors:
    """A sum of products of two reads, in one order of them; `number` is what all weights are, if that is one
    number."""

    scope: Scope
    data: Read
    weights: Read
    guards: tuple[tuple[Size, ...], tuple[Size, ...]]  # of each
    reduced: tuple[Axis, ...]
    number: Fraction | None = None

    @property
    def within(self) -> tuple[frozenset[Axis], frozenset[Axis]]:
        """The axes that each depends on."""
        found = []
        for read, guards in zip((self.data, self.weights), self.guards, strict=True):
            found.append(frozenset().union(axes_in(read), *map(axes_in, guards)))
        return found[0], found[1]

    def pattern(self, a: Axis) -> Pattern:
        first, second = self.within
        return a in first, a in second, a not in self.reduced

    @property
    def pairs(self) -> tuple[Pair, ...] | None:
        """The windows that the first operand has; None where they are not plain."""
        found: list[Pair] = []
        for d, index in enumerate(self.data.indices):
            taps = [a for a in axes_in(index) if self.pattern(a) == (True, True, False) and a.extent != 1]
            places = [a for a in axes_in(index) if self.pattern(a) == (True, False, True)]
            if not taps or len(axes_in(index)) == 1:
                continue
            form = affine_coefficients(index, axes_in(index))
            if form is None or len(taps) > 1 or not all(isinstance(s, int) for s in form[0].values()):
                return None
            slopes = {a: abs(slope) for a, slope in form[0].items() if isinstance(slope, int)}
            # of several places the one with the largest step goes with the tap: h of 2*h + h' + 2*r
            places.sort(key=lambda a: (-slopes[a], str(a)))
            if not places:
                return None
            found.append((places[0], taps[0], d))
        alone = {a for place, tap, _ in found for a in (place, tap)}
        others = [a for d, i in enumerate(self.data.indices) for a in axes_in(i) if (a in alone)]
        return tuple(found) if len(others) == len(alone) else None


def matches(scope: Scope) -> Iterator[Matched]:
    """The operators that a scope is, of each the one that tells the fewest iterators apart."""
    if dtype_of(scope) != "float32" or not _static(scope):
        return
    for factors in _orders(scope):
        patterns = {a: factors.pattern(a) for a in (*scope.axes, *factors.reduced)}
        if any(a.extent == 0 for a in patterns) or not all(p[0] or p[1] for p in patterns.values()):
            continue
        pairs = factors.pairs
        for chosen in dict.fromkeys(((), pairs or ())):
            within = {a for place, tap, _ in chosen for a in (place, tap)}
            groups = dict[Pattern, list[Axis]]()
            for a, pattern in patterns.items():
                if a not in within and a.extent != 1:
                    groups.setdefault(pattern, []).append(a)
            for operator in _fitting(groups, len(chosen), factors.number is not None):
                made = _matched(factors, operator, groups, chosen)
                if made is not None:
                    yield made


def _static(scope: Scope) -> bool:
    body = scope.body
    axes = (*scope.axes, *(body.axes if isinstance(body, Reduce) else ()))
    return all(isinstance(a.extent, int) for a in axes)


def _orders(scope: Scope) -> Iterator[_Factors]:
    body = scope.body
    if not isinstance(body, Reduce) or body.monoid != "sum":
        return
    guards, factors = product_of(body.body)
    reads, others = list[Read](), list[Body]()
    for factor in factors:
        if isinstance(factor, Read) and factor.outside in (None, Const(0)):
            reads.append(factor)
        else:
            others.append(factor)
    filled, number = None, _number_of(others)
    if number is None:
        return
    if len(reads) == 1:
        filled = _filled(body.axes, number)
        reads.append(filled)
    elif number != 1:
        return
    if len(reads) != 2:
        return
    for data, weights in (reads, reads[::-1]):
        shares: tuple[list[Size], list[Size]] = ([], [])
        for guard in guards:
            for share, read in zip(shares[::-1], (weights, data), strict=True):
                if axes_in(guard) <= axes_in(read):
                    share.append(guard)
                    break
        if len(shares[0]) + len(shares[1]) == len(guards):
            one = number if weights is filled and not shares[1] else None
            yield _Factors(scope, data, weights, (tuple(shares[0]), tuple(shares[1])), body.axes, one)


def _number_of(factors: Sequence[Body]) -> Fraction | None:
    """Their product, where all are numbers."""
    found = Fraction(1)
    for factor in factors:
        if not isinstance(factor, Const) or not isinstance(factor.value, int | Fraction):
            return None  # what is computed, or read with another number beyond its edge
        found *= factor.value
    return found


def _filled(axes: tuple[Axis, ...], number: Fraction) -> Read:
    """A number for every value of the axes: what a sum of single elements multiplies them with."""
    fresh = tuple(axis(a.extent) for a in axes)
    return Read(Scope(fresh, Const(number)), tuple(map(polynomial, axes)))


def _fitting(groups: Mapping[Pattern, Any], windows: int, single: bool) -> list[Operator]:
    """Operators that have these groups, without those that have more than another one has; where all weights
    are one number, those `single` ones of one tensor, too."""
    able = [o for o in operators() if len(o.windows) == windows and o.groups.keys() >= groups.keys()]
    pairs = [o for o in able if not o.single]
    least = [o for o in pairs if not any(other.groups.keys() < o.groups.keys() for other in pairs)]
    return [*least, *(o for o in able if o.single and single)]


def _matched(
    factors: _Factors, operator: Operator, groups: Mapping[Pattern, list[Axis]], pairs: Sequence[Pair]
) -> Matched | None:
    own: dict[Axis, tuple[Axis, ...]] = dict.fromkeys(operator.iterators, ())
    own |= {a: tuple(groups.get(pattern, ())) for pattern, a in operator.groups.items()}
    extents: dict[Axis, int] = {a: prod(_number(b) for b in axes) for a, axes in own.items()}
    numbers: dict[Role, int] = {}
    windows: dict[Window, _Gathered] = {}
    flipped = dict[Axis, bool]()
    for window, pair in zip(operator.windows, pairs, strict=True):
        found = _gathered(factors, pair)
        if found is None:
            return None
        windows[window] = found
        flipped[pair[1]] = found.flipped
        extents[window.place], extents[window.tap] = _number(pair[0]), _number(pair[1])
        own[window.place], own[window.tap] = (pair[0],), (pair[1],)
        reach = found.stride * (extents[window.place] - 1) + found.dilation * (extents[window.tap] - 1) + 1
        numbers |= {
            Role("stride", window): found.stride,
            Role("dilation", window): found.dilation,
            Role("begin", window): found.begin,
            Role("end", window): max(0, reach - found.extent - found.begin),
        }
    numbers |= {Role("extent", a): extent for a, extent in extents.items()}
    attrs = operator.attributes(numbers)
    if attrs is None:
        return None
    data = _arranged(factors.data, factors.guards[0], operator.operands[0], own, windows, flipped)
    weights = _arranged(factors.weights, factors.guards[1], operator.operands[1], own, {}, flipped)
    if data is None or weights is None:
        return None
    shape, indices = list[int](), list[Size]()
    for dimension in operator.operands[2]:
        assert isinstance(dimension, tuple)
        axes = [b for a in dimension for b in own[a]]
        shape.append(prod(map(_number, axes)))
        indices.append(row_major_number(axes, [b.extent for b in axes]))
    if not operator.single:
        return Matched(operator, attrs, (data, weights), tuple(shape), tuple(indices))
    assert factors.number is not None
    return Matched(operator, attrs, (data,), tuple(shape), tuple(indices), factors.number)


def _number(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


@dataclass(frozen=True)
class _Gathered:
    """A window's dimension: its size, the source's index at a place p of it, and the window's numbers."""

    extent: int
    p: Axis
    dimension: int
    index: Size
    stride: int
    dilation: int
    begin: int
    flipped: bool


def _gathered(factors: _Factors, pair: Pair) -> _Gathered | None:
    """The dimension of the source itself where that will do, else as much of it as the window reads."""
    place, tap, d = pair
    index, extent = factors.data.indices[d], factors.data.source.shape[d]
    form = affine_coefficients(index, [place, tap])
    assert form is not None
    stride, dilation, rest = form[0][place], form[0][tap], form[1]
    assert isinstance(stride, int) and isinstance(dilation, int)
    guarded = frozenset().union(*map(axes_in, factors.guards[0]))
    if stride < 1 or not isinstance(extent, int) or place in guarded or tap in guarded:
        return None  # a guard of place and tap is none of a place in the window
    if dilation < 0:
        rest = rest + dilation * (_number(tap) - 1)
    step = abs(dilation)
    unit = gcd(stride, step)
    if isinstance(rest, int) and unit == 1:
        begin, first = max(0, -rest), max(0, rest)
        if extent > first:
            p = axis(extent - first, "p")
            return _Gathered(extent - first, p, d, polynomial(p) + first, stride, step, begin, dilation < 0)
    whole = (stride * (_number(place) - 1) + step * (_number(tap) - 1)) // unit + 1
    p = axis(whole, "p")
    return _Gathered(whole, p, d, rest + polynomial(p) * unit, stride // unit, step // unit, 0, dilation < 0)


def _arranged(
    read: Read,
    guards: Sequence[Size],
    dimensions: Sequence[Dimension],
    own: Mapping[Axis, Sequence[Axis]],
    windows: Mapping[Window, _Gathered],
    flipped: Mapping[Axis, bool],
) -> Scope | None:
    """The operand: what is read at the iterators of each of its dimensions; None where it needs others."""
    axes: list[Axis] = []
    values: dict[Atom, Any] = {}
    indices = list(read.indices)
    for dimension in dimensions:
        if isinstance(dimension, Window):
            gathered = windows[dimension]
            axes.append(gathered.p)
            indices[gathered.dimension] = gathered.index
            continue
        inside = [b for a in dimension for b in own[a]]
        axes.append(axis(prod(map(_number, inside)), "d"))
        digits = digits_of(polynomial(axes[-1]), [b.extent for b in inside])
        for b, digit in zip(inside, digits, strict=True):
            values[b] = b.extent - 1 - digit if flipped.get(b) else digit
    outside = read.outside
    body: Body = Read(read.source, tuple(indices), outside)
    if guards:
        body = Select(tuple(guards), body, Const(0))
    left = axes_in(body).difference(axes, values)
    if any(a.extent != 1 for a in left):
        return None
    values |= dict.fromkeys(left, 0)  # axes of one point are of no dimension
    return Scope(tuple(axes), contained(replace_axes(body, values)))
