"""The iterator mapping table of an expression: which iterator enters which dimension of which operand.

    L[b, m, n](sum[k](A[b, m, k] * B[b, k, n]))

    Y/Y/Y  b        Y/N/Y  m        N/Y/Y  n        Y/Y/N  k            (in A / in B / in the output)

EINNET, section 5.1 and table 2: an expression is an operator in another layout if their iterators can be
paired such that they enter the operands alike.  Tensors are flattened for that, so a dimension of the
operator may be any dimension, several, or a stretch of one; within a dimension, slopes keep their
proportions (strides, dilations).  Extents and offsets are not compared: the operator's sizes and pads are
read from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, permutations
from typing import Any

from tensaurus.algebra.digits import Digits, Linear, digits, linear, sign_of
from tensaurus.algebra.expr import Body, Call, Const, Read, Reduce, Scope, Select, Source
from tensaurus.algebra.functions import FUNCTIONS
from tensaurus.algebra.size import (
    Atom,
    Axis,
    Poly,
    Size,
    atoms,
    floordiv,
    polynomial,
    product,
    same,
    substitute,
)
from tensaurus.algebra.text import show_size
from tensaurus.algebra.walk import children

Pattern = tuple[bool, ...]


@dataclass(frozen=True)
class Operand:
    """A read, or the output, whose dimensions are linear forms of iterators.

    source    what is read, None for the output
    outside   the value of the read beyond its source's edges, None where it stays inside
    """

    source: Source | None
    shape: tuple[Size, ...]
    dimensions: tuple[Linear, ...]
    outside: Const | None = None

    @cached_property
    def flat(self) -> dict[Axis, Size]:
        """The slope of each iterator in the row-major number of the element."""
        slopes: dict[Axis, Size] = {}
        for d, form in enumerate(self.dimensions):
            stride = product(self.shape[d + 1 :])
            for a, slope in form.slopes.items():
                slopes[a] = slopes.get(a, 0) + slope * stride
        return {a: slope for a, slope in slopes.items() if not same(slope, 0)}


@dataclass(frozen=True)
class IteratorTable:
    """The iterators of an expression and its operands, in order of their reads, the output last.

    monoids   what each iterator is reduced by, "" for one of the output
    form      the indices over iterators: digits of the expression's axes, without those of one point
    """

    scope: Scope
    form: Digits
    monoids: Mapping[Axis, str]
    operands: tuple[Operand, ...]

    @property
    def iterators(self) -> tuple[Axis, ...]:
        return self.form.axes

    def pattern(self, iterator: Axis, order: Sequence[int] | None = None) -> Pattern:
        """Whether it enters each operand, in this order of the operands."""
        chosen = self.operands if order is None else [self.operands[k] for k in order]
        return tuple(any(iterator in form.slopes for form in operand.dimensions) for operand in chosen)

    @property
    def groups(self) -> dict[Pattern, tuple[Axis, ...]]:
        """The iterators by their patterns."""
        groups: dict[Pattern, tuple[Axis, ...]] = {}
        for a in self.iterators:
            groups[self.pattern(a)] = (*groups.get(self.pattern(a), ()), a)
        return groups

    def __str__(self) -> str:
        rows = ("/".join("NY"[y] for y in p) + f"  {', '.join(map(str, g))}" for p, g in self.groups.items())
        return "\n".join(rows)


def iterator_table(scope: Scope) -> IteratorTable | None:
    """The table; None where an index is not affine in digits of the axes (Gather, 7 // 2)."""
    reads = list(_reads(scope.body))
    monoids = {**dict.fromkeys(scope.axes, ""), **_reduced(scope.body)}
    indices = (*(i for r in reads for i in r.indices), *map(polynomial, scope.axes))
    # iterators of several reductions must not become one
    apart = () if _reductions(scope.body) < 2 else tuple(map(polynomial, monoids))
    form = digits(tuple(monoids), (*indices, *apart))
    forms = linear(form)
    if forms is None or not form.exact or not set(forms[1]) <= set(form.axes):
        return None
    rows = iter(forms[0])
    operands = [
        Operand(r.source, r.source.shape, tuple(next(rows) for _ in r.indices), r.outside) for r in reads
    ]
    operands.append(Operand(None, scope.shape, tuple(islice(rows, scope.rank))))
    of: dict[Axis, str] = {}
    for monoid, place in zip(monoids.values(), form.places, strict=True):
        of.update(dict.fromkeys(_axes(place), monoid))
    return IteratorTable(scope, form, of, tuple(operands))


def _axes(size: Size) -> list[Axis]:
    return sorted((a for a in atoms(size) if isinstance(a, Axis)), key=str)


def _reads(body: Body) -> Iterator[Read]:
    if isinstance(body, Read):
        yield body
    for child in children(body):
        yield from _reads(child)


def _reduced(body: Body) -> dict[Axis, str]:
    monoids = dict.fromkeys(body.axes, body.monoid) if isinstance(body, Reduce) else {}
    for child in children(body):
        monoids.update(_reduced(child))
    return monoids


def _reductions(body: Body) -> int:
    """How many reductions there are, one straight inside another by the same monoid not counted."""
    inner = children(body)
    nested = isinstance(body, Reduce) and isinstance(inner[0], Reduce) and inner[0].monoid == body.monoid
    return sum(map(_reductions, inner)) + (isinstance(body, Reduce) and not nested)


@dataclass(frozen=True)
class Correspondence:
    """How an expression is an operator in another layout.

    iterators   the expression's iterator for each one of the operator
    reversed    the operator's reduced iterators that run against the expression's
    operands    the expression's operand for each one of the operator
    strides     for each operand of the operator, how far a step in each of its dimensions goes in the
                flattened operand of the expression; None where iterators alone do not say
    """

    iterators: Mapping[Axis, Axis]
    reversed: frozenset[Axis]
    operands: tuple[int, ...]
    strides: tuple[tuple[Size | None, ...], ...]


def matches(table: IteratorTable, operator: IteratorTable) -> list[Correspondence]:
    """Every pairing of operands and of iterators by which the expression may be the operator."""
    if len(table.operands) != len(operator.operands) or len(table.iterators) != len(operator.iterators):
        return []
    last = len(table.operands) - 1
    orders = ((*order, last) for order in permutations(range(last)))
    return [one for order in orders for one in _matched(table, operator, order)]


def mismatches(table: IteratorTable, operator: IteratorTable) -> int | None:
    """By how many iterators the groups differ at least: the expression distance (EINNET, section 6.1).

    None where the operands differ in number.
    """
    last = len(table.operands) - 1
    if last != len(operator.operands) - 1:
        return None
    wanted = Counter((operator.pattern(a), operator.monoids[a]) for a in operator.iterators)
    distances = []
    for order in permutations(range(last)):
        given = Counter((table.pattern(a, (*order, last)), table.monoids[a]) for a in table.iterators)
        distances.append(((given - wanted) + (wanted - given)).total())
    return min(distances)


def _matched(
    table: IteratorTable, operator: IteratorTable, order: tuple[int, ...]
) -> Iterator[Correspondence]:
    pairs = [(table.operands[k], theirs) for k, theirs in zip(order, operator.operands, strict=True)]
    if any(ours.outside is not None and ours.outside != theirs.outside for ours, theirs in pairs):
        return
    sources: list[tuple[Any, Any]] = []
    for ours, theirs in pairs:
        if any(theirs.source == other and ours.source != source for source, other in sources):
            return  # what the operator reads twice is two tensors here
        sources.append((ours.source, theirs.source))

    def extend(chosen: dict[Axis, Axis], turned: frozenset[Axis]) -> Iterator[Correspondence]:
        strides = [_strides(ours, theirs, chosen, turned) for ours, theirs in pairs]
        if None in strides:
            return
        if len(chosen) < len(operator.iterators):
            theirs = operator.iterators[len(chosen)]
            key = operator.pattern(theirs), operator.monoids[theirs]
            for a in table.iterators:
                if a in chosen.values() or (table.pattern(a, order), table.monoids[a]) != key:
                    continue
                yield from extend({**chosen, theirs: a}, turned)
                if key[1] and any(_opposed(o, other, a, theirs) for o, other in pairs):
                    yield from extend({**chosen, theirs: a}, turned | {theirs})
            return
        aligned = all(o.outside is None or _aligned(o, other, chosen, turned) for o, other in pairs)
        if aligned and _same_function(table, operator, order, chosen, turned):
            yield Correspondence(chosen, turned, order, tuple(s for s in strides if s is not None))

    yield from extend({}, frozenset())


def _opposed(ours: Operand, theirs: Operand, a: Axis, b: Axis) -> bool:
    """Whether the two iterators run through the operand in different directions."""
    return a in ours.flat and b in theirs.flat and sign_of(ours.flat[a]) != sign_of(theirs.flat[b])


def _strides(
    ours: Operand, theirs: Operand, chosen: Mapping[Axis, Axis], turned: frozenset[Axis]
) -> tuple[Size | None, ...] | None:
    """The step of each dimension that the paired iterators agree on; None where they do not agree."""
    steps: list[Size | None] = [None] * len(theirs.dimensions)
    several = []
    for b, a in chosen.items():
        slope = ours.flat.get(a, 0) * (-1 if b in turned else 1)
        inside = [d for d, form in enumerate(theirs.dimensions) if b in form.slopes]
        if len(inside) > 1:
            several.append((b, slope, inside))
            continue
        for d in inside:
            step = _quotient(slope, theirs.dimensions[d].slopes[b])
            if step is None or steps[d] is not None and not same(step, steps[d]):
                return None
            steps[d] = step
    for b, slope, inside in several:
        known = [(steps[d], theirs.dimensions[d].slopes[b]) for d in inside]
        if all(step is not None for step, _ in known) and not same(sum(s * c for s, c in known), slope):  # type: ignore[operator, misc]
            return None
    return tuple(steps)


def _quotient(slope: Size, unit: Size) -> Size | None:
    """slope / unit, where it is a size."""
    sign = sign_of(unit)
    if sign is None:
        return None
    quotient = floordiv(slope * sign, unit * sign)
    return quotient if same(quotient * unit, slope) else None


def _aligned(ours: Operand, theirs: Operand, chosen: Mapping[Axis, Axis], turned: frozenset[Axis]) -> bool:
    """Whether dimensions that iterators enter are paired one by one: edges must not move when flattened."""
    moving = [form.slopes for form in ours.dimensions if form.slopes]
    for form in theirs.dimensions:
        if not form.slopes:
            continue
        here = {chosen[b]: s * (-1 if b in turned else 1) for b, s in form.slopes.items()}
        flipped = {a: 0 - s for a, s in here.items()}
        partner = next((m for m in moving if _equal(m, here) or _equal(m, flipped)), None)
        if partner is None:
            return False
        moving.remove(partner)
    return not moving


def _equal(a: Mapping[Axis, Size], b: Mapping[Axis, Size]) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


def _same_function(
    table: IteratorTable,
    operator: IteratorTable,
    order: tuple[int, ...],
    chosen: Mapping[Axis, Axis],
    turned: frozenset[Axis],
) -> bool:
    """Whether the bodies are one scalar function of their operands."""
    theirs = {a: f"i{place}" for place, a in enumerate(operator.iterators)}
    ours = {chosen[b]: theirs[b] for b in operator.iterators}
    numbers = [str(order.index(k)) for k in range(len(order) - 1)]
    if _guards(table.scope.body) and turned:
        return False
    return _text(table, ours, numbers) == _text(operator, theirs, [str(k) for k in range(len(order) - 1)])


def _guards(body: Body) -> bool:
    return isinstance(body, Select) or any(map(_guards, children(body)))


def _text(table: IteratorTable, names: Mapping[Axis, str], numbers: Sequence[str]) -> str:
    """The body with the numbers of operands for its reads, in an order that commuting leaves alone."""
    values: dict[Atom, Any] = {}
    for a, place in zip((*table.scope.axes, *_reduced(table.scope.body)), table.form.places, strict=True):
        values[a] = place
    remaining = iter(numbers)

    def size(value: Size) -> str:
        return show_size(substitute(value, values), names)

    def visit(body: Body) -> str:
        match body:
            case Const(value):
                return size(value) if isinstance(value, Poly) else repr(value)
            case Read():
                return f"#{next(remaining)}"
            case Call(fn, args):
                texts = list(map(visit, args))
                commutes = fn in FUNCTIONS and FUNCTIONS[fn].commutative
                return f"{fn}({', '.join(sorted(texts) if commutes else texts)})"
            case Select(guard, then, other):
                return f"where({', '.join(sorted(map(size, guard)))}; {visit(then)}, {visit(other)})"
            case Reduce(monoid, axes, inner):
                while isinstance(inner, Reduce) and inner.monoid == monoid:
                    axes, inner = (*axes, *inner.axes), inner.body
                over = {names[d] for a in axes for d in _axes(values[a])}
                return f"{monoid}[{', '.join(sorted(over))}]({visit(inner)})"
        raise TypeError(type(body))

    return visit(table.scope.body)
