"""Which operands of sums and products meet other partners on a rule's right side than on its left side.

    (x * a) * b => (x * b) * a        b meets x alone, a meets x * b
    (x + a) + y => (x + y) + a        a meets x + y

Over the reals that changes nothing.  In float32 it does where the operand is a constant whose rounding is a
meaning (`graph/analysis/cancellation`): x * 1e30 * 1e-30 * 1e30 never overflows, x * 1e30 * 1e30 * 1e-30
does; and (x + 12582912) - 12582912 + y rounds x, which x + y + 12582912 - 12582912 does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from tensaurus.graph.analysis.cancellation import MOVE, PRODUCT, SUM, kind_of
from tensaurus.ops import Op
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.occurrences import variables
from tensaurus.rules.language.term import Apply, Item, Term, Variable

__all__ = ["regrouped"]

Partner = tuple[str, frozenset[str]]  # of a sum or a product: the variables of the other operand


def regrouped(left: Sequence[Term | None], right: Sequence[Term | None]) -> dict[str, frozenset[str]]:
    """Return in which calls (SUM, PRODUCT) a variable has a partner on the right that is not on the left."""
    before, after = _partners(left), _partners(right)
    new = {name: met - before.get(name, set()) for name, met in after.items()}
    return {name: frozenset(kind for kind, _ in met) for name, met in new.items() if met}


def _partners(roots: Sequence[Term | None]) -> dict[str, set[Partner]]:
    found: dict[str, set[Partner]] = {}
    for root in roots:
        for name, partner in _met(root):
            found.setdefault(name, set()).add(partner)
    return found


def _met(term: Term | None) -> Iterator[tuple[str, Partner]]:
    """Yield each variable that is an operand of a sum or a product, as it is or moved, with its partner."""
    match term:
        case Item(inner, _):
            yield from _met(inner)
        case Apply(op, args, _, _):
            if (kind := _kind(op)) in (SUM, PRODUCT) and len(args) == 2:
                for arg, other in (args, args[::-1]):
                    if (name := _moved(arg)) is not None:
                        yield name, (kind, frozenset(variables(other)))
            for arg in args:
                yield from _met(arg)


def _moved(term: Term | None) -> str | None:
    """Return the variable that a term is but for moves of its elements."""
    match term:
        case Variable(name, _):
            return name
        case Item(inner, _):
            return _moved(inner)
        case Apply(op, args, _, _) if _kind(op) == MOVE:
            names = {_moved(arg) for arg in args} - {None}
            return names.pop() if len(names) == 1 else None
    return None


@cache
def _kind(op: Op) -> str | None:
    return next((kind_of(op, kinds, attrs) for kinds, attrs in examples_of(op)), None)
