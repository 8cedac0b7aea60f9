"""Extracts the program that is cheapest by estimates alone, before anything is measured.

However short the time is, there is then a program with folded constants and fused operators to try.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from tensaurus.egraph.extract.extraction_choices import Choices
from tensaurus.egraph.extract.problem import Selection
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.part_time_limits import Extractors
from tensaurus.optimizer.search.saturation_config import SaturationConfig

__all__ = ["EstimatedProgram", "extract_by_estimates"]


class EstimatedProgram(NamedTuple):
    """The program that is cheapest by estimates, with its cost and the original's: sums of estimates."""

    program: Program
    cost: float
    original_cost: float


def extract_by_estimates(
    config: SaturationConfig,
    extractors: Extractors,
    program: Program,
    list_choices: Callable[[float], Choices],
    original_enodes: int,
) -> EstimatedProgram | None:
    """Return the cheapest program by estimates; None where there is no time, or it stores too many constants.

    list_choices     returns the choices among the e-nodes of numbers below a limit
    original_enodes  the number below which the e-nodes are those of the original `program`
    """

    def extract(max_enodes: float) -> tuple[Choices, Selection, float] | None:
        choices = list_choices(max_enodes)
        priced = choices.price_choices([config.standalone_costs.estimate(piece) for piece in choices.pieces])
        selection = extractors.extract_first(choices.problem(priced))
        if selection is None:
            return None
        return choices, selection, sum(priced[number] for number in selection.values())

    if (original := extract(original_enodes)) is None or (cheapest := extract(inf)) is None:
        return None
    choices, selection, original_cost = original
    # a program may always store as much as the original
    max_bytes = max(config.max_constant_bytes, choices.stored_bytes(selection))
    choices, selection, cost = cheapest
    if choices.stored_bytes(selection) > max_bytes:
        return None
    return EstimatedProgram(choices.program(program, selection), cost, original_cost)
