"""Simplify maxima and minima as a lattice, and under an assumed total order of elements.

    max(x, min(x, y)) = x
    max(x, y, z) = max(y, z) and min(x, y) = x    where x <= y is assumed

What is equal in every order that may be assumed is equal for all reals, and in each field whose max and min
follow a total order.  Sums or products need not keep that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from tensaurus.expr.ir.scalar_functions import LATTICE_FUNCTIONS
from tensaurus.expr.normal.canonical_record import Record
from tensaurus.expr.normal.normal_form import Apply, Literal, Sum, factor_sum
from tensaurus.expr.sizes.size import Axis

DUAL_FUNCTION = {"max": "min", "min": "max"}
ABSORBING = {"max": float("inf"), "min": float("-inf")}  # max(inf, x) is inf


class AssumedOrder:
    """An order of sums that is assumed: pairs (a, b) of their keys with a <= b, transitively closed."""

    def __init__(self, pairs: frozenset[tuple[str, str]] = frozenset()):
        self.pairs = pairs

    def is_decided(self, a: Sum, b: Sum) -> bool:
        """Return whether the two are ordered."""
        return (a.key, b.key) in self.pairs or (b.key, a.key) in self.pairs

    def with_pair(self, lower: Sum, upper: Sum) -> AssumedOrder:
        """Return the order with lower <= upper added, for two sums that it did not order."""
        lower_keys = {lower.key} | {a for a, b in self.pairs if b == lower.key}
        upper_keys = {upper.key} | {b for a, b in self.pairs if a == upper.key}
        return AssumedOrder(self.pairs | {(a, b) for a in lower_keys for b in upper_keys})


UNORDERED = AssumedOrder()
_assumed: ContextVar[AssumedOrder] = ContextVar("assumed", default=UNORDERED)


@contextmanager
def assume_order(order: AssumedOrder) -> Iterator[None]:
    """Build maxima and minima by this order inside the context."""
    token = _assumed.set(order)
    try:
        yield
    finally:
        _assumed.reset(token)


def max_or_min(fn: str, args: Iterable[Sum]) -> Sum:
    """Return max or min of the arguments, flat and without duplicates and absorbed arguments."""
    # flatten: arguments of a nested call of the same function are arguments; equal ones have one key
    args_by_key: dict[str, Sum] = {}
    queue = list(args)
    while queue:
        arg = queue.pop()
        factor = arg.factor
        if isinstance(factor, Apply) and factor.fn == fn:
            queue.extend(factor.args)
        else:
            args_by_key[arg.key] = arg
    # an infinity is the result, or is dropped
    for key, arg in list(args_by_key.items()):
        factor = arg.factor
        if isinstance(factor, Literal) and factor.value in ABSORBING.values() and len(args_by_key) > 1:
            if factor.value == ABSORBING[fn]:
                return arg
            del args_by_key[key]
    for key in list(args_by_key):
        if _is_absorbed(fn, key, args_by_key):
            del args_by_key[key]
    if len(args_by_key) == 1:
        return next(iter(args_by_key.values()))
    return factor_sum(Apply(fn, tuple(args_by_key.values())))


def _is_absorbed(fn: str, key: str, args_by_key: Mapping[str, Sum]) -> bool:
    """Return whether a max has another argument at least as large as this one, a min one at most as large.

    A max of min(x, y) and min(x, y, z), say, is min(x, y).
    """
    pairs, operand_keys = _assumed.get().pairs, _operand_keys(DUAL_FUNCTION[fn], args_by_key[key])
    for other, arg in args_by_key.items():
        decided = ((key, other) if fn == "max" else (other, key)) in pairs
        if other != key and (decided or _operand_keys(DUAL_FUNCTION[fn], arg) <= operand_keys):
            return True
    return False


def _operand_keys(fn: str, arg: Sum) -> frozenset[str]:
    """Return the keys of the operands of a max or min; of any other sum its own key."""
    factor = arg.factor
    args = factor.args if isinstance(factor, Apply) and factor.fn == fn else (arg,)
    return frozenset(a.key for a in args)


def undecided_pair(record: Record, order: AssumedOrder, axes: frozenset[Axis]) -> tuple[Sum, Sum] | None:
    """Return two arguments of an inner max or min over these axes alone whose order is open, else None."""
    for part in record.parts():
        pair = undecided_pair(part, order, axes)
        if pair is not None:
            return pair
    if isinstance(record, Apply) and record.fn in LATTICE_FUNCTIONS:
        closed_args = [a for a in record.args if a.free <= axes]
        for k, a in enumerate(closed_args):
            for b in closed_args[:k]:
                if not order.is_decided(a, b):
                    return a, b
    return None
