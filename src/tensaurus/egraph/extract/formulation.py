"""Formulates extraction as a 0-1 program (TENSAT, section 5.1), with rows that make it tighter.

Variables are x of each choice (1: taken), y of each class (1: computed) and, where an order excludes cycles,
t of each class: its place in the order.  The paper has x(n) <= y(c) for each choice n and each class c that n
reads; here all choices of one class that read c share one row, as only one of them is taken.

`formulate` makes the first rows of a problem.  `linear_relaxation` and `cpsat` solve them, with rows added
that forbid cycles (`violated_supports`, `exclusion_rows`) or are rounded up (`cover_cuts`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.egraph.extract.required_classes import required_classes, set_bits

__all__ = [
    "Answer",
    "Cover",
    "Cycles",
    "Formulation",
    "OrderRow",
    "ReadRow",
    "Support",
    "exclusion_rows",
    "formulate",
    "order_values",
    "support_choices",
    "violated_supports",
]

Cycles: TypeAlias = Literal["components", "order", "cuts", "none"]  # how to exclude cycles, see `exact.solve`


class ReadRow(NamedTuple):
    """The row: the sum of x of the choices, all of one class, is at most y of `eclass`, which they read."""

    choices: list[int]
    eclass: int


class OrderRow(NamedTuple):
    """The row: if the choice is taken, t of `upper` is larger than t of `lower`."""

    choice: int
    upper: int
    lower: int


class Support(NamedTuple):
    """The row: y of the class is at most the sum of x of the choices, which lead out of a set around it."""

    eclass: int
    choices: list[int]


class Cover(NamedTuple):
    """The row: the sum of factor * x of choices, plus the sum of 1 - y of `eclasses`, is at least `least`."""

    factors: dict[int, int]
    eclasses: list[int]  # none is a root
    least: int


@dataclass
class Formulation:
    """The rows of a problem.  y of a root is 1, y of a class with one choice is x of this choice."""

    problem: Problem
    reads: list[ReadRow] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    orders: list[OrderRow] = field(default_factory=list)
    ranges: dict[int, int] = field(default_factory=dict)  # {class with a t: number of values of t, from 0 on}


@dataclass(frozen=True)
class Answer:
    """A solver's answer: a selection, maybe cyclic, or None, and a lower bound of the cost."""

    selection: dict[int, int] | None
    bound: float
    is_optimal: bool


def formulate(problem: Problem, cycles: Cycles) -> Formulation:
    """Return the rows that do not depend on `cycles`, and the order variables that `cycles` asks for.

    "order": an order of all classes, equations (4) and (5) of the paper.  "components": an order inside each
    strongly connected component, which no cycle leaves.  "cuts" and "none": no order.
    """
    form = Formulation(problem)
    for members in problem.members:
        readers: dict[int, list[int]] = defaultdict(list)
        for choice in members:
            for child in problem.children[choice]:
                readers[child].append(choice)
        form.reads += [ReadRow(choices, child) for child, choices in readers.items()]
    parts: list[list[int]] = []
    if cycles == "order":
        parts = [list(range(len(problem.members)))]
    elif cycles == "components":
        parts = [part for part in strong_components(problem) if len(part) > 1]
    for part in parts:
        inside = set(part)
        form.ranges |= dict.fromkeys(part, len(part))
        for eclass in part:
            for choice in problem.members[eclass]:
                form.orders += [OrderRow(choice, eclass, c) for c in problem.children[choice] if c in inside]
    return form


def order_values(form: Formulation, selection: Selection) -> dict[int, int]:
    """Return values of the order variables that suit a selection without a cycle."""
    below: dict[int, list[int]] = defaultdict(list)
    for choice, _, lower in form.orders:
        below[choice].append(lower)
    heights = dict.fromkeys(form.ranges, 0)
    for eclass in form.problem.order(selection) or ():
        if eclass in form.ranges:
            heights[eclass] = max((heights[lower] + 1 for lower in below[selection[eclass]]), default=0)
    return heights


def support_choices(problem: Problem, loop: Collection[int]) -> list[int]:
    """Return the choices of a set of classes that read no class of the set.

    The first class of the set to be computed takes one of these choices: wherever a class of the set is
    needed, one of them is taken.  (In answer set programming: the loop formula of the set.)
    """
    inside = set(loop)
    return [
        choice
        for eclass in sorted(inside)
        for choice in problem.members[eclass]
        if inside.isdisjoint(problem.children[choice])
    ]


def violated_supports(problem: Problem, selection: Selection) -> Iterator[Support]:
    """Yield rows that a cyclic selection violates and all selections without a cycle satisfy."""
    for loop in _loops(problem, selection):
        outer = support_choices(problem, loop)
        for eclass in loop:
            yield Support(eclass, outer)


def exclusion_rows(problem: Problem) -> Iterator[Cover]:
    """Yield rows for classes A and B of one component where some choices of A need B in every program.

    The sum of x of these choices is at most the sum of x of the choices of B that do not need A in turn:
    where one of the former is taken, B is computed before A.
    """
    eclasses = range(len(problem.members))
    needs = required_classes(problem.children, problem.members, eclasses)
    for part in strong_components(problem):
        inside = sum(1 << eclass for eclass in part) if len(part) > 1 else 0
        below: dict[int, int] = {}  # for each choice, the classes of the component that it needs, as bits
        above = dict.fromkeys(part, 0)  # for each class, the classes with a choice that needs it
        for eclass in part if inside else ():
            for choice in problem.members[eclass]:
                below[choice] = 0
                for child in problem.children[choice]:
                    below[choice] |= needs[child] & inside
                for other in set_bits(below[choice]):
                    above[other] |= 1 << eclass
        # the class is A; with each B that may need it: {B: choices of A that need B}
        for eclass in part if inside else ():
            excluded: dict[int, list[int]] = defaultdict(list)
            for choice in problem.members[eclass]:
                for other in set_bits(below[choice] & above[eclass]):
                    excluded[other].append(choice)
            for other, choices in excluded.items():
                free = [choice for choice in problem.members[other] if not below[choice] >> eclass & 1]
                yield Cover(dict.fromkeys(free, 1) | dict.fromkeys(choices, -1), [], 0)


def _loops(problem: Problem, selection: Selection) -> Iterator[Sequence[int]]:
    """Yield the components of the selected e-nodes, and a shortest cycle through each of their classes."""
    eclasses = range(len(problem.members))
    members = [[selection[eclass]] if eclass in selection else [] for eclass in eclasses]
    seen: set[frozenset[int]] = set()
    for part in strong_components(replace(problem, members=members)):
        if len(part) > 1:
            inside = set(part)
            for loop in (part, *(_shortest_cycle(problem, selection, eclass, inside) for eclass in part)):
                if frozenset(loop) not in seen:
                    seen.add(frozenset(loop))
                    yield loop


def _shortest_cycle(problem: Problem, selection: Selection, start: int, inside: Collection[int]) -> list[int]:
    """Return the classes of a shortest cycle through `start`, which must lie on one (breadth first)."""
    above: dict[int, int] = {}  # the class from which the search came
    queue = [start]
    for eclass in queue:
        for child in problem.children[selection[eclass]]:
            if child == start:
                loop = [eclass]
                while loop[-1] != start:
                    loop.append(above[loop[-1]])
                return loop
            if child in inside and child not in above:
                above[child] = eclass
                queue.append(child)
    raise AssertionError("the class lies on no cycle")
