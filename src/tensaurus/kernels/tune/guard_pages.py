"""Allocates arrays between protected pages, so that a kernel that reads or writes beyond one dies by SIGSEGV.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

__all__ = ["guarded_array"]

PAGE_BYTES = mmap.PAGESIZE
NO_ACCESS = 0  # PROT_NONE
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded_array(
    shape: Sequence[int], dtype: Any, last: bool = True, alignment: int = 1
) -> np.ndarray[Any, Any]:
    """Returns an array of zeros whose last byte, or first byte if not `last`, lies against a protected page.

    The first element is aligned to `alignment` bytes, so that where the last byte should lie against the
    page, up to `alignment` - 1 bytes may lie between. Raises OSError.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    inside = -(-size // PAGE_BYTES) * PAGE_BYTES
    mapping = mmap.mmap(-1, inside + 2 * PAGE_BYTES)
    with suppress(AttributeError, OSError):  # huge pages for large arrays, as library/shim.c has them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)  # keeps the mapping
    for page in (0, PAGE_BYTES + inside):
        if _protect(memory.ctypes.data + page, PAGE_BYTES, NO_ACCESS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = PAGE_BYTES + ((inside - size) // alignment * alignment if last else 0)
    array: np.ndarray[Any, Any] = memory[start : start + size].view(dtype).reshape(shape)
    return array
