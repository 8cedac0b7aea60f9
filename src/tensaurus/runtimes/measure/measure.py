"""Measures times that can be compared: models in turns, in a process each, and single operators quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, inf
from time import monotonic
from types import TracebackType

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import WARM_UP_RUNS, Array
from tensaurus.runtimes.measure.comparison import LOOKS, Comparison
from tensaurus.runtimes.measure.machine import OtherProcesses
from tensaurus.runtimes.measure.worker import (
    DISTURBED,
    MAX_REPEATS,
    SLOW_SECONDS,
    Round,
    Worker,
    WorkerError,
)

__all__ = [
    "MIN_ROUNDS",
    "Contender",
    "Pairs",
    "Stopwatch",
    "Timing",
    "time_contender_pairs",
    "time_contenders",
    "min_rounds",
    "time_in_pairs",
    "time_in_turns",
    "compare_timings",
    "explain_refusal",
    "warm_up",
    "warm_up_runs",
]

MIN_ROUNDS = 4  # of a comparison, however little time there is
# Once the turns of one contender have taken this long together, fewer rounds than MIN_ROUNDS are enough.
ENOUGH_SECONDS = 2.0
# Length of the turn of one model of a pair: a host keeps its speed for far longer.
BURST_SECONDS = 0.03
MAX_PAIR_SECONDS = 15.0  # of a comparison by pairs, once the first look was taken


@dataclass(frozen=True)
class Contender:
    """A model to be timed on a backend; `name` is for messages."""

    name: str
    backend: str
    build: Build


@dataclass(frozen=True)
class Timing:
    """The seconds of the runs of a contender."""

    name: str
    rounds: tuple[tuple[float, ...], ...]  # of each round, seconds of each run
    disturbed: int  # in how many rounds other processes disturbed every repetition

    @property
    def samples(self) -> tuple[float, ...]:
        """The seconds of every run."""
        return tuple(sample for samples in self.rounds for sample in samples)

    @property
    def median(self) -> float:
        """The median of the seconds of one run."""
        return float(np.median(self.samples))

    @property
    def minimum(self) -> float:
        """The least seconds of one run."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(high - low) / self.median


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs of two contenders, the two of a pair measured within some milliseconds of each other.

    seconds  of one run of each contender, by pairs
    calm     of each pair, whether no other process disturbed it
    """

    seconds: tuple[tuple[float, float], ...] = ()
    calm: tuple[bool, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether most of the pairs were disturbed."""
        return 2 * sum(self.calm) < len(self.calm)

    @property
    def counted(self) -> tuple[tuple[float, float], ...]:
        """The pairs that count: the calm ones, or all where most are disturbed.

        Equal contenders are disturbed equally often, so that leaving pairs out favours neither.
        """
        if self.disturbed:
            return self.seconds
        return tuple(pair for pair, calm in zip(self.seconds, self.calm, strict=True) if calm)

    def are_worth_storing(self, gain: float, deadline: float = inf) -> bool:
        """Return whether most pairs are calm, and they show whether the second contender gains `gain`.

        Without a deadline the comparison has run to its end, and its pairs are stored in any case.
        """
        return deadline == inf or not self.disturbed and self.comparison.settles(gain)

    @property
    def comparison(self) -> Comparison:
        """The statistics of the pairs."""
        return Comparison.of([first / second for first, second in self.counted], self.disturbed)

    @property
    def before(self) -> float:
        """The seconds of one run of the first contender."""
        return float(np.median([first for first, _ in self.counted]))

    @property
    def after(self) -> float:
        """The seconds of one run of the second contender, by the median ratio of the pairs."""
        return self.before / self.comparison.median


def compare_timings(a: Timing, b: Timing) -> Comparison:
    """Compare the time of a with that of b, round by round, so that drift of the machine cancels out.

    Both must come from one call of `time_contenders`.  Raises ValueError where they differ in their rounds.
    """
    pairs = zip(a.rounds, b.rounds, strict=True)
    ratios = [float(np.median(x) / np.median(y)) for x, y in pairs]
    return Comparison.of(ratios, 2 * max(a.disturbed, b.disturbed) > len(ratios))


