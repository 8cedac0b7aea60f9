"""Extracts from an e-graph a proof that two terms are equal: a list of equations between concrete programs.

Most equations are instances of rules; finders make the others.  A search proves its results by `prove` and
keeps those whose proof `holds`: that the equality of the two terms follows from the equations is checked by a
second congruence closure (`_CongruenceClosure`), which shares no code with the e-graph.

    Relu(x * 1) = Relu(x)   follows from   x * 1 = x
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensaurus.egraph.core.egraph import ABSENT, CONGRUENT, EGraph
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Derived, Lemma
from tensaurus.rules.language.node_text import format_nodes

__all__ = ["Proof", "follows", "prove"]


@dataclass(frozen=True)
class Proof:
    """Pairs of equal programs, and the equations from which they follow, in the order of their unions."""

    pairs: tuple[tuple[Node, Node], ...]
    equations: tuple[Equation, ...]

    def __str__(self) -> str:
        """Return for each equation a line with its law and evidence, and lines with its two sides."""
        lines = []
        for equation in self.equations:
            lines.append(f"{equation.name}: {equation.law} | {equation.evidence}")
            pairs = zip(equation.left, equation.right, strict=True)
            lines += [f"    {format_nodes(a)} = {format_nodes(b)}" for a, b in pairs]
        return "\n".join(lines)

    def holds(self) -> bool:
        """Return whether the pairs follow from the equations by congruence."""
        return follows(self.pairs, self.equations)

    def equation(self, name: str, leaves: Sequence[Node]) -> Equation:
        """Return the pairs as one equation over these leaves, derived from the equations of the proof."""
        left, right = zip(*self.pairs, strict=True)
        law = ", ".join(f"{format_nodes(a)} = {format_nodes(b)}" for a, b in self.pairs)
        return Equation(name, law, left, right, tuple(leaves), Derived(self.equations))


def follows(pairs: Iterable[tuple[Node, Node]], steps: Iterable[Lemma]) -> bool:
    """Return whether the two programs of each pair are equal by the steps and congruence."""
    closure = _CongruenceClosure()
    for step in steps:
        for a, b in zip(step.left, step.right, strict=True):
            closure.merge(a, b)
    return all(closure.equal(left, right) for left, right in pairs)


def prove(graph: EGraph, pairs: Sequence[tuple[int, Node]]) -> Proof:
    """Prove for each pair (e-node, program) that the e-node's term equals the program.

    Raises ValueError where the two are of different classes.  On the path between them in the proof forest an
    edge of a source needs its equations, and the equalities on which these rely; an edge by congruence needs
    equal arguments.
    """
    enodes = [graph.insert_term(right) for _, right in pairs]  # the e-nodes of the programs
    if any(graph.find(left) != graph.find(enode) for (left, _), enode in zip(pairs, enodes, strict=True)):
        raise ValueError("the terms are of different classes")
    equations_of_source: dict[int, Sequence[Equation]] = {}  # by the index of the source from which they come
    unproved: list[tuple[int, int]] = []  # pairs of e-nodes whose terms must be proved equal
    seen: set[tuple[int, int]] = set()  # pairs that are or were in `unproved`

    def require(equal_terms: Iterable[tuple[int, int]]) -> None:
        fresh = [pair for pair in equal_terms if pair[0] != pair[1] and pair not in seen]
        seen.update(fresh)
        unproved.extend(fresh)

    # each e-node equals the e-node of its program, and the term of that e-node equals the program
    require((left, enode) for (left, _), enode in zip(pairs, enodes, strict=True))
    for node in topological_order(right for _, right in pairs):
        # the e-node that stands for this node may have been inserted over other, equal arguments
        args = [ABSENT if arg is None else graph.insert_term(arg) for arg in node.args]
        require(zip(graph.original_args[graph.insert_term(node)], args, strict=True))
    while unproved:  # explain each pair, which may need further pairs
        for edge in graph.proof_path(*unproved.pop()):
            if edge.source == CONGRUENT:
                left, right = graph.original_args[edge.left], graph.original_args[edge.right]
                require(zip(left, right, strict=True))
            elif edge.source not in equations_of_source:
                equations_of_source[edge.source], needs = graph.sources[edge.source].evidence(graph)
                require(needs)
    equations = tuple(equation for _, several in sorted(equations_of_source.items()) for equation in several)
    return Proof(tuple((graph.term(left), right) for left, right in pairs), equations)


class _CongruenceClosure:
    """Holds classes of nodes that are equal by what was assumed and by congruence."""

    def __init__(self) -> None:
        self._parents: dict[Node, Node] = {}  # the root of a class is its own parent
        self._readers: dict[Node, list[Node]] = {}  # of each root the nodes with an argument in its class
        self._signatures: dict[Any, Node] = {}  # a node for each operator over classes of arguments

    def _add(self, root: Node) -> None:
        """Add a node and all nodes below it."""
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [arg for arg in node.args if arg is not None and arg not in self._parents]
            if missing and node not in self._parents:
                stack += missing
                continue
            stack.pop()
            if node not in self._parents:
                self._parents[node] = node
                self._readers[node] = []
                for arg in node.args:
                    if arg is not None:
                        self._readers[self._find(arg)].append(node)
                self._sign(node)

    def _find(self, node: Node) -> Node:
        while self._parents[node] is not node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def _signature(self, node: Node) -> Any:
        """Return a key that congruent nodes share."""
        if node.op in (INPUT, CONSTANT):
            return node
        # a node with effects or randomness has its identity in `attrs`, so only the same call is congruent
        name = node.op if node.op in (ITEM, OPAQUE) else node.op.name
        args = tuple(None if arg is None else self._find(arg) for arg in node.args)
        return (name, args, node.attrs, len(node.types))

    def _sign(self, node: Node) -> None:
        """Record the signature of a new node, and merge it with a congruent one."""
        twin = self._signatures.setdefault(self._signature(node), node)
        if twin is not node:
            self._union([(node, twin)])

    def _union(self, todo: list[tuple[Node, Node]]) -> None:
        """Merge the classes of each pair, and of all that become congruent."""
        while todo:
            a, b = map(self._find, todo.pop())
            if a is b:
                continue
            if len(self._readers[a]) < len(self._readers[b]):
                a, b = b, a  # small to large: each reader moves at most log n times
            self._parents[b] = a
            moved = self._readers.pop(b)
            self._readers[a] += moved
            for node in moved:
                twin = self._signatures.setdefault(self._signature(node), node)
                if self._find(twin) is not self._find(node):
                    todo.append((twin, node))

    def merge(self, a: Node, b: Node) -> None:
        """Assume that two programs are equal."""
        self._add(a)
        self._add(b)
        self._union([(a, b)])

    def equal(self, a: Node, b: Node) -> bool:
        """Return whether two programs are equal by what was assumed."""
        self._add(a)
        self._add(b)
        return self._find(a) is self._find(b)
