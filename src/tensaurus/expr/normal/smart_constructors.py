"""Construct sums in normal form, whatever form the arguments have.

Only laws that hold in every field are used: those of a commutative ring with 1/0 = 0, and max and min as a
lattice.  The order of constants is not used (GF(p) has none), nor any law of a transcendental function.
`canonicalize` builds each body with them:  times(x + 1, w)  is the sum  1*(x * w) + 1*(w).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.scalar_functions import NEUTRAL_ELEMENTS
from tensaurus.expr.ir.scope import Const, Source, Table, axis
from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.normal.axis_ranges import join_ranges, merge_digits, narrow_by_guards, split_digits
from tensaurus.expr.normal.guards import guard_order, is_negated_form, range_guards
from tensaurus.expr.normal.max_min import max_or_min
from tensaurus.expr.normal.normal_form import (
    Apply,
    Choose,
    Core,
    Factor,
    Fold,
    Inverse,
    Leaf,
    Literal,
    SizeAtom,
    Sum,
    as_exact_number,
    cancel_inverses,
    factor_sum,
    is_addable,
    literal_sum,
    number_sum,
    rational_content,
)
from tensaurus.expr.normal.select_in_reduction import complementary_guard
from tensaurus.expr.normal.term_limit import count_term
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

MAX_PRODUCT_TERMS = 200  # a product that would have more terms stays a product of sums

Values = Mapping[Atom, Any]
Term = tuple[Number, Core]  # coefficient * core, as in `Sum.terms`


def sum_terms(terms: Iterable[Term]) -> Sum:
    """Return the sum of terms, adding like ones, and joining neighbouring ranges and complementary guards."""
    terms_by_key: dict[str, tuple[Number, Core]] = {}
    for coefficient, core in terms:
        previous = terms_by_key.get(core.key)
        terms_by_key[core.key] = (coefficient + (previous[0] if previous else 0), core)
    kept = {key: (as_exact_number(c), core) for key, (c, core) in terms_by_key.items() if c != 0}
    while len(kept) > 1:
        pair = _merge_complementary_guards(kept) or _merge_neighbouring_ranges(kept)
        if pair is None:
            break
        (first, second), merged = pair
        coefficient = kept[first][0]
        del kept[first], kept[second]
        remaining = list(kept.values()) + [(coefficient * c, core) for c, core in merged.terms]
        return sum_terms(remaining)
    return Sum(kept.values())


def _merge_complementary_guards(terms_by_key: Mapping[str, Term]) -> tuple[tuple[str, str], Sum] | None:
    """Return the keys and the sum of two terms with [g] f + [not g] f = f."""
    for key, (coefficient, core) in terms_by_key.items():
        for guard in core.guards:
            rest = tuple(g for g in core.guards if g != guard)
            other = Core(core.axes, (*rest, -1 - guard), core.factors).key
            if other in terms_by_key and terms_by_key[other][0] == coefficient and other != key:
                return (key, other), term_sum(1, core.axes, rest, core.factors)
    return None


def _merge_neighbouring_ranges(terms_by_key: Mapping[str, Term]) -> tuple[tuple[str, str], Sum] | None:
    """Return keys and sum of two terms: sum[k:a](f(k)) + sum[k:b](f(k + a)) = sum[k:a + b](f(k))."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for key, (coefficient, core) in terms_by_key.items():
        if core.axes:
            counts = len(core.axes), len(core.guards), len(core.factors)
            sources = sorted(f.name for f in core.factors if isinstance(f, Leaf))
            groups.setdefault((coefficient, *counts, *sources), []).append(key)
    for group in groups.values():
        for first, second in itertools.permutations(group, 2):
            a, b = terms_by_key[first][1], terms_by_key[second][1]
            for k, m in itertools.product(a.axes, b.axes):
                merged = join_ranges(a, k, b, m, substitute_core)
                if merged is not None:
                    return (first, second), merged
    return None


def substitute_core(core: Core, values: Values, axes: Sequence[Axis]) -> Core | None:
    """Return the core over these axes, atoms replaced by sizes; None where it is no longer one product."""
    factors = []
    for factor in core.factors:
        new_factor = substitute_factor(factor, values).factor
        if new_factor is None:
            return None
        factors.append(new_factor)
    return Core(tuple(axes), tuple(substitute(g, values) for g in core.guards), tuple(factors))


def plus(*sums: Sum) -> Sum:
    return sum_terms(term for s in sums for term in s.terms)


