"""Defines the rounds in which a saturation runs whole programs, each round with its own view of costs.

Costs that were measured on single operators mislead where a program gains only as a whole; a round that
favours kernels, or forbids large constants, finds programs that one view of costs would never run.
`saturating_search` goes through the rounds in order, and in each runs the cheapest programs by its view.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

__all__ = ["Round", "plan_rounds"]

FIRST_RUNS = 3  # programs run at their expected costs before other views that cost time
# Factors of kernels' costs in the two rounds of programs with many kernels.
FAVOURED, MORE_FAVOURED = 0.8, 0.6
MAX_RUNS_WITHIN_CONSTANTS = 4  # programs run whose kernels read no more constants than the original's
MAX_RUNS = 12  # programs run in the last round


class Round(NamedTuple):
    """Programs that are run under one view of costs."""

    kernel_cost_factor: float  # costs of eOperators are multiplied by it; below 1 they are favoured
    max_constant_bytes: float  # that all kernels of a program may read
    max_runs: int  # programs that are run in the round


def plan_rounds(original_bytes: float) -> tuple[Round, ...]:
    """Return the rounds of a model whose operators read these bytes of constants.

    A kernel among the runtime's operators may pay for converting layouts, so two rounds favour programs of
    many kernels that share a layout.  Programs that read more constants may be slower as a whole than their
    costs, so one round allows no more than the original's.
    """
    return (
        Round(FAVOURED, inf, 1),
        Round(1.0, inf, FIRST_RUNS),
        Round(MORE_FAVOURED, inf, 1),
        Round(1.0, original_bytes, MAX_RUNS_WITHIN_CONSTANTS),
        Round(1.0, inf, MAX_RUNS),
    )
