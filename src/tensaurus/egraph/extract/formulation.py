"""Formulates extraction as a 0-1 program (TENSAT, section 5.1), with rows that make it tighter.

Variables are x of each choice (1: taken), y of each class (1: computed) and, where an order excludes cycles,
t of each class: its place in the order.  The paper has x(n) <= y(c) for each choice n and each class c that n
reads; here all choices of one class that read c share one row, as only one of them is taken.

`formulate` makes the first rows of a problem.  `linear_relaxation` and `cpsat` solve them, with rows added
that forbid cycles (`supports`, `exclusion_rows`) or are rounded up (`cover_cuts`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from tensaurus.egraph.extract.cyclic_components import strong_components
from tensaurus.egraph.extract.problem import Choice, Problem
from tensaurus.egraph.extract.required_classes import required_classes

__all__ = [
    "Answer",
    "Cover",
    "Cycles",
    "Formulation",
    "Support",
    "exclusion_rows",
    "formulate",
    "order_values",
    "support_choices",
    "supports",
]

Cycles: TypeAlias = Literal["components", "order", "cuts", "none"]  # how to exclude cycles, see `exact.solve`


class Support(NamedTuple):
    """The row: y of the class is at most the sum of x of the choices, which lead out of a set around it."""

    group: int
    choices: list[int]


class Cover(NamedTuple):
    """The row: the sum of factor * x of choices, plus the sum of 1 - y of `groups`, is at least `least`."""

    factors: dict[int, int]
    groups: list[int]  # none is a root
    least: int


@dataclass
class Formulation:
    """The rows of a problem.  y of a root is 1, y of a class with one choice is x of this choice.

    reads   (choices, class): the sum of x of the choices is at most y of the class
    orders  (choice, upper, lower): if the choice is taken, t of `upper` is larger than t of `lower`
    ranges  for each class with a t, the number of values of t, from 0 on
    """

    problem: Problem
    reads: list[tuple[list[int], int]] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    orders: list[tuple[int, int, int]] = field(default_factory=list)
    ranges: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A solver's answer: a choice, maybe cyclic, or None; a lower bound; whether the choice is optimal."""

    choice: dict[int, int] | None
    bound: float
    done: bool


def formulate(problem: Problem, cycles: Cycles) -> Formulation:
    """Return the rows that do not depend on `cycles`, and the order variables that `cycles` asks for.

    "order": an order of all classes, equations (4) and (5) of the paper.  "components": an order inside each
    strongly connected component, which no cycle leaves.  "cuts" and "none": no order.
    """
    form = Formulation(problem)
    for members in problem.members:
        readers: dict[int, list[int]] = defaultdict(list)
        for number in members:
            for child in problem.children[number]:
                readers[child].append(number)
        form.reads += [(numbers, child) for child, numbers in readers.items()]
    parts: list[list[int]] = []
    if cycles == "order":
        parts = [list(range(len(problem.members)))]
    elif cycles == "components":
        parts = [part for part in strong_components(problem) if len(part) > 1]
    for part in parts:
        inside = set(part)
        form.ranges |= dict.fromkeys(part, len(part))
        for group in part:
            for number in problem.members[group]:
                form.orders += [(number, group, c) for c in problem.children[number] if c in inside]
    return form


def order_values(form: Formulation, choice: Choice) -> dict[int, int]:
    """Return values of the order variables that suit a choice without a cycle."""
    below: dict[int, list[int]] = defaultdict(list)
    for number, _, lower in form.orders:
        below[number].append(lower)
    heights_of = dict.fromkeys(form.ranges, 0)
    for group in form.problem.order(choice) or ():
        if group in form.ranges:
            heights_of[group] = max((heights_of[lower] + 1 for lower in below[choice[group]]), default=0)
    return heights_of


def support_choices(problem: Problem, loop: Collection[int]) -> list[int]:
    """Return the choices of a set of classes that read no class of the set.

    The first class of the set to be computed takes one of these choices: wherever a class of the set is
    needed, one of them is taken.  (In answer set programming: the loop formula of the set.)
    """
    inside = set(loop)
    return [
        number
        for group in sorted(inside)
        for number in problem.members[group]
        if inside.isdisjoint(problem.children[number])
    ]


def supports(problem: Problem, choice: Choice) -> Iterator[Support]:
    """Yield rows that a cyclic choice violates and all choices without a cycle satisfy."""
    for loop in _loops(problem, choice):
        outer = support_choices(problem, loop)
        for group in loop:
            yield Support(group, outer)


def exclusion_rows(problem: Problem) -> Iterator[Cover]:
    """Yield rows for classes A and B of one component where some choices of A need B in every program.

    The sum of x of these choices is at most the sum of x of the choices of B that do not need A in turn:
    where one of the former is taken, B is computed before A.
    """
    groups = range(len(problem.members))
    needs = required_classes(problem.children, problem.members, groups)
    for part in strong_components(problem):
        inside = sum(1 << group for group in part) if len(part) > 1 else 0
        below: dict[int, int] = {}  # for each choice, the classes of the component that it needs, as bits
        above = dict.fromkeys(part, 0)  # for each class, the classes with a choice that needs it
        for group in part if inside else ():
            for number in problem.members[group]:
                below[number] = 0
                for child in problem.children[number]:
                    below[number] |= needs[child] & inside
                for other in _bits(below[number]):
                    above[other] |= 1 << group
        for group in part if inside else ():  # A, with each B that may need it: {B: choices of A that need B}
            excluded: dict[int, list[int]] = defaultdict(list)
            for number in problem.members[group]:
                for other in _bits(below[number] & above[group]):
                    excluded[other].append(number)
            for other, numbers in excluded.items():
                free = [number for number in problem.members[other] if not below[number] >> group & 1]
                yield Cover(dict.fromkeys(free, 1) | dict.fromkeys(numbers, -1), [], 0)


def _bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _loops(problem: Problem, choice: Choice) -> Iterator[Sequence[int]]:
    """Yield the components of the chosen e-nodes, and a shortest cycle through each of their classes."""
    # `own` is the problem with the chosen e-nodes as the only choices
    groups = range(len(problem.members))
    members = [[choice[group]] if group in choice else [] for group in groups]
    own = Problem(problem.costs, problem.children, problem.groups, members, problem.roots)
    seen: set[frozenset[int]] = set()
    for part in strong_components(own):
        if len(part) > 1:
            inside = set(part)
            for loop in (part, *(_shortest(problem, choice, group, inside) for group in part)):
                if frozenset(loop) not in seen:
                    seen.add(frozenset(loop))
                    yield loop


def _shortest(problem: Problem, choice: Choice, start: int, inside: Collection[int]) -> list[int]:
    """Return the classes of a shortest cycle through `start`, which must lie on one (breadth first)."""
    above: dict[int, int] = {}  # the class from which the search came
    queue = [start]
    for group in queue:
        for child in problem.children[choice[group]]:
            if child == start:
                loop = [group]
                while loop[-1] != start:
                    loop.append(above[loop[-1]])
                return loop
            if child in inside and child not in above:
                above[child] = group
                queue.append(child)
    raise AssertionError("the class lies on no cycle")
