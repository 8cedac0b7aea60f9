"""Which of two contenders is faster: on a host that changes its speed, by pairs that are made up."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from math import isnan

import pytest
from rich.console import Console
from scipy.special import bdtr

from tensaurus.check.files.equality import Equality
from tensaurus.optimizer.result.summary import Summary
from tensaurus.runtimes.measure import measure
from tensaurus.runtimes.measure.comparison import (
    CERTAIN_RATIO,
    LOOKS,
    MISTAKE_PROBABILITY,
    Comparison,
    _bound_rank,
)
from tensaurus.runtimes.measure.measure import BURST_SECONDS, MAX_PAIR_SECONDS, Pairs, time_in_pairs
from tensaurus.runtimes.measure.worker import DISTURBED, Round

GAIN = 0.02


@pytest.fixture(autouse=True)
def as_shipped(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons take the time here that they take of users: it is made up."""
    monkeypatch.setattr(measure, "BURST_SECONDS", BURST_SECONDS)
    monkeypatch.setattr(measure, "MAX_PAIR_SECONDS", MAX_PAIR_SECONDS)


@dataclass
class Host:
    """A machine whose speed jumps by up to 40 % at random, and stays so for seconds."""

    rng: random.Random
    steadiness: float = 2.0  # seconds that a speed lasts, on average
    now: float = 100.0
    slower: float = 1.0
    until: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> float:
        """Seconds that what takes so many at full speed takes now."""
        if self.now >= self.until:
            self.slower = 1 / self.rng.uniform(0.6, 1.0)
            self.until = self.now + self.rng.expovariate(1 / self.steadiness)
        self.now += (taken := seconds * self.slower)
        return taken


@dataclass
class Runner:
    """A worker on this host that needs so many seconds for a run, give or take some noise."""

    host: Host
    needs: float
    noise: float
    disturbance: float = 0.0
    pid: int = field(default_factory=os.getpid)

    def time(self, seconds: float) -> Round:
        count = max(1, int(seconds / self.needs))
        drawn = (self.needs * self.host.rng.lognormvariate(0, self.noise) for _ in range(count))
        return Round(tuple(self.host.spend(needed) for needed in drawn), self.disturbance)


def compared(
    monkeypatch: pytest.MonkeyPatch, seed: int, ratio: float, noise: float, run: float = 0.012, **more: float
) -> tuple[Pairs, float]:
    """Pairs of contenders whose true ratio is known, and the seconds they took."""
    host = Host(random.Random(seed))
    monkeypatch.setattr(measure, "monotonic", host)
    workers = [Runner(host, run, noise), Runner(host, run / ratio, noise)]
    end = host.now + more.pop("seconds", 1e9)
    return time_in_pairs(["a", "b"], workers, GAIN, end), host.now - 100.0  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.3])
