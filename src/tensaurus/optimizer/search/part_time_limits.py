"""Limits the time of each part of a search: a part that outlives its time is ended, the search continues.

    with SearchClock.until(deadline).limit_part(0.3) as block:
        explore()
    if block.ended: ...

Here `explore` has 0.3 of the time until the deadline, and a little grace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.system.deadline import DeadlineBlock

__all__ = ["Extractor", "Extractors", "SearchClock"]

Extractor: TypeAlias = Callable[[Problem, float, Selection | None], Selection]
"""Solves an extraction problem within some seconds; may begin with the selection that is given."""

GRACE_SHARE = 0.05  # of the search's time, by which a part that does not look at the clock may be late
MIN_GRACE = 0.2  # seconds
EXTRACTION_SHARE = 0.25  # of the time that is left, for one extraction
UNLIMITED_EXTRACTION = 30.0  # seconds of one extraction where there is no deadline
MIN_EXTRACTION = 0.5  # seconds of one extraction, however little time is left


@dataclass
class SearchClock:
    """The time of a search that ends at a deadline (monotonic time, or infinity).

    grace  seconds after the deadline at which a part that does not end by itself is ended
    """

    deadline: float = inf
    grace: float = field(init=False)

    def __post_init__(self) -> None:
        left = self.deadline - monotonic()
        self.grace = max(MIN_GRACE, GRACE_SHARE * left)

    @classmethod
    def until(cls, deadline: float | None) -> SearchClock:
        """Return the clock of a search that has a deadline, or none."""
        return cls(inf if deadline is None else deadline)

    def limit_part(self, share: float = 1.0) -> DeadlineBlock:
        """Return a block for a part that has a share of the time left, all until the deadline where it is 1.

        The block ends a little later, as a part looks at the clock itself.
        """
        now = monotonic()
        left = max(0.0, self.deadline - now)
        return DeadlineBlock(now + (share * left if left < inf else inf) + self.grace)

    def has_time_for(self, seconds: float, share: float) -> bool:
        """Return whether a step of these seconds takes no more than a share of the time left."""
        return seconds <= share * (self.deadline - monotonic())

    @property
    def extraction_seconds(self) -> float:
        """Seconds that one extraction may take."""
        left = self.deadline - monotonic()
        return UNLIMITED_EXTRACTION if left == inf else max(MIN_EXTRACTION, EXTRACTION_SHARE * left)


@dataclass
class Extractors:
    """Extractors in order; one that had to be ended is not asked again.

    ended  the ended ones, each with a line for people
    """

    extractors: Sequence[Extractor]
    clock: SearchClock
    ended: dict[Extractor, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Extractor]:
        """The extractors that kept within their time so far."""
        return (extractor for extractor in self.extractors if extractor not in self.ended)

    def extract_first(self, problem: Problem) -> Selection | None:
        """Return what the first extractor extracts, None where it had to be ended."""
        extractor = next(iter(self), None)
        return None if extractor is None else self.extract(extractor, problem, None)

    def extract(self, extractor: Extractor, problem: Problem, start: Selection | None) -> Selection | None:
        """Return what one extractor extracts, or `start` where it had to be ended."""
        if extractor in self.ended:
            return start
        # an extractor keeps to its seconds by itself; one that takes twice as long hangs, and is ended
        began, seconds = monotonic(), self.clock.extraction_seconds
        late = inf if self.clock.deadline == inf else began + 2 * seconds
        with DeadlineBlock(late):
            return extractor(problem, seconds, start)
        # reached only where the block was ended
        spent = f"{monotonic() - began:.1f} s"
        self.ended[extractor] = f"one extraction was stopped after {spent}; its method is not tried again"
        return start
