"""Find the values that an operator's attribute may have, so that a proof can cover all of them.

    real     any real number (a slope)
    number   any whole number, where numbers may be real but the expression takes no unknown real
    size     any integer
    sizes    any integers, as many as the rank asks for (strides, pads)
    listed   values one by one, where the expression must know them (axes, permutations, names)

A proof may leave an attribute's value unknown where the operator's declaration computes with a symbol in its
place: all kinds but `listed`.  This is tested on the operator's examples, so that no declaration has to state
it.  The length of a tuple is a linear function of the first input's rank where all examples agree on one;
otherwise all lengths up to MAX_RANK are tried.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import isfinite
from typing import Any

from tensaurus.expr.ir.scope import Body, Read, Tensor
from tensaurus.expr.sizes.open_questions import record_questions
from tensaurus.expr.sizes.size import (
    Atom,
    Poly,
    Symbol,
    atoms,
    is_nonnegative,
    is_same_size,
    polynomial,
    substitute,
)
from tensaurus.ops import Op, Untypable
from tensaurus.ops.examples import examples_of
from tensaurus.rules.prove.size_assumptions import (
    NO_LOWER_BOUND,
    fresh_names,
    new_name,
    new_symbol,
    solve_question,
)

MAX_RANK = 5  # largest rank of the cases of a proof
MAX_ASSUMPTIONS = 6  # assumptions about an attribute's numbers, one after the other, in `_accepts_some`
AXIS_ATTRIBUTES = frozenset({"axis", "batch_dims"})  # they name or count dimensions: all values are tried
REAL_PREFIX = "$"  # first character of the name of an unknown real number
# errors raised by code that needs the value of an unknown number
UNKNOWN_VALUE_ERRORS = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)
NO_LIMIT = 2**31 - 1  # from this size on, a number of an example means "no limit", as the end of a Slice


class UnknownSize(Poly):
    """A size of unknown value: `==` asks `is_same_size`, and truth tests raise TypeError."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any) -> Any:
        return cls(size.terms) if isinstance(size, Poly) else size

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is zero")

    def __eq__(self, other: object) -> bool:
        return is_same_size(self, other)

    __hash__ = Poly.__hash__


@dataclass(frozen=True)
class Domain:
    """The values of one attribute: their kind, those in examples, and the length of tuples.

    length  (a, b) where a tuple has a * rank + b numbers, None where the length does not follow from the rank
    """

    kind: str
    values: tuple[Any, ...]
    length: tuple[int, int] | None = None


def unknown_number(hint: str, low: int = NO_LOWER_BOUND) -> Any:
    """Return a size that stands for any integer of at least `low`."""
    return UnknownSize.of(new_symbol(hint, low))


def unknown_real(hint: str) -> Body:
    """Return a scalar that stands for any real number; like a literal, its type fits the other operand."""
    return Read(Tensor(new_name(f"{REAL_PREFIX}{hint}"), (), "real"), ())


@cache
@fresh_names()
def domain_of(op: Op, name: str) -> Domain:
    """Return the domain of one attribute.

    Its examples' values decide: a single number is an axis, a switch, or unknown; then tuples; then names.
    """
    given = [(kinds, dict(attrs), dict(attrs)[name]) for kinds, attrs in examples_of(op)]
    values = tuple(dict.fromkeys(value for _, _, value in given))
    numbers = [v for v in values if isinstance(v, (int, Fraction)) and not isinstance(v, bool)]
    if numbers:
        annotation = inspect.signature(op.declare).parameters[name].annotation
        real = annotation == "float" or any(isinstance(v, Fraction) for v in numbers)
        if set(values) <= {0, 1} and not real:  # a switch, or a small number such as an axis
            examples = (_treats_two_as_one(op, kinds, attrs, name) for kinds, attrs, _ in given)
            switch = name not in AXIS_ATTRIBUTES and all(examples)
            return Domain("listed", (0, 1) if switch else tuple(range(MAX_RANK + 1)))
        for kind, make in [("real", unknown_real), ("number", unknown_number)] if real else [
            ("size", unknown_number)
        ]:
            if _accepts_unknown(op, name, [(k, a, make(name)) for k, a, v in given if v in numbers]):
                return Domain(kind, values)
    tuples = [(k, a, v) for k, a, v in given if isinstance(v, tuple)]
    if tuples and all(_is_integer_tuple(v) for _, _, v in tuples):
        unknowns = [(k, a, tuple(unknown_number(name) for _ in v)) for k, a, v in tuples]
        lengths = {(k[0].rank if k and k[0] is not None else -1, len(v)) for k, _, v in tuples}
        kind = "sizes" if _accepts_unknown(op, name, unknowns) else "listed"
        return Domain(kind, values, _length_formula(lengths))
    return Domain("listed", values)


