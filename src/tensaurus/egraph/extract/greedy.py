"""Extracts greedily, without a proof: the cheapest tree of each class, and programs grown from such trees."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.extract.problem import Choice, Problem, dag_cost

__all__ = ["greedy", "greedy_dag", "tree_costs"]


def greedy(problem: Problem) -> dict[int, int]:
    """Return the cheapest tree of each class, in which a shared class counts several times (TENSAT's greedy).

    Trees are found cheapest first, as in Knuth's generalization of Dijkstra's algorithm, so no choice is ever
    cyclic, even with costs of 0.  The result is in the order in which trees were found: children first.
    """
    groups = problem.groups
    left = [len(children) for children in problem.children]  # children of each choice without a tree
    readers: list[list[int]] = [[] for _ in problem.members]
    best: dict[int, int] = {}  # the result: the root of each class's tree
    totals = list(problem.costs)  # for each choice, its cost and those of its children's trees so far
    leader: dict[int, tuple[float, int]] = {}  # for each class, its cheapest choice with a tree so far
    for group, members in enumerate(problem.members):  # dropped choices are only gone from `members`
        for number in members:
            for child in problem.children[number]:
                readers[child].append(number)
            if not left[number]:
                entry = totals[number], number
                leader[group] = min(entry, leader.get(group, entry))
    queue = sorted(leader.values())
    while queue:
        total, number = heappop(queue)
        group = groups[number]
        if group in best:
            continue
        best[group] = number  # no later entry is cheaper
        for reader in readers[group]:
            left[reader] -= 1
            totals[reader] += total
            if not left[reader]:  # all children have trees: the reader has one, too
                above = groups[reader]
                if above not in best:
                    entry = totals[reader], reader
                    known = leader.get(above)
                    if known is None or entry < known:
                        leader[above] = entry
                        heappush(queue, entry)
    return best


def tree_costs(problem: Problem, trees: Choice | None = None) -> list[float]:
    """Return the cost of the cheapest tree of each class; infinity where a class has none."""
    totals = [inf] * len(problem.members)
    for group, number in (greedy(problem) if trees is None else trees).items():  # children first
        totals[group] = problem.costs[number] + sum(totals[child] for child in problem.children[number])
    return totals


def greedy_dag(problem: Problem, deadline: float = inf) -> dict[int, int]:
    """Return programs in which shared classes count once, built for each class from those of its children.

    Begins with the cheapest trees and goes on until no class's program improves.  The result costs at most as
    much as the cheapest trees; cheaper programs may exist.  After the deadline (of `time.monotonic`) the
    result is the best so far.
    """
    trees = greedy(problem)
    programs: dict[int, dict[int, int]] = {}  # for each class a choice of all classes that it needs
    totals: dict[int, float] = {}
    readers: list[set[int]] = [set() for _ in problem.members]
    for number, children in enumerate(problem.children):
        for child in children:
            readers[child].add(problem.groups[number])

    def merged_program(number: int) -> dict[int, int]:
        """Return a choice over its children's programs merged, the larger program first; {} if cyclic."""
        group, merged = problem.groups[number], {problem.groups[number]: number}
        for child in sorted(problem.children[number], key=lambda c: -len(programs[c])):
            for below, choice in programs[child].items():
                merged.setdefault(below, choice)
        return _needed_by(problem, group, merged)

    queue = list(trees)  # in the order in which the trees were found: children first
    for group in queue:
        if monotonic() > deadline:
            return trees
        programs[group] = merged_program(trees[group])
        totals[group] = _total(problem, programs[group])
    waiting = set(queue)  # classes that are still to be improved
    # try each choice of a class over the best programs of its children; readers of a better class come again
    while queue:
        later: list[int] = []
        for group in queue:
            waiting.discard(group)
            if monotonic() > deadline:
                continue
            for number in problem.members[group]:
                if all(child in programs for child in problem.children[number]):
                    made = merged_program(number)
                    if made and _total(problem, made) < totals[group] * (1 - 1e-9):
                        programs[group], totals[group] = made, _total(problem, made)
                        fresh = sorted(r for r in readers[group] if r in programs and r not in waiting)
                        waiting.update(fresh)
                        later += fresh
        queue = later
    chosen: dict[int, int] = {}  # the programs of all roots merged, which may be cyclic
    for root in problem.roots:
        for group, number in programs.get(root, {}).items():
            chosen.setdefault(group, number)
    return min((trees, chosen), key=lambda choice: dag_cost(problem, choice))


def _needed_by(problem: Problem, root: int, choice: Choice) -> dict[int, int]:
    """Return the part of the choice that the class `root` needs; {} if it is cyclic or incomplete."""
    alone = Problem(problem.costs, problem.children, problem.groups, problem.members, (root,))
    return {group: choice[group] for group in alone.order(choice) or ()}


def _total(problem: Problem, program: Choice) -> float:
    return sum(problem.costs[number] for number in program.values())
