"""Defines extraction problems: choose one e-node for each class that a program needs, as cheap as possible.

A `Problem` is an e-graph as extraction sees it: numbered choices with costs, grouped into classes.  A
solution has no cycle.  Costs are not negative, and a class is paid for once, however often it is read.

A *choice* of a class is one of its e-nodes (in code a `number`, its class a `group`).  A `Choice` is a
solution or a part of one: {class: its chosen e-node}.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

__all__ = ["NO_PROGRAM", "Choice", "Problem", "cheapest_choice", "dag_cost", "format_problem", "needed"]

NO_PROGRAM = "a root class has no program: each of its nodes depends on a cycle of classes or an empty class"

Choice = Mapping[int, int]  # the chosen e-node of each class that is needed


@dataclass(frozen=True)
class Problem:
    """Choices 0, 1, ... of classes 0, 1, ..., with the cost of each choice and the classes that it reads."""

    costs: Sequence[float]
    children: Sequence[Collection[int]]  # for each choice every class that it reads, once
    groups: Sequence[int]  # the class of each choice
    members: Sequence[Sequence[int]]  # the choices of each class
    roots: Sequence[int]  # the classes of the program's outputs

    def without_infinite_costs(self) -> Problem:
        """Return the problem without choices of infinite cost: they keep their numbers but have no class."""
        if all(cost < inf for cost in self.costs):
            return self
        members = [[number for number in group if self.costs[number] < inf] for group in self.members]
        return Problem(self.costs, self.children, self.groups, members, self.roots)

    def order(self, choice: Choice) -> list[int] | None:
        """Return the classes that the roots need, children first; None if cyclic or incomplete."""
        done: dict[int, bool] = {}  # False while the classes below are visited
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
    """Return the sum of costs over the needed classes; infinity if the choice is cyclic or incomplete."""
    order = problem.order(choice)
    return inf if order is None else sum(problem.costs[choice[group]] for group in order)


def format_problem(problem: Problem, choice: Choice | None = None, names: Sequence[str] = ()) -> str:
    """Return one line for each choice of each class: its cost, and the classes that it reads.

    Roots are marked with ^, what `choice` chose with *; `names` are those of the choices.

        ^* class 0: 1.5  Split  (1)
    """
    lines = []
    for group, numbers in enumerate(problem.members):
        for number in numbers:
            chosen = "*" if choice is not None and choice.get(group) == number else " "
            root = "^" if group in problem.roots else " "
            name = f"  {names[number]}" if names else ""
            read = " ".join(map(str, sorted(problem.children[number])))
            lines.append(f"{root}{chosen} class {group}: {problem.costs[number]:.3g}{name}  ({read})")
    return "\n".join(lines)


def cheapest_choice(problem: Problem, choices: Sequence[Choice]) -> Choice | None:
    """Return the cheapest choice, the first of equals; None where none is complete."""
    best = min(choices, key=lambda choice: dag_cost(problem, choice), default=None)
    return None if best is None or dag_cost(problem, best) == inf else best


def needed(problem: Problem, choice: Choice) -> dict[int, int]:
    """Return the part of a choice that the roots need, children first; {} if it is cyclic or incomplete."""
    return {group: choice[group] for group in problem.order(choice) or ()}
