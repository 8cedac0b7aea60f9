"""Three helpers for the costs of weights other than arithmetic: memory, bytes in the file, and the cache.

`packing_key` says which kernels share a stored copy of a weight: onnxruntime packs a weight once for MatMul
and once more for the Gemm into which it fuses MatMul, Add and Sigmoid.  `copies_to_measure` makes a
measurement read its weights from the same level of the cache as the program would.  `Allowance` keeps a
program's constants within limits: one that reads more bytes than the original may fall out of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.price.operation_counts import elements, operations

__all__ = ["Allowance", "copies_to_measure", "packing_key", "round_weight_bytes"]

UNCACHED_BYTES = 1 << 26  # a model with this many bytes of weights reads them from memory in every run
SMALL_WEIGHT_BYTES = 1 << 12  # an operator with fewer bytes of weights is measured like one without weights
# Inputs and outputs of an operator are taken to be in the cache, as in a program, if they are below this.
HOT_BYTES = 1 << 19
MAX_COPIES = 64  # of one operator in a measured model
MAX_OPERATIONS = 100_000_000  # about, of all copies in a measured model together

PRICE_GROWTH = 4.0  # factor by which the price of a byte is raised until a program is within the limits
# All bytes together cost 1/1000 of the time to compute the program at first, and 1000 times it at most.
MAX_PRICE_RATIO = 1e3


def packing_key(piece: Piece) -> str:
    """Return a key of the piece's kernel; kernels with equal keys share one stored copy of a weight."""
    return piece.label


def round_weight_bytes(model_weight_bytes: int) -> int:
    """Round the bytes of a model's weights, up to UNCACHED_BYTES, to 2^n or 1.5 * 2^n.

    Models with similar numbers of bytes thus share measurements.
    """
    steps = (number << power for power in range(19, 26) for number in (2, 3))
    return min(steps, key=lambda step: abs(step - min(model_weight_bytes, UNCACHED_BYTES)))


def copies_to_measure(piece: Piece, model_weight_bytes: int) -> int:
    """Return how many copies of a piece to run in one model, so that each takes as long as in its program.

    A program reads all its weights between two uses of one, so a weight comes from the cache level into which
    all of them fit; and the runtime is called once for many operators, not for each.  A piece with much
    arithmetic needs fewer copies, as its weights hardly count.
    """
    # bytes as of float32
    weight_bytes = 4 * sum(elements(leaf) for leaf in piece.leaves if leaf.static)
    passed_bytes = 4 * sum(elements(node) for node in (*piece.leaves, piece.root) if not node.static)
    if weight_bytes >= SMALL_WEIGHT_BYTES:
        wanted = model_weight_bytes // weight_bytes
    else:  # as many copies as have their inputs and outputs in the cache together
        wanted = HOT_BYTES // max(1, passed_bytes)
    work = sum(map(operations, piece.inner))
    return max(1, min(wanted, MAX_COPIES, MAX_OPERATIONS // max(work, 1)))


@dataclass
class Allowance:
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
