"""Splits an extraction problem into parts that share no class, so that equal parts are solved only once.

Twelve equal layers become one `Block`, with a problem of its own and twelve occurrences in the whole problem.
`exact` solves the small problem and translates the selection twelve times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from tensaurus.egraph.extract.problem import Problem, Selection

__all__ = ["Block", "single_block", "split_into_blocks"]


class Occurrence(NamedTuple):
    """A place of a part in the whole problem: the numbers there of the part's choices and classes."""

    choices: list[int]
    classes: list[int]


@dataclass(frozen=True)
class Block:
    """A part that occurs once or several times in the whole problem."""

    problem: Problem
    occurrences: list[Occurrence]

    def to_whole(self, selection: Selection) -> dict[int, int]:
        """Translate a selection of the part to one of the whole problem, in all occurrences."""
        return {
            at.classes[eclass]: at.choices[choice]
            for at in self.occurrences
            for eclass, choice in selection.items()
        }

    def from_whole(self, selection: Selection) -> list[dict[int, int]]:
        """Translate a selection of the whole problem to one of the part, for each occurrence."""
        translated = []
        for at in self.occurrences:
            own = {whole: choice for choice, whole in enumerate(at.choices)}
            pairs = enumerate(at.classes)
            translated.append({eclass: own[selection[w]] for eclass, w in pairs if w in selection})
        return translated


class _ChoiceRow(NamedTuple):
    """A choice of a part: equal parts have equal costs and reads, with the part's own numbers of classes."""

    cost: float
    reads: tuple[int, ...]
    whole_choice: int  # its number in the whole problem


def single_block(problem: Problem) -> Block:
    """Return the whole problem as one part, which occurs once."""
    whole = Occurrence(list(range(len(problem.costs))), list(range(len(problem.members))))
    return Block(problem, [whole])


def split_into_blocks(problem: Problem) -> list[Block]:
    """Return the parts, the smallest first.

    `shrink_problem` cuts them apart: it makes the classes that every program needs roots, and drops reads of
    roots.
    """
    blocks: dict[Any, Block] = {}  # by all that the part's problem consists of
    parts = _connected_components(problem)
    for eclasses in parts:
        # a single part equals no other
        order = _canonical_order(problem, eclasses) if len(parts) > 1 else eclasses
        place = {eclass: k for k, eclass in enumerate(order)}  # the number of each class in the part
        choices_of_class: list[list[_ChoiceRow]] = []
        for eclass in order:
            rows = [
                _ChoiceRow(problem.costs[n], tuple(sorted(place[c] for c in problem.children[n])), n)
                for n in problem.members[eclass]
            ]
            choices_of_class.append(sorted(rows))
        roots = sorted(place[root] for root in problem.roots if root in place)
        every = [row for rows in choices_of_class for row in rows]  # the choices as the part numbers them
        key = (tuple(tuple(row[:2] for row in rows) for rows in choices_of_class), tuple(roots))
        if key not in blocks:
            numbers = count()
            part = Problem(
                costs=[row.cost for row in every],
                children=[row.reads for row in every],
                class_of_choice=[k for k, rows in enumerate(choices_of_class) for _ in rows],
                members=[[next(numbers) for _ in rows] for rows in choices_of_class],
                roots=roots,
            )
            blocks[key] = Block(part, [])
        blocks[key].occurrences.append(Occurrence([row.whole_choice for row in every], order))
    return sorted(blocks.values(), key=lambda block: len(block.problem.costs))


def _connected_components(problem: Problem) -> list[list[int]]:
    """Return the connected components of the classes."""
    parents = list(range(len(problem.members)))

    def find(eclass: int) -> int:
        while parents[eclass] != eclass:
            parents[eclass] = parents[parents[eclass]]
            eclass = parents[eclass]
        return eclass

    for choice, children in enumerate(problem.children):
        for child in children:
            parents[find(child)] = find(problem.class_of_choice[choice])
    parts: dict[int, list[int]] = defaultdict(list)
    for eclass in range(len(problem.members)):
        parts[find(eclass)].append(eclass)
    return list(parts.values())


def _canonical_order(problem: Problem, eclasses: Sequence[int]) -> list[int]:
    """Return the classes in an order that depends on costs and reads rather than on numbers.

    Colours are refined until no more classes can be told apart (Weisfeiler and Leman).  Classes of one colour
    stay in the order of their numbers; so two equal parts may go unnoticed, and both are solved.
    """
    roots = set(problem.roots)
    colours = {eclass: int(eclass in roots) for eclass in eclasses}  # equal for classes not yet told apart
    count = 0
    while count < len(set(colours.values())):
        count = len(set(colours.values()))
        above: dict[int, list[Any]] = {eclass: [] for eclass in eclasses}
        forms = {}
        for eclass in eclasses:
            rows = []
            for choice in problem.members[eclass]:
                row = (problem.costs[choice], tuple(sorted(colours[c] for c in problem.children[choice])))
                rows.append(row)
                for child in problem.children[choice]:
                    above[child].append((colours[eclass], row))
            forms[eclass] = (colours[eclass], tuple(sorted(rows)))
        full = {eclass: (forms[eclass], tuple(sorted(above[eclass]))) for eclass in eclasses}
        ranks = {form: rank for rank, form in enumerate(sorted(set(full.values())))}
        colours = {eclass: ranks[full[eclass]] for eclass in eclasses}
    return sorted(eclasses, key=lambda eclass: (colours[eclass], eclass))
