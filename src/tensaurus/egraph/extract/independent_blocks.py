"""Splits an extraction problem into parts that share no class, so that equal parts are solved only once.

Twelve equal layers become one `Block`, with a problem of its own and the numbers of each of its twelve
occurrences in the whole problem.  `exact` solves the small problem and translates the choice twelve times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.egraph.extract.problem import Choice, Problem

__all__ = ["Block", "blocks"]


@dataclass(frozen=True)
class Block:
    """A part that occurs once or several times in the whole problem.

    choices  for each occurrence the numbers of the part's choices in the whole problem
    classes  for each occurrence the numbers of the part's classes
    """

    problem: Problem
    choices: list[list[int]]
    classes: list[list[int]]

    def restored(self, choice: Choice) -> dict[int, int]:
        """Translate a choice of the part to a choice of the whole problem, in all occurrences."""
        places = zip(self.choices, self.classes, strict=True)
        return {classes[g]: choices[n] for choices, classes in places for g, n in choice.items()}

    def adopted(self, choice: Choice) -> list[dict[int, int]]:
        """Translate a choice of the whole problem to one of the part, for each occurrence."""
        adopted = []
        for choices, classes in zip(self.choices, self.classes, strict=True):
            places = {number: place for place, number in enumerate(choices)}
            adopted.append({g: places[choice[old]] for g, old in enumerate(classes) if old in choice})
        return adopted


def blocks(problem: Problem) -> list[Block]:
    """Return the parts, the smallest first.

    `shrink_problem` cuts them apart: it makes the classes that every program needs roots, and drops reads of
    roots.
    """
    blocks_of: dict[Any, Block] = {}  # by all that the part's problem consists of
    parts = _connected(problem)
    for groups in parts:
        order = _canonical(problem, groups) if len(parts) > 1 else groups  # a single part equals no other
        place = {group: k for k, group in enumerate(order)}  # the number of each class in the part
        rows = []  # for each class its choices: (cost, children as places in `order`, number), sorted
        for group in order:
            members = [
                (problem.costs[n], tuple(sorted(place[c] for c in problem.children[n])), n)
                for n in problem.members[group]
            ]
            rows.append(sorted(members))
        roots = [place[root] for root in problem.roots if root in place]
        choices = [number for row in rows for _, _, number in row]
        key = (tuple(tuple((cost, reads) for cost, reads, _ in row) for row in rows), tuple(sorted(roots)))
        if key in blocks_of:  # another occurrence of a known part
            blocks_of[key].choices.append(choices)
            blocks_of[key].classes.append(order)
            continue
        # a new part, whose choices are numbered row by row
        starts = [sum(len(row) for row in rows[:k]) for k in range(len(rows))]
        part = Problem(
            [cost for row in rows for cost, _, _ in row],
            [reads for row in rows for _, reads, _ in row],
            [k for k, row in enumerate(rows) for _ in row],
            [list(range(start, start + len(row))) for start, row in zip(starts, rows, strict=True)],
            sorted(roots),
        )
        blocks_of[key] = Block(part, [choices], [order])
    return sorted(blocks_of.values(), key=lambda block: len(block.problem.costs))


def _connected(problem: Problem) -> list[list[int]]:
    """Return the connected components of the classes."""
    parents = list(range(len(problem.members)))

    def find(group: int) -> int:
        while parents[group] != group:
            parents[group] = parents[parents[group]]
            group = parents[group]
        return group

    for number, children in enumerate(problem.children):
        for child in children:
            parents[find(child)] = find(problem.groups[number])
    parts: dict[int, list[int]] = defaultdict(list)
    for group in range(len(problem.members)):
        parts[find(group)].append(group)
    return list(parts.values())


def _canonical(problem: Problem, groups: Sequence[int]) -> list[int]:
    """Return the classes in an order that depends on costs and reads rather than on numbers.

    Colours are refined until no more classes can be told apart (Weisfeiler and Leman).  Classes of one colour
    stay in the order of their numbers; so two equal parts may go unnoticed, and both are solved.
    """
    roots = set(problem.roots)
    colours = {group: int(group in roots) for group in groups}  # equal for classes not yet told apart
    count = 0
    while count < len(set(colours.values())):
        count = len(set(colours.values()))
        above: dict[int, list[Any]] = {group: [] for group in groups}
        forms = {}
        for group in groups:
            rows = []
            for number in problem.members[group]:
                row = (problem.costs[number], tuple(sorted(colours[c] for c in problem.children[number])))
                rows.append(row)
                for child in problem.children[number]:
                    above[child].append((colours[group], row))
            forms[group] = (colours[group], tuple(sorted(rows)))
        full = {group: (forms[group], tuple(sorted(above[group]))) for group in groups}
        ranks = {form: rank for rank, form in enumerate(sorted(set(full.values())))}
        colours = {group: ranks[full[group]] for group in groups}
    return sorted(groups, key=lambda group: (colours[group], group))
