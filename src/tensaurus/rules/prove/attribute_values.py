"""List values of an attribute that together stand for its whole domain (`attribute_domain`).

    strides of Conv on images   (s0, s1), two unknown integers that are at least 1
    perm of Transpose, rank 3   (0, 1, 2), (0, 2, 1), (1, 0, 2), ...: all permutations
    mode of Resize              the modes of the operator's examples; a proof says that it covers no others
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any

from tensaurus.ops import Op
from tensaurus.rules.prove.attribute_domain import (
    AXIS_ATTRIBUTES,
    MAX_RANK,
    Domain,
    domain_of,
    is_integer_tuple,
    lower_bound,
)
from tensaurus.rules.prove.unknown_values import unknown_number, unknown_real

__all__ = ["has_free_length", "is_covered", "is_sampled", "representative_values"]

NO_LIMIT = 2**31 - 1  # from this size on, a number of an example means "no limit", as the end of a Slice


def representative_values(op: Op, name: str, rank: int) -> Iterator[Any]:
    """Yield values of an attribute that together stand for its whole domain; `rank` is the first input's."""
    known = domain_of(op, name)
    match known.kind:
        case "real":
            yield unknown_real(name)
        case "whole" | "integer":
            yield unknown_number(name)
        case "integers":
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


def _possible_lengths(known: Domain, rank: int, most: int) -> Sequence[int]:
    if known.length is None:
        return range(most + 1)
    count = known.length[0] * rank + known.length[1]
    return [count] if count >= 0 else []


def _integer_tuples(known: Domain) -> list[tuple[int, ...]]:
    """Return the domain's tuples of integers if at most one other value is in it, else []."""
    tuples = [v for v in known.values if is_integer_tuple(v) and v]
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
        case "whole":
            return isinstance(value, (int, Fraction, float)) and isfinite(value) and value == int(value)
        case "integer":
            return True
        case "integers":
            return known.length is not None or len(value) <= MAX_RANK
    tuples = _integer_tuples(known)
    if not tuples:
        return value in _listed_values(known, rank)
    if not is_integer_tuple(value) or len(value) not in _possible_lengths(known, rank, rank):
        return False
    if _are_permutations(tuples):
        return sorted(value) == list(range(len(value)))
    if _are_ascending(tuples):
        return list(value) == sorted(set(value)) and all(0 <= n < rank + len(value) for n in value)
    return set(value) <= set(_tuple_entries(tuples))


def is_sampled(op: Op, name: str) -> bool:
    """Return whether `representative_values` has only the examples' values out of a larger domain."""
    known = domain_of(op, name)
    if known.kind != "listed" or set(known.values) <= {None} or len(known.values) == 1:
        return False
    values = [v for v in known.values if v is not None]
    # of switches, axes, and tuples of different axes `_listed_values` has all
    whole = set(values) <= {0, 1} or name in AXIS_ATTRIBUTES and all(isinstance(v, int) for v in values)
    axes = [v for v in values if is_integer_tuple(v) and len({*v}) == len(v) and min(v, default=0) >= 0]
    return not whole and len(axes) < len(values)


def has_free_length(known: Domain) -> bool:
    """Return whether the domain lists tuples whose length does not follow from the rank."""
    return known.length is None and any(is_integer_tuple(v) and v for v in known.values)
