"""From the normal form back to records of `expr.ir.scope`, in the one order that its texts give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from tensaurus.expr.ir.printer import Names, names_in, show_size
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select
from tensaurus.expr.normal.canonical_record import Naming, Record, axes_in, ordered
from tensaurus.expr.normal.guards import range_guards
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
)
from tensaurus.expr.sizes.size import Axis, Number, Size, polynomial, product


def body_of(axes: Sequence[Axis], body: Sum, scope: Scope) -> Scope:
    """The scope over these axes, its axes named as `show` names them.

    `scope` is what the body was before: names that only it had are free again.
    """
    taken = names_in(scope)
    result = _body_of(axes, body, taken)
    left = names_in(result)
    return result if left == taken else _body_of(axes, body, left)


def _body_of(axes: Sequence[Axis], body: Sum, taken: set[str]) -> Scope:
    writer = Writer(axes, taken)
    return Scope(writer.axes, writer.sum(body, {a: f"${place}" for place, a in enumerate(axes)}, 0))


class Writer(Naming):
    """Writes records of the normal form."""

    def sum(self, inner: Sum, names: Names, depth: int) -> Body:
        terms = sorted(inner.terms, key=lambda t: t[1].text(names, depth))
        # terms that are sizes alone are one size, at the end
        whole = [(c, core) for c, core in terms if _is_size(core) and isinstance(c, int)]
        bodies = [self.term(c, core, names, depth) for c, core in terms if (c, core) not in whole]
        if whole:
            bodies.append(Const(sum(c * self.amount(core.factors) for c, core in whole)))
        return _chain("add", bodies) if bodies else Const(0)

    def amount(self, factors: Sequence[Factor]) -> Any:
        return product(self.size(polynomial(f.atom)) for f in factors if isinstance(f, Amount))

    def term(self, coefficient: Number, core: Core, names: Names, depth: int) -> Body:
        order = ordered(core.axes, core.factors, core.guards, names, depth)
        wider = {**names, **{a: f"~{depth + place}" for place, a in enumerate(order)}}
        inner = depth + len(order)
        factors = sorted(core.factors, key=lambda f: f.text(wider, inner))
        guards, padded = _absorbed(core)
        guards.sort(key=lambda g: show_size(g, wider))
        reach, held_inside = _reach(order, factors, guards)
        padded = padded or held_inside
        groups = _connected(order, [*reach.values(), *map(axes_in, guards)])
        pulled = [f for f in factors if not reach[f]]
        scale: Any = coefficient
        amounts = [f for f in pulled if isinstance(f, Amount)]
        if isinstance(coefficient, int):
            scale, pulled = coefficient * self.amount(amounts), [f for f in pulled if f not in amounts]
        parts: list[Body] = [] if scale == 1 else [Const(scale)]
        parts += [self.factor(f, wider, inner, padded) for f in pulled]
        for group in groups:
            axes = self.bind([a for a in order if a in group])
            inside = [f for f in factors if not reach[f].isdisjoint(group)]
            body = _product([self.factor(f, wider, inner, padded) for f in inside])
            held = tuple(self.size(g) for g in guards if not axes_in(g).isdisjoint(group))
            parts.append(Reduce("sum", axes, Select(held, body, Const(0)) if held else body))
        result = _product(parts)
        outer = tuple(self.size(g) for g in guards if axes_in(g).isdisjoint(order))
        return Select(outer, result, Const(0)) if outer else result

    def factor(self, factor: Factor, names: Names, depth: int, padded: bool) -> Body:
        match factor:
            case Leaf(source=source, indices=indices, outside=outside):
                if outside is None and padded and range_guards(source.shape, indices):
                    outside = Const(0)
                return Read(source, tuple(map(self.size, indices)), outside)
            case Amount(atom=atom):
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
                order = ordered(axes, (body,), (), names, depth)
                wider = {**names, **{a: f"~{depth + place}" for place, a in enumerate(order)}}
                named = self.bind(order)
                return Reduce(monoid, named, self.sum(body, wider, depth + len(order)))
        raise TypeError(type(factor))


def _is_size(core: Core) -> bool:
    return core.plain and all(isinstance(f, Amount) for f in core.factors)


def _chain(fn: str, bodies: Sequence[Body]) -> Body:
    return reduce(lambda a, b: Call(fn, (a, b)), bodies)


def _product(bodies: Sequence[Body]) -> Body:
    return _chain("mul", bodies) if bodies else Const(1)


def _absorbed(core: Core) -> tuple[list[Size], bool]:
    """The guards that must stay, and whether reads are padded by 0 instead of the guards that go.

    A guard goes where a direct factor x[i] is 0 without it, and every other factor is defined everywhere.
    x[i - 1] * relu(y[i - 1]) keeps its guard: relu(y[-1]) has no value that 0 could be multiplied with.
    """
    direct = [f for f in core.factors if isinstance(f, Leaf) and f.outside is None]
    others = [f for f in core.factors if f not in direct]
    ranges = {g for f in direct for g in range_guards(f.source.shape, f.indices)}
    if not ranges.intersection(core.guards) or not all(map(_defined, others)):
        return list(core.guards), False
    return [g for g in core.guards if g not in ranges], True


def _defined(record: Record) -> bool:
    """Every read inside lies within its source whatever the axes are."""
    return all(
        not isinstance(r, Leaf) or r.outside is not None or not range_guards(r.source.shape, r.indices)
        for r in _records(record)
    )


def _records(record: Record) -> Iterator[Record]:
    yield record
    for part in record.parts():
        yield from _records(part)


def _reach(
    order: Sequence[Axis], factors: Sequence[Factor], guards: Sequence[Size]
) -> tuple[dict[Factor, frozenset[Axis]], bool]:
    """The bound axes under which each factor must stand, and whether a guard holds some of them.

    sum[r:2](y[i - 1] if i - r - 1 >= 0 else 0) may become y[i - 1] | 0 times a count, since y is 0 where
    the guard never holds; exp(y[i - 1]) must stay under the guard.
    """
    bound = frozenset(order)
    held = bound.intersection(frozenset().union(*map(axes_in, guards)))
    reach = {f: f.free & bound for f in factors}
    for f in factors if held else ():
        if not isinstance(f, Leaf) and not _defined(f):
            reach[f] |= held
    return reach, bool(held)


def _connected(order: Sequence[Axis], meetings: Sequence[frozenset[Axis]]) -> list[set[Axis]]:
    """Bound axes that meet in a factor or a guard: sums over different groups are factors of each other."""
    groups: list[set[Axis]] = [{a} for a in order]
    for free in meetings:
        meeting = [g for g in groups if not g.isdisjoint(free)]
        if len(meeting) > 1:
            first = groups.index(meeting[0])
            for other in meeting[1:]:
                groups.remove(other)
                groups[first] |= other
    return groups
