"""Maxima and minima of several, as a lattice, and as a total order of elements where one is assumed.

    max(x, min(x, y)) = x
    max(x, y, z) = max(y, z) and min(x, y) = x    where x <= y is assumed

What is equal in every order that may be assumed is equal for all reals, and in each field whose max and min
follow an order: no more is used than that it is total and transitive, not that sums or products keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from tensaurus.expr.ir.scalar_functions import LATTICE_FUNCTIONS
from tensaurus.expr.normal.canonical_record import Record
from tensaurus.expr.normal.normal_form import Apply, Literal, Sum, of_factor
from tensaurus.expr.sizes.size import Axis

DUAL = {"max": "min", "min": "max"}
UNBOUNDED = {"max": float("inf"), "min": float("-inf")}  # what absorbs all others


class Order:
    """Keys of sums of which one is known to be at most the other; closed, and no two are equal."""

    def __init__(self, pairs: frozenset[tuple[str, str]] = frozenset()):
        self.pairs = pairs

    def decides(self, a: Sum, b: Sum) -> bool:
        """Whether it is known which of both is at most the other."""
        return (a.key, b.key) in self.pairs or (b.key, a.key) in self.pairs

    def wider(self, lower: Sum, upper: Sum) -> Order:
        """With lower <= upper, of which nothing was known."""
        under = {lower.key} | {a for a, b in self.pairs if b == lower.key}
        over = {upper.key} | {b for a, b in self.pairs if a == upper.key}
        return Order(self.pairs | {(a, b) for a in under for b in over})


UNORDERED = Order()
_assumed: ContextVar[Order] = ContextVar("assumed", default=UNORDERED)


@contextmanager
def assuming(order: Order) -> Iterator[None]:
    """Maxima and minima that are made inside are those of this order."""
    token = _assumed.set(order)
    try:
        yield
    finally:
        _assumed.reset(token)


def extreme(fn: str, args: Iterable[Sum]) -> Sum:
    """max or min of many: flat, each argument once, without the neutral infinity and what others absorb."""
    found: dict[str, Sum] = {}
    queue = list(args)
    while queue:
        arg = queue.pop()
        factor = arg.factor
        if isinstance(factor, Apply) and factor.fn == fn:
            queue.extend(factor.args)
        else:
            found[arg.key] = arg
    for key, arg in list(found.items()):
        factor = arg.factor
        if isinstance(factor, Literal) and factor.value in UNBOUNDED.values() and len(found) > 1:
            if factor.value == UNBOUNDED[fn]:
                return arg
            del found[key]
    for key in list(found):
        if _absorbed(fn, key, found):
            del found[key]
    if len(found) == 1:
        return next(iter(found.values()))
    return of_factor(Apply(fn, tuple(found.values())))


def _absorbed(fn: str, key: str, among: Mapping[str, Sum]) -> bool:
    """Whether another argument is at least it, of a maximum, or at most, of a minimum."""
    pairs, parts = _assumed.get().pairs, _parts(DUAL[fn], among[key])
    for other, arg in among.items():
        decided = ((key, other) if fn == "max" else (other, key)) in pairs
        if other != key and (decided or _parts(DUAL[fn], arg) <= parts):
            return True
    return False


def _parts(fn: str, arg: Sum) -> frozenset[str]:
    """The keys of those that it is the maximum or minimum of: of one alone, where it is another sum."""
    factor = arg.factor
    args = factor.args if isinstance(factor, Apply) and factor.fn == fn else (arg,)
    return frozenset(a.key for a in args)


def undecided(record: Record, order: Order, axes: frozenset[Axis]) -> tuple[Sum, Sum] | None:
    """Two that a maximum or minimum compares, in which all is decided and no other axes occur."""
    for part in record.parts():
        pair = undecided(part, order, axes)
        if pair is not None:
            return pair
    if isinstance(record, Apply) and record.fn in LATTICE_FUNCTIONS:
        known = [a for a in record.args if a.free <= axes]
        for place, a in enumerate(known):
            for b in known[:place]:
                if not order.decides(a, b):
                    return a, b
    return None
