"""Find the values that an operator's attribute may have, so that a proof can cover all of them.

    real      any real number (a slope)
    whole     any whole number, where numbers may be real but the expression takes no unknown real
    integer   any integer
    integers  any integers, as many as the rank asks for (strides, pads)
    listed    values one by one, where the expression must know them (axes, permutations, names)

A proof may leave an attribute's value unknown where the operator's declaration computes with a symbol in its
place: all kinds but `listed`.  This is tested on the operator's examples, so that no declaration has to state
it.  The length of a tuple is a linear function of the first input's rank where all examples agree on one;
otherwise all lengths up to MAX_RANK are tried.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

from tensaurus.expr.sizes.open_questions import record_questions
from tensaurus.expr.sizes.size import Symbol, is_nonnegative, polynomial
from tensaurus.ops import Op, Untypable
from tensaurus.ops.examples import examples_of
from tensaurus.rules.prove.size_assumptions import NO_LOWER_BOUND, fresh_names, new_symbol, solve_question
from tensaurus.rules.prove.unknown_values import (
    UNKNOWN_VALUE_ERRORS,
    UnknownSize,
    substitute_attribute,
    unknown_number,
    unknown_real,
)

MAX_RANK = 5  # largest rank of the cases of a proof
MAX_ASSUMPTIONS = 6  # assumptions about an attribute's numbers, one after the other, in `_accepts_some`
AXIS_ATTRIBUTES = frozenset({"axis", "batch_dims"})  # they name or count dimensions: all values are tried

Kind: TypeAlias = Literal["real", "whole", "integer", "integers", "listed"]


@dataclass(frozen=True)
class Domain:
    """The values of one attribute: their kind, those in examples, and the length of tuples.

    length  (a, b) where a tuple has a * rank + b numbers, None where the length does not follow from the rank
    """

    kind: Kind
    values: tuple[Any, ...]
    length: tuple[int, int] | None = None


class _Call(NamedTuple):
    """A call of an operator: the types of its inputs, and its attributes."""

    types: Any
    attrs: dict[str, Any]

    def with_attribute(self, name: str, value: Any) -> _Call:
        return _Call(self.types, {**self.attrs, name: value})

    def with_unknown_tuple(self, name: str) -> _Call:
        return self.with_attribute(name, tuple(unknown_number(name) for _ in self.attrs[name]))


def _example_calls(op: Op) -> list[_Call]:
    return [_Call(types, dict(attrs)) for types, attrs in examples_of(op)]


@cache
@fresh_names()
def domain_of(op: Op, name: str) -> Domain:
    """Return the domain of one attribute.

    Its examples' values decide: a single number is an axis, a switch, or unknown; then tuples; then names.
    """
    calls = _example_calls(op)
    values = tuple(dict.fromkeys(call.attrs[name] for call in calls))
    return _number_domain(op, name, calls, values) or _tuple_domain(op, name, calls, values)


def _number_domain(op: Op, name: str, calls: Sequence[_Call], values: tuple[Any, ...]) -> Domain | None:
    """Return the domain of an attribute that is a number in some example, else None."""
    numbers = [v for v in values if isinstance(v, (int, Fraction)) and not isinstance(v, bool)]
    if not numbers:
        return None
    annotation = inspect.signature(op.declare).parameters[name].annotation
    is_real = annotation == "float" or any(isinstance(v, Fraction) for v in numbers)
    if set(values) <= {0, 1} and not is_real:  # a switch, or a small number such as an axis
        is_switch = name not in AXIS_ATTRIBUTES and all(_treats_two_as_one(op, call, name) for call in calls)
        return Domain("listed", (0, 1) if is_switch else tuple(range(MAX_RANK + 1)))
    kinds: tuple[Kind, ...] = ("real", "whole") if is_real else ("integer",)
    with_number = [call for call in calls if call.attrs[name] in numbers]
    for kind in kinds:
        make = unknown_real if kind == "real" else unknown_number
        if _accepts_most(op, [call.with_attribute(name, make(name)) for call in with_number]):
            return Domain(kind, values)
    return None


def _tuple_domain(op: Op, name: str, calls: Sequence[_Call], values: tuple[Any, ...]) -> Domain:
    """Return the domain of an attribute whose examples have tuples of integers, or other values."""
    with_tuple = [call for call in calls if isinstance(call.attrs[name], tuple)]
    if not with_tuple or not all(is_integer_tuple(call.attrs[name]) for call in with_tuple):
        return Domain("listed", values)
    lengths: set[tuple[int, int]] = set()
    unknown: list[_Call] = []
    for call in with_tuple:
        first = call.types[0] if call.types else None
        lengths.add((-1 if first is None else first.rank, len(call.attrs[name])))
        if call.attrs[name]:
            unknown.append(call.with_unknown_tuple(name))
    return Domain("integers" if _accepts_most(op, unknown) else "listed", values, _length_formula(lengths))


def _accepts_most(op: Op, calls: Sequence[_Call]) -> bool:
    """Return whether the declaration accepts most of these calls, which have unknown values.

    A refusal after a question about the value counts as accepting: some values are refused, others are not.
    """
    accepted = failed = 0
    for types, attrs in calls:
        try:
            with record_questions({}) as watch:
                op.scopes(types, op.canonical(types, attrs))
            accepted += 1
        except Untypable:
            accepted += bool(watch.asked)
        except UNKNOWN_VALUE_ERRORS:
            failed += 1
    return accepted > failed


@cache
@fresh_names()
def lower_bound(op: Op, name: str) -> int:
    """Return 1 or 0 where the operator refuses all smaller numbers in an attribute, else NO_LOWER_BOUND."""
    calls = [call for call in _example_calls(op) if is_integer_tuple(call.attrs[name]) and call.attrs[name]]
    unknown = [call.with_unknown_tuple(name) for call in calls]
    if not calls or not all(_accepts_some(op, *call) for call in unknown):
        return NO_LOWER_BOUND

    def accepts_below(bound: int) -> bool:
        """Return whether a smaller number is accepted at any position: bound - 1, or an unknown one."""
        below = UnknownSize.of(bound - 1 - new_symbol(name, 0))
        for call, other in zip(calls, unknown, strict=True):
            for place in range(len(call.attrs[name])):
                for number, rest in ((bound - 1, call.attrs[name]), (below, other.attrs[name])):
                    changed = call.with_attribute(name, (*rest[:place], number, *rest[place + 1 :]))
                    if _accepts_some(op, *changed):
                        return True
        return False

    return next((bound for bound in (1, 0) if not accepts_below(bound)), NO_LOWER_BOUND)


def _accepts_some(
    op: Op, types: Any, attrs: dict[str, Any], above: tuple[Any, ...] = (), depth: int = MAX_ASSUMPTIONS
) -> bool:
    """Return whether the declaration accepts the attributes for some values of their symbols.

    The values must leave none of `above` below zero.
    """
    with record_questions({}) as watch:
        try:
            op.scopes(types, op.canonical(types, attrs))
            if all(map(is_nonnegative, above)):
                return True
        except (Untypable, *UNKNOWN_VALUE_ERRORS):
            pass
    # refused: make the answer to one of its questions yes by replacing symbols, and try again
    questions = watch.asked if depth else ()
    for values in (each for question in questions for each in solve_question(question) or ()):
        # replaced symbols keep their lower bounds
        bounds = (polynomial(a) - a.low for a in values if isinstance(a, Symbol) and a.low > NO_LOWER_BOUND)
        other = {name: substitute_attribute(value, values) for name, value in attrs.items()}
        if _accepts_some(op, types, other, substitute_attribute((*above, *bounds), values), depth - 1):
            return True
    return False


def is_integer_tuple(value: Any) -> bool:
    """Return whether a value is a tuple of integers."""
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def _length_formula(lengths: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return (a, b) with length == a * rank + b for all pairs (rank, length), None where there is none."""
    for slope, offset in itertools.product((1, 2), range(-4, 3)):
        if len({r for r, _ in lengths}) > 1 and all(n == slope * r + offset for r, n in lengths):
            return slope, offset
    return None