def scale(factor: Number, inner: Sum) -> Sum:
    return (
        Sum((as_exact_number(factor * c), core) for c, core in inner.terms) if factor != 0 else number_sum(0)
    )


def times(*sums: Sum) -> Sum:
    """Return the product, multiplied out unless it would have more than `MAX_PRODUCT_TERMS` terms."""
    count = 1
    for s in sums:
        count *= len(s.terms)
    if count > MAX_PRODUCT_TERMS and len(sums) > 1:
        sums = tuple(s if len(s.terms) == 1 else factor_sum(Apply("", (s,))) for s in sums)
    result = number_sum(1)
    for s in sums:
        if result.constant == 1:
            result = s
        elif s.constant is not None:
            result = scale(s.constant, result)
        else:
            result = sum_terms(t for a in result.terms for b in s.terms for t in _product(a, b).terms)
    return result


def _product(a: Term, b: Term) -> Sum:
    (c, left), (d, right) = a, b
    if not set(left.axes).isdisjoint(right.axes):
        ((d, right),) = with_fresh_axes(Sum((b,))).terms
    axes, guards = left.axes + right.axes, left.guards + right.guards
    return term_sum(c * d, axes, guards, left.factors + right.factors)


def sum_over(axes: Sequence[Axis], guards: Sequence[Size], inner: Sum) -> Sum:
    """Return the sum over axes, where the guards are >= 0."""
    if not axes and not guards:
        return inner
    return sum_terms(
        t
        for c, core in inner.terms
        for t in term_sum(c, (*axes, *core.axes), (*guards, *core.guards), core.factors).terms
    )


def term_sum(
    coefficient: Number, axes: Sequence[Axis], guards: Sequence[Size], factors: Sequence[Factor]
) -> Sum:
    """Return one term in normal form: no term, or several where an unused axis has a symbolic extent."""
    count_term()
    narrowed = narrow_by_guards(axes, guards)
    if narrowed is None:
        return number_sum(0)
    axes, guards, values = narrowed
    if values:  # axes are gone: the factors change, and so may the form of their product
        return sum_over(
            axes, guards, times(number_sum(coefficient), *(substitute_factor(f, values) for f in factors))
        )
    core = Core(tuple(axes), tuple(guards), cancel_inverses(factors, axes))
    change = split_digits(core, axes) or merge_digits(core, axes)
    if change is not None:  # the same with an axis that is split, or two that are merged
        axes, values = change
        inner = times(number_sum(coefficient), *(substitute_factor(f, values) for f in core.factors))
        return sum_over(axes, [substitute(g, values) for g in guards], inner)
    used = frozenset().union(*(f.free for f in core.factors), *(axes_in(g) for g in guards))
    unused_axes = [a for a in axes if a not in used]
    if unused_axes:  # all terms are equal along them: one term times their extents
        used_axes = [a for a in axes if a in used]
        rest = Core(tuple(used_axes), core.guards, core.factors)
        return times(Sum(((coefficient, rest),)), *(size_sum(a.extent) for a in unused_axes))
    return Sum(((as_exact_number(coefficient), core),))


def size_sum(size: Size) -> Sum:
    """Return an integer expression as a sum of products of its atoms."""
    return sum_terms((c, Core((), (), tuple(SizeAtom(a) for a in factors))) for factors, c in terms_of(size))


def read_sum(source: Source, indices: Sequence[Size], outside: Const | None) -> Sum:
    """Return a read; one with a number beyond the edge becomes a guarded read, so that both are the same."""
    if isinstance(source, Table):
        source, indices, only_value = source.narrow(indices)
        if only_value is not None and outside is None:
            return number_sum(only_value)
        if only_value is not None and outside is not None:
            return select_sum(
                range_guards(source.shape, indices), number_sum(only_value), constant_sum(outside.value)
            )
    guards = range_guards(source.shape, indices) if outside is not None else ()
    if outside is None or not guards:
        return factor_sum(Leaf(source, tuple(indices)))
    value = constant_sum(outside.value)
    if isinstance(value.factor, Literal):
        return factor_sum(Leaf(source, tuple(indices), outside))
    return select_sum(guards, factor_sum(Leaf(source, tuple(indices))), value)


def constant_sum(value: Any) -> Sum:
    """Return a literal of a body as a sum."""
    if isinstance(value, (bool, float)):
        return literal_sum(value)
    return number_sum(value) if isinstance(value, (int, Fraction)) else size_sum(value)


