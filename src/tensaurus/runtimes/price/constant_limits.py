"""Keeps the bytes of constants that a program stores and reads within limits, by a price for each byte.

A program that reads more bytes than the original may fall out of the cache.  Kernels may need copies of one
constant: onnxruntime packs a weight once for MatMul and once more for the Gemm into which it fuses MatMul,
Add and Sigmoid.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tensaurus.graph.ir.piece import Piece

__all__ = ["ConstantLimits", "packing_key"]

PRICE_GROWTH = 4.0  # factor by which the price of a byte is raised until a program is within the limits
# All bytes together cost 1/1000 of the time to compute the program at first, and 1000 times it at most.
MAX_PRICE_RATIO = 1e3


def packing_key(piece: Piece) -> str:
    """Return a key of the piece's kernel; kernels with equal keys share one stored copy of a weight."""
    return piece.label


@dataclass
class ConstantLimits:
    """The limits on bytes of constants: those that a program may store, and those that its kernels may read.

    A price per byte that is *read* stands for both limits (a Lagrange multiplier): it is raised until the
    cheapest program is within them.  Stored bytes are only tested.

    max_stored_bytes     bytes of constants that a program may store, at least those of the original
    original_read_bytes  bytes of constants that the original's kernels read
    max_read_bytes       bytes of constants that a program's kernels may read
    seconds_per_byte     the present price of a byte that is read
    """

    max_stored_bytes: float = inf
    original_read_bytes: int = 0
    max_read_bytes: float = inf
    seconds_per_byte: float = 0.0

    def restart_with_limit(self, max_read_bytes: float) -> None:
        """Set another limit on the bytes that are read, and the price 0."""
        self.max_read_bytes, self.seconds_per_byte = max_read_bytes, 0.0

    def admits(self, stored_bytes: int, read_bytes: int) -> bool:
        """Return whether a program that stores and reads this many bytes is within the limits."""
        return read_bytes <= self.max_read_bytes and stored_bytes <= self.max_stored_bytes

    def try_raise_price(self, seconds: float, read_bytes: int) -> bool:
        """Raise the price after a program of these seconds was beyond a limit; False at the highest price."""
        if self.seconds_per_byte * read_bytes > MAX_PRICE_RATIO * seconds:
            return False
        least = seconds / MAX_PRICE_RATIO / max(read_bytes, 1)
        self.seconds_per_byte = max(PRICE_GROWTH * self.seconds_per_byte, least)
        return True
