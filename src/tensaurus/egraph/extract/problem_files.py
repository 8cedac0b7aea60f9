"""Reads extraction problems from files: egglog's serialized e-graphs, JSON that other extractors use, too.

    {"nodes": {"n0": {"op": "Add", "children": ["n1", "n2"], "eclass": "c0", "cost": 1.5}, ...},
     "root_eclasses": ["c0"], "class_data": {...}}

A child is the name of any node of the class that is read; `class_data` is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file

__all__ = ["read_problem", "write_selection"]


def read_problem(path: str | Path) -> tuple[Problem, list[str], list[str]]:
    """Return the problem in a file, and the names of its choices and classes.  Raises TensaurusError."""
    whole = _parse_json(path)
    rows = _required_field(whole, "nodes", dict, "an object of nodes", path)
    class_numbers: dict[str, int] = {}
    class_of_node: dict[str, int] = {}
    costs: list[float] = []
    for name, row in rows.items():
        class_of_node[name] = class_numbers.setdefault(_class_of(name, row, path), len(class_numbers))
        costs.append(_cost_of(name, row, path))
    children: list[tuple[int, ...]] = []
    for name, row in rows.items():
        read = row.get("children", [])
        if not isinstance(read, list):
            text = "its children are not a list"
            raise TensaurusError(text, file=path, node=name, remedy="List names of nodes.")
        for child in read:
            if not isinstance(child, str) or child not in class_of_node:
                text = f"its child {json.dumps(child)} is not a node of the file"
                raise TensaurusError(text, file=path, node=name, remedy='Children are keys of "nodes".')
        children.append(tuple(dict.fromkeys(class_of_node[child] for child in read)))
    roots = _required_field(whole, "root_eclasses", list, "a list of classes", path)
    if not roots:
        raise TensaurusError("the e-graph has no root", file=path, remedy='Name one in "root_eclasses".')
    for root in roots:
        if not isinstance(root, str) or root not in class_numbers:
            text = f"the root {json.dumps(root)} is the class of no node"
            raise TensaurusError(text, file=path, remedy='Roots are values of "eclass".')
    members: list[list[int]] = [[] for _ in class_numbers]
    class_of_choice = list(class_of_node.values())
    for choice, eclass in enumerate(class_of_choice):
        members[eclass].append(choice)
    root_classes = list(dict.fromkeys(class_numbers[root] for root in roots))
    problem = Problem(costs, children, class_of_choice, members, root_classes)
    return problem, list(class_of_node), list(class_numbers)


def _parse_json(path: str | Path) -> dict[str, Any]:
    remedy = "It must be egglog's serialized e-graph, as JSON."
    try:
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror or error}", file=path) from error
    except UnicodeDecodeError as error:
        raise TensaurusError("it is not UTF-8 text", file=path, remedy=remedy) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise TensaurusError(f"it is not JSON: {error}", file=path, remedy=remedy) from error
    if not isinstance(whole, dict):
        raise TensaurusError("it is not a JSON object", file=path, remedy=remedy)
    return whole


def _required_field(whole: Mapping[str, Any], key: str, kind: type, what: str, path: str | Path) -> Any:
    if not isinstance(whole.get(key), kind):
        text = f'"{key}" is not {what}' if key in whole else f'it has no "{key}"'
        raise TensaurusError(text, file=path, remedy=f'"{key}" must be {what}.')
    return whole[key]


def _class_of(name: str, row: Any, path: str | Path) -> str:
    if not isinstance(row, dict):
        raise TensaurusError("it is not an object", file=path, node=name, remedy='Give its "eclass".')
    eclass = row.get("eclass")
    if not isinstance(eclass, str):
        raise TensaurusError("it has no class", file=path, node=name, remedy='Name it in "eclass".')
    return eclass


def _cost_of(name: str, row: Mapping[str, Any], path: str | Path) -> float:
    """Return a node's cost, 1 where none is given.  Raises TensaurusError unless it is finite and >= 0."""
    cost = row.get("cost", 1.0)
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        text = f"its cost {json.dumps(cost)} is not a number"
        raise TensaurusError(text, file=path, node=name, remedy="Costs are finite and 0 or more.")
    try:
        value = float(cost)
    except OverflowError:
        value = float("inf")
    if not isfinite(value) or value < 0:
        text = f"its cost is {value}"
        raise TensaurusError(text, file=path, node=name, remedy="Costs are finite and 0 or more.")
    return value


def write_selection(
    path: str | Path, problem: Problem, selection: Selection, nodes: Sequence[str], classes: Sequence[str]
) -> None:
    """Write {class: node} for the classes that the roots need, children first, as JSON."""
    keep_needed = {classes[eclass]: nodes[selection[eclass]] for eclass in problem.order(selection) or ()}
    with replace_file(path) as beside:
        beside.write_text(json.dumps(keep_needed, indent=1) + "\n", encoding="utf-8")