def select_sum(guards: Sequence[Size], then: Sum, other: Sum) -> Sum:
    """Return `then` where all guards are >= 0, else `other`."""
    narrowed = narrow_by_guards((), guards)
    if narrowed is None:
        return other
    guards = narrowed.guards
    if not guards or then.key == other.key:
        return then
    if not is_addable(then) or not is_addable(other):  # a select must stay, written with one of g and -1 - g
        if len(guards) == 1 and is_negated_form(guards[0]):
            return factor_sum(Choose((-1 - guards[0],), other, then))
        return _as_padded_read(Choose(tuple(guards), then, other))
    first = sum_over((), guards, then)
    if len(guards) > 1 and other.constant is not None:  # fewer terms than the cases below
        return plus(first, other, scale(-1, sum_over((), guards, other)))
    cases = [first]
    guards = sorted(guards, key=guard_order)
    for k, guard in enumerate(guards):  # `other` where this guard is the first to fail
        cases.append(sum_over((), (*guards[:k], -1 - guard), with_fresh_axes(other)))
    return plus(*cases)


def inverse(inner: Sum) -> Sum:
    """Return 1 / sum: its content, factors that no sum binds, and cases of a select are inverted apart."""
    if not inner.terms:
        return number_sum(0)
    guard = complementary_guard((inner,))
    if guard is not None:  # a select
        then, other = (inverse(_assume_guard(inner, g)) for g in (guard, -1 - guard))
        return select_sum((guard,), then, with_fresh_axes(other))
    if len(inner.terms) > 1:
        content = rational_content([c for c, _ in inner.terms])
        return scale(1 / Fraction(content), factor_sum(Inverse(scale(1 / Fraction(content), inner))))
    ((coefficient, core),) = inner.terms
    reciprocal = as_exact_number(1 / Fraction(coefficient))
    independent = [] if core.guards else [f for f in core.factors if f.free.isdisjoint(core.axes)]
    inside = [f for f in core.factors if f not in independent]
    result = [f.sum if isinstance(f, Inverse) else factor_sum(Inverse(factor_sum(f))) for f in independent]
    if core.axes or core.guards:
        result.append(factor_sum(Inverse(Sum(((1, Core(core.axes, core.guards, tuple(inside))),)))))
    return times(number_sum(reciprocal), *result)


def _assume_guard(inner: Sum, guard: Size) -> Sum:
    """Return the sum simplified where the guard holds."""
    terms: list[Term] = []
    for c, core in inner.terms:
        narrowed = narrow_by_guards((), (*core.guards, guard))
        if narrowed is not None:
            guards = [g for g in core.guards if g != guard and g in narrowed.guards]
            factors = (
                _assume_in_select(f, guard) if isinstance(f, Choose) else factor_sum(f) for f in core.factors
            )
            terms.extend(sum_over(core.axes, guards, times(number_sum(c), *factors)).terms)
    return sum_terms(terms)


def _assume_in_select(choice: Choose, guard: Size) -> Sum:
    """Return a select simplified where the guard holds; a padded read if its other guards are edges."""
    selected = select_sum(
        choice.guards, _assume_guard(choice.then, guard), _assume_guard(choice.other, guard)
    )
    remaining = selected.factor
    return _as_padded_read(remaining, (guard,)) if isinstance(remaining, Choose) else selected


def _as_padded_read(choice: Choose, assumed: tuple[Size, ...] = ()) -> Sum:
    """Return a select of a read inside its edges and a literal outside as a padded read, any other unchanged.

    Some of the edges' guards are enough: no read is outside its edges, so that they imply the others.
    """
    read, value = choice.then.factor, choice.other.factor
    if isinstance(read, Leaf) and read.outside is None and isinstance(value, Literal):
        narrowed = narrow_by_guards((), (*range_guards(read.source.shape, read.indices), *assumed))
        if narrowed is not None and {*narrowed.guards, *assumed} >= {*choice.guards}:
            return factor_sum(Leaf(read.source, read.indices, Const(value.value)))
    return factor_sum(choice)


