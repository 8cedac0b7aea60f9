"""Arrays between pages that nobody may touch: what reads or writes beyond one is ended by SIGSEGV."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

__all__ = ["guarded"]

PAGE = mmap.PAGESIZE
NOBODY = 0  # PROT_NONE
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(shape: Sequence[int], dtype: Any, last: bool = True, alignment: int = 1) -> np.ndarray[Any, Any]:
    """Zeros whose last byte, or else whose first one, lies against such a page.

    `alignment`, in bytes, is that of the first element; where it is last, as many bytes less one may lie
    between it and the page.  Raises OSError.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    inside = -(-size // PAGE) * PAGE
    memory = np.frombuffer(mmap.mmap(-1, inside + 2 * PAGE), np.uint8)  # keeps the mapping
    for page in (0, PAGE + inside):
        if _protect(memory.ctypes.data + page, PAGE, NOBODY):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = PAGE + ((inside - size) // alignment * alignment if last else 0)
    found: np.ndarray[Any, Any] = memory[start : start + size].view(dtype).reshape(shape)
    return found
