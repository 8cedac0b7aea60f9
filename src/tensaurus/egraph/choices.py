"""What can be extracted from an e-graph: its e-nodes, and chains of them that a runtime fuses.

What depends on constants alone is computed ahead of time, whatever it takes: of such a class one program is
chosen beforehand, and its cost is that of keeping its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from tensaurus.egraph.egraph import ABSENT, EGraph
from tensaurus.egraph.extract import Choice, Problem, greedy
from tensaurus.egraph.pattern import Match, Pattern
from tensaurus.egraph.table import Table
from tensaurus.graph.census import bytes_of
from tensaurus.graph.node import Node
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.ops import Op, TensorType

__all__ = ["Choices", "Place"]

Place: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class _Fused:
    """E-nodes that a pattern matched, extracted as one."""

    pattern: Pattern
    match: Match


class Choices:
    """The choices of each class below the roots; choices of one key cost the same.

    keys      of each choice, its place in `pieces`; -1 where it is free, -2 - k where it is kept constant k
    pieces    of each key, one that has it: what to measure
    kept      bytes of the constants
    """

    def __init__(
        self, graph: EGraph, roots: Sequence[int], fusions: Sequence[Pattern] = (), before: float = inf
    ):
        """Of the e-nodes that are older than `before`."""
        self.graph, self._before = graph, before
        self.keys: list[int] = []
        self.pieces: list[Piece] = []
        self.kept: list[int] = []
        self._numbers: dict[int, int] = {}  # of each class, its number in the problem
        self._members: list[list[int]] = []
        self._children: list[tuple[int, ...]] = []
        self._groups: list[int] = []
        self._what: list[int | _Fused] = []  # of each choice
        self._known: dict[Any, int] = {}
        self._constants = _ahead_of_time(graph)
        fused = self._fused(fusions)
        self._todo: list[int] = []
        self._roots = [self._number(graph.find(root)) for root in roots]
        while self._todo:
            group = self._todo.pop()
            if graph.facts[group].static:
                self._keep(group)
                continue
            for node in graph.live(group):
                if node not in graph.filtered and node < before:
                    self._add(group, node, graph.args[node])
            for pattern, match in fused.get(group, ()):
                terms = pattern.bind(graph.born, match)
                self._add(group, _Fused(pattern, match), tuple(map(graph.find, terms)))

    def _fused(self, fusions: Sequence[Pattern]) -> dict[int, list[tuple[Pattern, Match]]]:
        """Matches of the fusions by the class of their root; what lies inside computes at run time."""
        found: dict[int, list[tuple[Pattern, Match]]] = {}
        if not fusions:
            return found
        graph, table = self.graph, Table()
        table.update(graph, graph.classes)
        for pattern in fusions:
            for match in table.search(graph, pattern):
                groups = [graph.find(number) for number in match]
                static = any(graph.facts[group].static for group in groups)
                if not static and graph.filtered.isdisjoint(match) and max(match) < self._before:
                    found.setdefault(groups[0], []).append((pattern, match))
        return found

    def _number(self, group: int) -> int:
        if group not in self._numbers:
            self._numbers[group] = len(self._members)
            self._members.append([])
            self._todo.append(group)
        return self._numbers[group]

    def _add(self, group: int, what: int | _Fused, classes: Sequence[int]) -> None:
        reads = tuple(dict.fromkeys(self._number(read) for read in classes if read != ABSENT))
        if self._numbers[group] not in reads:
            self._append(group, what, reads, self._key(what, classes))

    def _append(self, group: int, what: int | _Fused, reads: tuple[int, ...], key: int) -> None:
        number = self._numbers[group]
        self._members[number].append(len(self._what))
        self._what.append(what)
        self._groups.append(number)
        self._children.append(reads)
        self.keys.append(key)

    def _keep(self, group: int) -> None:
        kinds = self.graph.facts[group].types
        self.kept.append(sum(bytes_of(kind) for kind in kinds if isinstance(kind, TensorType)))
        self._append(group, self._constants[group], (), -1 - len(self.kept))

    def _key(self, what: int | _Fused, classes: Sequence[int]) -> int:
        graph = self.graph
        operators = (what,) if isinstance(what, int) else what.match
        heads = tuple([graph.heads[number] for number in operators])
        if isinstance(what, int) and not isinstance(heads[0].op, Op):
            return -1
        codes = tuple([-1 if c == ABSENT else graph.facts[c].code for c in classes])
        twice = tuple([classes.index(c) for c in classes]) if len(set(classes)) < len(classes) else ()
        key = (None if isinstance(what, int) else what.pattern, heads, codes, twice)
        if key not in self._known:
            self._known[key] = len(self.pieces)
            self.pieces.append(self._piece(what))
        return self._known[key]

    def _piece(self, what: int | _Fused) -> Piece:
        graph = self.graph
        if isinstance(what, int):
            return Piece.of(graph.term(what))
        terms = what.pattern.bind(graph.born, what.match)
        root = what.pattern.instance(graph, what.match, terms)
        return Piece(root, tuple(dict.fromkeys(graph.term(term) for term in terms)))

    def problem(self, costs: Sequence[float], byte: float = 0.0) -> Problem:
        """With seconds of each key, and what a byte that is kept counts."""
        prices = [
            costs[key] if key >= 0 else 0.0 if key == -1 else byte * self.kept[-2 - key] for key in self.keys
        ]
        return Problem(prices, self._children, self._groups, self._members, self._roots)

    def used(self, choice: Choice) -> list[int]:
        """The keys of a choice, each as often as it is used."""
        return [self.keys[number] for number in choice.values() if self.keys[number] >= 0]

    def memory(self, choice: Choice) -> int:
        """Bytes of the constants that a choice keeps."""
        return sum(self.kept[-2 - key] for number in choice.values() if (key := self.keys[number]) < -1)

    def place(self, number: int) -> Place:
        """The e-nodes that a choice is made of, the same in every extraction from the e-graph."""
        what = self._what[number]
        return (what,) if isinstance(what, int) else what.match

    def program(self, original: Program, choice: Choice) -> Program:
        """The program that the choice stands for, with the original's inputs, names and outputs.

        Raises ValueError where the choice is cyclic or incomplete.
        """
        built = self._built(choice)
        return original.with_outputs([built[root] for root in self._roots])

    def computed(self, choice: Choice) -> dict[int, frozenset[Node]]:
        """Of each choice that costs, the nodes of that program that it stands for."""
        built = self._built(choice)
        found = {}
        for group, number in choice.items():
            if self.keys[number] >= 0 and group in built:
                leaves = [built[child] for child in self._children[number]]
                found[number] = frozenset(Piece(built[group], tuple(leaves)).inner)
        return found

    def _built(self, choice: Choice) -> dict[int, Node]:
        """The node of each class."""
        order = self.problem([0.0] * len(self.pieces)).order(choice)
        if order is None:
            raise ValueError("the choice is cyclic or incomplete")
        graph = self.graph
        built: dict[int, Node] = {}

        def node_of(group: int) -> Node:
            found = built.get(self._numbers.get(group, -1))
            return self._constant(group) if found is None else found

        for number in order:
            what = self._what[choice[number]]
            if isinstance(what, _Fused):
                terms = what.pattern.bind(graph.born, what.match)
                built[number] = what.pattern.over(graph, what.match, [node_of(graph.find(t)) for t in terms])
            elif graph.facts[graph.find(what)].static:
                built[number] = self._constant(graph.find(what))
            else:
                args = [None if a == ABSENT else node_of(a) for a in graph.args[what]]
                built[number] = graph.heads[what].build(args)
        return built

    def _constant(self, group: int) -> Node:
        """The program of a class that depends on constants alone."""
        graph = self.graph
        built: dict[int, Node] = {}
        stack = [group]
        while stack:
            top = stack[-1]
            args = graph.args[self._constants[top]]
            missing = [a for a in args if a != ABSENT and a not in built]
            if top not in built and missing:
                stack.extend(missing)
                continue
            if top not in built:
                read = [None if a == ABSENT else built[a] for a in args]
                built[top] = graph.heads[self._constants[top]].build(read)
            stack.pop()
        return built[group]


def _ahead_of_time(graph: EGraph) -> dict[int, int]:
    """An e-node for each class that depends on constants alone; together they have no cycle.

    The smallest programs: what rounds least is what computes least.
    """
    groups = [group for group in graph.classes if graph.facts[group].static]
    numbers = {group: number for number, group in enumerate(groups)}
    members: list[list[int]] = [[] for _ in groups]
    children: list[tuple[int, ...]] = []
    owners: list[int] = []
    nodes: list[int] = []
    for group in groups:
        for node in graph.live(group):
            reads = {read for read in graph.args[node] if read != ABSENT}
            if group not in reads and reads <= numbers.keys():
                members[numbers[group]].append(len(nodes))
                nodes.append(node)
                owners.append(numbers[group])
                children.append(tuple(numbers[read] for read in reads))
    chosen = greedy(Problem([1.0] * len(nodes), children, owners, members, ()))
    return {groups[number]: nodes[node] for number, node in chosen.items()}