def _accepts_unknown(op: Op, name: str, given: Sequence[tuple[Any, dict[str, Any], Any]]) -> bool:
    """Return whether the declaration accepts these unknown values in most examples.

    `given` has the input types, the attributes, and the value to try in the attribute's place.
    A refusal after a question about the value counts as accepting: some values are refused, others are not.
    """
    accepted = failed = 0
    for kinds, attrs, value in given:
        if value == ():
            continue
        try:
            with record_questions({}) as watch:
                op.scopes(kinds, op.canonical(kinds, {**attrs, name: value}))
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
    every = [(kinds, dict(attrs)) for kinds, attrs in examples_of(op)]
    given = [(kinds, attrs) for kinds, attrs in every if _is_integer_tuple(attrs[name]) and attrs[name]]
    # the examples with unknown numbers in the attribute's place
    others = [tuple(unknown_number(name) for _ in attrs[name]) for _, attrs in given]
    unknowns = [(kinds, {**attrs, name: own}) for (kinds, attrs), own in zip(given, others, strict=True)]
    if not given or not all(_accepts_some(op, kinds, attrs) for kinds, attrs in unknowns):
        return NO_LOWER_BOUND

    def accepts_below(bound: int) -> bool:
        """Return whether a smaller number is accepted at any position: bound - 1, or an unknown one."""
        under = UnknownSize.of(bound - 1 - new_symbol(name, 0))
        return any(
            _accepts_some(op, kinds, {**attrs, name: (*rest[:place], number, *rest[place + 1 :])})
            for (kinds, attrs), own in zip(given, others, strict=True)
            for place in range(len(own))
            for number, rest in ((bound - 1, attrs[name]), (under, own))
        )

    return next((bound for bound in (1, 0) if not accepts_below(bound)), NO_LOWER_BOUND)


def _accepts_some(
    op: Op, kinds: Any, attrs: dict[str, Any], above: tuple[Any, ...] = (), depth: int = MAX_ASSUMPTIONS
) -> bool:
    """Return whether the declaration accepts the attributes for some values of their symbols.

    The values must leave none of `above` below zero.
    """
    with record_questions({}) as watch:
        try:
            op.scopes(kinds, op.canonical(kinds, attrs))
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
        if _accepts_some(op, kinds, other, substitute_attribute((*above, *bounds), values), depth - 1):
            return True
    return False


def is_sampled(op: Op, name: str) -> bool:
    """Return whether `representative_values` has only the examples' values out of a larger domain."""
    known = domain_of(op, name)
    if known.kind != "listed" or set(known.values) <= {None} or len(known.values) == 1:
        return False
    values = [v for v in known.values if v is not None]
    # of switches, axes, and tuples of different axes `_listed_values` has all
    whole = set(values) <= {0, 1} or name in AXIS_ATTRIBUTES and all(isinstance(v, int) for v in values)
    axes = [v for v in values if _is_integer_tuple(v) and len({*v}) == len(v) and min(v, default=0) >= 0]
    return not whole and len(axes) < len(values)


