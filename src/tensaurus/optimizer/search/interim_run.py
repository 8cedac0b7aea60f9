"""Runs a program of what is measured so far, before everything is: costs in context come early.

    measure kernels for a quarter of the time -> run the best program of these -> measure the others

A kernel among the runtime's operators may take longer than alone: it reads weights from farther away, and
other operators lose their blocked layouts or what they were fused with. What the first run tells of such
costs decides which kernels are worth measuring after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic

from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.problem import Selection, dag_cost
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.part_time_limits import Extractors
from tensaurus.optimizer.search.program_pool import Extracted, Extraction, ProgramPool
from tensaurus.runtimes.price.constant_limits import ConstantLimits
from tensaurus.runtimes.price.costs import Prices

__all__ = ["LIKELY_GAIN", "InterimRun", "find_measured_program"]

INTERIM_SHARE = 0.25  # of the time left when measuring begins, after which a program is run
LIKELY_GAIN = 0.01  # share of the original's time that a program must save for a gain to be likely


@dataclass
class InterimRun:
    """When a program is run before all its pieces are measured; `due_at` is a monotonic time."""

    due_at: float = inf

    def plan(self, deadline: float) -> None:
        """Plan the run for a search that begins to measure now."""
        now = monotonic()
        self.due_at = now + INTERIM_SHARE * (deadline - now)

    @property
    def is_due(self) -> bool:
        """Whether the program is to be run now."""
        return monotonic() >= self.due_at

    def cancel(self) -> None:
        """Run nothing early any more."""
        self.due_at = inf


def find_measured_program(
    program: Program,
    choices: Choices,
    prices: Prices,
    extractors: Extractors,
    pool: ProgramPool,
    limits: ConstantLimits,
) -> Extraction | None:
    """Return the cheapest program of measured pieces; None where that gains nothing, or a program was run."""
    if pool.original is None or pool.has_run_other:
        return None
    selection = _extract_measured(choices, prices, extractors)
    if selection is None:
        return None
    cost, read_bytes = prices.total(selection), choices.packed_bytes(selection)
    is_allowed = limits.admits(choices.stored_bytes(selection), read_bytes)
    if not is_allowed or cost >= (1 - LIKELY_GAIN) * pool.original.seconds:
        return None
    found = Extracted(choices.program(program, selection), choices.places(selection), cost)
    return Extraction(pool.add(found), choices, selection, prices)


def _extract_measured(choices: Choices, prices: Prices, extractors: Extractors) -> Selection | None:
    """Return the cheapest selection of measured choices; None where some e-class has none."""
    costs = prices.of_choices(kernel_cost_factor=1)
    known = [cost if is_known else inf for cost, is_known in zip(costs, prices.measured_choices, strict=True)]
    problem = choices.problem(known).without_infinite_costs()
    selection = extractors.extract_first(problem)
    return None if selection is None or dag_cost(problem, selection) == inf else selection
