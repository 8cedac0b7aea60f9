"""Which kernels of a program may flush subnormal numbers to zero: those of which no result can tell.

What a kernel flushes moves each of its results by the smallest normal number; `influence` says how far that
moves what the program computes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensaurus.graph.analysis.constant_influence import ChangeBound, ChangeRefused
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program

__all__ = ["find_flushing_nodes"]

MAX_RUNTIME_VALUE = 2.0**24  # how large values at run time may be
MAX_ATTEMPTS = 4  # times that those that were refused are left out, and the others tried again


def find_flushing_nodes(program: Program, kernels: Iterable[Node]) -> frozenset[Node]:
    """Those of the nodes that may flush, all at once."""
    left = frozenset(kernels)
    spread = ChangeBound(program, MAX_RUNTIME_VALUE, coarse=True)
    for _ in range(MAX_ATTEMPTS):
        if not left:
            break
        try:
            spread({}, left)
        except ChangeRefused as error:
            left -= error.origins
            continue
        return left
    return frozenset()
