"""Find operands of sums and products that meet other partners on a rule's right side than on its left side.

    (x * a) * b => (x * b) * a        b meets x alone, a meets x * b
    (x + a) + y => (x + y) + a        a meets x + y

Over the reals that changes nothing.  In float32 it does where a constant is chosen for its rounding
(`graph/analysis/needed_rounding`): x * 1e30 * 1e-30 * 1e30 never overflows, but x * 1e30 * 1e30 * 1e-30 does;
and (x + 12582912) - 12582912 + y rounds x, but x + y + 12582912 - 12582912 does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tensaurus.graph.analysis.needed_rounding import MOVE, PRODUCT, SUM, classify_operation
from tensaurus.ops import Op
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.occurrences import variables
from tensaurus.rules.language.term import Apply, Item, Term, Variable

__all__ = ["regrouped_variables"]


class Partner(NamedTuple):
    """The other operand of a sum or product."""

    call: str  # SUM or PRODUCT
    variables: frozenset[str]  # those of the other operand


def regrouped_variables(
    left: Sequence[Term | None], right: Sequence[Term | None]
) -> dict[str, frozenset[str]]:
    """Return the variables with a partner on the right side that is not on the left, and in which calls.

    The calls are SUM, PRODUCT or both.
    """
    before, after = _partners(left), _partners(right)
    new = {name: met - before.get(name, set()) for name, met in after.items()}
    return {name: frozenset(partner.call for partner in met) for name, met in new.items() if met}


def _partners(roots: Sequence[Term | None]) -> dict[str, set[Partner]]:
    found: dict[str, set[Partner]] = {}
    for root in roots:
        for name, partner in _operands_with_partner(root):
            found.setdefault(name, set()).add(partner)
    return found


def _operands_with_partner(term: Term | None) -> Iterator[tuple[str, Partner]]:
    """Yield each variable that is an operand of a sum or product, possibly moved, with its partner."""
    match term:
        case Item(inner, _):
            yield from _operands_with_partner(inner)
        case Apply(op, args, _, _):
            if (kind := _kind(op)) in (SUM, PRODUCT) and len(args) == 2:
                for arg, other in (args, args[::-1]):
                    if (name := _moved_variable(arg)) is not None:
                        yield name, Partner(kind, frozenset(variables(other)))
            for arg in args:
                yield from _operands_with_partner(arg)


def _moved_variable(term: Term | None) -> str | None:
    """Return the variable whose elements the term moves, None where the term does more."""
    match term:
        case Variable(name, _):
            return name
        case Item(inner, _):
            return _moved_variable(inner)
        case Apply(op, args, _, _) if _kind(op) == MOVE:
            names = {_moved_variable(arg) for arg in args} - {None}
            return names.pop() if len(names) == 1 else None
    return None


@cache
def _kind(op: Op) -> str | None:
    return next((classify_operation(op, kinds, attrs) for kinds, attrs in examples_of(op)), None)
