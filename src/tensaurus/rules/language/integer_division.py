"""Tells which rules divide integers by elements that their left side does not divide by.

Over the reals a quotient that nobody reads costs nothing.  A runtime computes it all the same, and ends the
whole run with an error where a divisor is the integer 0:

    Div(x, Where(c, 1, y))           runs where c is true wherever y is 0
    Where(c, Div(x, 1), Div(x, y))   ends the run

So a rule applies to integers only where each divisor of its right side consists of elements of divisors of
its left side: such a divisor itself, what moves its elements, or a number other than 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from tensaurus.expr.ir.integer_types import DIVISIONS, is_integer
from tensaurus.expr.ir.scope import Call
from tensaurus.expr.ir.walk import bodies, reads
from tensaurus.ops import Op
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable, show_term
from tensaurus.rules.prove.data_movement import moved_inputs, scopes_at_examples

__all__ = ["added_divisors", "divisor_inputs"]


@cache
def divisor_inputs(op: Op) -> frozenset[int]:
    """Return the numbers of the inputs by whose integer elements the operator divides."""
    found: set[int] = set()
    for tensors, scopes in scopes_at_examples(op):
        places = {t: k for k, t in enumerate(tensors) if t is not None and is_integer(t.dtype)}
        calls = (body for scope in scopes for body in bodies(scope) if isinstance(body, Call))
        read = (r.source for call in calls if call.fn in DIVISIONS for r in reads(call.args[1], True))
        found |= {places[source] for source in read if source in places}
    return frozenset(found)


def added_divisors(left: Sequence[Term], right: Sequence[Term]) -> frozenset[str]:
    """Return the variables by whose elements the right side divides, and the left side does not.

    A rule must not be applied where one of them holds integers.
    """
    known = {show_term(divisor) for divisor in _divisors(left)}
    added = (divisor for divisor in _divisors(right) if not _is_moved(divisor, known))
    return frozenset(name for divisor in added for name in _element_variables(divisor))


def _element_variables(term: Term | None) -> Iterator[str]:
    """Yield the variables whose elements the term's elements are made of: not the indices of a Gather."""
    match term:
        case Variable(name):
            yield name
        case Item(call, _):
            yield from _element_variables(call)
        case Apply(op, args):
            moved, last = moved_inputs(op), len(op.inputs) - 1
            for place, arg in enumerate(args):
                # an operator that computes takes elements of all arguments; arguments of a variadic parameter
                # have its number
                if not moved or min(place, last) in moved:
                    yield from _element_variables(arg)


def _divisors(roots: Sequence[Term]) -> Iterator[Term]:
    """Yield the terms by whose integer elements a side divides."""
    for call in (call for root in roots for call in outer_first(root)):
        for place in divisor_inputs(call.op):
            if place < len(call.args) and (divisor := call.args[place]) is not None:
                yield divisor


def _is_moved(term: Term, known: set[str]) -> bool:
    """Return whether every element of the term is an element of a known term, or a number other than 0."""
    if show_term(term) in known:
        return True
    match term:
        case Literal(value):
            return value != 0
        case Item(call, _):
            return _is_moved(call, known)
        case Apply(op, args):
            moved = moved_inputs(op)
            last = len(op.inputs) - 1
            sources = [arg for place, arg in enumerate(args) if arg is not None and min(place, last) in moved]
            return bool(moved) and all(_is_moved(source, known) for source in sources)
    return False
