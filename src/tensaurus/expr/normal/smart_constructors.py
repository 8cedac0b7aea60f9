"""Constructors of the normal form: each returns a sum in normal form, whatever its arguments are.

Only laws that hold in every field are used: those of a commutative ring with 1/0 = 0, and max and min as a
lattice.  The order of constants is not used (GF(p) has none), nor any law of a transcendental function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.scope import Const, Source, Table, axis
from tensaurus.expr.normal.axis_ranges import joined, merged_digits, settle, split_digits
from tensaurus.expr.normal.canonical_record import axes_in
from tensaurus.expr.normal.guards import range_guards, rank, turned
from tensaurus.expr.normal.max_min import extreme
from tensaurus.expr.normal.normal_form import (
    Amount,
    Apply,
    Choose,
    Core,
    Factor,
    Fold,
    Inverse,
    Leaf,
    Literal,
    Sum,
    addable,
    cancelled,
    content,
    number,
    of_factor,
    of_literal,
    whole,
)
from tensaurus.expr.normal.select_in_reduction import alternative
from tensaurus.expr.normal.term_limit import step
from tensaurus.expr.sizes.size import (
    Atom,
    Axis,
    Number,
    Size,
    Symbol,
    is_nonnegative,
    polynomial,
    substitute,
    terms_of,
)

TERMS = 200  # a product with more terms than this stays a product of sums

Values = Mapping[Atom, Any]
Weighted = tuple[Number, Core]


def total(terms: Iterable[Weighted]) -> Sum:
    """The sum of terms: like ones added, neighbours in range or complementary in guard joined."""
    found: dict[str, tuple[Number, Core]] = {}
    for coefficient, core in terms:
        old = found.get(core.key)
        found[core.key] = (coefficient + (old[0] if old else 0), core)
    kept = {key: (whole(c), core) for key, (c, core) in found.items() if c != 0}
    while len(kept) > 1:
        pair = _complementary(kept) or _neighbours(kept)
        if pair is None:
            break
        (first, second), merged = pair
        coefficient = kept[first][0]
        del kept[first], kept[second]
        again = list(kept.values()) + [(coefficient * c, core) for c, core in merged.terms]
        return total(again)
    return Sum(kept.values())


def _complementary(kept: Mapping[str, Weighted]) -> tuple[tuple[str, str], Sum] | None:
    """[g] f + [not g] f = f."""
    for key, (coefficient, core) in kept.items():
        for guard in core.guards:
            rest = tuple(g for g in core.guards if g != guard)
            other = Core(core.axes, (*rest, -1 - guard), core.factors).key
            if other in kept and kept[other][0] == coefficient and other != key:
                return (key, other), tidy(1, core.axes, rest, core.factors)
    return None


def _neighbours(kept: Mapping[str, Weighted]) -> tuple[tuple[str, str], Sum] | None:
    """sum[k:a](f(k)) + sum[k:b](f(k + a)) = sum[k:a + b](f(k))."""
    heads: dict[tuple[Any, ...], list[str]] = {}
    for key, (coefficient, core) in kept.items():
        if core.axes:
            counts = len(core.axes), len(core.guards), len(core.factors)
            sources = sorted(f.name for f in core.factors if isinstance(f, Leaf))
            heads.setdefault((coefficient, *counts, *sources), []).append(key)
    for group in heads.values():
        for first, second in itertools.permutations(group, 2):
            a, b = kept[first][1], kept[second][1]
            for k, m in itertools.product(a.axes, b.axes):
                merged = joined(a, k, b, m, core_with)
                if merged is not None:
                    return (first, second), merged
    return None


def core_with(core: Core, values: Values, axes: Sequence[Axis]) -> Core | None:
    """The core over other axes with sizes put in, where it stays one product."""
    factors = []
    for factor in core.factors:
        only = with_sizes(factor, values).factor
        if only is None:
            return None
        factors.append(only)
    return Core(tuple(axes), tuple(substitute(g, values) for g in core.guards), tuple(factors))


def plus(*sums: Sum) -> Sum:
    return total(term for s in sums for term in s.terms)


def scaled(factor: Number, inner: Sum) -> Sum:
    return Sum((whole(factor * c), core) for c, core in inner.terms) if factor != 0 else number(0)


def times(*sums: Sum) -> Sum:
    """The product, multiplied out unless that makes too many terms."""
    count = 1
    for s in sums:
        count *= len(s.terms)
    if count > TERMS and len(sums) > 1:
        sums = tuple(s if len(s.terms) == 1 else of_factor(Apply("", (s,))) for s in sums)
    result = number(1)
    for s in sums:
        if result.constant == 1:
            result = s
        elif s.constant is not None:
            result = scaled(s.constant, result)
        else:
            result = total(t for a in result.terms for b in s.terms for t in _product(a, b).terms)
    return result


def _product(a: Weighted, b: Weighted) -> Sum:
    (c, left), (d, right) = a, b
    if not set(left.axes).isdisjoint(right.axes):
        ((d, right),) = renewed(Sum((b,))).terms
    axes, guards = left.axes + right.axes, left.guards + right.guards
    return tidy(c * d, axes, guards, left.factors + right.factors)


def summed(axes: Sequence[Axis], guards: Sequence[Size], inner: Sum) -> Sum:
    """The sum over axes, where the guards are >= 0."""
    if not axes and not guards:
        return inner
    return total(
        t
        for c, core in inner.terms
        for t in tidy(c, (*axes, *core.axes), (*guards, *core.guards), core.factors).terms
    )


def tidy(coefficient: Number, axes: Sequence[Axis], guards: Sequence[Size], factors: Sequence[Factor]) -> Sum:
    """One term in normal form (which may be none, or several where an unused axis has a symbolic extent)."""
    step()
    settled = settle(axes, guards)
    if settled is None:
        return number(0)
    axes, guards, values = settled
    if values:
        # an axis has one point, or another range: everything is put together anew
        return summed(axes, guards, times(number(coefficient), *(with_sizes(f, values) for f in factors)))
    core = Core(tuple(axes), tuple(guards), cancelled(factors, axes))
    change = split_digits(core, axes) or merged_digits(core, axes, core_with)
    if change is not None:
        axes, values = change
        inner = times(number(coefficient), *(with_sizes(f, values) for f in core.factors))
        return summed(axes, [substitute(g, values) for g in guards], inner)
    used = frozenset().union(*(f.free for f in core.factors), *(axes_in(g) for g in guards))
    idle = [a for a in axes if a not in used]
    if idle:
        left = [a for a in axes if a in used]
        lone = Core(tuple(left), core.guards, core.factors)
        return times(Sum(((coefficient, lone),)), *(of_size(a.extent) for a in idle))
    return Sum(((whole(coefficient), core),))


def of_size(size: Size) -> Sum:
    """An integer expression as a sum of products of its atoms."""
    return total((c, Core((), (), tuple(Amount(a) for a in factors))) for factors, c in terms_of(size))


def leaf(source: Source, indices: Sequence[Size], outside: Const | None) -> Sum:
    """A read; a number outside becomes a guard, so that a padded read and a guarded one are the same.

    A literal table that is read in one place, or is the same everywhere, is that number.
    """
    if isinstance(source, Table):
        source, indices, found = source.narrow(indices)
        if found is not None and outside is None:
            return number(found)
        if found is not None and outside is not None:
            return chosen(range_guards(source.shape, indices), number(found), constant(outside.value))
    guards = range_guards(source.shape, indices) if outside is not None else ()
    if outside is None or not guards:
        return of_factor(Leaf(source, tuple(indices)))
    value = constant(outside.value)
    if isinstance(value.factor, Literal):
        return of_factor(Leaf(source, tuple(indices), outside))
    return chosen(guards, of_factor(Leaf(source, tuple(indices))), value)


def constant(value: Any) -> Sum:
    """A literal of a body."""
    if isinstance(value, (bool, float)):
        return of_literal(value)
    return number(value) if isinstance(value, (int, Fraction)) else of_size(value)


def chosen(guards: Sequence[Size], then: Sum, other: Sum) -> Sum:
    """`then` where all guards are >= 0, else `other`."""
    settled = settle((), guards)
    if settled is None:
        return other
    guards = settled[1]
    if not guards or then.key == other.key:
        return then
    if not addable(then) or not addable(other):
        if len(guards) == 1 and turned(guards[0]):
            return of_factor(Choose((-1 - guards[0],), other, then))
        return _read_outside(Choose(tuple(guards), then, other))
    first = summed((), guards, then)
    if len(guards) > 1 and other.constant is not None:
        return plus(first, other, scaled(-1, summed((), guards, other)))
    pieces = [first]
    guards = sorted(guards, key=rank)
    for place, guard in enumerate(guards):
        pieces.append(summed((), (*guards[:place], -1 - guard), renewed(other)))
    return plus(*pieces)


def inverse(inner: Sum) -> Sum:
    """1 / sum, its content and its independent factors apart; of a choice, a choice of them."""
    if not inner.terms:
        return number(0)
    case = alternative((inner,))
    if case is not None:
        then, other = (inverse(_under(inner, g)) for g in (case, -1 - case))
        return chosen((case,), then, renewed(other))
    if len(inner.terms) > 1:
        shared = content([c for c, _ in inner.terms])
        return scaled(1 / Fraction(shared), of_factor(Inverse(scaled(1 / Fraction(shared), inner))))
    ((coefficient, core),) = inner.terms
    scale = whole(1 / Fraction(coefficient))
    apart = [] if core.guards else [f for f in core.factors if f.free.isdisjoint(core.axes)]
    inside = [f for f in core.factors if f not in apart]
    result = [f.sum if isinstance(f, Inverse) else of_factor(Inverse(of_factor(f))) for f in apart]
    if core.axes or core.guards:
        result.append(of_factor(Inverse(Sum(((1, Core(core.axes, core.guards, tuple(inside))),)))))
    return times(number(scale), *result)


def _under(inner: Sum, guard: Size) -> Sum:
    """What is left of a sum where the guard holds."""
    kept: list[Weighted] = []
    for c, core in inner.terms:
        settled = settle((), (*core.guards, guard))
        if settled is not None:
            guards = [g for g in core.guards if g != guard and g in settled[1]]
            left = (_choice_under(f, guard) if isinstance(f, Choose) else of_factor(f) for f in core.factors)
            kept.extend(summed(core.axes, guards, times(number(c), *left)).terms)
    return total(kept)


def _choice_under(choice: Choose, guard: Size) -> Sum:
    """What is left of it where the guard holds; a padded read where that decides the rest of its ranges."""
    found = chosen(choice.guards, _under(choice.then, guard), _under(choice.other, guard))
    left = found.factor
    return _read_outside(left, (guard,)) if isinstance(left, Choose) else found


def _read_outside(choice: Choose, known: tuple[Size, ...] = ()) -> Sum:
    """A read inside its ranges and a literal outside are a padded read; of the ranges some guards are known.

    Some of the guards of its ranges are enough: a read is nowhere made outside, so they imply the others.
    """
    read, value = choice.then.factor, choice.other.factor
    if isinstance(read, Leaf) and read.outside is None and isinstance(value, Literal):
        settled = settle((), (*range_guards(read.source.shape, read.indices), *known))
        if settled is not None and {*settled[1], *known} >= {*choice.guards}:
            return of_factor(Leaf(read.source, read.indices, Const(value.value)))
    return of_factor(choice)


def applied(fn: str, args: Sequence[Sum]) -> Sum:
    """A function that is no ring operation; a choice among its arguments becomes a choice of its values."""
    case = alternative(args)
    if case is not None:
        then, other = ([_under(a, g) for a in args] for g in (case, -1 - case))
        return chosen((case,), applied(fn, then), renewed(applied(fn, other)))
    if fn in ("max", "min"):
        return extreme(fn, args)
    if fn == "where" and args[1].key == args[2].key:
        return args[1]
    return of_factor(Apply(fn, args))


def folded(monoid: str, axes: Sequence[Axis], body: Sum) -> Sum:
    """max, min or prod over axes."""
    neutral = {"max": float("-inf"), "min": float("inf")}
    settled = settle(axes, ())
    if settled is None:
        return number(1) if monoid == "prod" else of_literal(neutral[monoid])
    axes, _, values = settled
    if values:
        return folded(monoid, axes, instantiate(body, values))
    change = split_digits(body, axes) or merged_digits(body, axes, _sum_with)
    if change is not None:
        return folded(monoid, change[0], instantiate(body, change[1]))
    if monoid != "prod":
        # an empty range has no maximum, so only one that has points is dropped
        axes = [a for a in axes if a in body.free or not is_nonnegative(a.extent - 1)]
    if not axes:
        return body
    value, counts = body.constant, [a.extent for a in axes if isinstance(a.extent, int)]
    if monoid == "prod" and value is not None and len(counts) == len(axes) and value in (0, 1):
        return body
    case = alternative((body,), axes)
    if case is not None:
        then, other = (renewed(folded(monoid, axes, renewed(_under(body, g)))) for g in (case, -1 - case))
        return chosen((case,), then, other)
    factor = body.factor
    if isinstance(factor, Fold) and factor.monoid == monoid:
        return folded(monoid, (*axes, *factor.axes), factor.body)
    if isinstance(factor, Apply) and factor.fn == monoid:
        return extreme(monoid, (folded(monoid, axes, renewed(a)) for a in factor.args))
    return of_factor(Fold(monoid, tuple(axes), body))


def _sum_with(body: Sum, values: Values, axes: Sequence[Axis]) -> Sum:
    return instantiate(body, values)


def renewed(inner: Sum) -> Sum:
    """The same sum with new bound axes: no axis is bound twice on one path."""
    return instantiate(inner, {})


def instantiate(inner: Sum, values: Values) -> Sum:
    """The sum with axes replaced by sizes, and new bound axes."""
    terms: list[Weighted] = []
    for c, core in inner.terms:
        fresh = {a: axis(substitute(a.extent, values), "r") for a in core.axes}
        known = _extended(values, fresh)
        guards = [substitute(g, known) for g in core.guards]
        factors = times(number(c), *(with_sizes(f, known) for f in core.factors))
        terms.extend(summed(tuple(fresh.values()), guards, factors).terms)
    return total(terms)


def _extended(values: Values, fresh: Mapping[Axis, Axis]) -> dict[Atom, Any]:
    return {**values, **{a: polynomial(b) for a, b in fresh.items()}}


def with_sizes(factor: Factor, values: Values) -> Sum:
    """The factor with axes replaced by sizes."""
    match factor:
        case Leaf(source=source, indices=indices, outside=outside):
            if factor.free.isdisjoint(values) and not any(isinstance(a, Symbol) for a in values):
                return of_factor(factor)
            return leaf(source, tuple(substitute(i, values) for i in indices), outside)
        case Amount(atom=atom):
            return of_size(substitute(atom, values))
        case Literal():
            return of_factor(factor)
        case Inverse(sum=inner):
            return inverse(instantiate(inner, values))
        case Apply(fn="", args=(inner,)):
            return of_factor(Apply("", (instantiate(inner, values),)))
        case Apply(fn=fn, args=args):
            return applied(fn, [instantiate(a, values) for a in args])
        case Choose(guards=guards, then=then, other=other):
            known = [substitute(g, values) for g in guards]
            return chosen(known, instantiate(then, values), instantiate(other, values))
        case Fold(monoid=monoid, axes=axes, body=body):
            fresh = {a: axis(substitute(a.extent, values), "r") for a in axes}
            return folded(monoid, tuple(fresh.values()), instantiate(body, _extended(values, fresh)))
    raise TypeError(type(factor))
