"""Ends a block of code at a deadline, whatever the block is doing, so that no part of a search can overrun.

    with DeadlineBlock(monotonic() + 2.0) as block:
        for proposal in finder(graph):
            found.append(proposal)
    if block.ended: ...  # the proposals found so far are kept

At the deadline the exception `Overdue` is raised inside the block, from outside, and the `with` catches it.
In the main thread the signal of a timer raises it; that also ends sleeping, waiting for threads and
processes, and C code that checks for signals (regular expressions, long integers).  In another thread it is
raised between two Python instructions, and C code cannot be ended.  `Overdue` is raised again and again until
the block is left, so code that catches every exception and continues is ended by the next one.

C code that checks for no signals but can be told to stop runs inside `cancel_at_deadline`, which tells it so
from another thread.

A function that would leave shared data half changed is marked `atomic`: `Overdue` waits until it returns.
`Overdue` also waits for imports and for the handlers of `signals`.

`Overdue` also waits for an instruction at which the block's `with` catches it (`exception_points`).  In a
thread beside the main one the instruction is not known: where the block's own function has loops whose ends
are no such instruction, `Overdue` waits until that function calls another one.

A block whose `__exit__` was interrupted (Ctrl-C, raised by Python's own handler at the beginning of
`__exit__`) stays open; it is dropped when its function has returned.
"""

from __future__ import annotations

import ctypes
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from types import CodeType, FrameType, TracebackType
from typing import Any, Self, TypeVar

from tensaurus.system.exception_points import checks_for_exceptions, has_loose_jumps, is_caught

__all__ = ["DeadlineBlock", "Overdue", "atomic", "cancel_at_deadline"]

RETRY_SECONDS = 0.01  # pause before another attempt, where Overdue could not be raised
REPEAT_SECONDS = 1.0  # pause before Overdue is raised again: the time that cleaning up may take in a block
GRACE_SECONDS = 1.0  # how long Overdue waits for an instruction at which it arrives at once and is caught
IMPORT_FILES_PREFIX = "<frozen importlib"  # begins the file names of Python's own code for imports
# Overdue waits until their functions have returned.
UNINTERRUPTED_MODULES = tuple(f"tensaurus.system.{name}" for name in ("signals", "cleanups", "deadline"))
# flags of code whose frames may be suspended: out of the stack, but not returned
SUSPENDABLE_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

Function = TypeVar("Function", bound=Callable[..., Any])

_atomic: set[CodeType] = set()


class Overdue(BaseException):
    """The time of a `DeadlineBlock` is over.  Only the block's own `with` should catch this."""


def atomic(function: Function) -> Function:
    """Let the function return before Overdue is raised; for short functions that change shared data."""
    _atomic.add(function.__code__)
    return function


class DeadlineBlock:
    """A block that is ended at a deadline (monotonic time, or infinity); `ended` is whether it had to be."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.ended = deadline, False
        self._timer: _SignalTimer | _ThreadTimer | None = None
        self.function: FrameType | None = None  # frame of the code with the `with`; None in an ExitStack

    def __enter__(self) -> Self:
        if self.deadline < inf:
            caller = sys._getframe(1)
            if caller.f_globals.get("__name__") != "contextlib":  # `enter_context` returns at once
                self.function = caller
            self._timer = _get_timer()
            try:
                self._timer.add(self)
            except BaseException:  # then `__exit__` is never called
                self._timer.remove(self)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is None:
            return False
        removed = False
        while not removed:
            try:
                self._timer.remove(self)
                removed = True
            except Overdue:  # another thread had raised it here already
                pass
        self.function = None
        # any other exception is the code's own answer to being ended, so it is dropped as well
        return self.ended and kind is not None and issubclass(kind, (Overdue, Exception))

    def can_end(self, frame: FrameType | None) -> bool:
        """Return whether Overdue may be raised now; `frame` is the current frame of the block's thread."""
        # at some jumps of the block's own function its `with` would not catch Overdue
        if frame is not None and frame is self.function and not is_caught(frame):
            return False
        # no function that the block has called may be atomic, an import, or code that handles signals
        while frame is not None and frame is not self.function:
            code = frame.f_code
            if code in _atomic or code.co_filename.startswith(IMPORT_FILES_PREFIX):
                return False
            if frame.f_globals.get("__name__") in UNINTERRUPTED_MODULES:
                return False
            frame = frame.f_back
        return True

    def is_left(self, stack: Collection[FrameType]) -> bool:
        """Return whether the block's function has returned: its frame is not in its thread's stack, and it is
        no generator, which may be suspended."""
        frame = self.function
        return frame is not None and not frame.f_code.co_flags & SUSPENDABLE_FLAGS and frame not in stack


def _frames_up_from(frame: FrameType | None) -> set[FrameType]:
    """Return a frame and its callers."""
    found = set[FrameType]()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found


class _OpenBlocks:
    """Open blocks of one thread, the outermost first."""

    def __init__(self) -> None:
        self.open: list[DeadlineBlock] = []

    def close(self, block: DeadlineBlock) -> None:
        """Close a block, if it is open, and blocks inside it whose `__exit__` did not finish."""
        if block in self.open:
            del self.open[self.open.index(block) :]

    def drop_left(self, frame: FrameType | None) -> None:
        """Close the blocks whose functions have returned; `frame` is the thread's current frame."""
        if self.open:
            stack = _frames_up_from(frame)
            self.open[:] = [block for block in self.open if not block.is_left(stack)]

    @property
    def earliest(self) -> float:
        """The earliest deadline, infinite where no block is open."""
        return min((block.deadline for block in self.open), default=inf)

    @property
    def due(self) -> DeadlineBlock | None:
        """The outermost block whose time is over."""
        now = monotonic()
        return next((block for block in self.open if block.deadline <= now), None)