@cache
def equal_length_attributes(op: Op) -> frozenset[str]:
    """Return attributes whose tuples must be equally long: the operator refuses one that is cut short."""
    calls = _example_calls(op)
    with_tuple: dict[str, list[_Call]] = {}
    for call in calls:
        for name, value in call.attrs.items():
            if is_integer_tuple(value) and value:
                with_tuple.setdefault(name, []).append(call)
    paired = {
        name
        for name, own in with_tuple.items()
        if not any(_accepts(op, call.with_attribute(name, call.attrs[name][:-1])) for call in own)
    }
    lengths = [{len(c.attrs[name]) for name in paired if is_integer_tuple(c.attrs[name])} for c in calls]
    are_equal = all(len(each) <= 1 for each in lengths)
    return frozenset(paired) if are_equal and len(paired) > 1 else frozenset()


def _accepts(op: Op, call: _Call) -> bool:
    try:
        op.scopes(call.types, op.canonical(call.types, call.attrs))
    except (Untypable, *UNKNOWN_VALUE_ERRORS):
        return False
    return True


def _treats_two_as_one(op: Op, call: _Call, name: str) -> bool:
    """Return whether the operator refuses 2 as the attribute's value, or treats it as 1."""
    one, two = (call.with_attribute(name, n) for n in (1, 2))
    if not _accepts(op, two):
        return True
    return _accepts(op, one) and op.canonical(*two) == op.canonical(*one)
