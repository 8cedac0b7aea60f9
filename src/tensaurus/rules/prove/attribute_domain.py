"""What an operator's attributes may be, for a proof: as unknown as the operator's expression allows.

    real      any real number
    size      any integer
    sizes     as many integers as the rank asks for, any of them
    listed    values one by one: what the expression must know (axes, permutations, switches, names)

An attribute is unknown where the declaration computes with a symbol in its place: this is tried on the
operator's examples, so it is said nowhere.  How many numbers an attribute has follows from the rank of the
first input where all examples have one such dependence, and is tried out elsewhere.
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
from tensaurus.rules.prove.size_assumptions import LEAST, naming, new_name, symbol, ways

RANK = 5
DEPTH = 6  # assumptions that are made of an attribute's numbers, one after the other
PLACES = frozenset({"axis", "batch_dims"})  # attributes that name or count dimensions: all are tried
REAL = "$"  # how the name of a number begins
# what asking an unknown number for its value raises
KNOWN = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)
FAR = 2**31 - 1  # what stands for no number in an example


class UnknownSize(Poly):
    """A size that must not be asked for its value in passing: == asks `same`, a truth value it has not."""

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
    """Of one attribute: its kind, the values in examples, and the length a * rank + b of a tuple."""

    kind: str
    values: tuple[Any, ...]
    length: tuple[int, int] | None = None


def unknown_number(hint: str, low: int = LEAST) -> Any:
    """Any integer; at least `low`."""
    return UnknownSize.of(symbol(hint, low))


def unknown_real(hint: str) -> Body:
    """Any real number: like a literal, of the element type of what it meets."""
    return Read(Tensor(new_name(f"{REAL}{hint}"), (), "real"), ())


@cache
@naming()
def domain(op: Op, name: str) -> Domain:
    """The domain of one attribute."""
    given = [(kinds, dict(attrs), dict(attrs)[name]) for kinds, attrs in examples_of(op)]
    values = tuple(dict.fromkeys(value for _, _, value in given))
    numbers = [v for v in values if isinstance(v, (int, Fraction)) and not isinstance(v, bool)]
    if numbers:
        annotation = inspect.signature(op.declare).parameters[name].annotation
        real = annotation == "float" or any(isinstance(v, Fraction) for v in numbers)
        if set(values) <= {0, 1} and not real:
            switch = name not in PLACES and all(_says_one(op, k, a, name) for k, a, _ in given)
            return Domain("listed", (0, 1) if switch else tuple(range(RANK + 1)))
        for kind, make in [("real", unknown_real), ("number", unknown_number)] if real else [
            ("size", unknown_number)
        ]:
            if _computes(op, name, [(k, a, make(name)) for k, a, v in given if v in numbers]):
                return Domain(kind, values)
    tuples = [(k, a, v) for k, a, v in given if isinstance(v, tuple)]
    if tuples and all(_whole(v) for _, _, v in tuples):
        tried = [(k, a, tuple(unknown_number(name) for _ in v)) for k, a, v in tuples]
        lengths = {(k[0].rank if k and k[0] is not None else -1, len(v)) for k, _, v in tuples}
        kind = "sizes" if _computes(op, name, tried) else "listed"
        return Domain(kind, values, _dependence(lengths))
    return Domain("listed", values)


def _computes(op: Op, name: str, given: Sequence[tuple[Any, dict[str, Any], Any]]) -> bool:
    """Whether the declaration takes such values in most examples: it may refuse them, but not as unknowns."""
    taken = failed = 0
    for kinds, attrs, value in given:
        if value == ():
            continue
        try:
            with record_questions({}) as watch:
                op.scopes(kinds, op.canonical(kinds, {**attrs, name: value}))
            taken += 1
        except Untypable:
            taken += bool(watch.asked)
        except KNOWN:
            failed += 1
    return taken > failed


@cache
@naming()
def least(op: Op, name: str) -> int:
    """Of the numbers of an attribute: 1 or 0 where one below is refused, whatever the others are."""
    every = [(kinds, dict(attrs)) for kinds, attrs in examples_of(op)]
    given = [(kinds, attrs) for kinds, attrs in every if _whole(attrs[name]) and attrs[name]]
    others = [tuple(unknown_number(name) for _ in attrs[name]) for _, attrs in given]
    if not all(_taken(op, k, {**attrs, name: own}) for (k, attrs), own in zip(given, others, strict=True)):
        return LEAST

    def below(bound: int) -> bool:
        """Whether a number below is taken in any place."""
        under = UnknownSize.of(bound - 1 - symbol(name, 0))
        return any(
            _taken(op, kinds, {**attrs, name: (*rest[:place], number, *rest[place + 1 :])})
            for (kinds, attrs), own in zip(given, others, strict=True)
            for place in range(len(own))
            for number, rest in ((bound - 1, attrs[name]), (under, own))
        )

    return next((bound for bound in (1, 0) if not below(bound)), LEAST) if given else LEAST


def _taken(
    op: Op, kinds: Any, attrs: dict[str, Any], above: tuple[Any, ...] = (), depth: int = DEPTH
) -> bool:
    """Whether the declaration takes the attributes for values of their symbols that leave none of `above`
    below zero."""
    with record_questions({}) as watch:
        try:
            op.scopes(kinds, op.canonical(kinds, attrs))
            if all(map(is_nonnegative, above)):
                return True
        except (Untypable, *KNOWN):
            pass
    for values in (way for question in watch.asked for way in ways(question) or ()) if depth else ():
        # what is replaced keeps its lower bound
        bounds = (polynomial(a) - a.low for a in values if isinstance(a, Symbol) and a.low > LEAST)
        other = {name: put_in(value, values) for name, value in attrs.items()}
        if _taken(op, kinds, other, put_in((*above, *bounds), values), depth - 1):
            return True
    return False


def sampled(op: Op, name: str) -> bool:
    """Whether `choices` are only the values that examples have: names, and numbers without an end."""
    known = domain(op, name)
    if known.kind != "listed" or set(known.values) <= {None} or len(known.values) == 1:
        return False
    values = [v for v in known.values if v is not None]
    whole = set(values) <= {0, 1} or name in PLACES and all(isinstance(v, int) for v in values)
    axes = [v for v in values if _whole(v) and len({*v}) == len(v) and min(v, default=0) >= 0]
    return not whole and len(axes) < len(values)


def _whole(value: Any) -> bool:
    """True for a tuple of integers."""
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def _dependence(lengths: set[tuple[int, int]]) -> tuple[int, int] | None:
    for slope, offset in itertools.product((1, 2), range(-4, 3)):
        if len({r for r, _ in lengths}) > 1 and all(n == slope * r + offset for r, n in lengths):
            return slope, offset
    return None


def choices(op: Op, name: str, rank: int) -> Iterator[Any]:
    """Values of an attribute that together stand for all of its domain; `rank` is the first input's."""
    known = domain(op, name)
    match known.kind:
        case "real":
            yield unknown_real(name)
        case "number" | "size":
            yield unknown_number(name)
        case "sizes":
            for count in _counts(known, rank, RANK):
                far = sorted({n for v in known.values if v is not None for n in v if abs(n) >= FAR})
                entries: list[list[Any]] = [[None, *far] for _ in range(count)]
                for picked in itertools.product(*entries):
                    yield tuple(unknown_number(name, least(op, name)) if n is None else n for n in picked)
        case _:
            yield from _listed(known, rank)
            return
    if None in known.values:
        yield None


