"""Extracts greedily, without a proof: the cheapest tree of each class, and programs grown from such trees."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.extract.problem import Problem, Selection, dag_cost, keep_needed

__all__ = ["greedy", "greedy_dag", "tree_costs"]


def greedy(problem: Problem) -> dict[int, int]:
    """Return the cheapest tree of each class, in which a shared class counts several times (TENSAT's greedy).

    Trees are found cheapest first, as in Knuth's generalization of Dijkstra's algorithm, so no choice is ever
    cyclic, even with costs of 0.  The result is in the order in which trees were found: children first.
    """
    class_of_choice = problem.class_of_choice
    pending = [len(children) for children in problem.children]  # children of each choice without a tree
    readers: list[list[int]] = [[] for _ in problem.members]
    best: dict[int, int] = {}  # the result: the root of each class's tree
    totals = list(problem.costs)  # for each choice, its cost and those of its children's trees so far
    leader: dict[int, tuple[float, int]] = {}  # for each class, its cheapest choice with a tree so far
    for eclass, members in enumerate(problem.members):  # dropped choices are only gone from `members`
        for choice in members:
            for child in problem.children[choice]:
                readers[child].append(choice)
            if not pending[choice]:
                entry = totals[choice], choice
                leader[eclass] = min(entry, leader.get(eclass, entry))
    queue = sorted(leader.values())
    while queue:
        total, choice = heappop(queue)
        eclass = class_of_choice[choice]
        if eclass in best:
            continue
        best[eclass] = choice  # no later entry is cheaper
        for reader in readers[eclass]:
            pending[reader] -= 1
            totals[reader] += total
            if not pending[reader]:  # all children have trees: the reader has one, too
                above = class_of_choice[reader]
                if above not in best:
                    entry = totals[reader], reader
                    known = leader.get(above)
                    if known is None or entry < known:
                        leader[above] = entry
                        heappush(queue, entry)
    return best


def tree_costs(problem: Problem, trees: Selection | None = None) -> list[float]:
    """Return the cost of the cheapest tree of each class; infinity where a class has none."""
    totals = [inf] * len(problem.members)
    for eclass, choice in (greedy(problem) if trees is None else trees).items():  # children first
        totals[eclass] = problem.costs[choice] + sum(totals[child] for child in problem.children[choice])
    return totals


def greedy_dag(problem: Problem, deadline: float = inf) -> dict[int, int]:
    """Return programs in which shared classes count once, built for each class from those of its children.

    Begins with the cheapest trees and goes on until no class's program improves.  The result costs at most as
    much as the cheapest trees; cheaper programs may exist.  After the deadline (of `time.monotonic`) the
    result is the best so far.
    """
    trees = greedy(problem)
    programs: dict[int, dict[int, int]] = {}  # for each class a selection of all classes that it needs
    totals: dict[int, float] = {}
    readers: list[set[int]] = [set() for _ in problem.members]
    for choice, children in enumerate(problem.children):
        for child in children:
            readers[child].add(problem.class_of_choice[choice])

    def merged_program(choice: int) -> dict[int, int]:
        """Return a choice over its children's programs merged, the larger program first; {} if cyclic."""
        eclass = problem.class_of_choice[choice]
        merged = {eclass: choice}
        for child in sorted(problem.children[choice], key=lambda c: -len(programs[c])):
            for below, own in programs[child].items():
                merged.setdefault(below, own)
        return _needed_by(problem, eclass, merged)

    queue = list(trees)  # in the order in which the trees were found: children first
    for eclass in queue:
        if monotonic() > deadline:
            return trees
        programs[eclass] = merged_program(trees[eclass])
        totals[eclass] = _total(problem, programs[eclass])
    waiting = set(queue)  # classes that are still to be improved
    # try each choice of a class over the best programs of its children; readers of a better class come again
    while queue:
        later: list[int] = []
        for eclass in queue:
            waiting.discard(eclass)
            if monotonic() > deadline:
                continue
            for choice in problem.members[eclass]:
                if all(child in programs for child in problem.children[choice]):
                    made = merged_program(choice)
                    if made and _total(problem, made) < totals[eclass] * (1 - 1e-9):
                        programs[eclass], totals[eclass] = made, _total(problem, made)
                        fresh = sorted(r for r in readers[eclass] if r in programs and r not in waiting)
                        waiting.update(fresh)
                        later += fresh
        queue = later
    chosen: dict[int, int] = {}  # the programs of all roots merged, which may be cyclic
    for root in problem.roots:
        for eclass, choice in programs.get(root, {}).items():
            chosen.setdefault(eclass, choice)
    return min((trees, chosen), key=lambda selection: dag_cost(problem, selection))


def _needed_by(problem: Problem, root: int, selection: Selection) -> dict[int, int]:
    """Return the part of the selection that the class `root` needs; {} if it is cyclic or incomplete."""
    return keep_needed(replace(problem, roots=(root,)), selection)


def _total(problem: Problem, program: Selection) -> float:
    return sum(problem.costs[choice] for choice in program.values())
