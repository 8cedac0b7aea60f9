"""What weights cost beyond arithmetic: how kernels keep them, how many may be kept, and the price of a byte.

A runtime keeps a weight the way that each kind of kernel wants it: onnxruntime packs it once for MatMul and
once more for the Gemm that a MatMul with Add and Sigmoid is fused to.  What kernels read is therefore counted
by the kind of kernel, and a program that reads more than the first one did may fall out of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.price.operation_counts import elements, operations

__all__ = ["Allowance", "copies", "packing", "rounded"]

UNCACHED = 1 << 26  # bytes of weights that come from memory in every run
SMALL = 1 << 12  # bytes of weights below which an operator is measured as one without
HOT = 1 << 19  # bytes that an operator finds in the cache, as those before it wrote them
COPIES = 64  # of an operator that are measured together, at most
LONG = 100_000_000  # operations of all of them, about

DEARER = 4.0  # by how much a byte's price grows until a program keeps few enough
TOO_DEAR = 1e3  # a price of bytes is at most this times what computing costs, and at least its inverse


def packing(piece: Piece) -> str:
    """Kernels of one packing share a weight as they keep it."""
    return piece.label


def rounded(weights: int) -> int:
    """At most what no cache holds, in steps of a half so that models share measurements."""
    steps = (number << power for power in range(19, 26) for number in (2, 3))
    return min(steps, key=lambda step: abs(step - min(weights, UNCACHED)))


def copies(piece: Piece, weights: int) -> int:
    """How many to run together so that one costs what it does in its program.

    A program reads all its weights between two uses of one, so that they come from where that many fit; and
    it is called once for many operators, not for each.  What computes long needs no company: its weights are
    the least of it.
    """
    own = 4 * sum(elements(leaf) for leaf in piece.leaves if leaf.static)
    passed = 4 * sum(elements(node) for node in (*piece.leaves, piece.root) if not node.static)
    wanted = weights // own if own >= SMALL else HOT // max(1, passed)
    work = sum(map(operations, piece.inner))
    return max(1, min(wanted, COPIES, LONG // max(work, 1)))


@dataclass
class Allowance:
    """Bytes of constants that a program may keep, and that its kernels may read.

    A price stands for the limit (a Lagrange multiplier): it grows until the cheapest program is within.

    keep       bytes of constants that a program may keep; never less than the first program's
    footprint  bytes that the first program's kernels read
    read       bytes that a program's kernels may read
    byte       seconds that each byte read counts now
    """

    keep: float = inf
    footprint: int = 0
    read: float = inf
    byte: float = 0.0

    def begin(self, read: float) -> None:
        """With another limit, and at no price."""
        self.read, self.byte = read, 0.0

    def admits(self, kept: int, read: int) -> bool:
        """Whether so many are within the limits."""
        return read <= self.read and kept <= self.keep

    def raised(self, seconds: float, read: int) -> bool:
        """Raise the price for a program of so many seconds and bytes; false where it was raised too far."""
        if self.byte * read > TOO_DEAR * seconds:
            return False
        self.byte = max(DEARER * self.byte, seconds / TOO_DEAR / max(read, 1))
        return True