class _SignalTimer(_OpenBlocks):
    """Raises Overdue in the main thread by SIGALRM; a timer that other code had set continues afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._installed = False  # whether handler and hook are ours; then the outer ones are stored

    def add(self, block: DeadlineBlock) -> None:
        self.drop_left(sys._getframe())
        if not self._installed:
            self._outer_timer = signal.getitimer(signal.ITIMER_REAL)
            self._timer_read_at = monotonic()
            self._outer_hook, self._outer_handler = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
            self._installed = True
            sys.unraisablehook = self._on_unraisable
        if signal.getsignal(signal.SIGALRM) != self._on_alarm:  # without a handler the timer ends the process
            signal.signal(signal.SIGALRM, self._on_alarm)
        self.open.append(block)
        self._set_timer()

    def remove(self, block: DeadlineBlock) -> None:
        self.close(block)
        self._update()

    def _update(self) -> None:
        """Set the timer; where no block is open, restore handler, hook and timer of the code outside."""
        if not self._installed:
            return
        self._set_timer()
        if not self.open:
            sys.unraisablehook = self._outer_hook
            signal.signal(signal.SIGALRM, self._outer_handler)
            self._installed = False
            remaining, interval = self._outer_timer
            if remaining:
                remaining = max(1e-6, remaining - (monotonic() - self._timer_read_at))
                signal.setitimer(signal.ITIMER_REAL, remaining, interval)

    def _set_timer(self) -> None:
        """Set the timer to the earliest deadline."""
        if (earliest := self.earliest) < inf:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, earliest - monotonic()), REPEAT_SECONDS)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Raise Overdue if a block is due and can be ended here, else set the timer again (handles SIGALRM).

        For at most GRACE_SECONDS it waits for an instruction at which no `try` or `with` is skipped.
        """
        self.drop_left(frame)
        if (due := self.due) is None:
            self._update()
        elif due.can_end(frame) and (is_caught(frame) or monotonic() >= due.deadline + GRACE_SECONDS):
            due.ended = True
            raise Overdue
        else:
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS, REPEAT_SECONDS)

    def _on_unraisable(self, lost: Any) -> None:
        """Raise Overdue again, outside of the finalizer in which it was raised: Python ignored it there."""
        if isinstance(lost.exc_value, Overdue):
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS, REPEAT_SECONDS)
        else:
            self._outer_hook(lost)


class _ThreadTimer(_OpenBlocks):
    """Raises Overdue in a thread beside the main one, from a thread that lives as long as blocks are open."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        # We write `with self._lock`, not `with self._changed`: Condition.__enter__ is Python code, so Overdue
        # could arrive in it after the lock is taken, which would then never be released.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_running = False  # whether the thread that raises Overdue runs

    def add(self, block: DeadlineBlock) -> None:
        with self._lock:
            self.drop_left(sys._getframe())
            self.open.append(block)
            self._changed.notify()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="deadline", daemon=True).start()

    def remove(self, block: DeadlineBlock) -> None:
        with self._lock:
            self.close(block)
            if not self.open:  # cancel an Overdue on its way, which would arrive outside of all blocks
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)
            self._changed.notify()

    def _run(self) -> None:
        """Wait for the earliest deadline and raise Overdue, until no block is open (runs in a thread)."""
        pause = 0.0
        with self._lock:
            while self.open:
                if (wait := max(pause, self.earliest - monotonic())) > 0:
                    self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                pause = 0.0
                if (due := self.due) is not None:
                    pause = REPEAT_SECONDS if self._raise_overdue(due) else RETRY_SECONDS
            self._is_running = False

    def _raise_overdue(self, due: DeadlineBlock) -> bool:
        """Raise Overdue in the blocks' thread; return False, to try again, where that cannot be done now."""
        frame = sys._current_frames().get(self._thread)
        self.drop_left(frame)
        if due not in self.open or not due.can_end(frame):
            return False
        # here Overdue would arrive late, perhaps at the beginning of an __exit__
        if not checks_for_exceptions(frame) and monotonic() < due.deadline + GRACE_SECONDS:
            return False
        # the thread runs on, and may be at one of these jumps when Overdue arrives, where the `with` does not
        # catch it
        if frame is not None and frame is due.function and has_loose_jumps(frame.f_code):
            return False
        due.ended = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overdue))
        return True


_main_thread_timer = _SignalTimer()
_thread_timers = threading.local()


def _get_timer() -> _SignalTimer | _ThreadTimer:
    """Return the timer that ends blocks of the current thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is not None:
        return _main_thread_timer
    if not hasattr(_thread_timers, "own"):
        _thread_timers.own = _ThreadTimer()
    own: _ThreadTimer = _thread_timers.own
    return own


@contextmanager
def cancel_at_deadline(cancel: Callable[[], object]) -> Iterator[None]:
    """Call `cancel` in another thread if an enclosing `DeadlineBlock` is due before this block ends."""
    earliest = _get_timer().earliest
    if earliest == inf:
        yield
        return
    timer = threading.Timer(max(0.0, earliest - monotonic()), cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