def test_equal_contenders_are_seldom_told_apart(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of false gains is below what `Comparison` promises, on a host whose speed jumps by 40 %."""
    runs = 200
    kept = sum(compared(monkeypatch, seed, 1.0, noise)[0].comparison.shows(GAIN) for seed in range(runs))
    assert kept <= MISTAKE_PROBABILITY * runs


@pytest.mark.parametrize(
    ("ratio", "noise", "rate"), [(0.9, 0.05, 0.0), (1.05, 0.02, 0.95), (1.2, 0.05, 0.99), (1.2, 0.2, 0.9)]
)
def test_true_gains_are_seen_and_losses_never(
    ratio: float, noise: float, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 60
    found = [compared(monkeypatch, seed, ratio, noise)[0].comparison for seed in range(runs)]
    kept = [comparison for comparison in found if comparison.shows(GAIN)]
    assert len(kept) >= rate * runs if rate else not kept
    within = sum(comparison.least <= ratio <= comparison.most for comparison in found)
    assert within >= (1 - 2 * MISTAKE_PROBABILITY) * runs - 2


def test_what_is_decided_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear gain and a clear loss take few pairs; what is equal takes all, or ends with the time."""
    for ratio in (0.7, 2.0):
        pairs, _ = compared(monkeypatch, 1, ratio, 0.01)
        assert len(pairs.seconds) == LOOKS[0]
    pairs, _ = compared(monkeypatch, 1, 1.02, 0.3)
    assert len(pairs.seconds) > LOOKS[-3]
    pairs, spent = compared(monkeypatch, 1, 1.02, 0.3, seconds=2.0)
    assert 10 < len(pairs.seconds) < 60 and spent < 2.1
    pairs, spent = compared(monkeypatch, 1, 1.0, 0.05, run=3.0, seconds=0.0)
    assert len(pairs.seconds) == 1 and isnan(pairs.comparison.least) and not pairs.comparison.shows(GAIN)


def test_slow_models_need_few_pairs_where_no_host_explains_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        fast, _ = compared(monkeypatch, seed, 3.5, 0.01, run=3.0, seconds=24.0)
        assert 3 <= len(fast.seconds) <= LOOKS[0] and fast.comparison.shows(GAIN)
        equal, _ = compared(monkeypatch, seed, 1.0, 0.01, run=3.0, seconds=30.0)
        assert len(equal.seconds) < LOOKS[0] and not equal.comparison.shows(GAIN)


def test_the_bounds_are_those_of_the_sign_test() -> None:
    """All looks together tell equal contenders apart as seldom as is promised."""
    total = 0.0
    for pairs in LOOKS:
        beyond = _bound_rank(pairs)
        total += float(bdtr(beyond - 1, pairs, 0.5))
        assert beyond >= 1
    assert total <= MISTAKE_PROBABILITY
    assert isnan(Comparison.of([1.1] * (LOOKS[0] - 1)).least)
    ended = Comparison.of([1.1] * LOOKS[0] + [0.5])  # what came after the last look moves the quartiles alone
    assert ended.least == 1.1 and ended.pairs == LOOKS[0] + 1 and ended.shows(GAIN)
    seven = Comparison.of([1.1] * 7)
    assert seven.least == seven.most == 1.1 and seven.shows(GAIN)
    assert not Comparison.of([1.1] * 6 + [0.99]).shows(GAIN)
    assert not Comparison.of([1.1] * 6).shows(GAIN)
    assert Comparison.of([CERTAIN_RATIO + 0.1] * 3).shows(GAIN)
    assert not Comparison.of([CERTAIN_RATIO + 0.1] * 2).shows(GAIN)
    assert not Comparison.of([1.01] * 50).shows(GAIN)  # certain, and too little


def test_disturbed_pairs_do_not_count_unless_most_are() -> None:
    disturbed = Pairs(((2.0, 1.0),) * 12 + ((1.0, 1.0),) * 3, (True,) * 12 + (False,) * 3)
    assert disturbed.comparison == Comparison.of([2.0] * 12) and not disturbed.comparison.disturbed
    busy = Pairs(((2.0, 1.0),) * 12, (True,) * 5 + (False,) * 7)
    assert busy.comparison.pairs == 12 and busy.comparison.disturbed and busy.comparison.is_void
    assert busy.comparison.doubt == "other processes disturbed it"


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(random.Random(0))
    monkeypatch.setattr(measure, "monotonic", host)
    workers = [Runner(host, 0.01 * k, 0.01, 2 * DISTURBED) for k in (2, 1)]
    assert time_in_pairs(["a", "b"], workers, GAIN).comparison.disturbed  # type: ignore[arg-type]


def test_a_summary_keeps_the_comparison_and_older_ones_have_none() -> None:
    comparison = Comparison.of([1.1, 1.2, 1.3], disturbed=True)
    text = '{"model": "m", "backend": "b", "threads": 1, "original_ms": 2, "optimized_ms": 1, "speedup": 2,'
    text += '"equivalence": {"max_abs_error": 0, "max_rel_error": 0, "passed": true}}'
    old = Summary.from_json(text)
    assert old.comparison is None
    new = replace(old, comparison=comparison)
    again = Summary.from_json(new.to_json()).comparison
    assert again is not None and isnan(again.least)
    assert (again.low, again.median, again.pairs, again.disturbed) == (1.15, 1.2, 3, True)


def test_people_read_the_spread_and_whether_the_figure_is_void() -> None:
    def printed(comparison: Comparison | None) -> str:
        summary = Summary("m", "onnxruntime", 1, 2.0, 1.0, 2.0, Equality(0, 0, True), comparison=comparison)
        console = Console(width=200)
        with console.capture() as capture:
            console.print(summary.render())
        return capture.get()

    ratios = [1.1, 1.14, 1.16, 1.2, 1.22, 1.24, 1.3]
    text = printed(Comparison.of(ratios))
    assert "7 pairs of runs, the middle half 1.15x to 1.23x; 1.10x to 1.30x beyond doubt" in text
    assert "void" not in text and "compared" not in printed(None)
    assert "void: other processes disturbed it" in printed(Comparison.of(ratios, disturbed=True))


def test_people_read_at_which_sizes_a_result_runs() -> None:
    summary = Summary("m", "onnxruntime", 1, 2.0, 1.0, 2.0, Equality(0, 0, True), runs_only="x=1,3,640,640")
    console = Console(width=200)
    with console.capture() as capture:
        console.print(Summary.from_json(summary.to_json()).render())
    assert "runs only at x=1,3,640,640" in capture.get()


@pytest.mark.parametrize(
    ("ratios", "words"),
    [([1.0, 1.01] * 9, "no difference"), ([0.9] * 9, "slower"), ([1.01] * 9, "1.02x"), ([3.0], "seen")],
)
def test_people_are_told_why_a_program_was_thrown_away(ratios: list[float], words: str) -> None:
    assert words in Comparison.of(ratios).refusal(GAIN)
