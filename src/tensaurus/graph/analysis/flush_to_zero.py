"""Find the kernels that may flush subnormal numbers to zero without a visible change of the outputs.

Arithmetic with subnormal numbers is 10 to 100 times slower on Intel processors.  A kernel that flushes them
changes each of its results by at most the smallest normal number; `change_bounds` bounds how far that
changes the outputs of the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensaurus.graph.analysis.change_bounds import ChangeAnalysis, ChangeRefused
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program

MAX_RUNTIME_VALUE = 2.0**24  # magnitude that no value exceeds at run time, as is assumed
MAX_ATTEMPTS = 4  # each without the kernels that earlier ones refused; where all fail, no kernel flushes


def find_flushing_nodes(program: Program, kernels: Iterable[Node]) -> frozenset[Node]:
    """Return the kernels that may all flush in the same program."""
    candidates = frozenset(kernels)
    analysis = ChangeAnalysis(program, MAX_RUNTIME_VALUE, coarse=True)
    for _ in range(MAX_ATTEMPTS):
        if not candidates:
            break
        try:
            analysis.bound({}, candidates)
        except ChangeRefused as error:
            candidates -= error.origins
            continue
        return candidates
    return frozenset()
