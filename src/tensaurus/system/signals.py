"""Signals that end the work: Ctrl-C, SIGTERM and SIGHUP.

`install` makes each of them end the process at once, in order: from the signal's handler, as an exception may
be lost in a finalizer, or break an extension module that is being imported.  An interrupt of work that is
worth keeping (`keeping`) is an exception in the parts that know what to do with it (`interruptible`), and
waits outside of them, and while a block of `deadline` is entered or left; a second one gives up.  After
`commit` an interrupt does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

__all__ = [
    "INTERRUPTED",
    "Interruptible",
    "adopt",
    "announced",
    "at_end",
    "close",
    "commit",
    "disown",
    "install",
    "keeping",
    "keeping_nothing",
    "not_at_end",
]

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
INTERRUPTED = "interrupted: measuring and checking the best so far; press Ctrl-C again to quit"
MOMENT = 0.01  # seconds after which an interrupt that was lost comes again
DEADLINE = "tensaurus.system.deadline"  # the module in whose functions it waits


class _State:
    """What a signal finds; of the main thread, which alone runs handlers."""

    def __init__(self) -> None:
        self.installed = 0  # the process that ends by a signal
        self.words = "interrupted"  # where an interrupt ends the process
        self.depth = 0  # of `keeping`
        self.none = False  # no work is worth keeping
        self.armed = False  # the first interrupt is kept
        self.asked = False  # it came
        self.inside = False  # an interruptible part, in which...
        self.open = False  # ...the interrupt may be raised
        self.raised = False  # ...it was
        self.gave_up = False  # an interrupt that was not kept was raised
        self.again = False  # an interrupt comes that was lost...
        self.lost = False  # ...and was not raised since
        self.committed = False
        self.children: set[int] = set()
        self.tidying: dict[Callable[[], object], None] = {}


_state = _State()


# ------------------------------------------------------------------------------------ the end of a process


def install() -> None:
    """From now on the signals end this process in order, those excepted that it was started to ignore."""
    _state.installed = os.getpid()
    for number in STATUS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _on_interrupt if number == signal.SIGINT else _end)
    sys.unraisablehook = _on_unraisable


def commit() -> None:
    """What is being written will be: interrupts do nothing until the process ends."""
    if _state.installed:
        _state.committed = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def close() -> None:
    """The process ends by itself: its exit status is settled."""
    if _state.installed:
        _state.committed = True
        for number in STATUS:
            signal.signal(number, signal.SIG_IGN)


def adopt(pid: int) -> None:
    """This child is killed when a signal ends the process."""
    _state.children.add(pid)


def disown(pid: int) -> None:
    """It is ended by its owner."""
    _state.children.discard(pid)


def at_end(tidy: Callable[[], object]) -> None:
    """Call it if a signal ends the process."""
    _state.tidying[tidy] = None


def not_at_end(tidy: Callable[[], object]) -> None:
    """No more."""
    _state.tidying.pop(tidy, None)


def _end(number: int, frame: FrameType | None = None) -> None:
    """End the children, tidy up, say so in one line, exit."""
    status = STATUS[signal.Signals(number)]
    if os.getpid() != _state.installed:  # in a fork
        os._exit(status)
    for other in STATUS:
        signal.signal(other, signal.SIG_IGN)
    children = sorted(_state.children)
    for pid in children:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with suppress(OSError):
            os.waitpid(pid, 0)
    for tidy in reversed(list(_state.tidying)):
        with suppress(Exception):
            tidy()
    with suppress(Exception):  # it may have been in the middle of writing
        sys.stdout.flush()
    words = {signal.SIGINT: _state.words, signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
    _say(words[signal.Signals(number)])
    os._exit(status)


def _say(line: str) -> None:
    """On stderr, past its buffers: a handler may have interrupted one who writes there."""
    with suppress(OSError):
        fresh = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""  # instead of a live line; the cursor back
        os.write(2, f"{fresh}{line}\n".encode())


# ------------------------------------------------------------------------------- work that is worth keeping


@contextmanager
def keeping(*, armed: bool = True, words: str | None = None) -> Iterator[None]:
    """Within it the first interrupt ends the search alone, a second one gives up.

    Not `armed`: from the first such block within it on, until this one ends; `words` are said where an
    interrupt ends the process.  In threads beside the main one it does nothing.
    """
    if not _main() or _state.none:
        yield
        return
    mine = not _state.installed and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before, hook = _state.words, sys.unraisablehook
    _state.words = words or before
    _state.depth += 1
    _state.armed = _state.armed or armed
    try:
        if mine:
            signal.signal(signal.SIGINT, _on_interrupt)
            sys.unraisablehook = _on_unraisable
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = hook
        _state.depth -= 1
        _state.words = before
        if not _state.depth:
            _state.armed = _state.asked = _state.gave_up = False


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Within it every interrupt gives up: a part of work that is worth nothing without the rest."""
    before, _state.none = _state.none, True
    try:
        yield
    finally:
        _state.none = before


class Interruptible:
    """The part of such work that an interrupt may end, with KeyboardInterrupt.

    One that came before is raised at its beginning; one that was lost in it, at its end.  What encloses such
    a part is interruptible again after it.
    """

    def __enter__(self) -> None:
        if _main():
            self._enclosed = _state.inside
            _state.raised = False
            _state.inside = _state.open = True
            if _state.asked:
                _state.inside = _state.open = False
                raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _main():
            _state.inside, _state.open = self._enclosed, self._enclosed and not _state.asked
            if (_state.raised or isinstance(error, KeyboardInterrupt)) and not _state.gave_up:
                _state.lost = False  # what would come again is raised here
            if _state.raised and not isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt from error


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if _state.committed:
        return
    if _state.again:
        _state.again = False
        if _state.lost and (_state.inside or _state.gave_up):
            _state.open = False
            _raise(frame)
        return
    if not _state.armed or _state.asked:
        if _state.installed:
            _end(number)
        _state.gave_up = True
        _raise(frame)
        return
    _state.asked = True
    if _state.installed:
        _say(INTERRUPTED)
    if _state.open:
        _state.open, _state.raised = False, True
        _raise(frame)


def _raise(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; in a moment, where a block with a deadline is being entered or left, as that
    block would stay open."""
    while frame is not None:
        if frame.f_globals.get("__name__") == DEADLINE:
            _come_again()
            return
        frame = frame.f_back
    _state.lost = False
    raise KeyboardInterrupt


def _come_again() -> None:
    """Let the interrupt arrive once more, in a moment."""
    _state.lost = True
    again = threading.Timer(MOMENT, _redeliver)
    again.daemon = True
    again.start()


def announced() -> bool:
    """Whether the user was told that the interrupt was heard."""
    return bool(_state.installed) and _state.asked


def _on_unraisable(lost: Any) -> None:
    """Python goes on where a finalizer fails: an interrupt in one comes again, outside of it."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        if _state.raised or _state.gave_up:
            _come_again()
    elif not (_state.committed and isinstance(lost.exc_value, OSError) and "race" in str(lost.exc_value)):
        sys.__unraisablehook__(lost)  # but for a signal that came while it began to be ignored


def _redeliver() -> None:
    if not _state.lost:  # it was raised at the end of its part
        return
    _state.again = True
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)  # ends what the thread waits in, too
