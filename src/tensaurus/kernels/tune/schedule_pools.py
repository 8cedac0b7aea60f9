"""Finds the schedules of an expression, and orders them for trial.

There are three orders: by the estimates alone (`ranked_schedules`), by likeness to the fastest schedules at
other sizes (`similar_schedules`), and by small differences from the best schedules so far
(`neighbour_schedules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import NamedTuple

from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import product
from tensaurus.kernels.halide.compile import input_tensors, kernel_interface
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.stages.bilinear_chain import has_combinations
from tensaurus.kernels.stages.loop_nest import Nest, find_nests
from tensaurus.kernels.stages.sketch import (
    NestChange,
    PackedInput,
    Schedule,
    Sketch,
    nest_changes,
    nest_sketches,
)
from tensaurus.kernels.stages.stage import build_stages, extent
from tensaurus.kernels.tune.chain_schedules import rank_chain_schedules
from tensaurus.kernels.tune.register_blocks import MAX_POOL
from tensaurus.kernels.tune.schedule_space import (
    candidate_bands,
    candidate_packs,
    is_hopeless,
    rank_sketches,
)
from tensaurus.kernels.tune.target_core import ELEMENT_BYTES, NestShape, TargetCore
from tensaurus.ops import TensorType
from tensaurus.runtimes.price.operation_counts import number_of

SIMILAR_EXPRESSIONS = 3  # expressions of other sizes whose fastest schedules are imitated
NEAREST_SKETCHES = 3  # schedules tried for each of these expressions


class SchedulePool(NamedTuple):
    """The schedules that begin with the same nest changes, and then have one sketch for each nest.

    A nest change is an input that is packed, or a banded product in blocks of rows (`kernels/stages/sketch`).

    sketches  of each nest, the most promising first
    shapes    of the nests
    """

    changes: tuple[NestChange, ...]
    sketches: Sequence[Sequence[Sketch]]
    shapes: Sequence[NestShape]


def find_pools(
    scope: Scope,
    types: Sequence[TensorType],
    is_constant: Sequence[bool],
    core: TargetCore,
    changes: tuple[NestChange, ...] | None = None,
) -> list[SchedulePool]:
    """Returns the pool of each choice of nest changes, or only that of the given `changes`."""
    pools = [
        SchedulePool(packs, [sketches[:MAX_POOL]], [shape])
        for packs, sketches, shape in rank_chain_schedules(scope, types, is_constant, core, changes)
    ]
    if pools or has_combinations(build_stages(scope)):  # other sketches of a chain are far too slow
        return pools
    choices: list[tuple[NestChange, ...]] = [()]
    choices += [(pack,) for pack in candidate_packs(scope, types, is_constant, core)]
    choices += [(band,) for band in candidate_bands(scope)]
    for choice in choices if changes is None else [c for c in choices if c == changes]:
        packed_types, packed_scope, _ = kernel_interface(scope, types, choice)
        stages, _ = schedulable_stages(packed_scope, input_tensors(packed_types), choice)
        nests = find_nests(stages)
        ranked = [sketches[:MAX_POOL] for sketches in rank_sketches(stages, core)]
        if not any(map(is_hopeless, nests, ranked)):
            pools.append(SchedulePool(choice, ranked, [*map(_nest_shape, nests)]))
    return pools


def _nest_shape(nest: Nest) -> NestShape:
    main = nest.main or nest.output
    copied = {x.name: ELEMENT_BYTES * number_of(product(x.shape)) for x in main.sources}
    return NestShape(tuple(extent(a) for a in nest.output.axes), main.points, copied)


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
    """Puts one schedule of each choice of parallel loops first.

    Trials ran on one thread, which cannot tell these choices apart; the first few are timed on all threads.
    """
    first: dict[tuple[int, ...], Schedule] = {}
    for schedule in schedules:
        first.setdefault(tuple(sketch.parallel for sketch in nest_sketches(schedule)), schedule)
    return list(dict.fromkeys((*first.values(), *schedules)))


def similar_schedules(known: Sequence[Schedule], pools: Sequence[SchedulePool]) -> Iterator[Schedule]:
    """Yields the schedules most like known ones of other sizes, for which the same loops are fast.

    `known` are the fastest schedules of these sizes, those of the nearest sizes first. First come the
    schedules most like each of them, then the second most, and so on.
    """
    return interleave(*(_schedules_like(schedule, pools) for schedule in known[:SIMILAR_EXPRESSIONS]))


def _schedules_like(schedule: Schedule, pools: Sequence[SchedulePool]) -> Iterator[Schedule]:
    """Yields the schedules of the pools that are most like one of other sizes, the nearest first."""
    sketches, changes = nest_sketches(schedule), nest_changes(schedule)
    candidates = [
        pool
        for pool in pools
        if _without_sizes(pool.changes) == _without_sizes(changes) and len(pool.sketches) == len(sketches)
    ]
    if not candidates:
        return
    pool = next((pool for pool in candidates if pool.changes == changes), candidates[0])
    nearest = [_nearest_sketches(own, others) for own, others in zip(sketches, pool.sketches, strict=True)]
    for rank in range(min(map(len, nearest), default=0)):
        yield (*pool.changes, *(ranked[rank] for ranked in nearest))


def _nearest_sketches(own: Sketch, others: Sequence[Sketch]) -> list[Sketch]:
    same_kind = (sketch for sketch in others if type(sketch) is type(own))
    return sorted(same_kind, key=lambda sketch: _count_differences(sketch, own))[:NEAREST_SKETCHES]


def _without_sizes(parts: Sequence[NestChange]) -> tuple[object, ...]:
    """Returns the nest changes without their sizes."""
    return tuple((type(p), p.dimension if isinstance(p, PackedInput) else p.axis) for p in parts)


def ranked_schedules(pools: Sequence[SchedulePool]) -> Iterator[Schedule]:
    """Returns schedules of one sketch for each nest: the first of all nests, then the second of all, and so
    on, in turn for each pool.
    """
    longest = max((len(ranked) for pool in pools for ranked in pool.sketches), default=0)
    schedules = (
        (*pool.changes, *(ranked[min(rank, len(ranked) - 1)] for ranked in pool.sketches))
        for rank in range(longest)
        for pool in pools
    )
    return unique_schedules(schedules)


def neighbour_schedules(
    leaders: Sequence[Schedule], pools: Sequence[SchedulePool], times: dict[Schedule, float]
) -> Iterator[Schedule]:
    """Yields untried schedules that differ from a leader in one or two parameters of one sketch."""
    for leader in leaders:
        pool = next(pool for pool in pools if pool.changes == nest_changes(leader))
        for place, sketches in enumerate(pool.sketches, len(pool.changes)):
            own = leader[place]
            others = (s for s in sketches if s != own and type(s) is type(own))
            for sketch in sorted(others, key=lambda s: _count_differences(s, own)):
                schedule = (*leader[:place], sketch, *leader[place + 1 :])
                if schedule not in times and _count_differences(sketch, own) <= 2:
                    yield schedule


def _count_differences(a: object, b: object) -> int:
    """Returns in how many parameters two sketches of one kind differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(a))  # type: ignore[arg-type]
