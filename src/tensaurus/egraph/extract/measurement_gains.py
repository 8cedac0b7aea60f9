"""What e-nodes whose costs are not known for sure may save: which of them to measure first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Choice, Problem

__all__ = ["gains"]


def gains(problem: Problem, chosen: Choice, sure: Sequence[bool]) -> dict[int, float]:
    """Of each chosen e-node that is not `sure` what it saves in this program, one at a time.

    In its place the cheapest tree of sure ones would stand, as far as the program has not computed that
    already: all that it costs is saved where there is no such tree.
    """
    unsure = {group: number for group, number in chosen.items() if not sure[number]}
    if not unsure:
        return {}
    costs = [cost if known else inf for cost, known in zip(problem.costs, sure, strict=True)]
    trees = greedy(replace(problem, costs=costs).possible())
    found: dict[int, float] = {}
    for group, number in unsure.items():
        found[number] = -problem.costs[number] if group in trees else problem.costs[number]
        waiting, seen = [group] if group in trees else [], {group}
        while waiting:
            other = trees[waiting.pop()]
            found[number] += problem.costs[other]
            fresh = {child for child in problem.children[other] if child not in chosen} - seen
            seen |= fresh
            waiting += sorted(fresh)
    return found
