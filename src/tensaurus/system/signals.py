"""Handles the signals that end a run: Ctrl-C (SIGINT, an *interrupt*), SIGTERM and SIGHUP.

`install_handlers` makes each of them end the process in order: children are killed, temporary files removed
(`cleanups`).  That happens inside the handler, since an exception may be lost in a finalizer, or break an
extension module that is being imported.

A search that is interrupted has a result worth keeping:

    with keep_best_on_interrupt():
        with Interruptible():       # the first Ctrl-C raises KeyboardInterrupt here, and only here;
            search()                # elsewhere, and while a block of `deadline` is entered or left, it waits
        check(best_so_far)          # a second Ctrl-C ends the process
    ignore_interrupts()
    write(result)                   # no Ctrl-C ends this
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from tensaurus.system.cleanups import run_cleanups

__all__ = [
    "INTERRUPT_MESSAGE",
    "Interruptible",
    "ignore_interrupts",
    "ignore_signals",
    "install_handlers",
    "keep_best_on_interrupt",
    "keep_nothing_on_interrupt",
    "was_interrupt_announced",
]

EXIT_STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
INTERRUPT_MESSAGE = "interrupted: measuring and checking the best so far; press Ctrl-C again to quit"
REDELIVERY_SECONDS = 0.01  # pause before an interrupt whose exception was lost is delivered again
DEADLINE_MODULE = "tensaurus.system.deadline"  # no interrupt is raised in this module's functions


class _State:
    """The state that signal handlers read; handlers run in the main thread only.

    owner_pid           the process that signals end in order; 0 before `install_handlers`
    end_message         is printed where an interrupt ends the process
    ignores_interrupts  after `ignore_interrupts`

    Of `keep_best_on_interrupt`:
    keep_depth          number of open blocks
    keeps_nothing       inside `keep_nothing_on_interrupt`
    is_armed            the first interrupt ends the search only
    is_interrupted      that first interrupt has come

    Of the KeyboardInterrupt that an interrupt raises:
    is_interruptible    inside an `Interruptible` block
    may_raise           inside such a block, in which no interrupt was raised yet
    was_raised          an interrupt was raised in the block
    was_raised_at_end   one was raised that ends the run, in a program that uses the library
    was_lost            the exception was lost and not raised since
    is_redelivery       the next SIGINT is a lost interrupt that is delivered again
    """

    owner_pid: int = 0
    end_message: str = "interrupted"
    ignores_interrupts: bool = False
    keep_depth: int = 0
    keeps_nothing: bool = False
    is_armed: bool = False
    is_interrupted: bool = False
    is_interruptible: bool = False
    may_raise: bool = False
    was_raised: bool = False
    was_raised_at_end: bool = False
    was_lost: bool = False
    is_redelivery: bool = False


_state = _State()


# ------------------------------------------------------------------------------------ the end of a process


def install_handlers() -> None:
    """Let the signals end this process in order, except those that it was started to ignore."""
    _state.owner_pid = os.getpid()
    for number in EXIT_STATUSES:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _on_interrupt if number == signal.SIGINT else _end_process)
    sys.unraisablehook = _on_unraisable


def ignore_interrupts() -> None:
    """Ignore interrupts until the process ends, so that files that are being written are completed."""
    if _state.owner_pid:
        _state.ignores_interrupts = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def ignore_signals() -> None:
    """Ignore all three signals: the process ends by itself, and its exit status is settled."""
    if _state.owner_pid:
        _state.ignores_interrupts = True
        for number in EXIT_STATUSES:
            signal.signal(number, signal.SIG_IGN)


def _end_process(number: int, frame: FrameType | None = None) -> None:
    """Run the cleanups, print one line, exit."""
    status = EXIT_STATUSES[signal.Signals(number)]
    if os.getpid() != _state.owner_pid:  # in a fork
        os._exit(status)
    for other in EXIT_STATUSES:
        signal.signal(other, signal.SIG_IGN)
    run_cleanups()
    with suppress(Exception):  # the handler may have interrupted a write to stdout
        sys.stdout.flush()
    words = {signal.SIGINT: _state.end_message, signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
    _print_line(words[signal.Signals(number)])
    os._exit(status)


def _print_line(line: str) -> None:
    """Print on stderr without its buffers, as a handler may have interrupted code that writes there."""
    with suppress(OSError):
        erase = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""  # erases the live line, shows the cursor
        os.write(2, f"{erase}{line}\n".encode())


# ------------------------------------------------------------------------------- work that is worth keeping


@contextmanager
def keep_best_on_interrupt(*, armed: bool = True, words: str | None = None) -> Iterator[None]:
    """In this block the first interrupt only ends the search; a second one ends the process.

    armed=False  the first interrupt ends the process, too, until an armed block begins inside this one; from
                 then on to the end of this block the first interrupt is kept
    words        the message that is printed where an interrupt ends the process

    Does nothing in threads beside the main one.
    """
    if not _is_main_thread() or _state.keeps_nothing:
        yield
        return
    # in a program that uses the library, the handlers are ours only in this block
    is_borrowed = not _state.owner_pid and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before, hook = _state.end_message, sys.unraisablehook
    _state.end_message = words or before
    _state.keep_depth += 1
    _state.is_armed = _state.is_armed or armed
    try:
        if is_borrowed:
            signal.signal(signal.SIGINT, _on_interrupt)
            sys.unraisablehook = _on_unraisable
        yield
    finally:
        if is_borrowed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = hook
        _state.keep_depth -= 1
        _state.end_message = before
        if not _state.keep_depth:
            _state.is_armed = _state.is_interrupted = _state.was_raised_at_end = False


@contextmanager
def keep_nothing_on_interrupt() -> Iterator[None]:
    """In this block every interrupt ends the process: results of a part are worth nothing alone."""
    before, _state.keeps_nothing = _state.keeps_nothing, True
    try:
        yield
    finally:
        _state.keeps_nothing = before


class Interruptible:
    """A block that an interrupt may end with KeyboardInterrupt, inside `keep_best_on_interrupt`.

    An interrupt that came before the block is raised at its beginning; one whose exception was lost in the
    block is raised at its end.  After a nested block the enclosing block is interruptible again.
    """

    def __enter__(self) -> None:
        if _is_main_thread():
            self._enclosed = _state.is_interruptible
            _state.was_raised = False
            _state.is_interruptible = _state.may_raise = True
            if _state.is_interrupted:
                _state.is_interruptible = _state.may_raise = False
                raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _is_main_thread():
            # the enclosing block is interruptible again, but the first interrupt is raised only once
            may_raise = self._enclosed and not _state.is_interrupted
            _state.is_interruptible, _state.may_raise = self._enclosed, may_raise
            if (_state.was_raised or isinstance(error, KeyboardInterrupt)) and not _state.was_raised_at_end:
                _state.was_lost = False  # the lost interrupt is raised here
            if _state.was_raised and not isinstance(error, KeyboardInterrupt):  # caught or lost in the block
                raise KeyboardInterrupt from error


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """End the process; where a search is kept, at the first interrupt end the search alone."""
    if _state.ignores_interrupts:
        return
    if _state.is_redelivery:  # not the user's: raise the lost interrupt again, unless its block is left
        _state.is_redelivery = False
        if _state.was_lost and (_state.is_interruptible or _state.was_raised_at_end):
            _state.may_raise = False
            _raise_interrupt(frame)
        return
    if not _state.is_armed or _state.is_interrupted:  # no search is kept, or this is the second interrupt
        if _state.owner_pid:
            _end_process(number)  # does not return
        # a program that uses the library decides itself what the exception ends
        _state.was_raised_at_end = True
        _raise_interrupt(frame)
        return
    _state.is_interrupted = True
    if _state.owner_pid:
        _print_line(INTERRUPT_MESSAGE)
    if _state.may_raise:  # else the next `Interruptible` block raises at its beginning
        _state.may_raise, _state.was_raised = False, True
        _raise_interrupt(frame)


def _raise_interrupt(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt now, or a moment later while a `DeadlineBlock` is entered or left: else that
    block would stay open."""
    while frame is not None:
        if frame.f_globals.get("__name__") == DEADLINE_MODULE:
            _deliver_again_later()
            return
        frame = frame.f_back
    _state.was_lost = False
    raise KeyboardInterrupt


def _deliver_again_later() -> None:
    """Deliver the interrupt once more after `REDELIVERY_SECONDS`."""
    _state.was_lost = True
    again = threading.Timer(REDELIVERY_SECONDS, _deliver_again)
    again.daemon = True
    again.start()


def was_interrupt_announced() -> bool:
    """Return whether the handler has printed that the first interrupt was heard."""
    return bool(_state.owner_pid) and _state.is_interrupted


def _on_unraisable(lost: Any) -> None:
    """Deliver an interrupt again that was raised in a finalizer, where Python ignores exceptions."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        if _state.was_raised or _state.was_raised_at_end:
            _deliver_again_later()
        return
    # a signal that comes while it begins to be ignored is an OSError about a race
    is_race = isinstance(lost.exc_value, OSError) and "race" in str(lost.exc_value)
    if not (_state.ignores_interrupts and is_race):
        sys.__unraisablehook__(lost)


def _deliver_again() -> None:
    """Send the main thread a SIGINT that `_on_interrupt` takes for a redelivery (called by a timer)."""
    if not _state.was_lost:  # the interrupt was raised at the end of its block
        return
    _state.is_redelivery = True
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)  # also ends a system call that the thread waits in
