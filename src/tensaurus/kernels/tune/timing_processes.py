"""Times schedules in child processes: one for each core, on one thread, and one on all threads.

Timing on one thread, side by side, tries as many schedules at once as there are cores. It also depends less
on the load of the machine than a parallel loop, which waits for its slowest thread. The last decision is made
on all threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from weakref import WeakKeyDictionary

from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError

__all__ = ["TimingProcesses"]

TRIAL_TIMEOUT = 3.0  # seconds that compiling and timing a schedule may take, plus the caller's `patience`
START_TIMEOUT = 30.0  # additional seconds until a new process has imported Halide and taken the expression
# glibc from 2.35 on asks for huge pages where it allocates scratch memory, as library/shim.c does
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
CHECK_TIMEOUT = 120.0  # additional seconds for evaluating the expression by the interpreter


class TimingProcesses:
    """Times schedules of one expression after another; a process that dies or hangs is replaced."""

    def __init__(self, cpu: str, threads: int):
        self.cpu = cpu
        # the threads of each process; the last process has all of them
        self._thread_counts = [*([1] * threads), *([threads] if threads > 1 else [])]
        self._children: list[Child | None] = [None] * len(self._thread_counts)
        self._expression: tuple[object, ...] = ()
        self._expression_of: WeakKeyDictionary[Child, tuple[object, ...]] = WeakKeyDictionary()

    def set_expression(self, scope: str, types: Sequence[TensorType], output: TensorType) -> None:
        """Sets the expression (as text), the types of its inputs and of its output."""
        self._expression = scope, tuple(types), output

    def begin_start(self) -> None:
        """Starts every process and returns at once: they load the compiler while the caller does others."""
        for number in range(len(self._children)):
            self._children[number] = self._living_child(number)

    def start_all(self) -> None:
        """Starts every process and gives it the expression."""
        try:
            self._give_expression(range(len(self._children)))
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
            self._give_expression(range(len(schedules)))
            for child, schedule in zip(self._children, schedules, strict=False):
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

    def time_on_all_threads(
        self, schedule: str, seconds: float, patience: float = 0.0, code: bytes | None = None
    ) -> float:
        """Returns the seconds of a run of the schedule on all threads; infinite where it fails.

        `code` is the schedule's object; without it the process compiles the schedule itself. What is timed
        is what `find_error` checks.
        """
        try:
            if code is not None:
                self._ask("load", schedule, code)
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
            self._give_expression([len(self._children) - 1])
            child = self._children[-1]
            if child is None:
                raise ChildError("the kernel compiler does not support this expression")
            return child.ask(verb, *arguments, patience=patience)
        except ChildError:
            raise
        except BaseException:
            self.close()
            raise

    def _give_expression(self, numbers: Sequence[int]) -> None:
        """Gives the expression to the processes of these numbers, of which dead ones are started again.

        A process that fails to take it becomes None.
        """
        children = [self._living_child(number) for number in numbers]
        asked: list[Child] = []
        refusing: list[Child] = []
        for child in children:
            if self._expression_of.get(child) != self._expression:
                try:
                    child.begin("set_expression", *self._expression)
                    asked.append(child)
                except ChildError:
                    refusing.append(child)
        for child in asked:
            try:
                child.finish(START_TIMEOUT)
                self._expression_of[child] = self._expression
            except ChildError:
                refusing.append(child)
        for number, child in zip(numbers, children, strict=True):
            self._children[number] = None if child in refusing else child

    def _living_child(self, number: int) -> Child:
        """Returns the process of this number, or a new one if it is dead."""
        child = self._children[number]
        if child is not None and child.is_alive:
            return child
        if child is not None:
            child.close()
        return Child(
            "the compiler of kernels",
            "tensaurus.kernels.tune.trial_process:Trials",
            self.cpu,
            int(number == len(self._children) - 1),
            timeout=TRIAL_TIMEOUT,
            environment={"HL_NUM_THREADS": str(self._thread_counts[number]), **HUGE_PAGES},
        )

    def close(self) -> None:
        """Ends the processes; they are started again when they are needed."""
        for child in self._children:
            if child is not None:
                child.close()
        self._children = [None] * len(self._children)
