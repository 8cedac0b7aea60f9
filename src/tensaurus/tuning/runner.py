"""Processes that time schedules: one for each core, on one thread, and one on all for what decides.

Timing on one thread side by side tries as many schedules at once as there are cores, and depends less on what
else the machine does than a parallel loop, which waits for its slowest thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tensaurus.child import Child, ChildError
from tensaurus.ops import TensorType

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

    def take(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """The expression, as text, and what it reads and makes; every process is ready for it then."""
        self._task = scope, tuple(types), output
        try:
            for place, child in enumerate(self._single):
                self._single[place] = self._living(child, 1)
            if self.threads > 1:
                self._whole = self._living(self._whole, self.threads)
            ready = [child for child in (*self._single, self._whole) if child is not None]
            for child in ready:
                child.begin("take", *self._task)
            for child in ready:
                child.finish(STARTED)
        except BaseException as error:
            self.close()  # they are started again where they are needed
            if not isinstance(error, ChildError):
                raise

    def times(self, schedules: Sequence[str], seconds: float, patience: float = 0.0) -> list[float]:
        """Seconds of a run of each on one thread, timed for so long; infinite where one fails.

        At most as many as there are threads; `patience` is for compiling.
        """
        asked: list[Child | None] = []
        found = []
        try:
            for place, schedule in enumerate(schedules):
                try:
                    child = self._single[place] = self._ready(self._single[place], 1)
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
        if self.threads == 1:
            child = self._single[0] = self._ready(self._single[0], 1)
        else:
            child = self._whole = self._ready(self._whole, self.threads)
        try:
            return child.ask(verb, *arguments, patience=patience)
        except ChildError:
            raise
        except BaseException:
            self.close()
            raise

    def _ready(self, child: Child | None, threads: int) -> Child:
        made = self._living(child, threads)
        if made is not child and self._task:
            made.ask("take", *self._task, patience=STARTED)
        return made

    def _living(self, child: Child | None, threads: int) -> Child:
        """The process, or another one in its place."""
        if child is not None and child.alive:
            return child
        if child is not None:
            child.close()
        return Child(
            "the compiler of kernels",
            "tensaurus.tuning.trial:Trials",
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
