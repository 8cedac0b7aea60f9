"""Blocks of work that end at a time, whatever they are at.

    with Bounded(monotonic() + 2.0) as finding:
        for proposal in finder(graph):
            found.append(proposal)
    if finding.ended: ...  # what was found until then is kept

When the time is over, the exception `Overdue` is raised in the middle of the block, from outside, and its
`with` catches it.  In the main thread a timer's signal raises it, which ends sleeping, waiting for other
threads and processes, and what of C looks at signals (regular expressions, arithmetic of long integers), too.
In another thread it is raised between two instructions of Python: nothing can end what is in C there.  It
comes again until the block is left: what catches every exception and goes on is ended by the next one.

What of C looks at no signals, but can be told to stop, is `cancelling`: it is told so from another thread.

A function that changes what others rely on, and would leave it half changed, is `atomic`: Overdue waits until
the function is done.  It waits for imports and for the handlers of `signals`, too.

From Python 3.12 on, what is raised at the jump that ends a loop's round skips each `with` and `try` around
the loop in its function: Overdue waits for another instruction.  In a thread beside the main one nobody knows
at which it comes: where the block's own function has such loops, it waits for functions that are called.

A block that another exception kept from being left (Ctrl-C, where Python's own handler raises it at the
beginning of `__exit__`) is dropped when its function has ended.
"""

from __future__ import annotations

import ctypes
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dis import Bytecode, opname
from functools import lru_cache
from math import inf
from time import monotonic
from types import CodeType, FrameType, TracebackType
from typing import Any, Self, TypeVar

__all__ = ["Bounded", "Overdue", "atomic", "cancelling"]

SOON = 0.01  # seconds until Overdue is tried again, where it had to wait
AGAIN = 1.0  # seconds until it is raised once more, where the block goes on; what tidies up has so much time
GRACE = 1.0  # seconds for which Overdue waits for an instruction where it comes at once, and is caught
IMPORTS = "<frozen importlib"  # begins the names of the files of Python's own code for imports
NEVER_ENDED = (
    "tensaurus.system.signals",
    "tensaurus.system.deadline",
)  # modules in whose functions it is not raised
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # flags of their code

Function = TypeVar("Function", bound=Callable[..., Any])

_atomic: set[CodeType] = set()


class Overdue(BaseException):
    """The time of a `Bounded` block is over: its own `with` catches this, nobody else should."""


def atomic(function: Function) -> Function:
    """Let the function finish before Overdue is raised: for short ones, which change what others rely on."""
    _atomic.add(function.__code__)
    return function


class Bounded:
    """A block that ends at a deadline (of `time.monotonic`); infinite: it does not.

    ended  whether it had to be ended
    """

    def __init__(self, deadline: float) -> None:
        self.deadline, self.ended = deadline, False
        self._clock: _Alarm | _Watch | None = None
        self.function: FrameType | None = None

    def __enter__(self) -> Self:
        if self.deadline < inf:
            caller = sys._getframe(1)
            if caller.f_globals.get("__name__") != "contextlib":  # whose stacks end after their own functions
                self.function = caller
            self._clock = _clock()
            try:
                self._clock.add(self)
            except BaseException:  # there is no `__exit__` then
                self._clock.remove(self)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._clock is None:
            return False
        removed = False
        while not removed:
            try:
                self._clock.remove(self)
                removed = True
            except Overdue:  # in a thread, where it was on its way already
                pass
        self.function = None
        # an error that came instead: what was ended said so in its own words
        return self.ended and kind is not None and issubclass(kind, (Overdue, Exception))

    def can_end(self, frame: FrameType | None) -> bool:
        """Whether Overdue may be raised in a frame, which this block has led to."""
        if frame is not None and frame is self.function and not _is_caught(frame):
            return False
        while frame is not None and frame is not self.function:
            code = frame.f_code
            if code in _atomic or code.co_filename.startswith(IMPORTS):
                return False
            if frame.f_globals.get("__name__") in NEVER_ENDED:
                return False
            frame = frame.f_back
        return True

    def is_left(self, stack: Collection[FrameType]) -> bool:
        """Return whether the function of the block has ended, by the frames of its thread: a generator may
        only be suspended."""
        frame = self.function
        return frame is not None and not frame.f_code.co_flags & SUSPENDED and frame not in stack


def _stack(frame: FrameType | None) -> set[FrameType]:
    """Return a frame and those that led to it."""
    found = set[FrameType]()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found


def _looks(frame: FrameType | None) -> bool:
    """Return whether Python looks for exceptions of other threads after the instruction that a frame is at.

    It does after calls and jumps back, and where a function begins.  After an operator of arrays, say, it
    does not: an exception may come as late as at the beginning of `Bounded.__exit__`, and nobody catches it.
    """
    if frame is None:
        return True
    name = _instruction(frame)
    return name.startswith("CALL") or name == "RESUME" or "JUMP_BACKWARD" in name and _is_caught(frame)


def _instruction(frame: FrameType) -> str:
    return opname[frame.f_code.co_code[frame.f_lasti]]


