"""Prove rules in which an operator that moves elements and an elementwise operator change places.

    Transpose(Add(x, y)) = Add(Transpose(x), Transpose(y))

An operator m moves elements if every element of its result is one element of its inputs, chosen by indices
and by inputs of which no element is in the result (indices, booleans): its expression reads and selects, and
neither computes nor contains a number.  For elementwise operators f see `pointwise`.

Theorem: m(f(x), f(y), ...) = f(m(x, y, ...)) for all sizes, ranks and attributes.  If f has several inputs,
those of one call must have one shape, or be numbers (of rank 0) that are the same in every call.  Proof: each
element of either side is f of the same elements, since m chooses by indices, and only numbers are broadcast
among the inputs of f, which are the same at every index.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache

from tensaurus.expr.ir.scope import Body, Call, Read, Scope, Select, Tensor
from tensaurus.ops import Op, Untypable
from tensaurus.ops.declare import Argument
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable, show_term
from tensaurus.rules.prove.pointwise import is_elementwise_for_all_types
from tensaurus.rules.prove.unknown_values import UNKNOWN_VALUE_ERRORS

__all__ = ["equal_shape_pairs", "moved_inputs", "scopes_at_examples", "is_exchange", "variables_where"]


def scopes_at_examples(op: Op) -> Iterator[tuple[tuple[Argument, ...], tuple[Scope, ...]]]:
    """Yield the operator's leaves and expressions at its examples, combined with all examples' attributes."""
    examples = [(kinds, dict(attrs)) for kinds, attrs in examples_of(op)]
    for kinds, own in examples:
        for attrs in [own, *(other for _, other in examples if other != own)]:
            try:
                scopes = op.scopes(kinds, op.canonical(kinds, attrs))
            except (Untypable, *UNKNOWN_VALUE_ERRORS):  # attributes that make no sense with these inputs
                continue
            yield op.tensors(kinds), scopes


@cache
def moved_inputs(op: Op) -> frozenset[int]:
    """Return the numbers of the inputs whose elements the operator only moves, else none.

    The operator's examples decide, so they must show each of its modes; sizes and numbers among the
    attributes only change indices.  All inputs of a variadic parameter have the number of the parameter.
    """
    moved: set[int] = set()
    for given, scopes in scopes_at_examples(op):
        place = {t.name: min(k, len(op.inputs) - 1) for k, t in enumerate(given) if t is not None}
        for scope in scopes:
            chosen = _selected_tensors(scope.body)
            if chosen is None:
                return frozenset()
            moved |= {place[name] for name in chosen}
    return frozenset(moved)


def _selected_tensors(body: Body) -> set[str] | None:
    """Return the tensors of which the body is an element; None where the body computes."""
    match body:
        case Read(Tensor(name), _, None):
            return {name}
        case Select(_, then, other) | Call("where", (_, then, other)):
            sides = [_selected_tensors(then), _selected_tensors(other)]
            return None if None in sides else set[str]().union(*(side for side in sides if side is not None))
    return None


def is_exchange(rule: Rule) -> bool:
    """Return whether one side is the other with moving and elementwise operators exchanged."""
    if len(rule.lhs) != 1:
        return False
    left, right = rule.lhs[0], rule.rhs[0]
    equal = equal_shape_pairs(rule)
    numbers = variables_where(rule, "rank", 0)
    for side, other in ((left, right), (right, left)):
        swapped = _exchange(side, equal, numbers)
        if swapped is not None and show_term(swapped) == show_term(other):
            return True
    return False


def equal_shape_pairs(rule: Rule) -> frozenset[frozenset[str]]:
    """Return the pairs of variables that have one shape by a condition."""
    pairs = set[frozenset[str]]()
    for condition in rule.where:
        match condition:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="shape"), args=[ast.Name(id=a)]),
                ops=[ast.Eq()],
                comparators=[ast.Call(func=ast.Name(id="shape"), args=[ast.Name(id=b)])],
            ):
                pairs.add(frozenset({a, b}))
    return frozenset(pairs)


def variables_where(rule: Rule, function: str, value: int) -> frozenset[str]:
    """Return the variables whose `function` (`rank`, `numel`) equals the value by a condition."""
    names = set[str]()
    for condition in rule.where:
        match condition:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id=called), args=[ast.Name(id=name)]),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=number)],
            ) if (called, number) == (function, value):
                names.add(name)
    return frozenset(names)


def _exchange(term: Term, equal: frozenset[frozenset[str]], numbers: frozenset[str]) -> Term | None:
    """Return f(m(x), m(y)) for m(f(x, y)); None for other terms, and where the theorem does not apply."""
    outer = term.term if isinstance(term, Item) else term
    if not isinstance(outer, Apply) or not (moved := moved_inputs(outer.op)):
        return None
    last = len(outer.op.inputs) - 1
    # the arguments whose elements are moved: all must be calls of one elementwise operator
    spots = [k for k in range(len(outer.args)) if min(k, last) in moved]
    calls = [outer.args[k] for k in spots]
    first = calls[0] if calls else None
    if not isinstance(first, Apply) or not _is_elementwise_call(first):
        return None
    alike = [
        call
        for call in calls
        if isinstance(call, Apply) and call.op is first.op and _call_signature(call) == _call_signature(first)
    ]
    if len(alike) < len(calls):
        return None
    # the k-th argument of the result is m of the k-th arguments of all calls; a number stays as it is
    args: list[Term | None] = []
    kept = []  # places of the arguments of f that m moves
    for place, arg in enumerate(first.args):
        own = [call.args[place] for call in alike]
        if _is_number(arg, numbers):
            if any(show_term(other) != show_term(arg) for other in own):
                return None
            args.append(arg)
        elif arg is None:
            args.append(None)
        else:
            kept.append(place)
            inner = list(outer.args)
            for k, other in zip(spots, own, strict=True):
                inner[k] = other
            made = Apply(outer.op, tuple(inner), outer.attrs, outer.rest)
            args.append(Item(made, term.index) if isinstance(term, Item) else made)
    if not kept or not all(_have_one_shape([call.args[k] for k in kept], equal) for call in alike):
        return None
    return Apply(first.op, tuple(args), first.attrs, first.rest)


def _is_elementwise_call(call: Apply) -> bool:
    return is_elementwise_for_all_types(call.op, tuple(arg is not None for arg in call.args))


def _call_signature(call: Apply) -> str:
    """Return the text of a call's attributes and of which inputs it has."""
    args = tuple(None if arg is None else Variable("x") for arg in call.args)
    return show_term(Apply(call.op, args, call.attrs, call.rest))


def _is_number(term: Term | None, numbers: frozenset[str]) -> bool:
    return isinstance(term, Literal) or isinstance(term, Variable) and term.name in numbers


def _have_one_shape(terms: Sequence[Term | None], equal: frozenset[frozenset[str]]) -> bool:
    if len(terms) == 1:
        return True
    names = [term.name for term in terms if isinstance(term, Variable)]
    return len(names) == len(terms) and all(frozenset({names[0], name}) in equal for name in names[1:])