@cache
def paired(op: Op) -> frozenset[str]:
    """Attributes whose tuples must be equally long, as examples with one of them cut short are refused."""
    examples = [(kinds, dict(attrs)) for kinds, attrs in examples_of(op)]
    tuples = {name for _, attrs in examples for name, value in attrs.items() if _whole(value) and value}
    pairs = {
        name
        for name in tuples
        if all(
            not _takes(op, kinds, {**attrs, name: attrs[name][:-1]})
            for kinds, attrs in examples
            if _whole(attrs[name]) and attrs[name]
        )
    }
    alike = all(len({len(attrs[n]) for n in pairs if _whole(attrs[n])}) <= 1 for _, attrs in examples)
    return frozenset(pairs) if alike and len(pairs) > 1 else frozenset()


def _takes(op: Op, kinds: Any, attrs: dict[str, Any]) -> bool:
    try:
        op.scopes(kinds, op.canonical(kinds, attrs))
    except (Untypable, *KNOWN):
        return False
    return True


def _says_one(op: Op, kinds: Any, attrs: dict[str, Any], name: str) -> bool:
    """Whether the operator refuses a 2 for the attribute, or takes it for a 1."""
    if not _takes(op, kinds, {**attrs, name: 2}):
        return True
    two, one = ({**attrs, name: n} for n in (2, 1))
    return _takes(op, kinds, one) and op.canonical(kinds, two) == op.canonical(kinds, one)


