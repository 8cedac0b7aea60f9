"""Divides the time limit of a run between the search and the measuring and checking that follow it.

The limit is for the whole run, so the search must end early enough for its result to be measured, compared
with the original and checked.  How long that takes depends on the model, and is estimated from its first run:

    start ... search ... search_deadline ... measure ... confirm ... check ... run_deadline

Of 60 s, measuring and confirming have 9.6 s (MEASURING_SHARE).  The check takes 4.4 s if a process loads in
0.2 s, a run takes 0.01 s and one of the float64 reference 0.1 s; so the search ends after 46 s.

All times are seconds; deadlines are monotonic times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from tensaurus.runtimes.measure.comparison import CERTAIN_PAIRS, LOOKS
from tensaurus.runtimes.measure.measure import BURST_SECONDS, min_rounds, warm_up_runs

__all__ = ["TimeLimit"]

MEASURING_SHARE = 0.16  # of the time limit, reserved for the last measurements
MEASURING_TURNS = 60  # estimated turns of all models in the last measurements
CHECK_REFERENCE_RUNS = 26  # estimated evaluations of the float64 reference in the check of one result
REPLAY_REFERENCE_RUNS = 4  # a replay of the rewrites takes at most as long as these runs in most networks
CHECK_LOADS, CHECK_RUNS = 4, 55  # estimated starts of a process with a model, and runs, in such a check
FIRST_MEASURING_SHARE = 0.6  # of the measuring time; the first measurement has more models and processes
# Fewest runs that compare the original with one result.  Of both models, which are slow: a warm-up before the
# turns and one before the pairs, a round of turns, and a few pairs.
MIN_RUNS = 2 * (2 + 1 + CERTAIN_PAIRS)
COMPARING_SLACK = 0.1  # of the time limit, by which a comparison that is not yet decided may take longer
SECOND_CHECK_SHARE = 0.3  # of the time limit, by which a second check may end late
RUNTIMES_SHARE = 0.1  # of the time limit, by which comparing other runtimes may end late
RUNTIME_RUNS, MIN_RUNTIME_SECONDS = 20, 0.02  # runs of the original on each of them; least seconds that count
LATE_SECONDS = 5.0  # by which processes may be late on a busy machine
LONG_RUN_SECONDS = 1.0  # models that run faster are always measured: a few runs cost little
MIN_SEARCH_SHARE = 0.5  # of the time limit, which the search has however long the check takes


@dataclass
class TimeLimit:
    """The time limit of one run: `seconds` from `start` (monotonic time).

    load_seconds        until a process is ready to run the model
    run_seconds         of one run of the model
    reference_seconds   of one run in float64; `parallel_runs` of them are computed at the same time
    last_check_seconds  that the last check took; None before the first check
    """

    seconds: float
    start: float
    load_seconds: float = 0.0
    run_seconds: float = 0.0
    reference_seconds: float = 0.0
    parallel_runs: int = 1
    last_check_seconds: float | None = None
    _soonest_end: float | None = field(default=None, init=False)  # when the search has had its least share

    @property
    def run_deadline(self) -> float:
        """When the whole run must be finished."""
        return self.start + self.seconds

    @property
    def check_seconds(self) -> float:
        """Estimated seconds for the check of one result."""
        if self.last_check_seconds is not None:
            return self.last_check_seconds
        runs = CHECK_REFERENCE_RUNS / self.parallel_runs + REPLAY_REFERENCE_RUNS
        return runs * self.reference_seconds + CHECK_LOADS * self.load_seconds + CHECK_RUNS * self.run_seconds

    @property
    def turn_seconds(self) -> float:
        """Seconds of one turn of one model in the last measurements."""
        return min(0.25, max(0.02, MEASURING_SHARE * self.seconds / MEASURING_TURNS))

    def measuring_seconds(self, models: int) -> float:
        """Return the least seconds that measuring this number of models in turns takes."""
        turn = max(self.turn_seconds, self.run_seconds)  # of each model: some to warm up, then the rounds
        return models * (self.load_seconds + (warm_up_runs(turn) + min_rounds(turn)) * turn)

    @property
    def comparing_seconds(self) -> float:
        """Seconds to compare one result with the original by the fewest pairs that can decide."""
        runs = warm_up_runs(self.run_seconds) + LOOKS[0]
        return 2 * (self.load_seconds + runs * max(BURST_SECONDS, self.run_seconds))

    def patience_seconds(self, models: int) -> float:
        """Return the seconds past its deadline after which measuring this number of models is ended."""
        return LATE_SECONDS + 2 * self.measuring_seconds(models)

    @property
    def _after_search_seconds(self) -> float:
        """Estimated seconds for measuring, confirming and checking a result."""
        return self.check_seconds + self._measuring_and_comparing_seconds

    @property
    def search_deadline(self) -> float:
        """When the search must end, by the present estimate of the time that follows it.

        The first call marks the search's beginning; later calls follow better estimates.
        """
        if self._soonest_end is None:
            self._soonest_end = monotonic() + MIN_SEARCH_SHARE * self.seconds
        # the search has its least share: counted from its beginning as well as in the whole run
        reserved = min(self._after_search_seconds, (1 - MIN_SEARCH_SHARE) * self.seconds)
        return max(self.run_deadline - reserved, self._soonest_end)

    @property
    def latest_search_deadline(self) -> float:
        """When a search must end that has found nothing, so that no result needs to be checked."""
        return self.run_deadline - self._measuring_and_comparing_seconds

    @property
    def _measuring_and_comparing_seconds(self) -> float:
        return max(MEASURING_SHARE * self.seconds, self.measuring_seconds(2) + self.comparing_seconds)

    @property
    def why_hopeless(self) -> str:
        """Why no result can be measured within the limit, for users; "" where one can."""
        if self.run_seconds < LONG_RUN_SECONDS or MIN_RUNS * self.run_seconds <= self.seconds:
            return ""
        run, limit = f"{self.run_seconds:.1f} s", f"{self.seconds:g} s"
        return f"one run takes {run}: {limit} are too short to compare a result with it"

    @property
    def why_too_short(self) -> str:
        """Why the limit leaves the search less time than it needs, for users; "" where it does not."""
        if self.why_hopeless or self._after_search_seconds <= (1 - MIN_SEARCH_SHARE) * self.seconds:
            return ""
        return (
            f"measuring and checking a result of this size takes about {self._after_search_seconds:.0f} s, so"
            f" little of the {self.seconds:g} s is left for the search: raise --time-limit"
        )

    @property
    def measuring_deadline(self) -> float:
        """When measuring the candidates must end, if it begins now."""
        # a part of the time until the check, or of the measuring time where a late search has left less
        return monotonic() + FIRST_MEASURING_SHARE * max(self._remaining, MEASURING_SHARE * self.seconds)

    @property
    def confirming_deadline(self) -> float:
        """When comparing one candidate with the original must end, if it begins now."""
        # the time until the check, but at least what it needs, and its part of the measuring time
        reserved = (1 - FIRST_MEASURING_SHARE) * MEASURING_SHARE * self.seconds
        least = max(self.comparing_seconds + COMPARING_SLACK * self.seconds, reserved)
        return monotonic() + max(self._remaining, least)

    @property
    def _remaining(self) -> float:
        """Seconds from now until the check of a result must begin."""
        return self.run_deadline - self.check_seconds - monotonic()

    @property
    def has_time_for_another(self) -> bool:
        """Whether one more candidate can be compared and checked."""
        return self._remaining >= self.comparing_seconds

    def has_time_for_runtimes(self, count: int) -> bool:
        """Whether this number of runtimes can run the original in a small part of the time limit."""
        seconds = count * (self.load_seconds + RUNTIME_RUNS * max(self.run_seconds, MIN_RUNTIME_SECONDS))
        return seconds <= RUNTIMES_SHARE * self.seconds

    @property
    def has_time_for_second_check(self) -> bool:
        """Whether one more candidate can be compared and checked, and be ready a little late.

        Where the check refutes the fastest candidate, often by a rounding error beyond the bound, without a
        second check the whole search was for nothing.
        """
        return self._remaining + SECOND_CHECK_SHARE * self.seconds >= self.comparing_seconds
