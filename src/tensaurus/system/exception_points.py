"""Tells at which instructions an exception that is raised from outside is caught by the code around it.

From Python 3.12 on, an exception raised at the backward jump that ends a loop's iteration skips each `with`
and `try` around the loop in its function:

    with DeadlineBlock(deadline):
        for item in items:
            work(item)        # an exception in this call is caught by the `with`,
                              # one at the jump back to the `for` is not

A time limit (`deadline`) raises its exception in a thread from another thread, and Python lets it arrive at
the thread's next check for exceptions.  So the limit waits until the thread is at an instruction where it
checks, and where the exception is caught.  A frame of None stands for code that is not Python's.
"""

from __future__ import annotations

from dis import Bytecode, opname
from functools import lru_cache
from types import CodeType, FrameType

__all__ = ["checks_for_exceptions", "has_loose_jumps", "is_caught"]


def checks_for_exceptions(frame: FrameType | None) -> bool:
    """Return whether Python checks for exceptions of other threads after a frame's current instruction.

    Python does after calls and backward jumps, and where a function begins.  It does not after an operator of
    arrays, say: the exception may then arrive at the beginning of `__exit__`, where nobody catches it.
    """
    if frame is None:
        return True
    name = opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith("CALL") or name == "RESUME" or "JUMP_BACKWARD" in name and is_caught(frame)


def is_caught(frame: FrameType | None) -> bool:
    """Return whether an exception at a frame's instruction reaches the `try` and `with` written around it."""
    return frame is None or frame.f_lasti not in _loose_jumps(frame.f_code)


def has_loose_jumps(code: CodeType) -> bool:
    """Return whether a function has jumps at which an exception is not caught by the function itself."""
    return bool(_loose_jumps(code))


@lru_cache(maxsize=1 << 10)
def _loose_jumps(code: CodeType) -> frozenset[int]:
    """Return the offsets of backward jumps at which an exception skips `try` and `with` (see the module).

    The table of exceptions gives these jumps another handler than the instruction before (2 bytes earlier).
    """
    instructions = Bytecode(code)
    entries = instructions.exception_entries  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

    jumps = [i.offset for i in instructions if "JUMP_BACKWARD" in i.opname]
    return frozenset(offset for offset in jumps if handler(offset) != handler(offset - 2))
