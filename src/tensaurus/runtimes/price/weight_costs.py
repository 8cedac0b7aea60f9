"""Costs of weights other than arithmetic: copies in packed layouts, bytes in the file, and the cache.

A runtime stores a weight in the layout of each kind of kernel that reads it: onnxruntime packs it once for
MatMul and once more for the Gemm into which it fuses MatMul, Add and Sigmoid.  So the bytes that kernels read
are counted by the kind of kernel.  A program that reads more bytes than the original may fall out of the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.price.operation_counts import elements, operations

__all__ = ["Allowance", "copies_to_measure", "packing_key", "round_weight_bytes"]

UNCACHED_BYTES = 1 << 26  # a model with so many bytes of weights reads them from memory in every run
SMALL_WEIGHT_BYTES = 1 << 12  # an operator with fewer bytes of weights is measured like one without weights
HOT_BYTES = 1 << 19  # that an operator finds in the cache, as operators before it wrote them
MAX_COPIES = 64  # of an operator, that are measured in one model
MAX_OPERATIONS = 100_000_000  # of all copies together, about

PRICE_GROWTH = 4.0  # factor by which the price of a byte is raised until a program is within the limits
# All bytes together cost 1/1000 of the time to compute the program at first, and 1000 times it at most.
MAX_PRICE_RATIO = 1e3


def packing_key(piece: Piece) -> str:
    """Return a key; kernels of pieces with equal keys share one stored copy of a weight."""
    return piece.label


def round_weight_bytes(weights: int) -> int:
    """Round the bytes of a model's weights, up to UNCACHED_BYTES, to 2^n or 1.5 * 2^n.

    Models with like numbers of bytes so share measurements.
    """
    steps = (number << power for power in range(19, 26) for number in (2, 3))
    return min(steps, key=lambda step: abs(step - min(weights, UNCACHED_BYTES)))


def copies_to_measure(piece: Piece, weights: int) -> int:
    """Return how many copies of a piece to run in one model, so that each takes as long as in its program.

    A program reads all its weights between two uses of one, so a weight comes from the cache level into which
    all of them fit; and the runtime is called once for many operators, not for each.  A piece with much
    arithmetic needs fewer copies, as its weights hardly count.
    """
    own = 4 * sum(elements(leaf) for leaf in piece.leaves if leaf.static)
    passed = 4 * sum(elements(node) for node in (*piece.leaves, piece.root) if not node.static)
    wanted = weights // own if own >= SMALL_WEIGHT_BYTES else HOT_BYTES // max(1, passed)
    work = sum(map(operations, piece.inner))
    return max(1, min(wanted, MAX_COPIES, MAX_OPERATIONS // max(work, 1)))


@dataclass
class Allowance:
    """The limits on bytes of constants: those that a program may store, and those that its kernels may read.

    A price per byte stands for the limit (a Lagrange multiplier); it is raised until the cheapest program is
    within the limits.

    keep       bytes of constants that a program may store, at least those of the first program
    footprint  bytes of constants that the first program's kernels read
    read       bytes of constants that a program's kernels may read
    byte       the present price of a byte, in seconds
    """

    keep: float = inf
    footprint: int = 0
    read: float = inf
    byte: float = 0.0

    def begin(self, read: float) -> None:
        """Set another limit and the price 0."""
        self.read, self.byte = read, 0.0

    def admits(self, kept: int, read: int) -> bool:
        """Return whether so many bytes are within the limits."""
        return read <= self.read and kept <= self.keep

    def raised(self, seconds: float, read: int) -> bool:
        """Raise the price for a program of so many seconds and bytes; return False where it is too high."""
        if self.byte * read > MAX_PRICE_RATIO * seconds:
            return False
        self.byte = max(PRICE_GROWTH * self.byte, seconds / MAX_PRICE_RATIO / max(read, 1))
        return True