def _is_integer_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def _length_formula(lengths: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return (a, b) with length == a * rank + b for all pairs (rank, length), None where there is none."""
    for slope, offset in itertools.product((1, 2), range(-4, 3)):
        if len({r for r, _ in lengths}) > 1 and all(n == slope * r + offset for r, n in lengths):
            return slope, offset
    return None


def representative_values(op: Op, name: str, rank: int) -> Iterator[Any]:
    """Yield values of an attribute that together stand for its whole domain; `rank` is the first input's."""
    known = domain_of(op, name)
    match known.kind:
        case "real":
            yield unknown_real(name)
        case "number" | "size":
            yield unknown_number(name)
        case "sizes":
            for count in _possible_lengths(known, rank, MAX_RANK):
                # an entry is unknown (None here), or one of the numbers that mean "no limit"
                far = sorted({n for v in known.values if v is not None for n in v if abs(n) >= NO_LIMIT})
                entries: list[list[Any]] = [[None, *far] for _ in range(count)]
                low = lower_bound(op, name)
                for picked in itertools.product(*entries):
                    yield tuple(unknown_number(name, low) if n is None else n for n in picked)
        case _:
            yield from _listed_values(known, rank)
            return
    if None in known.values:
        yield None


@cache
def equal_length_attributes(op: Op) -> frozenset[str]:
    """Return attributes whose tuples must be equally long: the operator refuses one that is cut short."""
    examples = [(kinds, dict(attrs)) for kinds, attrs in examples_of(op)]
    tuples = {name for _, attrs in examples for name, v in attrs.items() if _is_integer_tuple(v) and v}
    pairs = {
        name
        for name in tuples
        if all(
            not _accepts(op, kinds, {**attrs, name: attrs[name][:-1]})
            for kinds, attrs in examples
            if _is_integer_tuple(attrs[name]) and attrs[name]
        )
    }
    lengths = [{len(attrs[n]) for n in pairs if _is_integer_tuple(attrs[n])} for _, attrs in examples]
    alike = all(len(each) <= 1 for each in lengths)
    return frozenset(pairs) if alike and len(pairs) > 1 else frozenset()


def _accepts(op: Op, kinds: Any, attrs: dict[str, Any]) -> bool:
    try:
        op.scopes(kinds, op.canonical(kinds, attrs))
    except (Untypable, *UNKNOWN_VALUE_ERRORS):
        return False
    return True


def _treats_two_as_one(op: Op, kinds: Any, attrs: dict[str, Any], name: str) -> bool:
    """Return whether the operator refuses 2 as the attribute's value, or treats it as 1."""
    if not _accepts(op, kinds, {**attrs, name: 2}):
        return True
    two, one = ({**attrs, name: n} for n in (2, 1))
    return _accepts(op, kinds, one) and op.canonical(kinds, two) == op.canonical(kinds, one)


def has_free_length(known: Domain) -> bool:
    """Return whether the domain lists tuples whose length does not follow from the rank."""
    return known.length is None and any(_is_integer_tuple(v) and v for v in known.values)


def _possible_lengths(known: Domain, rank: int, most: int) -> Sequence[int]:
    if known.length is None:
        return range(most + 1)
    count = known.length[0] * rank + known.length[1]
    return [count] if count >= 0 else []


def _integer_tuples(known: Domain) -> list[tuple[int, ...]]:
    """Return the domain's tuples of integers if at most one other value is in it, else []."""
    tuples = [v for v in known.values if _is_integer_tuple(v) and v]
    return tuples if len(tuples) >= len([v for v in known.values if v is not None]) - 1 else []


def _are_permutations(tuples: Sequence[tuple[int, ...]]) -> bool:
    orders = all(sorted(v) == list(range(len(v))) for v in tuples)
    return orders and any(v != tuple(sorted(v)) for v in tuples)


def _are_ascending(tuples: Sequence[tuple[int, ...]]) -> bool:
    return all(list(v) == sorted(set(v)) for v in tuples)


def _tuple_entries(tuples: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the entries of which tuples are made that are neither permutations nor ascending."""
    return sorted({n for v in tuples for n in v if abs(n) < NO_LIMIT} | {-1, 1, 2})


def _listed_values(known: Domain, rank: int) -> Iterator[Any]:
    """Yield the values of a listed domain: all permutations, axes or numbers if examples have such values.

    Otherwise tuples of the examples' numbers, or the examples' own values.
    """
    tuples = _integer_tuples(known)
    if tuples:
        for count in _possible_lengths(known, rank, rank):
            if _are_permutations(tuples):
                yield from itertools.permutations(range(count))
            elif _are_ascending(tuples):
                yield from itertools.combinations(range(rank + count), count)
            else:
                yield from itertools.product(_tuple_entries(tuples), repeat=count)
        if None in known.values:
            yield None
        return
    whole = [v for v in known.values if isinstance(v, int) and not isinstance(v, bool)]
    if whole and len(whole) == len(known.values) and not set(whole) <= {0, 1}:
        yield from range(min(0, *whole), MAX_RANK + 1)
        return
    if whole and len(whole) == len(known.values):
        yield from (0, 1)
        return
    yield from known.values


def is_covered(op: Op, name: str, rank: int, value: Any) -> bool:
    """Return whether a value is among `representative_values`, or one of them stands for it.

    No proof covers an infinite value or NaN.
    """
    known = domain_of(op, name)
    if value is None:
        return None in known.values
    match known.kind:
        case "real":
            return isinstance(value, (int, Fraction, float)) and isfinite(value)
        case "number":
            return isinstance(value, (int, Fraction, float)) and isfinite(value) and value == int(value)
        case "size":
            return True
        case "sizes":
            return known.length is not None or len(value) <= MAX_RANK
    tuples = _integer_tuples(known)
    if not tuples:
        return value in _listed_values(known, rank)
    if not _is_integer_tuple(value) or len(value) not in _possible_lengths(known, rank, rank):
        return False
    if _are_permutations(tuples):
        return sorted(value) == list(range(len(value)))
    if _are_ascending(tuples):
        return list(value) == sorted(set(value)) and all(0 <= n < rank + len(value) for n in value)
    return set(value) <= set(_tuple_entries(tuples))


def substitute_attribute(value: Any, values: Any) -> Any:
    """Return an attribute with symbols replaced."""
    if isinstance(value, tuple):
        return tuple(substitute_attribute(v, values) for v in value)
    return UnknownSize.of(substitute(value, values)) if isinstance(value, Poly) else value


def symbols_of(value: Any) -> frozenset[Atom]:
    """Return the symbols in an attribute."""
    if isinstance(value, tuple):
        return frozenset().union(*map(symbols_of, value))
    return atoms(polynomial(value)) if isinstance(value, Poly) else frozenset()
