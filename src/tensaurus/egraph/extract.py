"""Extraction: one e-node for each class that a program needs, without a cycle, as cheap as can be.

`Problem` is an e-graph as an extraction sees it: numbered choices with costs, grouped into classes.  Costs
are not negative; a class is paid for once, however often it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from time import monotonic

from tensaurus.egraph.egraph import ABSENT, EGraph
from tensaurus.graph.node import Node

__all__ = [
    "Choice",
    "Problem",
    "dag_cost",
    "greedy",
    "greedy_dag",
    "needed",
    "problem_of",
    "tree_costs",
]

Choice = Mapping[int, int]  # of each class that is needed, the chosen e-node


@dataclass(frozen=True)
class Problem:
    """Choices 0, 1, ... of classes 0, 1, ...; a choice costs, and needs its children's classes."""

    costs: Sequence[float]
    children: Sequence[Collection[int]]  # of each choice, every class that it reads, once
    groups: Sequence[int]  # the class of each choice
    members: Sequence[Sequence[int]]  # the choices of each class
    roots: Sequence[int]

    def order(self, choice: Choice) -> list[int] | None:
        """The classes that the roots need, children first; None where the choice is cyclic or incomplete."""
        done: dict[int, bool] = {}  # false while below it is looked at
        order: list[int] = []
        stack = list(self.roots)
        while stack:
            group = stack[-1]
            state = done.get(group)
            if state is not None:
                stack.pop()
                if not state:
                    done[group] = True
                    order.append(group)
                continue
            if group not in choice:
                return None
            done[group] = False
            for child in self.children[choice[group]]:
                if done.get(child) is False:
                    return None
                if child not in done:
                    stack.append(child)
        return order


def dag_cost(problem: Problem, choice: Choice) -> float:
    """The sum over the classes that are needed; infinite where the choice is cyclic or incomplete."""
    order = problem.order(choice)
    return inf if order is None else sum(problem.costs[choice[group]] for group in order)


def needed(problem: Problem, choice: Choice) -> dict[int, int]:
    """The part of the choice that the roots need, children first; empty where it is cyclic or incomplete."""
    return {group: choice[group] for group in problem.order(choice) or ()}


def greedy(problem: Problem) -> dict[int, int]:
    """The cheapest tree of each class: what several read counts several times (TENSAT's greedy).

    Trees are found cheapest first, so no choice is ever cyclic, zero costs included.
    """
    groups = problem.groups
    left = [len(children) for children in problem.children]
    readers: list[list[int]] = [[] for _ in problem.members]
    best: dict[int, int] = {}
    totals = list(problem.costs)
    leader: dict[int, tuple[float, int]] = {}  # of each class, the cheapest that is known to have a tree
    for group, members in enumerate(problem.members):  # a problem that shrinks drops choices there alone
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
        best[group] = number
        for reader in readers[group]:
            left[reader] -= 1
            totals[reader] += total
            if not left[reader]:
                above = groups[reader]
                if above not in best:
                    entry = totals[reader], reader
                    known = leader.get(above)
                    if known is None or entry < known:
                        leader[above] = entry
                        heappush(queue, entry)
    return best


def tree_costs(problem: Problem, trees: Choice | None = None) -> list[float]:
    """What the cheapest tree of each class costs; infinite where a class has none."""
    totals = [inf] * len(problem.members)
    for group, number in (greedy(problem) if trees is None else trees).items():  # children first
        totals[group] = problem.costs[number] + sum(totals[child] for child in problem.children[number])
    return totals


def greedy_dag(problem: Problem, deadline: float = inf) -> dict[int, int]:
    """The cheapest program of each class, what is shared inside it counting once, from those of its children.

    Begins with the cheapest trees and goes on until no class's program improves; the result is at most as
    dear as that of the cheapest trees, and need not be the cheapest.  After the deadline (of
    `time.monotonic`) it is what was found by then.
    """
    trees = greedy(problem)
    programs: dict[int, dict[int, int]] = {}  # of each class, all that it needs with their choices
    totals: dict[int, float] = {}
    readers: list[set[int]] = [set() for _ in problem.members]
    for number, children in enumerate(problem.children):
        for child in children:
            readers[child].add(problem.groups[number])

    def together(number: int) -> dict[int, int]:
        """The choice over its children's programs; where two of those differ, the larger's counts."""
        group, found = problem.groups[number], {problem.groups[number]: number}
        for child in sorted(problem.children[number], key=lambda c: -len(programs[c])):
            for below, choice in programs[child].items():
                found.setdefault(below, choice)
        return _needed(problem, group, found)

    queue = list(trees)  # in the order in which the trees were found: children first
    for group in queue:
        if monotonic() > deadline:
            return trees
        programs[group] = together(trees[group])
        totals[group] = _total(problem, programs[group])
    waiting = set(queue)
    while queue:
        later: list[int] = []
        for group in queue:
            waiting.discard(group)
            if monotonic() > deadline:
                continue
            for number in problem.members[group]:
                if all(child in programs for child in problem.children[number]):
                    made = together(number)
                    if made and _total(problem, made) < totals[group] * (1 - 1e-9):
                        programs[group], totals[group] = made, _total(problem, made)
                        fresh = sorted(r for r in readers[group] if r in programs and r not in waiting)
                        waiting.update(fresh)
                        later += fresh
        queue = later
    chosen: dict[int, int] = {}
    for root in problem.roots:
        for group, number in programs.get(root, {}).items():
            chosen.setdefault(group, number)
    return min((trees, chosen), key=lambda choice: dag_cost(problem, choice))


def _needed(problem: Problem, root: int, choice: Choice) -> dict[int, int]:
    """The part of the choice that the class needs; empty where that is cyclic or incomplete."""
    alone = Problem(problem.costs, problem.children, problem.groups, problem.members, (root,))
    return {group: choice[group] for group in alone.order(choice) or ()}


def _total(problem: Problem, program: Choice) -> float:
    return sum(problem.costs[number] for number in program.values())


def problem_of(
    graph: EGraph, roots: Sequence[int], cost: Callable[[Node], float]
) -> tuple[Problem, list[int], dict[int, int]]:
    """What the roots can be made of; with the e-node of each choice and the number of each class.

    `cost` is of one node over the arguments that it was inserted with; classes that depend on constants alone
    cost nothing, as they are computed ahead of time.
    """
    numbers: dict[int, int] = {}
    members: list[list[int]] = []
    costs: list[float] = []
    children: list[tuple[int, ...]] = []
    groups: list[int] = []
    nodes: list[int] = []

    def number_of(group: int) -> int:
        if group not in numbers:
            numbers[group] = len(members)
            members.append([])
            todo.append(group)
        return numbers[group]

    todo: list[int] = []
    tops = [number_of(graph.find(root)) for root in roots]
    while todo:
        group = todo.pop()
        free = graph.facts[group].static
        for node in graph.live(group):
            if node in graph.filtered:
                continue
            reads = dict.fromkeys(number_of(read) for read in graph.args[node] if read != ABSENT)
            if numbers[group] in reads:
                continue
            members[numbers[group]].append(len(nodes))
            nodes.append(node)
            groups.append(numbers[group])
            children.append(tuple(reads))
            costs.append(0.0 if free else cost(graph.term(node)))
    return Problem(costs, children, groups, members, tops), nodes, numbers
