"""Processes that time schedules: one for each core, on one thread, and one on all for what decides.

Timing on one thread side by side tries as many schedules at once as there are cores, and depends less on what
else the machine does than a parallel loop, which waits for its slowest thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from weakref import WeakKeyDictionary

from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError

__all__ = ["Runner"]

LONG = 3.0  # seconds that compiling and timing one schedule may take where there is little time
STARTED = 30.0  # more, until a process is ready
CHECKED = 120.0  # more, for the evaluator


class Runner:
    """Times schedules of one expression after the other; a process that dies or hangs is replaced."""

    def __init__(self, cpu: str, threads: int):
        self.cpu, self.threads = cpu, threads
        self._single: list[Child | None] = [None] * threads
        self._whole: Child | None = None
        self._task: tuple[object, ...] = ()
        self._holds: WeakKeyDictionary[Child, tuple[object, ...]] = WeakKeyDictionary()  # what each has taken

    def take(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """The expression, as text, and what it reads and makes."""
        self._task = scope, tuple(types), output

    def prepare(self) -> None:
        """Every process is started, and has the expression."""
        try:
            children = [*self._single, *([self._whole] if self.threads > 1 else [])]
            ready = self._ready(children, [*[1] * self.threads, self.threads][: len(children)])
            self._single = ready[: self.threads]
            if self.threads > 1:
                self._whole = ready[-1]
        except BaseException:
            self.close()  # they are started again where they are needed
            raise

    def times(self, schedules: Sequence[str], seconds: float, patience: float = 0.0) -> list[float]:
        """Seconds of a run of each on one thread, timed for so long; infinite where one fails.

        At most as many as there are threads; `patience` is for compiling.
        """
        asked: list[Child | None] = []
        found = []
        try:
            self._single[: len(schedules)] = self._ready(self._single[: len(schedules)], [1] * len(schedules))
            for child, schedule in zip(self._single, schedules, strict=False):
                try:
                    if child is not None:
                        child.begin("time", schedule, seconds)
                    asked.append(child)
                except ChildError:
                    asked.append(None)
            for answering in asked:
                try:
                    found.append(inf if answering is None else float(answering.finish(patience)))
                except ChildError:
                    found.append(inf)
        except BaseException:
            self.close()
            raise
        return found

    def bind(self, schedule: str, patience: float = 0.0) -> None:
        """Compile it for `decided`, which says what is wrong with it."""
        with suppress(ChildError):
            self._ask("bind", schedule, patience=patience)

    def decided(self, schedule: str, seconds: float, patience: float = 0.0) -> float:
        """As `times`, of one on all threads."""
        try:
            return float(self._ask("time", schedule, seconds, patience=patience))  # type: ignore[arg-type]
        except ChildError:
            return inf

    def wrong(self, schedule: str) -> str:
        """What is wrong with what it computes, "" where nothing is."""
        try:
            return str(self._ask("right", schedule, patience=CHECKED))
        except ChildError as error:
            return str(error)

    def _ask(self, verb: str, *arguments: object, patience: float = 0.0) -> object:
        try:
            if self.threads == 1:
                (child,) = self._single[:1] = self._ready(self._single[:1], [1])
            else:
                (child,) = (self._whole,) = self._ready([self._whole], [self.threads])
            if child is None:
                raise ChildError("the compiler of kernels cannot take the expression")
            return child.ask(verb, *arguments, patience=patience)
        except ChildError:
            raise
        except BaseException:
            self.close()
            raise

    def _ready(self, children: Sequence[Child | None], threads: Sequence[int]) -> list[Child | None]:
        """The processes of so many threads each, or others in their places, with the expression; None for one
        that refuses it."""
        made = [self._living(child, count) for child, count in zip(children, threads, strict=True)]
        asked: list[Child] = []
        refusing: list[Child] = []
        for child in made:
            if self._holds.get(child) != self._task:
                try:
                    child.begin("take", *self._task)
                    asked.append(child)
                except ChildError:
                    refusing.append(child)
        for child in asked:
            try:
                child.finish(STARTED)
                self._holds[child] = self._task
            except ChildError:
                refusing.append(child)
        return [None if child in refusing else child for child in made]

    def _living(self, child: Child | None, threads: int) -> Child:
        """The process, or another one in its place."""
        if child is not None and child.alive:
            return child
        if child is not None:
            child.close()
        return Child(
            "the compiler of kernels",
            "tensaurus.kernels.tune.trial_process:Trials",
            self.cpu,
            timeout=LONG,
            environment={"HL_NUM_THREADS": str(threads)},
        )

    def close(self) -> None:
        """End the processes; they are started again when they are needed."""
        for child in (*self._single, self._whole):
            if child is not None:
                child.close()
        self._single, self._whole = [None] * self.threads, None