def _is_caught(frame: FrameType | None) -> bool:
    """Return whether what is raised at a frame's instruction reaches the handlers written around it."""
    return frame is None or frame.f_lasti not in _loose_jumps(frame.f_code)


@lru_cache(maxsize=1 << 10)
def _loose_jumps(code: CodeType) -> frozenset[int]:
    """Return the jumps back whose handlers are not those of what stands before them."""
    instructions = Bytecode(code)
    entries = instructions.exception_entries  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

    places = [i.offset for i in instructions if "JUMP_BACKWARD" in i.opname]
    return frozenset(place for place in places if handler(place) != handler(place - 2))


class _Blocks:
    """Open blocks of one thread, the outermost first."""

    def __init__(self) -> None:
        self.open: list[Bounded] = []

    def close(self, block: Bounded) -> None:
        """Close a block, where it is open, and those in it that were not left in order."""
        if block in self.open:
            del self.open[self.open.index(block) :]

    def drop_left(self, frame: FrameType | None) -> None:
        """Close the blocks whose functions have ended, where the thread is in this frame."""
        if self.open:
            stack = _stack(frame)
            self.open[:] = [block for block in self.open if not block.is_left(stack)]

    @property
    def earliest(self) -> float:
        """When the first of them is due."""
        return min((block.deadline for block in self.open), default=inf)

    @property
    def due(self) -> Bounded | None:
        """The outermost one whose time is over."""
        now = monotonic()
        return next((block for block in self.open if block.deadline <= now), None)


class _Alarm(_Blocks):
    """Raises Overdue in the main thread, by SIGALRM; a timer that others have set goes on afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._installed = False  # its handler and hook are, and those before them are known

    def add(self, block: Bounded) -> None:
        self.drop_left(sys._getframe())
        if not self._installed:
            self._timer = signal.getitimer(signal.ITIMER_REAL)
            self._since = monotonic()
            self._hook, self._handler = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
            self._installed = True
            sys.unraisablehook = self._on_unraisable
        if signal.getsignal(signal.SIGALRM) != self._ring:  # without one the timer would end the process
            signal.signal(signal.SIGALRM, self._ring)
        self.open.append(block)
        self._set()

    def remove(self, block: Bounded) -> None:
        self.close(block)
        self._rest()

    def _rest(self) -> None:
        """Set the timer; where no block is open any more, all is as it was before the first."""
        if not self._installed:
            return
        self._set()
        if not self.open:
            sys.unraisablehook = self._hook
            signal.signal(signal.SIGALRM, self._handler)
            self._installed = False
            left, interval = self._timer
            if left:
                left = max(1e-6, left - (monotonic() - self._since))
                signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _set(self) -> None:
        """The timer, for the block that is due first."""
        if (earliest := self.earliest) < inf:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, earliest - monotonic()), AGAIN)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.drop_left(frame)
        if (due := self.due) is None:
            self._rest()
        elif due.can_end(frame) and (_is_caught(frame) or monotonic() >= due.deadline + GRACE):
            due.ended = True
            raise Overdue
        else:
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)

    def _on_unraisable(self, lost: Any) -> None:
        """Python goes on where a finalizer fails: what was raised in one comes again, outside of it."""
        if isinstance(lost.exc_value, Overdue):
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)
        else:
            self._hook(lost)


class _Watch(_Blocks):
    """Raises Overdue in a thread beside the main one, from one that lives as long as blocks are open."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # in a `with` of its own: Overdue cannot come after it was taken
        self._changed = threading.Condition(self._lock)
        self._waiting = False  # somebody is

    def add(self, block: Bounded) -> None:
        with self._lock:
            self.drop_left(sys._getframe())
            self.open.append(block)
            self._changed.notify()
            if not self._waiting:
                self._waiting = True
                threading.Thread(target=self._wait, name="deadline", daemon=True).start()

    def remove(self, block: Bounded) -> None:
        with self._lock:
            self.close(block)
            if not self.open:  # what is on its way would arrive outside of all of them
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)
            self._changed.notify()

    def _wait(self) -> None:
        pause = 0.0
        with self._lock:
            while self.open:
                if (wait := max(pause, self.earliest - monotonic())) > 0:
                    self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                pause = 0.0
                if (due := self.due) is not None:
                    pause = AGAIN if self._raise(due) else SOON
            self._waiting = False

    def _raise(self, due: Bounded) -> bool:
        frame = sys._current_frames().get(self._thread)
        self.drop_left(frame)
        if due not in self.open or not due.can_end(frame):
            return False
        if not _looks(frame) and monotonic() < due.deadline + GRACE:
            return False
        if frame is not None and frame is due.function and _loose_jumps(frame.f_code):
            return False
        due.ended = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overdue))
        return True


_alarm = _Alarm()
_watches = threading.local()


def _clock() -> _Alarm | _Watch:
    """What ends blocks of this thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is not None:
        return _alarm
    if not hasattr(_watches, "own"):
        _watches.own = _Watch()
    own: _Watch = _watches.own
    return own


@contextmanager
def cancelling(cancel: Callable[[], object]) -> Iterator[None]:
    """Call `cancel`, in another thread, when the time of a block around this is over before it is left."""
    earliest = _clock().earliest
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
