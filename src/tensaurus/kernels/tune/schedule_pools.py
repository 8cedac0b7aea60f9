"""Orders the schedules of an expression for trial.

There are three orders: by the estimates alone (`ranked_schedules`), by likeness to the fastest schedules at
other sizes (`similar_schedules`), and by small differences from the best schedules so far
(`neighbour_schedules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import TypeAlias

from tensaurus.kernels.stages.sketch import (
    NestChange,
    PackedInput,
    Schedule,
    Sketch,
    nest_changes,
    nest_sketches,
)
from tensaurus.kernels.tune.target_core import NestShape

__all__ = [
    "SchedulePools",
    "similar_schedules",
    "ranked_schedules",
    "interleave",
    "neighbour_schedules",
    "unique_schedules",
    "vary_parallelism",
]

SIMILAR_EXPRESSIONS = 3  # expressions of other sizes whose fastest schedules are imitated
NEAREST_SKETCHES = 3  # schedules tried for each of these expressions

# For each choice of nest changes: the sketches of each nest, the most promising first, and the nests' shapes.
Pool: TypeAlias = tuple[tuple[NestChange, ...], Sequence[Sequence[Sketch]], Sequence[NestShape]]
SchedulePools: TypeAlias = Sequence[Pool]


def interleave(*orders: Iterable[Schedule]) -> Iterator[Schedule]:
    """Yields the first schedule of each order, then the second of each, until all orders end."""
    for each in zip_longest(*orders):
        yield from (schedule for schedule in each if schedule is not None)


def unique_schedules(items: Iterable[Schedule]) -> Iterator[Schedule]:
    """Yields each schedule once."""
    seen: set[Schedule] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


def vary_parallelism(schedules: Sequence[Schedule]) -> list[Schedule]:
    """Puts one schedule of each choice of parallel loops first, as one thread cannot tell these apart."""
    first: dict[tuple[int, ...], Schedule] = {}
    for schedule in schedules:
        first.setdefault(tuple(sketch.parallel for sketch in nest_sketches(schedule)), schedule)
    return list(dict.fromkeys((*first.values(), *schedules)))


def similar_schedules(known: Sequence[Schedule], pools: SchedulePools) -> Iterator[Schedule]:
    """Yields the schedules most like known ones of other sizes, for which the same loops are fast.

    `known` are the fastest schedules of these sizes, the latest last.
    """
    for schedule in reversed(known[-SIMILAR_EXPRESSIONS:]):
        sketches, changes = nest_sketches(schedule), nest_changes(schedule)
        candidates = [
            (packed != changes, packed, nest_pools)
            for packed, nest_pools, _ in pools
            if _without_sizes(packed) == _without_sizes(changes) and len(nest_pools) == len(sketches)
        ]
        if not candidates:
            continue
        _, packed, nest_pools = min(candidates, key=lambda side: side[0])  # the same changes first
        nearest = [_nearest_sketches(own, pool) for own, pool in zip(sketches, nest_pools, strict=True)]
        for place in range(NEAREST_SKETCHES):
            if all(len(pool) > place for pool in nearest):
                yield (*packed, *(pool[place] for pool in nearest))


def _nearest_sketches(own: Sketch, pool: Sequence[Sketch]) -> list[Sketch]:
    same_kind = (sketch for sketch in pool if type(sketch) is type(own))
    return sorted(same_kind, key=lambda sketch: _count_differences(sketch, own))[:NEAREST_SKETCHES]


def _without_sizes(parts: Sequence[NestChange]) -> tuple[object, ...]:
    """Returns the nest changes without their sizes."""
    return tuple((type(p), p.dimension if isinstance(p, PackedInput) else p.axis) for p in parts)


def ranked_schedules(pools: SchedulePools) -> Iterator[Schedule]:
    """Yields schedules of one sketch for each nest: the first of all nests, then the second of all, and so
    on, in turn for each choice of nest changes.
    """
    longest = max((len(pool) for _, nest_pools, _ in pools for pool in nest_pools), default=0)
    yielded = set()
    for place in range(longest):
        for packed, nest_pools, _ in pools:
            schedule = (*packed, *(pool[min(place, len(pool) - 1)] for pool in nest_pools))
            if schedule not in yielded:
                yielded.add(schedule)
                yield schedule


def neighbour_schedules(
    leaders: Sequence[Schedule], pools: SchedulePools, times: dict[Schedule, float]
) -> Iterator[Schedule]:
    """Yields untried schedules that differ from a leader in one or two parameters of one sketch."""
    for leader in leaders:
        nest_pools = next(nest_pools for packed, nest_pools, _ in pools if packed == nest_changes(leader))
        for place, pool in enumerate(nest_pools, len(nest_changes(leader))):
            own = leader[place]
            others = (s for s in pool if s != own and type(s) is type(own))
            for sketch in sorted(others, key=lambda s: _count_differences(s, own)):
                schedule = (*leader[:place], sketch, *leader[place + 1 :])
                if schedule not in times and _count_differences(sketch, own) <= 2:
                    yield schedule


def _count_differences(a: object, b: object) -> int:
    """Returns in how many parameters two sketches of one kind differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(a))  # type: ignore[arg-type]
