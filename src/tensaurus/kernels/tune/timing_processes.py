"""Times schedules in child processes: one for each core, on one thread, and one on all threads.

Timing on one thread, side by side, tries as many schedules at once as there are cores. It also depends less
on the load of the machine than a parallel loop, which waits for its slowest thread. The last decision is made
on all threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from weakref import WeakKeyDictionary

from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError

__all__ = ["TimingProcesses"]

TRIAL_TIMEOUT = 3.0  # seconds that compiling and timing a schedule may take, plus the caller's `patience`
START_TIMEOUT = 30.0  # additional seconds until a new process has imported Halide and taken the expression
CHECK_TIMEOUT = 120.0  # additional seconds for evaluating the expression by the interpreter


class TimingProcesses:
    """Times schedules of one expression after another; a process that dies or hangs is replaced."""

    def __init__(self, cpu: str, threads: int):
        self.cpu, self.threads = cpu, threads
        self._single_threads: list[Child | None] = [None] * threads
        self._all_threads: Child | None = None
        self._task: tuple[object, ...] = ()
        self._task_of: WeakKeyDictionary[Child, tuple[object, ...]] = WeakKeyDictionary()

    def set_expression(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """Sets the expression (as text), the types of its inputs and of its output."""
        self._task = scope, tuple(types), output

    def start_all(self) -> None:
        """Starts every process and gives it the expression."""
        try:
            children = [*self._single_threads, *([self._all_threads] if self.threads > 1 else [])]
            ready = self._give_expression(children, [*[1] * self.threads, self.threads][: len(children)])
            self._single_threads = ready[: self.threads]
            if self.threads > 1:
                self._all_threads = ready[-1]
        except BaseException:
            self.close()  # an interrupted process may still answer, so all are started anew when needed
            raise

    def time_on_one_thread(
        self, schedules: Sequence[str], seconds: float, patience: float = 0.0
    ) -> list[float]:
        """Returns the seconds of a run of each schedule on one thread; infinite for a schedule that fails.

        Each is timed for `seconds`, side by side; there may be at most as many as there are threads.
        `patience` is the additional time, in seconds, that compiling may take.
        """
        asked: list[Child | None] = []
        times = []
        try:
            self._single_threads[: len(schedules)] = self._give_expression(
                self._single_threads[: len(schedules)], [1] * len(schedules)
            )
            for child, schedule in zip(self._single_threads, schedules, strict=False):
                try:
                    if child is not None:
                        child.begin("time", schedule, seconds)
                    asked.append(child)
                except ChildError:
                    asked.append(None)
            for answering in asked:
                try:
                    times.append(inf if answering is None else float(answering.finish(patience)))
                except ChildError:
                    times.append(inf)
        except BaseException:
            self.close()
            raise
        return times

    def compile(self, schedule: str, patience: float = 0.0) -> None:
        """Compiles a schedule ahead of `time_on_all_threads`, which reports its errors."""
        with suppress(ChildError):
            self._ask("compile", schedule, patience=patience)

    def time_on_all_threads(self, schedule: str, seconds: float, patience: float = 0.0) -> float:
        """Returns the seconds of a run of the schedule on all threads; infinite where it fails."""
        try:
            return float(self._ask("time", schedule, seconds, patience=patience))  # type: ignore[arg-type]
        except ChildError:
            return inf

    def find_error(self, schedule: str) -> str:
        """Returns what is wrong with the schedule's results, "" where they are right."""
        try:
            return str(self._ask("find_error", schedule, patience=CHECK_TIMEOUT))
        except ChildError as error:
            return str(error)

    def _ask(self, verb: str, *arguments: object, patience: float = 0.0) -> object:
        try:
            if self.threads == 1:
                (child,) = self._single_threads[:1] = self._give_expression(self._single_threads[:1], [1])
            else:
                (child,) = (self._all_threads,) = self._give_expression([self._all_threads], [self.threads])
            if child is None:
                raise ChildError("the kernel compiler does not support this expression")
            return child.ask(verb, *arguments, patience=patience)
        except ChildError:
            raise
        except BaseException:
            self.close()
            raise

    def _give_expression(
        self, children: Sequence[Child | None], threads: Sequence[int]
    ) -> list[Child | None]:
        """Returns processes with these numbers of threads that have the expression: those given, or new ones
        in place of dead ones; None for a process that fails to take it.
        """
        living = [self._restart_if_dead(child, count) for child, count in zip(children, threads, strict=True)]
        asked: list[Child] = []
        refusing: list[Child] = []
        for child in living:
            if self._task_of.get(child) != self._task:
                try:
                    child.begin("set_expression", *self._task)
                    asked.append(child)
                except ChildError:
                    refusing.append(child)
        for child in asked:
            try:
                child.finish(START_TIMEOUT)
                self._task_of[child] = self._task
            except ChildError:
                refusing.append(child)
        return [None if child in refusing else child for child in living]

    def _restart_if_dead(self, child: Child | None, threads: int) -> Child:
        """Returns the process, or a new one if it is dead."""
        if child is not None and child.is_alive:
            return child
        if child is not None:
            child.close()
        return Child(
            "the compiler of kernels",
            "tensaurus.kernels.tune.trial_process:Trials",
            self.cpu,
            timeout=TRIAL_TIMEOUT,
            environment={"HL_NUM_THREADS": str(threads)},
        )

    def close(self) -> None:
        """Ends the processes; they are started again when they are needed."""
        for child in (*self._single_threads, self._all_threads):
            if child is not None:
                child.close()
        self._single_threads, self._all_threads = [None] * self.threads, None