def apply_function(fn: str, args: Sequence[Sum]) -> Sum:
    """Return a function other than +, *, 1/x; a select among its arguments becomes a select of its values."""
    guard = complementary_guard(args)
    if guard is not None:
        then, other = ([_assume_guard(a, g) for a in args] for g in (guard, -1 - guard))
        return select_sum((guard,), apply_function(fn, then), with_fresh_axes(apply_function(fn, other)))
    if fn in ("max", "min"):
        return max_or_min(fn, args)
    if fn == "where" and args[1].key == args[2].key:
        return args[1]
    return factor_sum(Apply(fn, args))


def reduce_over(monoid: str, axes: Sequence[Axis], body: Sum) -> Sum:
    """Return the max, min or prod over axes."""
    narrowed = narrow_by_guards(axes, ())
    if narrowed is None:  # a range is empty
        return number_sum(1) if monoid == "prod" else literal_sum(NEUTRAL_ELEMENTS[monoid])
    axes, _, values = narrowed
    if values:  # axes of one point are gone
        return reduce_over(monoid, axes, instantiate(body, values))
    change = split_digits(body, axes) or merge_digits(body, axes)
    if change is not None:
        return reduce_over(monoid, change[0], instantiate(body, change[1]))
    if monoid != "prod":
        # an empty range has no maximum: only ranges with at least one point are dropped
        axes = [a for a in axes if a in body.free or not is_nonnegative(a.extent - 1)]
    if not axes:
        return body
    value, counts = body.constant, [a.extent for a in axes if isinstance(a.extent, int)]
    if monoid == "prod" and value is not None and len(counts) == len(axes) and value in (0, 1):
        return body
    guard = complementary_guard((body,), axes)
    if guard is not None:
        then, other = (
            with_fresh_axes(reduce_over(monoid, axes, with_fresh_axes(_assume_guard(body, g))))
            for g in (guard, -1 - guard)
        )
        return select_sum((guard,), then, other)
    factor = body.factor
    if isinstance(factor, Fold) and factor.monoid == monoid:  # nested reductions are one
        return reduce_over(monoid, (*axes, *factor.axes), factor.body)
    if isinstance(factor, Apply) and factor.fn == monoid:  # max[r](max(x, y)) is max(max[r](x), max[r](y))
        return max_or_min(monoid, (reduce_over(monoid, axes, with_fresh_axes(a)) for a in factor.args))
    return factor_sum(Fold(monoid, tuple(axes), body))


def with_fresh_axes(inner: Sum) -> Sum:
    """Return the same sum with new bound axes, so that no axis is bound twice on one path."""
    return instantiate(inner, {})


def instantiate(inner: Sum, values: Values) -> Sum:
    """Return the sum with axes replaced by sizes, and with new bound axes."""
    terms: list[Term] = []
    for c, core in inner.terms:
        fresh = {a: axis(substitute(a.extent, values), "r") for a in core.axes}
        all_values = _with_axes(values, fresh)
        guards = [substitute(g, all_values) for g in core.guards]
        factors = times(number_sum(c), *(substitute_factor(f, all_values) for f in core.factors))
        terms.extend(sum_over(tuple(fresh.values()), guards, factors).terms)
    return sum_terms(terms)


def _with_axes(values: Values, fresh: Mapping[Axis, Axis]) -> dict[Atom, Any]:
    return {**values, **{a: polynomial(b) for a, b in fresh.items()}}


def substitute_factor(factor: Factor, values: Values) -> Sum:
    """Return the factor with axes replaced by sizes, as a sum."""
    match factor:
        case Leaf(source=source, indices=indices, outside=outside):
            if factor.free.isdisjoint(values) and not any(isinstance(a, Symbol) for a in values):
                return factor_sum(factor)
            return read_sum(source, tuple(substitute(i, values) for i in indices), outside)
        case SizeAtom(atom=atom):
            return size_sum(substitute(atom, values))
        case Literal():
            return factor_sum(factor)
        case Inverse(sum=inner):
            return inverse(instantiate(inner, values))
        case Apply(fn="", args=(inner,)):
            return factor_sum(Apply("", (instantiate(inner, values),)))
        case Apply(fn=fn, args=args):
            return apply_function(fn, [instantiate(a, values) for a in args])
        case Choose(guards=guards, then=then, other=other):
            known = [substitute(g, values) for g in guards]
            return select_sum(known, instantiate(then, values), instantiate(other, values))
        case Fold(monoid=monoid, axes=axes, body=body):
            fresh = {a: axis(substitute(a.extent, values), "r") for a in axes}
            return reduce_over(monoid, tuple(fresh.values()), instantiate(body, _with_axes(values, fresh)))
    raise TypeError(type(factor))
