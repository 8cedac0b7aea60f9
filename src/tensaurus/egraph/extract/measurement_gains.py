"""Computes what e-nodes of unmeasured cost save in a program, so that the best are measured first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Problem, Selection

__all__ = ["measurement_gains"]


def measurement_gains(problem: Problem, chosen: Selection, is_measured: Sequence[bool]) -> dict[int, float]:
    """Return for each chosen e-node without a measured cost what it saves in the program `chosen`.

    Without the e-node the program would have the cheapest tree of measured e-nodes, a part of which it may
    compute already.  Where there is no such tree, the whole cost of the e-node counts as saved.
    """
    unmeasured = {eclass: choice for eclass, choice in chosen.items() if not is_measured[choice]}
    if not unmeasured:
        return {}
    costs = [cost if known else inf for cost, known in zip(problem.costs, is_measured, strict=True)]
    trees = greedy(replace(problem, costs=costs).without_infinite_costs())
    gains: dict[int, float] = {}  # the cost of what the tree adds to the program, less that of the e-node
    for eclass, choice in unmeasured.items():
        gains[choice] = -problem.costs[choice] if eclass in trees else problem.costs[choice]
        waiting, seen = [eclass] if eclass in trees else [], {eclass}
        while waiting:
            other = trees[waiting.pop()]
            gains[choice] += problem.costs[other]
            fresh = {child for child in problem.children[other] if child not in chosen} - seen
            seen |= fresh
            waiting += sorted(fresh)
    return gains
