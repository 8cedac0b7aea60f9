"""How long the parts of a search may take: what outlives its time is ended, the search goes on without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.egraph.extract.problem import Choice, Problem
from tensaurus.system.deadline import Bounded

__all__ = ["Extractor", "Extractors", "Patience"]

Extractor: TypeAlias = Callable[[Problem, float, Choice | None], Choice]  # within seconds, from one

GRACE = 0.05  # of the search's time, by which what does not look at the clock itself may be late
LEAST = 0.2  # seconds of grace at least
SHARE = 0.25  # of the time that is left, for one extraction
UNLIMITED = 30.0  # seconds of one extraction where there is no deadline
SHORTEST = 0.5  # seconds of one extraction at least


@dataclass
class Patience:
    """Of a search that ends at a deadline (of `time.monotonic`); infinite: it does not."""

    deadline: float = inf
    grace: float = field(init=False)

    def __post_init__(self) -> None:
        left = self.deadline - monotonic()
        self.grace = max(LEAST, GRACE * left)

    @classmethod
    def until(cls, deadline: float | None) -> Patience:
        """Of a search that has a deadline, or none."""
        return cls(inf if deadline is None else deadline)

    def part(self) -> Bounded:
        """A block for what looks at the clock itself: it ends a little after the deadline."""
        return Bounded(max(self.deadline, monotonic()) + self.grace)

    @property
    def extraction(self) -> float:
        """Seconds of one extraction."""
        left = self.deadline - monotonic()
        return UNLIMITED if left == inf else max(SHORTEST, SHARE * left)


@dataclass
class Extractors:
    """Extractors, one after the other; one that had to be ended is not asked again.

    ended  lines about these, for people to read
    """

    extractors: Sequence[Extractor]
    patience: Patience
    ended: dict[Extractor, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Extractor]:
        """Those that keep within their time."""
        return (extract for extract in self.extractors if extract not in self.ended)

    def choice(self, extract: Extractor, problem: Problem, start: Choice | None) -> Choice | None:
        """What one of them extracts; the start where it had to be ended."""
        if extract in self.ended:
            return start
        began, seconds = monotonic(), self.patience.extraction
        late = inf if self.patience.deadline == inf else began + 2 * seconds
        with Bounded(late):
            return extract(problem, seconds, start)
        spent = f"{monotonic() - began:.1f} s"
        self.ended[extract] = f"an extraction was ended after {spent}, and its kind is not tried again"
        return start
