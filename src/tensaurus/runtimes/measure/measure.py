"""Times that can be compared: sessions in turns, one process each, and single operators quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, inf
from time import monotonic
from types import TracebackType

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array
from tensaurus.runtimes.measure.comparison import LOOKS, Comparison
from tensaurus.runtimes.measure.machine import Bystanders
from tensaurus.runtimes.measure.worker import DISTURBED, REPEATS, Round, Worker, WorkerError

__all__ = [
    "FEWEST",
    "Contender",
    "Pairs",
    "Stopwatch",
    "Timing",
    "compare",
    "compare_pairs",
    "fewest_rounds",
    "in_pairs",
    "in_turns",
    "ratio",
    "refusal",
    "warm_up",
]

FEWEST = 4  # rounds of a comparison, however little time there is...
ENOUGH = 2.0  # ...but for those that take long: seconds of one contender's turns, after which fewer will do
BURST = 0.03  # seconds that one of a pair computes, once at least: far less than a host keeps its speed for
LONGEST = 15.0  # seconds of a comparison by pairs, where nothing else limits it


@dataclass(frozen=True)
class Contender:
    """A model to run on a backend."""

    name: str
    backend: str
    build: Build


@dataclass(frozen=True)
class Timing:
    """How long one run of a contender takes, in seconds."""

    name: str
    rounds: tuple[tuple[float, ...], ...]  # of each round, seconds of each run
    disturbed: int  # rounds that other processes disturbed, repetitions too

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds of every run."""
        return tuple(sample for samples in self.rounds for sample in samples)

    @property
    def median(self) -> float:
        """Seconds."""
        return float(np.median(self.samples))

    @property
    def minimum(self) -> float:
        """Seconds."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(high - low) / self.median


@dataclass(frozen=True)
class Pairs:
    """Seconds of one run of two contenders, measured within some milliseconds of each other, again and again.

    calm   of each pair, whether no other process disturbed it
    """

    seconds: tuple[tuple[float, float], ...] = ()
    calm: tuple[bool, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether most of the pairs were."""
        return 2 * sum(self.calm) < len(self.calm)

    @property
    def counted(self) -> tuple[tuple[float, float], ...]:
        """The pairs that decide: the calm ones, and all where these are few.

        Equal contenders are disturbed alike, so leaving pairs out favours neither of them.
        """
        if self.disturbed:
            return self.seconds
        return tuple(pair for pair, calm in zip(self.seconds, self.calm, strict=True) if calm)

    def decide(self, gain: float, deadline: float = inf) -> bool:
        """Whether they are worth keeping: calm, and sure whether the second gains so much.  Where no deadline
        cut them short, no more of them are to be had, so that they are kept as they are."""
        return deadline == inf or not self.disturbed and self.comparison.settles(gain)

    @property
    def comparison(self) -> Comparison:
        """What the pairs say."""
        return Comparison.of([first / second for first, second in self.counted], self.disturbed)

    @property
    def before(self) -> float:
        """Seconds of one run of the first contender."""
        return float(np.median([first for first, _ in self.counted]))

    @property
    def after(self) -> float:
        """Seconds of one run of the second, beside those of the first: their ratio is that of the pairs."""
        return self.before / self.comparison.median


def ratio(a: Timing, b: Timing) -> Comparison:
    """Time of a over time of b, round by round, so that drift of the machine cancels out.

    Both come from one `compare`; raises ValueError where their rounds are not the same number.
    """
    pairs = zip(a.rounds, b.rounds, strict=True)
    ratios = [float(np.median(x) / np.median(y)) for x, y in pairs]
    return Comparison.of(ratios, 2 * max(a.disturbed, b.disturbed) > len(ratios))


def compare(
    contenders: Sequence[Contender],
    feeds: Mapping[str, Array],
    *,
    threads: int,
    rounds: int = 8,
    seconds: float = 0.25,
    timeout: float = 300.0,
    deadline: float = inf,
) -> list[Timing]:
    """Time the contenders in turns on the same feeds, `rounds` times about `seconds` each; in their order.

    `timeout` is in seconds, for a compilation or a round; `deadline` as for `in_turns`. Raises WorkerError,
    which names the contender, where one does not compile, run, or answer in time.
    """
    with ExitStack() as stack:
        workers = _warm(contenders, feeds, threads, seconds, timeout, stack)
        return in_turns([contender.name for contender in contenders], workers, rounds, seconds, deadline)


def compare_pairs(
    first: Contender,
    second: Contender,
    feeds: Mapping[str, Array],
    *,
    threads: int,
    gain: float,
    timeout: float = 300.0,
    deadline: float = inf,
) -> Pairs:
    """Time two contenders in new processes, until their pairs decide whether the second gains so much.

    For the rest see `compare` and `in_pairs`.
    """
    with ExitStack() as stack:
        workers = _warm((first, second), feeds, threads, BURST, timeout, stack)
        return in_pairs([first.name, second.name], workers, gain, deadline)


def _warm(
    contenders: Sequence[Contender],
    feeds: Mapping[str, Array],
    threads: int,
    seconds: float,
    timeout: float,
    stack: ExitStack,
) -> list[Worker]:
    """A worker for each contender, which has run it for about `seconds`; the stack ends them."""
    workers = []
    for contender in contenders:
        worker = stack.enter_context(Worker(contender.backend, threads=threads, timeout=timeout))
        try:
            warm_up(worker, contender.build, feeds, seconds)
        except WorkerError as error:
            raise WorkerError(f"{contender.name}: {error}") from error
        workers.append(worker)
    return workers


