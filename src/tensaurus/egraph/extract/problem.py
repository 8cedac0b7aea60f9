"""Extraction: one e-node for each class that a program needs, without a cycle, as cheap as can be.

`Problem` is an e-graph as an extraction sees it: numbered choices with costs, grouped into classes.  Costs
are not negative; a class is paid for once, however often it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

__all__ = ["Choice", "Problem", "cheapest", "dag_cost", "needed"]

Choice = Mapping[int, int]  # of each class that is needed, the chosen e-node


@dataclass(frozen=True)
class Problem:
    """Choices 0, 1, ... of classes 0, 1, ...; a choice costs, and needs its children's classes."""

    costs: Sequence[float]
    children: Sequence[Collection[int]]  # of each choice, every class that it reads, once
    groups: Sequence[int]  # the class of each choice
    members: Sequence[Sequence[int]]  # the choices of each class
    roots: Sequence[int]

    def possible(self) -> Problem:
        """Without choices of infinite cost; numbers stay, such choices are members of no class."""
        if all(cost < inf for cost in self.costs):
            return self
        members = [[number for number in group if self.costs[number] < inf] for group in self.members]
        return Problem(self.costs, self.children, self.groups, members, self.roots)

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


def cheapest(problem: Problem, choices: Sequence[Choice]) -> Choice | None:
    """The first of those that cost least; None where none is complete."""
    best = min(choices, key=lambda choice: dag_cost(problem, choice), default=None)
    return None if best is None or dag_cost(problem, best) == inf else best


def needed(problem: Problem, choice: Choice) -> dict[int, int]:
    """The part of the choice that the roots need, children first; empty where it is cyclic or incomplete."""
    return {group: choice[group] for group in problem.order(choice) or ()}
