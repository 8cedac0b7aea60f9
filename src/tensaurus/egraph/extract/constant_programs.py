"""Chooses and builds a program for each e-class that depends on constants only.

Such a class is computed ahead of time.  Extraction sees one choice for it, which reads nothing.  Its program
is chosen here: the smallest, as it rounds least, and among equals that of the oldest e-nodes, so that the
program of a class does not depend on the other classes that are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Problem
from tensaurus.graph.ir.node import Node

__all__ = ["ConstantPrograms"]


class ConstantPrograms:
    """Holds the e-node that was chosen in each class; together they have no cycle."""

    def __init__(self, graph: EGraph):
        self._graph = graph
        self._enode_of_class: dict[int, int] = {}

    def choose(self, wanted: Iterable[int]) -> None:
        """Choose an e-node for each of these classes, and for the classes below them."""
        graph = self._graph
        below = [eclass for eclass in wanted if eclass not in self._enode_of_class]
        numbers = {eclass: number for number, eclass in enumerate(below)}  # as in the problem below
        choices: list[tuple[int, int]] = []  # (e-node, its class)
        for eclass in below:  # the list grows in the loop
            for enode in graph.live_members(eclass):
                choices.append((enode, eclass))
                for read in graph.args[enode]:
                    if read != ABSENT and read not in numbers and graph.analyses[read].static:
                        numbers[read] = len(below)
                        below.append(read)
        choices.sort()
        members: list[list[int]] = [[] for _ in below]
        children: list[tuple[int, ...]] = []
        class_of_choice: list[int] = []
        enodes: list[int] = []
        for enode, eclass in choices:
            reads = {read for read in graph.args[enode] if read != ABSENT}
            if eclass not in reads and reads <= numbers.keys():
                members[numbers[eclass]].append(len(enodes))
                enodes.append(enode)
                class_of_choice.append(numbers[eclass])
                children.append(tuple(numbers[read] for read in reads))
        chosen = greedy(Problem([1.0] * len(enodes), children, class_of_choice, members, ()))
        self._enode_of_class.update((below[number], enodes[choice]) for number, choice in chosen.items())

    def build(self, eclass: int, built: dict[int, Node]) -> Node:
        """Return the program of a class that `choose` has seen; `built` are the programs made before."""
        graph = self._graph
        stack = [eclass]
        while stack:
            top = stack[-1]
            enode = self._enode_of_class[top]
            missing = [a for a in graph.args[enode] if a != ABSENT and a not in built]
            if top not in built and missing:
                stack.extend(missing)
                continue
            if top not in built:
                read = [None if a == ABSENT else built[a] for a in graph.args[enode]]
                built[top] = graph.heads[enode].build(read)
            stack.pop()
        return built[eclass]
