"""Every e-node of an e-graph as an extraction problem, in memory or in a file for `tensaurus extract`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Problem
from tensaurus.graph.ir.node import Node
from tensaurus.ops import Op
from tensaurus.system.files import replace_file


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
        free = graph.analyses[group].static
        for node in graph.live_members(group):
            reads = dict.fromkeys(number_of(read) for read in graph.args[node] if read != ABSENT)
            if numbers[group] in reads:
                continue
            members[numbers[group]].append(len(nodes))
            nodes.append(node)
            groups.append(numbers[group])
            children.append(tuple(reads))
            costs.append(0.0 if free else cost(graph.term(node)))
    return Problem(costs, children, groups, members, tops), nodes, numbers


def to_json(graph: EGraph, roots: Sequence[int], cost: Callable[[Node], float]) -> dict[str, Any]:
    """What the roots can be made of; nodes that no program can use are left out."""
    problem, nodes, numbers = problem_of(graph, roots, cost)
    trees = greedy(problem)
    names = {group: str(number) for group, number in trees.items()}
    written: dict[str, Any] = {}
    for number, node in enumerate(nodes):
        if all(child in trees for child in problem.children[number]):
            op = graph.heads[node].op
            reads = [names[numbers[graph.find(arg)]] for arg in graph.args[node] if arg != ABSENT]
            written[str(number)] = {
                "op": op.name if isinstance(op, Op) else str(op),
                "children": reads,
                "eclass": str(problem.class_of_choice[number]),
                "cost": problem.costs[number],
            }
    return {"nodes": written, "root_eclasses": [str(root) for root in problem.roots]}


def write_problem(
    path: str | Path, graph: EGraph, roots: Sequence[int], cost: Callable[[Node], float]
) -> None:
    """Write what the roots can be made of, a line for each node."""
    whole = to_json(graph, roots, cost)
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in whole["nodes"].items()
    )
    tops = json.dumps(whole["root_eclasses"])
    with replace_file(path) as beside:
        beside.write_text(f'{{"nodes":{{\n{lines}\n}},"root_eclasses":{tops}}}\n', encoding="utf-8")