def tuples(known: Domain) -> bool:
    """Whether it is listed tuples, of lengths that examples do not tie to the rank."""
    return known.length is None and any(_whole(v) and v for v in known.values)


def _counts(known: Domain, rank: int, most: int) -> Sequence[int]:
    if known.length is None:
        return range(most + 1)
    count = known.length[0] * rank + known.length[1]
    return [count] if count >= 0 else []


def _tuples(known: Domain) -> list[tuple[int, ...]]:
    """Its values that are tuples of integers, where it has hardly any others."""
    tuples = [v for v in known.values if _whole(v) and v]
    return tuples if len(tuples) >= len([v for v in known.values if v is not None]) - 1 else []


def _are_orders(tuples: Sequence[tuple[int, ...]]) -> bool:
    orders = all(sorted(v) == list(range(len(v))) for v in tuples)
    return orders and any(v != tuple(sorted(v)) for v in tuples)


def _are_ascending(tuples: Sequence[tuple[int, ...]]) -> bool:
    return all(list(v) == sorted(set(v)) for v in tuples)


def _entries(tuples: Sequence[tuple[int, ...]]) -> list[int]:
    return sorted({n for v in tuples for n in v if abs(n) < FAR} | {-1, 1, 2})


def _listed(known: Domain, rank: int) -> Iterator[Any]:
    tuples = _tuples(known)
    if tuples:
        for count in _counts(known, rank, rank):
            if _are_orders(tuples):
                yield from itertools.permutations(range(count))
            elif _are_ascending(tuples):
                yield from itertools.combinations(range(rank + count), count)
            else:
                yield from itertools.product(_entries(tuples), repeat=count)
        if None in known.values:
            yield None
        return
    whole = [v for v in known.values if isinstance(v, int) and not isinstance(v, bool)]
    if whole and len(whole) == len(known.values) and not set(whole) <= {0, 1}:
        yield from range(min(0, *whole), RANK + 1)
        return
    if whole and len(whole) == len(known.values):
        yield from (0, 1)
        return
    yield from known.values


def tried(op: Op, name: str, rank: int, value: Any) -> bool:
    """Whether `choices` have a value, or stand for it; one that has no number is none that a proof is of."""
    known = domain(op, name)
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
            return known.length is not None or len(value) <= RANK
    tuples = _tuples(known)
    if not tuples:
        return value in _listed(known, rank)
    if not _whole(value) or len(value) not in _counts(known, rank, rank):
        return False
    if _are_orders(tuples):
        return sorted(value) == list(range(len(value)))
    if _are_ascending(tuples):
        return list(value) == sorted(set(value)) and all(0 <= n < rank + len(value) for n in value)
    return set(value) <= set(_entries(tuples))


def put_in(value: Any, values: Any) -> Any:
    """An attribute with symbols replaced."""
    if isinstance(value, tuple):
        return tuple(put_in(v, values) for v in value)
    return UnknownSize.of(substitute(value, values)) if isinstance(value, Poly) else value


def symbols_of(value: Any) -> frozenset[Atom]:
    """The symbols in an attribute."""
    if isinstance(value, tuple):
        return frozenset().union(*map(symbols_of, value))
    return atoms(polynomial(value)) if isinstance(value, Poly) else frozenset()
