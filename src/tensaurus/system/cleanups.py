"""Keeps what must be done before a signal may end this process: child processes to kill, cleanups to call.

call_at_end(remove_folder)    # removes temporary files
register_child(process.pid)
run_cleanups()                # by the handlers of `signals`: kills the child, removes the files
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

__all__ = ["call_at_end", "cancel_call_at_end", "register_child", "run_cleanups", "unregister_child"]

_children: set[int] = set()  # process ids
_cleanups: dict[Callable[[], object], None] = {}  # in the order of registration


def register_child(pid: int) -> None:
    """Kill this child if a signal ends the process."""
    _children.add(pid)


def unregister_child(pid: int) -> None:
    """Forget a child, which its owner ends."""
    _children.discard(pid)


def call_at_end(cleanup: Callable[[], object]) -> None:
    """Call `cleanup` if a signal ends the process."""
    _cleanups[cleanup] = None


def cancel_call_at_end(cleanup: Callable[[], object]) -> None:
    """Take back a `call_at_end`."""
    _cleanups.pop(cleanup, None)


def run_cleanups() -> None:
    """Kill the children and wait for them, then call the cleanups, the last registered one first."""
    children = sorted(_children)
    for pid in children:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with suppress(OSError):
            os.waitpid(pid, 0)
    for cleanup in reversed(list(_cleanups)):
        with suppress(Exception):
            cleanup()
