"""The rounds in which a search runs programs as a whole, each with its own view of costs."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

__all__ = ["Round", "run_rounds"]

MAX_RUNS_WITHIN_CONSTANTS, MAX_RUNS = 4, 12  # within the original's constants, and beyond


class Round(NamedTuple):
    """Programs that are run under one view of costs."""

    kernel_cost_factor: float  # below 1, kernels are favoured
    max_constant_bytes: float  # that kernels may read
    max_runs: int


WARM_UP_ROUNDS = Round(0.5, inf, 1), Round(0.7, inf, 1)
"""A kernel among other operators pays for layouts: first see what many kernels gain that share them."""


def run_rounds(original_bytes: float) -> tuple[Round, ...]:
    """Return the rounds of a model whose kernels read these bytes of constants.

    More constants than that may slow everything down: what can be gained without them is seen first.
    """
    within = Round(1.0, original_bytes, MAX_RUNS_WITHIN_CONSTANTS)
    return (*WARM_UP_ROUNDS, within, Round(1.0, inf, MAX_RUNS))
