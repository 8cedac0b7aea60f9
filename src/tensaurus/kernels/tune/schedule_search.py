"""Searches for the fastest schedule of one expression, by trials on one thread.

`tune` calls the three methods in turn: half of the time goes to schedules in a given order, the other half to
neighbours of the fastest schedules so far, until many steps bring no improvement; the fastest are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf
from time import monotonic

from tensaurus.kernels.stages.sketch import Schedule, format_schedule
from tensaurus.kernels.tune.schedule_pools import (
    SchedulePool,
    neighbour_schedules,
    unique_schedules,
    vary_parallelism,
)

__all__ = ["ScheduleSearch"]

MIN_TRIES = 4  # schedules in the given order that are tried at least, if they take no more than a few trials
STALL_STEPS = 25  # steps without improvement after which a search ends
MIN_IMPROVEMENT = 0.98  # fraction of the fastest time below which a time counts as an improvement
LEADER_COUNT, FINALIST_COUNT = 2, 3  # schedules whose neighbours are tried, and those that are timed again
FINALIST_FACTOR = 1.2  # schedules slower than this multiple of the fastest are not timed again


class ScheduleSearch:
    """A search that ends `seconds` after `began`, and tries `batch_size` schedules at once by `time_batch`.

    times  the seconds of each schedule that was tried, infinite for one that fails
    """

    def __init__(
        self,
        time_batch: Callable[[Sequence[Schedule]], Iterable[float]],
        batch_size: int,
        seconds: float,
        began: float,
    ):
        self.time_batch, self.batch_size = time_batch, batch_size
        self.seconds, self.began = seconds, began
        self.times: dict[Schedule, float] = {}

    @property
    def elapsed(self) -> float:
        return monotonic() - self.began

    def try_in_order(self, known: Sequence[Schedule], others: Iterable[Schedule]) -> None:
        """Tries the known schedules, then the others, in half of the time.

        It may take up to four times all of the time until a schedule runs and MIN_TRIES of the others were
        tried.
        """
        ordered = unique_schedules(chain(known, others))
        while batch := self.next_batch(ordered):
            has_tried_others = len(self.times) >= len(known) + MIN_TRIES
            has_result = has_tried_others and min(self.times.values()) < inf
            if self.elapsed > (self.seconds / 2 if has_result else 4 * self.seconds):
                return
            self.try_batch(batch)

    def try_neighbours(self, pools: Sequence[SchedulePool]) -> bool:
        """Tries neighbours of the fastest schedules; returns whether many steps brought no improvement."""
        fastest, stalled = inf, 0
        while self.elapsed < self.seconds and stalled < STALL_STEPS:
            leaders = sorted(self.running_schedules(), key=lambda s: self.times[s])[:LEADER_COUNT]
            others = unique_schedules(neighbour_schedules(leaders, pools, self.times))
            if not (batch := self.next_batch(others)):
                break
            self.try_batch(batch)
            least = min(self.times.values())
            stalled = 0 if least < MIN_IMPROVEMENT * fastest else stalled + 1
            fastest = least if stalled == 0 else fastest
        return stalled >= STALL_STEPS

    def finalists(self) -> list[Schedule]:
        """Returns a few of the fastest schedules that are nearly as fast as the fastest."""
        times = self.times
        ranked = sorted(self.running_schedules(), key=lambda s: (times[s], format_schedule(s)))
        close = [s for s in ranked if times[s] <= FINALIST_FACTOR * times[ranked[0]]]
        return vary_parallelism(close)[:FINALIST_COUNT]

    def running_schedules(self) -> Iterator[Schedule]:
        return (schedule for schedule, seconds in self.times.items() if seconds < inf)

    def next_batch(self, schedules: Iterator[Schedule]) -> list[Schedule]:
        return list(islice((s for s in schedules if s not in self.times), self.batch_size))

    def try_batch(self, schedules: Sequence[Schedule]) -> None:
        self.times.update(zip(schedules, self.time_batch(schedules), strict=True))
