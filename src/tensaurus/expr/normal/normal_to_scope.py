"""Write a normal form as a scope again, in the one order that its texts define.

    2*(sum over r:3 of x[i, r]) + 1*(y[i])      ->      add(mul(2, sum[r:3](x[i, r])), y[i])

`canonicalize` calls `scope_of_sum`.  Guards become edges of reads (`x[i - 1] | 0`) where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tensaurus.expr.ir.printer import Names, names_in, show_size
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.ir.walk import axes_in
from tensaurus.expr.normal.canonical_record import AxisNaming, Record, canonical_axis_order, names_by_position
from tensaurus.expr.normal.guards import range_guards
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
)
from tensaurus.expr.sizes.size import Axis, Number, Size, polynomial, product


def scope_of_sum(axes: Sequence[Axis], body: Sum, scope: Scope) -> Scope:
    """Return the scope of a normal form over these axes, renamed as `show` prints axes.

    `scope` is the scope that the body comes from: names that only that scope used are free again.
    """
    taken = names_in(scope)
    result = _write_scope(axes, body, taken)
    still_taken = names_in(result)
    return result if still_taken == taken else _write_scope(axes, body, still_taken)


def _write_scope(axes: Sequence[Axis], body: Sum, taken: set[str]) -> Scope:
    writer = Writer(axes, taken)
    return Scope(writer.axes, writer.sum(body, {a: f"${number}" for number, a in enumerate(axes)}, 0))


class Writer(AxisNaming):
    """Writes records of the normal form as bodies.

    Axes have two names.  `names` and `depth`, as of `Record.text`, name them by position: only to compare
    texts, which decides the order of terms, factors and guards.  What is written has the names that `bind`
    gives, and that `size` puts into sizes.
    """

    def sum(self, inner: Sum, names: Names, depth: int) -> Body:
        terms = sorted(inner.terms, key=lambda t: t[1].text(names, depth))
        # terms that are sizes alone become one size, at the end
        size_terms = [(c, core) for c, core in terms if _is_size(core) and isinstance(c, int)]
        bodies = [self.term(c, core, names, depth) for c, core in terms if (c, core) not in size_terms]
        if size_terms:
            bodies.append(Const(sum(c * self.size_product(core.factors) for c, core in size_terms)))
        return _chain("add", bodies) if bodies else Const(0)

    def size_product(self, factors: Sequence[Factor]) -> Any:
        return product(self.size(polynomial(f.atom)) for f in factors if isinstance(f, SizeAtom))

    def term(self, coefficient: Number, core: Core, names: Names, depth: int) -> Body:
        """Return coefficient * core: a product in which axes that share a factor or guard have one sum.

        Factors without bound axes stand outside the sums:  sum[r, s](a * x[r] * y[s])  is written
        a * sum[r](x[r]) * sum[s](y[s]).
        """
        # name the bound axes by position, and sort factors and guards by their texts under these names
        order = canonical_axis_order(core.axes, core.factors, core.guards, names, depth)
        wider = names_by_position(order, names, depth)
        inner = depth + len(order)
        factors = sorted(core.factors, key=lambda f: f.text(wider, inner))
        guards, is_padded = _guards_beyond_edges(core)
        guards.sort(key=lambda g: show_size(g, wider))
        # group the axes that must be summed together
        axes_of_factor, has_guarded_axes = _axes_by_factor(order, factors, guards)
        # a read without guarded axes is written outside their guards: beyond its source it must be 0
        is_padded = is_padded or has_guarded_axes
        groups = _connected_axes(order, [*axes_of_factor.values(), *map(axes_in, guards)])
        # outside the sums: the coefficient, times the size atoms if it is whole, and factors without axes
        outer_factors = [f for f in factors if not axes_of_factor[f]]
        scale: Any = coefficient
        size_atoms = [f for f in outer_factors if isinstance(f, SizeAtom)]
        if isinstance(coefficient, int):
            scale, outer_factors = (
                coefficient * self.size_product(size_atoms),
                [f for f in outer_factors if f not in size_atoms],
            )
        product_parts: list[Body] = [] if scale == 1 else [Const(scale)]
        product_parts += [self.factor(f, wider, inner, is_padded) for f in outer_factors]
        for group in groups:
            axes = self.bind([a for a in order if a in group])
            group_factors = [f for f in factors if not axes_of_factor[f].isdisjoint(group)]
            body = _product([self.factor(f, wider, inner, is_padded) for f in group_factors])
            group_guards = tuple(self.size(g) for g in guards if not axes_in(g).isdisjoint(group))
            product_parts.append(
                Reduce("sum", axes, Select(group_guards, body, Const(0)) if group_guards else body)
            )
        result = _product(product_parts)
        outer_guards = tuple(self.size(g) for g in guards if axes_in(g).isdisjoint(order))
        return Select(outer_guards, result, Const(0)) if outer_guards else result

    def factor(self, factor: Factor, names: Names, depth: int, padded: bool) -> Body:
        """Return the factor; with `padded`, a read that may leave its source has the value 0 outside."""
        match factor:
            case Leaf(source=source, indices=indices, outside=outside):
                if outside is None and padded and range_guards(source.shape, indices):
                    outside = Const(0)
                return Read(source, tuple(map(self.size, indices)), outside)
            case SizeAtom(atom=atom):
                return Const(self.size(polynomial(atom)))
            case Literal(value=value):
                return Const(value)
            case Inverse(sum=inner):
                return Call("div", (Const(1), self.sum(inner, names, depth)))
            case Apply(fn="", args=(inner,)):
                return self.sum(inner, names, depth)
            case Apply(fn=fn, args=args):
                ranked = sorted(args, key=lambda a: a.text(names, depth)) if factor.commutes else args
                bodies = [self.sum(a, names, depth) for a in ranked]
                return _chain(fn, bodies) if factor.commutes else Call(fn, tuple(bodies))
            case Choose(guards=guards, then=then, other=other):
                sizes = sorted(guards, key=lambda g: show_size(g, names))
                branches = self.sum(then, names, depth), self.sum(other, names, depth)
                return Select(tuple(map(self.size, sizes)), *branches)
            case Fold(monoid=monoid, axes=axes, body=body):
                order = canonical_axis_order(axes, (body,), (), names, depth)
                wider = names_by_position(order, names, depth)
                named = self.bind(order)
                return Reduce(monoid, named, self.sum(body, wider, depth + len(order)))
        raise TypeError(type(factor))


def _is_size(core: Core) -> bool:
    return core.is_product and all(isinstance(f, SizeAtom) for f in core.factors)


def _chain(fn: str, bodies: Sequence[Body]) -> Body:
    return reduce(lambda a, b: Call(fn, (a, b)), bodies)


def _product(bodies: Sequence[Body]) -> Body:
    return _chain("mul", bodies) if bodies else Const(1)


def _guards_beyond_edges(core: Core) -> tuple[list[Size], bool]:
    """Return the guards that must stay, and whether reads get the value 0 outside in place of the others.

    A guard is dropped where a direct factor x[i] is 0 without it, and every other factor is defined
    everywhere.  x[i - 1] * relu(y[i - 1]) keeps its guard: relu(y[-1]) has no value to multiply 0 with.
    """
    direct_reads = [f for f in core.factors if isinstance(f, Leaf) and f.outside is None]
    others = [f for f in core.factors if f not in direct_reads]
    ranges = {g for f in direct_reads for g in range_guards(f.source.shape, f.indices)}
    if not ranges.intersection(core.guards) or not all(map(_is_defined_everywhere, others)):
        return list(core.guards), False
    return [g for g in core.guards if g not in ranges], True


def _is_defined_everywhere(record: Record) -> bool:
    """Return whether every read inside lies within its source for all values of the axes."""
    return all(
        not isinstance(r, Leaf) or r.outside is not None or not range_guards(r.source.shape, r.indices)
        for r in record.walk()
    )


def _axes_by_factor(
    order: Sequence[Axis], factors: Sequence[Factor], guards: Sequence[Size]
) -> tuple[dict[Factor, frozenset[Axis]], bool]:
    """Return the bound axes under which each factor must stand, and whether a guard restricts some of them.

    sum[r:2](y[i - 1] if i - r - 1 >= 0 else 0) may become y[i - 1] | 0 times a count, since y is 0 where the
    guard never holds; exp(y[i - 1]) must stay under the guard.
    """
    bound = frozenset(order)
    guarded_axes = bound.intersection(frozenset().union(*map(axes_in, guards)))
    axes_of_factor = {f: f.free & bound for f in factors}
    for f in factors if guarded_axes else ():
        if not isinstance(f, Leaf) and not _is_defined_everywhere(f):
            axes_of_factor[f] |= guarded_axes
    return axes_of_factor, bool(guarded_axes)


def _connected_axes(order: Sequence[Axis], axis_sets: Sequence[frozenset[Axis]]) -> list[set[Axis]]:
    """Group bound axes that share a factor or a guard: sums over different groups are independent factors."""
    groups: list[set[Axis]] = [{a} for a in order]
    for axis_set in axis_sets:
        touching = [g for g in groups if not g.isdisjoint(axis_set)]
        if len(touching) > 1:
            first = groups.index(touching[0])
            for other in touching[1:]:
                groups.remove(other)
                groups[first] |= other
    return groups
