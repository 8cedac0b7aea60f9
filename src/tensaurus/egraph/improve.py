"""A better choice from a good one, by moves that several classes make together.

Two products that a merged product could replace gain nothing alone: the first to move pays for all of it, so
no greedy choice ever takes it.  A move therefore brings a class into the program and turns every class to it
that could read it, at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.extract import Choice, Problem, dag_cost, greedy, needed

__all__ = ["improved", "quick"]

GAIN = 1e-9  # a better choice is cheaper by at least this share


def improved(problem: Problem, choice: Choice, deadline: float = inf) -> dict[int, int]:
    """A choice at most as dear, that no single move makes cheaper, or as far as one comes until the deadline.

    `deadline` is of `time.monotonic`.
    """
    begun = needed(problem, choice)
    found = [_climbed(problem, begun, steeply, deadline) for steeply in (True, False)]
    return min(found, key=lambda better: _total(problem, better))


def _climbed(
    problem: Problem, begun: dict[int, int], steeply: bool, deadline: float
) -> dict[int, int]:
    """After moves, the one that gains most first, or any.

    Where moves exclude each other, the first one that gains anything can be the wrong one: merging the two
    products of every sum, for instance, where merging products over one weight, of many sums, gains more.
    """
    trees = greedy(problem)
    offers = _offers(problem)
    best, cost = begun, _total(problem, begun)
    moved = True
    while moved:
        moved = False
        queue = [(-inf, shared) for shared in sorted(_turnable(offers, best))]  # by what it gained when tried
        while queue:
            if monotonic() > deadline:
                return best
            _, shared = heappop(queue)
            turns = {group: number for group, number in offers[shared].items() if group in best}
            if len(turns) < 2 or all(best[group] == number for group, number in turns.items()):
                continue
            made = _resolved(problem, best, turns, trees)
            if made is None or (dearer := _total(problem, made)) >= cost * (1 - GAIN):
                continue
            if steeply and queue and dearer - cost > queue[0][0]:
                heappush(queue, (dearer - cost, shared))
            else:
                best, cost, moved = made, dearer, True
    return best


def _offers(problem: Problem) -> dict[int, dict[int, int]]:
    """Of each class that could serve several, those that could read it, and the cheapest way for each."""
    offers: dict[int, dict[int, int]] = {}
    for number, children in enumerate(problem.children):
        group = problem.groups[number]
        for child in children:
            known = offers.setdefault(child, {})
            if group not in known or problem.costs[number] < problem.costs[known[group]]:
                known[group] = number
    return {child: known for child, known in offers.items() if len(known) > 1}


def _turnable(offers: Mapping[int, Mapping[int, int]], best: Choice) -> list[int]:
    """Classes that two or more of the classes in use could read, and do not all."""
    found = []
    for shared, known in offers.items():
        others = [group for group, number in known.items() if group in best and best[group] != number]
        if others and sum(group in best for group in known) > 1:
            found.append(shared)
    return found


def _resolved(
    problem: Problem, best: Choice, turns: Mapping[int, int], trees: Mapping[int, int]
) -> dict[int, int] | None:
    """The choice after the turns, what is new below them by the cheapest trees; None where there is none."""
    found: dict[int, int] = {}
    state: dict[int, bool] = {}  # false while below it is looked at
    stack = list(problem.roots)
    while stack:
        group = stack[-1]
        if group in state:
            stack.pop()
            state[group] = True
            continue
        state[group] = False
        number = turns.get(group)
        if number is None:
            number = best.get(group, trees.get(group))
        if number is None:  # a class that needs itself
            return None
        found[group] = number
        for child in problem.children[number]:
            seen = state.get(child)
            if seen is None:
                stack.append(child)
            elif not seen:
                return None
    return found


def _total(problem: Problem, choice: Choice) -> float:
    return sum(problem.costs[number] for number in choice.values()) if choice else inf


def quick(problem: Problem, start: Choice | None = None, deadline: float = inf) -> dict[int, int]:
    """A good choice in a second or so, no proof: the cheapest trees, then moves.

    `start` is a choice to beat, if it has no cycle and is complete.  Trees that count what is shared once
    (`greedy_dag`) take longer, and end no better after the moves.
    """
    best = improved(problem, greedy(problem), deadline)
    if start is not None and dag_cost(problem, start) < dag_cost(problem, best):
        return dict(start)
    return best
