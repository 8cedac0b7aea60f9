"""The orders in which the schedules of an expression are tried: sketches of its nests, packed or not.

By the analysis alone, the most promising first; those first that are like schedules of other sizes; and those
that differ from the best so far in little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import TypeAlias

from tensaurus.kernels.stages.sketch import Pack, Prefix, Schedule, Sketch, loops, prefix
from tensaurus.kernels.tune.target_core import Shape

__all__ = ["Pools", "alike", "in_order", "in_turns", "near", "unique", "varied"]

SIMILAR, NEAREST = 3, 3  # expressions of other sizes that are looked at, and schedules like theirs

Pools: TypeAlias = Sequence[tuple[tuple[Prefix, ...], Sequence[Sequence[Sketch]], Sequence[Shape]]]


def in_turns(*orders: Iterable[Schedule]) -> Iterator[Schedule]:
    """The first of each, then the second of each, as long as there are any."""
    for each in zip_longest(*orders):
        yield from (schedule for schedule in each if schedule is not None)


def unique(items: Iterable[Schedule]) -> Iterator[Schedule]:
    """Each once."""
    met: set[Schedule] = set()
    for item in items:
        if item not in met:
            met.add(item)
            yield item


def varied(schedules: Sequence[Schedule]) -> list[Schedule]:
    """Those first that differ in what is parallel, which one thread does not tell apart."""
    first: dict[tuple[int, ...], Schedule] = {}
    for schedule in schedules:
        first.setdefault(tuple(sketch.parallel for sketch in loops(schedule)), schedule)
    return list(dict.fromkeys((*first.values(), *schedules)))


def alike(known: Sequence[Schedule], pools: Pools) -> Iterator[Schedule]:
    """The schedules here that are most like those: an expression of other sizes wants the same loops."""
    for schedule in reversed(known[-SIMILAR:]):
        sketches_, before = loops(schedule), prefix(schedule)
        sides = [
            (packed != before, packed, nests_)
            for packed, nests_, _ in pools
            if _kind(packed) == _kind(before) and len(nests_) == len(sketches_)
        ]
        if not sides:
            continue
        _, packed, nests_ = min(sides, key=lambda side: side[0])
        nearest = [
            sorted((s for s in pool if type(s) is type(own)), key=lambda s: _distance(s, own))[:NEAREST]
            for own, pool in zip(sketches_, nests_, strict=True)
        ]
        for place in range(NEAREST):
            if all(len(pool) > place for pool in nearest):
                yield (*packed, *(pool[place] for pool in nearest))


def _kind(parts: Sequence[Prefix]) -> tuple[object, ...]:
    """What is packed and blocked, without sizes."""
    return tuple((type(p), p.dimension if isinstance(p, Pack) else p.axis) for p in parts)


def in_order(pools: Pools) -> Iterator[Schedule]:
    """One sketch of each nest, the most promising first; nests' own orders go side by side, packed or not."""
    longest = max((len(pool) for _, sides, _ in pools for pool in sides), default=0)
    done = set()
    for place in range(longest):
        for packed, sides, _ in pools:
            schedule = (*packed, *(pool[min(place, len(pool) - 1)] for pool in sides))
            if schedule not in done:
                done.add(schedule)
                yield schedule


def near(leaders: Sequence[Schedule], pools: Pools, times: dict[Schedule, float]) -> Iterator[Schedule]:
    """Untried schedules that differ from a leader in one sketch, by one or two parameters."""
    for leader in leaders:
        sides = next(sides for packed, sides, _ in pools if packed == prefix(leader))
        for place, pool in enumerate(sides, len(prefix(leader))):
            own = leader[place]
            others = (s for s in pool if s != own and type(s) is type(own))
            for sketch in sorted(others, key=lambda s: _distance(s, own)):
                schedule = (*leader[:place], sketch, *leader[place + 1 :])
                if schedule not in times and _distance(sketch, own) <= 2:
                    yield schedule


def _distance(a: object, b: object) -> int:
    """In how many parameters two sketches of one kind differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(a))  # type: ignore[arg-type]