def time_contenders(
    contenders: Sequence[Contender],
    feeds: Mapping[str, Array],
    *,
    threads: int,
    rounds: int = 8,
    seconds: float = 0.25,
    timeout: float = 300.0,
    deadline: float = inf,
) -> list[Timing]:
    """Time the contenders in turns on the same feeds, `rounds` times about `seconds` each.

    `timeout` is in seconds, for a compilation or a round; for `deadline` see `time_in_turns`.  Raises
    WorkerError, which names the contender, where one does not compile, run, or answer in time.
    """
    with ExitStack() as stack:
        workers = _start_warm_workers(contenders, feeds, threads, seconds, timeout, stack)
        return time_in_turns([contender.name for contender in contenders], workers, rounds, seconds, deadline)


def time_contender_pairs(
    first: Contender,
    second: Contender,
    feeds: Mapping[str, Array],
    *,
    threads: int,
    gain: float,
    timeout: float = 300.0,
    deadline: float = inf,
) -> Pairs:
    """Time two contenders in new processes, until their pairs decide whether the second gains `gain`.

    For the other arguments see `time_contenders` and `time_in_pairs`.
    """
    with ExitStack() as stack:
        workers = _start_warm_workers((first, second), feeds, threads, BURST_SECONDS, timeout, stack)
        return time_in_pairs([first.name, second.name], workers, gain, deadline)


def _start_warm_workers(
    contenders: Sequence[Contender],
    feeds: Mapping[str, Array],
    threads: int,
    seconds: float,
    timeout: float,
    stack: ExitStack,
) -> list[Worker]:
    """Start a worker for each contender and run it for about `seconds`; the stack ends the workers."""
    workers = []
    for contender in contenders:
        worker = stack.enter_context(Worker(contender.backend, threads=threads, timeout=timeout))
        try:
            warm_up(worker, contender.build, feeds, seconds)
        except WorkerError as error:
            raise WorkerError(f"{contender.name}: {error}") from error
        workers.append(worker)
    return workers


def explain_refusal(contender: Contender, feeds: Mapping[str, Array], threads: int) -> str | None:
    """Return why the contender does not run on the feeds; None where it does."""
    with Worker(contender.backend, threads=threads) as worker:
        try:
            worker.compile(contender.build)
            worker.feed(feeds)
            worker.run()
        except WorkerError as error:
            return str(error)
    return None


def warm_up(worker: Worker, build: Build, feeds: Mapping[str, Array], seconds: float) -> None:
    """Compile the model and run it for about `seconds`, `warm_up_runs` times at least.

    Raises WorkerError.
    """
    worker.compile(build)
    worker.feed(feeds)
    samples: list[float] = []
    while not samples or len(samples) < warm_up_runs(max(samples)):
        samples += worker.time(seconds).samples


def warm_up_runs(run_seconds: float) -> int:
    """Return how many first runs do not count of a model whose run takes this long: a slow one has fewer."""
    return WARM_UP_RUNS if run_seconds < SLOW_SECONDS else 1


def time_in_turns(
    names: Sequence[str], workers: Sequence[Worker], rounds: int, seconds: float, deadline: float = inf
) -> list[Timing]:
    """Time warmed-up workers one after the other, in every second round in the opposite order.

    A disturbed turn is repeated if all rounds still end before the `deadline` (of `time.monotonic`); if not
    even undisturbed rounds do, rounds beyond `min_rounds` are left out.
    Raises WorkerError, which names the contender.
    """
    taken: list[list[Round]] = [[] for _ in workers]
    longest, left = 0.0, rounds * len(workers)  # seconds of a turn, turns
    for number in range(rounds):
        if number >= min_rounds(longest) and monotonic() + longest * len(workers) > deadline:
            break
        order = range(len(workers)) if number % 2 == 0 else reversed(range(len(workers)))
        for position in order:
            left -= 1
            try:
                turn, spent = _calmest_turn(workers[position], seconds, left, deadline)
            except WorkerError as error:
                raise WorkerError(f"{names[position]}: {error}") from error
            taken[position].append(turn)
            longest = max(longest, spent)
    return [
        Timing(name, tuple(t.samples for t in turns), sum(t.disturbance > DISTURBED for t in turns))
        for name, turns in zip(names, taken, strict=True)
    ]


