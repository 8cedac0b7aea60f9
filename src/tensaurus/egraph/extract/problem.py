"""Defines extraction problems: choose one e-node for each class that a program needs, as cheap as possible.

A `Problem` is an e-graph as extraction sees it.  The *choices* of an e-class are its e-nodes, each with a
cost and the e-classes that it reads.  A `Selection` takes one choice in each e-class that the roots need; it
must have no cycle.  Costs are not negative, and an e-class is paid for once, however often it is read.

    class 0 (the root):  choice 0 costs 5 and reads nothing, choice 1 costs 1 and reads class 1
    class 1:             choice 2 costs 2 and reads nothing

The cheapest selection is {0: 1, 1: 2}, which costs 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

__all__ = [
    "NO_PROGRAM",
    "Problem",
    "Selection",
    "cheapest_selection",
    "dag_cost",
    "format_problem",
    "keep_needed",
]

NO_PROGRAM = "a root class has no program: each of its nodes depends on a cycle of classes or an empty class"

Selection = Mapping[int, int]  # the choice that is taken in each e-class


@dataclass(frozen=True)
class Problem:
    """Choices 0, 1, ... of classes 0, 1, ..., with the cost of each choice and the classes that it reads."""

    costs: Sequence[float]
    children: Sequence[Collection[int]]  # for each choice every class that it reads, once
    class_of_choice: Sequence[int]
    members: Sequence[Sequence[int]]  # the choices of each class
    roots: Sequence[int]  # the classes of the program's outputs

    def without_infinite_costs(self) -> Problem:
        """Return the problem without choices of infinite cost: they keep their numbers but have no class."""
        if all(cost < inf for cost in self.costs):
            return self
        members = [[choice for choice in choices if self.costs[choice] < inf] for choices in self.members]
        return Problem(self.costs, self.children, self.class_of_choice, members, self.roots)

    def order(self, selection: Selection) -> list[int] | None:
        """Return the classes that the roots need, children first; None if cyclic or incomplete."""
        done: dict[int, bool] = {}  # False while the classes below are visited
        order: list[int] = []
        stack = list(self.roots)
        while stack:
            eclass = stack[-1]
            state = done.get(eclass)
            if state is not None:
                stack.pop()
                if not state:
                    done[eclass] = True
                    order.append(eclass)
                continue
            if eclass not in selection:
                return None
            done[eclass] = False
            for child in self.children[selection[eclass]]:
                if done.get(child) is False:
                    return None
                if child not in done:
                    stack.append(child)
        return order


def dag_cost(problem: Problem, selection: Selection) -> float:
    """Return the sum of costs over the needed classes; infinity if the selection is cyclic or incomplete."""
    order = problem.order(selection)
    return inf if order is None else sum(problem.costs[selection[eclass]] for eclass in order)


def format_problem(problem: Problem, selection: Selection | None = None, names: Sequence[str] = ()) -> str:
    """Return one line for each choice of each class: its cost, and the classes that it reads.

    Roots are marked with ^, choices of the selection with *; `names` are those of the choices.

        ^* class 0: 1.5  Split  (1)
    """
    lines = []
    for eclass, choices in enumerate(problem.members):
        for choice in choices:
            chosen = "*" if selection is not None and selection.get(eclass) == choice else " "
            root = "^" if eclass in problem.roots else " "
            name = f"  {names[choice]}" if names else ""
            read = " ".join(map(str, sorted(problem.children[choice])))
            lines.append(f"{root}{chosen} class {eclass}: {problem.costs[choice]:.3g}{name}  ({read})")
    return "\n".join(lines)


def cheapest_selection(problem: Problem, selections: Sequence[Selection]) -> Selection | None:
    """Return the cheapest selection, the first of equals; None where none is complete."""
    best = min(selections, key=lambda selection: dag_cost(problem, selection), default=None)
    return None if best is None or dag_cost(problem, best) == inf else best


def keep_needed(problem: Problem, selection: Selection) -> dict[int, int]:
    """Return the part of a selection that the roots need, children first; {} if cyclic or incomplete."""
    return {eclass: selection[eclass] for eclass in problem.order(selection) or ()}