def refusal(contender: Contender, feeds: Mapping[str, Array], threads: int) -> str | None:
    """Why the contender does not run on the feeds; None where it does."""
    with Worker(contender.backend, threads=threads) as worker:
        try:
            worker.compile(contender.build)
            worker.feed(feeds)
            worker.run()
        except WorkerError as error:
            return str(error)
    return None


def warm_up(worker: Worker, build: Build, feeds: Mapping[str, Array], seconds: float) -> None:
    """Compile the model and run it for about `seconds`; raises WorkerError."""
    worker.compile(build)
    worker.feed(feeds)
    worker.time(seconds)


def in_turns(
    names: Sequence[str], workers: Sequence[Worker], rounds: int, seconds: float, deadline: float = inf
) -> list[Timing]:
    """Time workers that are warm, one after the other, every second round the other way round.

    What is disturbed is repeated where all rounds still end before the `deadline` (of `time.monotonic`);
    without any repetition, rounds beyond the fewest are left out to meet it.
    Raises WorkerError, which names the contender.
    """
    taken: list[list[Round]] = [[] for _ in workers]
    longest, left = 0.0, rounds * len(workers)  # seconds of a turn, turns
    for number in range(rounds):
        if number >= fewest_rounds(longest) and monotonic() + longest * len(workers) > deadline:
            break
        order = range(len(workers)) if number % 2 == 0 else reversed(range(len(workers)))
        for position in order:
            left -= 1
            try:
                turn, spent = _calmest(workers[position], seconds, left, deadline)
            except WorkerError as error:
                raise WorkerError(f"{names[position]}: {error}") from error
            taken[position].append(turn)
            longest = max(longest, spent)
    return [
        Timing(name, tuple(r.samples for r in rounds), sum(r.disturbance > DISTURBED for r in rounds))
        for name, rounds in zip(names, taken, strict=True)
    ]


def fewest_rounds(turn: float) -> int:
    """How many rounds of turns of so many seconds a comparison has, however little time there is."""
    return FEWEST if FEWEST * turn <= ENOUGH else ceil(ENOUGH / turn)


def in_pairs(
    names: Sequence[str], workers: Sequence[Worker], gain: float, deadline: float = inf
) -> Pairs:
    """Time two workers that are warm, in turns of some milliseconds, every second pair the other way round.

    The pairs are asked at each of the LOOKS whether the second gains the share that is wanted, and the
    comparison ends when they know, or at the `deadline` (of `time.monotonic`), after one pair at least.
    Raises WorkerError, which names the contender.
    """
    began, longest = monotonic(), 0.0
    bystanders = Bystanders(worker.pid for worker in workers)
    taken: list[tuple[float, float]] = []
    calm: list[bool] = []
    while len(taken) < LOOKS[-1]:
        start = monotonic()
        if taken and start + longest > deadline or len(taken) >= LOOKS[0] and start > began + LONGEST:
            break
        turns: dict[int, Round] = {}
        for position in (0, 1) if len(taken) % 2 == 0 else (1, 0):
            try:
                turns[position] = workers[position].time(BURST)
            except WorkerError as error:
                raise WorkerError(f"{names[position]}: {error}") from error
        longest = max(longest, monotonic() - start)
        taken.append((turns[0].median, turns[1].median))
        calm.append(max(turn.disturbance for turn in turns.values()) <= DISTURBED)
        if len(taken) in LOOKS and Pairs(tuple(taken), tuple(calm)).comparison.settles(gain):
            break
    if bystanders.share() > DISTURBED:
        calm = [False] * len(taken)
    return Pairs(tuple(taken), tuple(calm))


def _calmest(worker: Worker, seconds: float, left: int, deadline: float) -> tuple[Round, float]:
    """One turn, and how long it took; repeated while it is disturbed, if so many others still have time."""
    began = monotonic()
    best = worker.time(seconds)
    spent = monotonic() - began
    for _ in range(REPEATS):
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
        """Each model runs for about `seconds` and `runs` times at least; `timeout` seconds end a hang."""
        self._backend, self._threads, self._timeout = backend, threads, timeout
        self._seconds, self._runs = seconds, runs
        self._worker: Worker | None = None
        self.failure: str | None = None  # why the last measurement was None
        self.ended = False  # whether that ended the worker: a crash or a hang, which need not happen again
        self.disturbed = 0  # measurements that other processes disturbed, repetitions too

    def measure(self, build: Build, feeds: Mapping[str, Array]) -> float | None:
        """Median seconds of one run, or None where the runtime refuses, crashes or hangs.

        Weights belong in the model as initializers, as the runtime prepares those once.
        """
        if self._worker is None or not self._worker.alive:
            self.close()
            self._worker = Worker(self._backend, threads=self._threads, timeout=self._timeout)
        try:
            taken, disturbed = self._worker.measure(build, feeds, seconds=self._seconds, runs=self._runs)
        except WorkerError as error:
            self.failure, self.ended = str(error), not self._worker.alive
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
