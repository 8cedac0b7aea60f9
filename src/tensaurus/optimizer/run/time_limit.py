"""The time for all of a run, and what of it comes after the search."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from tensaurus.runtimes.measure.comparison import CERTAIN_PAIRS, LOOKS
from tensaurus.runtimes.measure.measure import BURST_SECONDS, min_rounds

__all__ = ["TimeLimit"]

MEASURED = 0.2  # of the time limit, kept for the last measurements
TURNS = 60  # in the last measurements, about
EVALUATIONS = 26  # of the float64 reference in a check of one result, about
REPLAYED = 8  # runs of the reference that take as long as the replay of the rewrites, in most networks less
LOADS, RUNS = 4, 55  # of processes that get a model ready, and of runs, in that check, about
FIRST = 0.6  # of the time for measuring, the first time's: more models, and more processes
# Runs of the original and one result: a round, and a few pairs, both warmed up.
RUNS_AT_LEAST = 2 * (2 + 1 + CERTAIN_PAIRS)
SLACK = 0.05  # of the time limit, by which a comparison may take longer than was foreseen
LATE = 5.0  # seconds by which processes may be late on a busy machine
LONG_RUN = 1.0  # seconds; of shorter ones a few more are no matter
SEARCHED = 0.3  # of the time limit at least is for the search, however long the check takes


@dataclass
class TimeLimit:
    """Seconds for all of a run from its start on (of `time.monotonic`).

    load       seconds until a process is ready to run the model
    run        of a run
    reference  of one run in float64, of which as many as there are `lanes` are computed side by side
    checked    seconds that a check took; None where there was none yet
    """

    seconds: float
    start: float
    load: float = 0.0
    run: float = 0.0
    reference: float = 0.0
    lanes: int = 1
    checked: float | None = None
    _soonest: float | None = field(default=None, init=False)  # when the search has had its least part

    @property
    def end(self) -> float:
        """Of all."""
        return self.start + self.seconds

    @property
    def check(self) -> float:
        """Seconds that the check of one result will take, about."""
        if self.checked is not None:
            return self.checked
        reference = (EVALUATIONS / self.lanes + REPLAYED) * self.reference
        return reference + LOADS * self.load + RUNS * self.run

    @property
    def turn(self) -> float:
        """Seconds of one turn of one contender in the last measurements."""
        return min(0.25, max(0.02, MEASURED * self.seconds / TURNS))

    def measuring(self, models: int) -> float:
        """Seconds that it takes to compare so many models, at least."""
        turn = max(self.turn, self.run)
        return models * (self.load + (1 + min_rounds(turn)) * turn)

    @property
    def comparing(self) -> float:
        """Seconds that it takes to compare the fastest of them with the original, by as few pairs as tell."""
        return 2 * (self.load + (1 + LOOKS[0]) * max(BURST_SECONDS, self.run))

    def patience(self, models: int) -> float:
        """Seconds after which comparing so many models is ended, where it goes on after its time."""
        return LATE + 2 * self.measuring(models)

    @property
    def _after(self) -> float:
        """Seconds that measuring twice and checking take, about."""
        return self.check + self._measured

    @property
    def deadline(self) -> float:
        """Of the search: what comes after it is kept for measuring twice and checking, as far as is known.

        It is asked first when the search begins, and again when more is known.
        """
        if self._soonest is None:
            self._soonest = monotonic() + SEARCHED * self.seconds
        kept = min(self._after, (1 - SEARCHED) * self.seconds)
        return max(self.end - kept, self._soonest)

    @property
    def latest(self) -> float:
        """Of a search that has found nothing, which need not be checked."""
        return self.end - self._measured

    @property
    def _measured(self) -> float:
        """Seconds that measuring twice takes, about."""
        return max(MEASURED * self.seconds, self.measuring(2) + self.comparing)

    @property
    def hopeless(self) -> str:
        """Why no result can be measured within the limit, for people to read; "" where one can."""
        if self.run < LONG_RUN or RUNS_AT_LEAST * self.run <= self.seconds:
            return ""
        return f"one run takes {self.run:.1f} s: {self.seconds:g} s are too short to compare a result with it"

    @property
    def short(self) -> str:
        """What people are told where the limit leaves the search less than it needs; "" where it does not."""
        if self.hopeless or self._after <= (1 - SEARCHED) * self.seconds:
            return ""
        return (
            f"measuring and checking a result of this size takes about {self._after:.0f} s, so little of"
            f" the {self.seconds:g} s is left for the search: raise --time-limit"
        )

    @property
    def first(self) -> float:
        """Until when the candidates are measured."""
        return monotonic() + FIRST * max(self._left, MEASURED * self.seconds)

    @property
    def again(self) -> float:
        """Until when the fastest of them is measured once more."""
        least = max(self.comparing + SLACK * self.seconds, (1 - FIRST) * MEASURED * self.seconds)
        return monotonic() + max(self._left, least)

    @property
    def _left(self) -> float:
        return self.end - self.check - monotonic()

    @property
    def another(self) -> bool:
        """Whether one more candidate can be measured again and checked."""
        return self._left >= self.comparing
