"""The time limit is for all of a run: what is kept for measuring and checking, and what no longer fits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.egraph.match.saturate import Limits, Ruleset
from tensaurus.optimizer.run import first_run, time_limit
from tensaurus.optimizer.run.first_run import FirstRun
from tensaurus.optimizer.run.options import Options
from tensaurus.optimizer.run.time_limit import (
    CHECK_REFERENCE_RUNS,
    MEASURING_SHARE,
    MIN_SEARCH_SHARE,
    TimeLimit,
)
from tensaurus.optimizer.search import saturation_config
from tensaurus.optimizer.search.saturation_config import SaturationConfig
from tensaurus.runtimes.measure import measure
from tensaurus.runtimes.measure.measure import ENOUGH_SECONDS, MIN_ROUNDS, min_rounds, time_in_turns
from tensaurus.runtimes.measure.worker import MAX_REPEATS, Round


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Runner:
    """A worker whose turns take so many seconds each, disturbed from the first to the last."""

    clock: Clock
    takes: float
    disturbance: float = 0.0
    turns: int = field(default=0)

    def time(self, seconds: float) -> Round:
        self.turns += 1
        self.clock.now += self.takes
        return Round((seconds / 10,) * 10, self.disturbance)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "monotonic", made)
    monkeypatch.setattr(time_limit, "monotonic", made)
    return made


def rounds_of(runners: Sequence[Runner], rounds: int, seconds: float) -> int:
    names = [f"runner {k}" for k in range(len(runners))]
    deadline = runners[0].clock() + seconds
    timings = time_in_turns(names, runners, rounds, 0.1, deadline)  # type: ignore[arg-type]
    (count,) = {len(timing.rounds) for timing in timings}
    return count


def test_rounds_end_with_the_time_and_there_are_a_few_however_short_it_is(clock: Clock) -> None:
    assert rounds_of([Runner(clock, 1.0), Runner(clock, 1.0)], 8, 100.0) == 8
    assert rounds_of([Runner(clock, 1.0), Runner(clock, 1.0)], 8, 12.0) == 6
    assert rounds_of([Runner(clock, 0.1), Runner(clock, 0.1)], 8, 0.0) == MIN_ROUNDS
    assert rounds_of([Runner(clock, 0.1)], 2, 0.0) == 2  # no more than were asked for


def test_of_what_takes_seconds_there_are_fewer_rounds(clock: Clock) -> None:
    """Four rounds of a model of 4 s, twice over and beside a result, took a minute more than the limit."""
    turns = {0.0: 4, 0.1: 4, 0.5: 4, 0.6: 4, 1.0: 2, 2.0: 1, 4.0: 1, 100.0: 1}
    assert {turn: min_rounds(turn) for turn in turns} == turns
    for takes in (0.5, 1.0, 4.0):
        rounds = rounds_of([Runner(clock, takes), Runner(clock, takes)], 8, 0.0)
        assert rounds == min_rounds(takes) and rounds * takes >= ENOUGH_SECONDS
    assert rounds_of([Runner(clock, 4.0), Runner(clock, 4.0)], 8, 1000.0) == 8
    limit = TimeLimit(40.0, clock(), load_seconds=0.5, run_seconds=4.0)
    assert limit.measuring_seconds(2) < 20


@pytest.mark.parametrize("seconds", [0.0, 3.0, 16.0, 20.0, 31.0, 100.0])
def test_disturbed_turns_are_repeated_only_where_all_rounds_have_time(clock: Clock, seconds: float) -> None:
    runners, began = [Runner(clock, 1.0, 0.9), Runner(clock, 1.0, 0.9)], clock()
    rounds = rounds_of(runners, 8, seconds)
    turns = sum(runner.turns for runner in runners)
    assert clock() - began <= max(seconds, 2.0 * min_rounds(1.0))
    if seconds >= 16:
        assert rounds == 8 and turns == min(int(seconds), 16 * (1 + MAX_REPEATS))


positive = st.floats(0, 100)


@given(st.floats(1, 1000), positive, positive, positive, st.integers(1, 64), st.floats(0, 2000))
def test_the_search_ends_early_enough(
    seconds: float, load: float, run: float, reference: float, lanes: int, spent: float
) -> None:
    limit = TimeLimit(seconds, monotonic() - spent, load, run, reference, lanes)
    kept, soonest = limit.run_deadline - limit.search_deadline, monotonic() + MIN_SEARCH_SHARE * seconds
    assert limit.measuring_deadline > monotonic()
    assert limit.check_seconds >= CHECK_REFERENCE_RUNS * reference / lanes
    if limit.search_deadline < soonest - 1e-3:  # else the least that a search has
        assert kept >= MEASURING_SHARE * seconds * 0.999
        assert kept >= min(limit.check_seconds, (1 - MIN_SEARCH_SHARE) * seconds) * 0.999
    assert limit.search_deadline >= soonest - 1.0


def test_what_a_check_took_is_what_the_next_one_is_expected_to_take(clock: Clock) -> None:
    limit = TimeLimit(40.0, clock(), 0.5, 0.1, 0.2, parallel_runs=2)
    assert 0 < limit.check_seconds < 20 and limit.has_time_for_another
    limit.last_check_seconds = 30.0
    assert limit.check_seconds == 30.0 and limit.has_time_for_another
    clock.now += 9.0
    assert not limit.has_time_for_another  # one more would be ready too late,
    assert limit.has_time_for_second_check  # but little enough for one after the first was refuted
    clock.now += 12.0
    assert not limit.has_time_for_second_check


def test_people_are_told_where_the_search_has_less_than_it_needs(clock: Clock) -> None:
    """Where what comes after the search is foreseen to take more than it may, the limit is too short."""
    enough = TimeLimit(100.0, clock(), 0.5, 0.1, 0.2, parallel_runs=2)
    assert enough.why_too_short == ""
    after_search = enough.check_seconds + MEASURING_SHARE * 100
    assert enough.search_deadline == pytest.approx(enough.run_deadline - after_search)
    slow = TimeLimit(100.0, clock(), 0.5, 0.2, 3.0, parallel_runs=2)
    assert slow.search_deadline == pytest.approx(slow.start + MIN_SEARCH_SHARE * 100)
    after_search = slow.check_seconds + MEASURING_SHARE * 100
    assert f"{after_search:.0f} s" in slow.why_too_short and "100 s" in slow.why_too_short


def test_where_no_result_can_be_compared_people_are_told_at_once(clock: Clock) -> None:
    hopeless = TimeLimit(40.0, clock(), run_seconds=10.0)
    assert "one run takes 10.0 s: 40 s are too short" in hopeless.why_hopeless
    assert not TimeLimit(150.0, clock(), run_seconds=10.0).why_hopeless
    assert not TimeLimit(0.0, clock(), run_seconds=0.9).why_hopeless  # a few runs cost little


def test_a_search_that_finds_nothing_has_the_time_of_the_check(clock: Clock) -> None:
    limit = TimeLimit(40.0, clock(), 0.5, 0.1, 4.0, parallel_runs=1)
    assert limit.check_seconds > 100
    assert limit.search_deadline == pytest.approx(limit.start + MIN_SEARCH_SHARE * 40)
    assert limit.latest_search_deadline == limit.run_deadline - MEASURING_SHARE * 40


def test_the_deadline_of_the_search_follows_what_is_known_of_the_check(clock: Clock) -> None:
    limit = TimeLimit(40.0, clock(), 0.5, 0.1, 4.0, parallel_runs=1)
    first = limit.search_deadline
    clock.now += 10.0
    assert limit.search_deadline == first  # the search has had its least part: nothing else is new
    limit.reference_seconds = 0.1
    assert first + 2 < limit.search_deadline < limit.latest_search_deadline
    limit.reference_seconds = 0.01
    assert limit.search_deadline == limit.run_deadline - limit.check_seconds - MEASURING_SHARE * 40


def test_first_runs_that_other_processes_disturbed_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter times count; a model whose run takes seconds is not run again."""
    started: list[str] = []

    def start(source: object, backend: str, **_: object) -> nullcontext[None]:
        started.append(backend)
        return nullcontext()

    monkeypatch.setattr(first_run, "start_worker", start)
    monkeypatch.setattr(first_run, "time_run", lambda worker, feeds: 0.04)
    disturbed = FirstRun({}, {}, "", 2.0, 0.2)
    again = disturbed.time_again(Options(), None, 2)  # type: ignore[arg-type]
    assert again.run_seconds == 0.04 and again.load_seconds < 2.0 and started == ["onnxruntime"]
    short, slow = (FirstRun({}, {}, "", load, run) for load, run in ((0.0, 0.01), (2.0, 3.0)))
    assert short.time_again(Options(), None, 2) == short  # type: ignore[arg-type]
    assert slow.time_again(Options(), None, 2) is slow and len(started) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("left, share", [(100.0, 15.0), (3.0, 2.0), (1.0, 1.0), (-1.0, -1.0), (None, None)])
def test_an_exploration_has_its_share_of_the_time(
    left: float | None, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation_config, "monotonic", clock := Clock())
    limits = Limits(nodes=99, deadline=None if left is None else clock.now + left)
    config = SaturationConfig(Ruleset([]), None, [], exploration_limits=limits)  # type: ignore[arg-type]
    given_limits = config.limit_exploration(7)
    nodes = 99 if left is None or left > 0 else 8 * 7  # fewer only where hardly any time is left
    assert (given_limits.nodes, given_limits.merged_enodes) == (nodes, 7)
    if share is None:
        assert given_limits.deadline is None
    else:
        assert given_limits.deadline == pytest.approx(clock.now + max(share, 0.15 * share))