def min_rounds(turn: float) -> int:
    """Return how many rounds a comparison has at least, given the seconds of a turn."""
    return MIN_ROUNDS if MIN_ROUNDS * turn <= ENOUGH_SECONDS else ceil(ENOUGH_SECONDS / turn)


def time_in_pairs(
    names: Sequence[str], workers: Sequence[Worker], gain: float, deadline: float = inf
) -> Pairs:
    """Time two warmed-up workers in turns of some milliseconds, every second pair in the opposite order.

    At each of the LOOKS the comparison ends if the pairs decide whether the second gains the share `gain`.
    It ends at the `deadline` (of `time.monotonic`), too, after one pair at least.
    Raises WorkerError, which names the contender.
    """
    began, longest = monotonic(), 0.0
    others = OtherProcesses(worker.pid for worker in workers)
    taken: list[tuple[float, float]] = []
    calm: list[bool] = []
    while len(taken) < LOOKS[-1]:
        start = monotonic()
        if taken and start + longest > deadline:
            break
        if len(taken) >= LOOKS[0] and start > began + MAX_PAIR_SECONDS:
            break
        turns: dict[int, Round] = {}
        for position in (0, 1) if len(taken) % 2 == 0 else (1, 0):
            try:
                turns[position] = workers[position].time(BURST_SECONDS)
            except WorkerError as error:
                raise WorkerError(f"{names[position]}: {error}") from error
        longest = max(longest, monotonic() - start)
        taken.append((turns[0].median, turns[1].median))
        calm.append(max(turn.disturbance for turn in turns.values()) <= DISTURBED)
        if len(taken) in LOOKS and Pairs(tuple(taken), tuple(calm)).comparison.settles(gain):
            break
    if others.share() > DISTURBED:
        calm = [False] * len(taken)
    return Pairs(tuple(taken), tuple(calm))


def _calmest_turn(worker: Worker, seconds: float, left: int, deadline: float) -> tuple[Round, float]:
    """Return the calmest of a few turns, and the seconds of one.

    A disturbed turn is repeated while `left` further turns still fit before the deadline.
    """
    began = monotonic()
    best = worker.time(seconds)
    spent = monotonic() - began
    for _ in range(MAX_REPEATS):
        if best.disturbance <= DISTURBED or monotonic() + (1 + left) * spent > deadline:
            break
        best = min(best, worker.time(seconds), key=lambda r: r.disturbance)
    return best, spent


class Stopwatch:
    """Measures many small models in one persistent worker. Used by one thread at a time."""

    def __init__(
        self,
        backend: str,
        *,
        threads: int,
        seconds: float = 0.02,
        runs: int = 7,
        timeout: float = 10.0,
    ) -> None:
        """Prepare; each model runs for about `seconds` and at least `runs` times; `timeout` ends a hang."""
        self._backend, self._threads, self._timeout = backend, threads, timeout
        self._seconds, self._runs = seconds, runs
        self._worker: Worker | None = None
        self.failure: str | None = None  # why the last measurement was None
        self.ended = False  # whether the last failure ended the worker: a crash or hang may not happen again
        self.disturbed = 0  # how many measurements other processes disturbed, repetitions too

    def measure(self, build: Build, feeds: Mapping[str, Array]) -> float | None:
        """Return the median seconds of one run, or None where the runtime refuses, crashes or hangs.

        Weights must be initializers of the model: these the runtime prepares only once.
        """
        if self._worker is None or not self._worker.is_alive:
            self.close()
            self._worker = Worker(self._backend, threads=self._threads, timeout=self._timeout)
        try:
            taken, disturbed = self._worker.measure(build, feeds, seconds=self._seconds, runs=self._runs)
        except WorkerError as error:
            self.failure, self.ended = str(error), not self._worker.is_alive
            return None
        self.failure, self.ended = None, False
        self.disturbed += disturbed
        return taken

    def close(self) -> None:
        """End the worker; the next measurement starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
