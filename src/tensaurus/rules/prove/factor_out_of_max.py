"""Move terms that are the same at all indices out of a maximum, and turn its sign to make it a minimum.

    max[k](f(k) + c)  ->  max[k](f(k)) + c        max[k](-f(k))  ->  -min[k](f(k))

These are laws of the order of the reals.  A canonical form must not use them, since GF(p) has no order, and
integers wrap around.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Body, Call, Const, Reduce, Scope, Source
from tensaurus.expr.ir.walk import free_axes, operands, rebuild_body
from tensaurus.expr.normal.canonicalize import canonicalize
from tensaurus.expr.sizes.size import Number

__all__ = ["factor_out_of_max"]

OPPOSITE = {"max": "min", "min": "max"}


def factor_out_of_max(scope: Scope) -> Scope:
    """Return the expression in canonical form, with constant terms moved out of maxima and minima."""
    return canonicalize(_factor_scope(canonicalize(scope)))


def _factor_scope(scope: Scope) -> Scope:
    return Scope(scope.axes, _factor_body(scope.body))


def _factor_body(body: Body) -> Body:
    def source(read: Source) -> Source:
        return _factor_scope(read) if isinstance(read, Scope) else read

    inside = rebuild_body(body, _factor_body, lambda size: size, source)
    match inside:
        case Reduce(monoid, axes, inner) if monoid in OPPOSITE and _is_real(body):
            terms = operands(inner, "add")
            moving = [term for term in terms if not free_axes(term).isdisjoint(axes)]
            if not moving:
                return inside
            same = [term for term in terms if term not in moving]
            # the sign of the first term by its text decides: so both forms of one maximum become the same
            leading = min(moving, key=lambda term: show(Scope(axes, _positive(term))))
            if _is_negative(leading):
                turned = Reduce(OPPOSITE[monoid], axes, _sum(list(map(_negative, moving))))
                return _sum([_negative(turned), *same])
            return _sum([Reduce(monoid, axes, _sum(moving)), *same])
    return inside


def _is_real(body: Body) -> bool:
    return dtype_of(Scope((), body)).startswith("float")


def _sum(terms: Sequence[Body]) -> Body:
    return reduce(lambda a, b: Call("add", (a, b)), terms)


def _coefficient(term: Body) -> Number:
    if isinstance(term, Call) and term.fn == "mul" and isinstance(term.args[0], Const):
        value = term.args[0].value
        if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
            return value
    return 1


def _is_negative(term: Body) -> bool:
    return _coefficient(term) < 0


def _negative(term: Body) -> Body:
    return Call("mul", (Const(-1), term))


def _positive(term: Body) -> Body:
    """Return the term without its sign, as its canonical form would be written."""
    if not _is_negative(term):
        return term
    assert isinstance(term, Call)
    number, rest = -_coefficient(term), term.args[1:]
    return rest[0] if number == 1 and len(rest) == 1 else Call("mul", (Const(number), *rest))
