"""The e-graph: classes of equal nodes, hash-consed, with congruence restored in batches (egg, POPL'21).

Every e-node has a number, and so has the term that it was inserted as: its operator over the numbers that its
arguments had then.  Arguments come before what reads them, so every number stands for one concrete, acyclic
program, however the classes grow together.  Proofs speak of these terms; see `egraph/core/egraph_proof`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tensaurus.egraph.core.class_analysis import Analysis, analysed, typed
from tensaurus.egraph.core.enode_head import Head, operator_head
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.match import scalar_value
from tensaurus.system.deadline import atomic

__all__ = ["ABSENT", "CONGRUENT", "EGraph", "Source"]

ABSENT = -1  # in place of an optional input that is not there
CONGRUENT = -1  # the reason of an edge between e-nodes of one head whose arguments are equal


class Source(Protocol):
    """Where an equality of two terms comes from."""

    def evidence(self, graph: EGraph) -> tuple[Sequence[Equation], Sequence[tuple[int, int]]]:
        """Equations between programs, and pairs of terms whose equality it took besides."""


class EGraph:
    """Add nodes, merge them, rebuild; in between, classes may be out of date (`find` is not)."""

    def __init__(self) -> None:
        self.heads: list[Head] = []  # of each e-node
        self.born: list[tuple[int, ...]] = []  # its arguments as it was inserted: numbers of e-nodes
        self.args: list[tuple[int, ...]] = []  # its arguments' classes, as of the last rebuild
        self.alive: list[bool] = []  # false: another e-node became the same one
        self.analyses: dict[int, Analysis] = {}  # of each class
        self.members: dict[int, list[int]] = {}  # of each class, its e-nodes
        self.readers: dict[int, list[int]] = {}  # of each class, the e-nodes that read it
        self.sources: list[Source] = []  # of the edges in the proof forest
        self.changed: set[int] = set()  # classes with new members since they were last asked for
        self.programs: list[Program] = []  # that are in it and good, for finders that look at programs
        self.learnt = 0  # how often more was found out of a class than of its members
        self.parents: list[int] = []  # of each e-node, one nearer to its class, which is its own
        self.known: dict[tuple[Any, ...], int] = {}  # e-node of each head and classes of its arguments, flat
        self._heads: dict[Any, Head] = {}
        self._moved: list[list[int]] = []  # e-nodes that read classes which merged into others
        self._grown: list[int] = []  # classes that have come to depend on constants alone
        self._links: list[tuple[int, int] | None] = []  # proof forest: (next e-node, source or CONGRUENT)
        self._numbers: dict[Node, int] = {}
        self._terms: dict[int, Node] = {}

    def __len__(self) -> int:
        """How many different e-nodes there are."""
        return len(self.known)

    def find(self, number: int) -> int:
        """The class of an e-node."""
        parents = self.parents
        root = number
        while parents[root] != root:
            root = parents[root]
        while parents[number] != root:
            parents[number], number = root, parents[number]
        return root

    @property
    def classes(self) -> Iterator[int]:
        """Every class."""
        return iter(self.members)

    def head_of(self, node: Node) -> Head:
        """The head that nodes like this one share."""
        if node.op in (INPUT, CONSTANT):
            key: Any = node
        elif node.op is OPAQUE:
            key = (OPAQUE, node.attrs, node.types)
        else:
            return operator_head(node.op, node.attrs, len(node.types))
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(node.op, node.attrs, len(node.types), node)
        return head

    def number_of(self, node: Node) -> int | None:
        """The number of a node that was adopted."""
        return self._numbers.get(node)

    def constant_of(self, number: int) -> int:
        """The constant of known elements in the class of an e-node, the e-node itself where there is none."""
        constant = self.analyses[self.find(number)].constant
        return number if constant is None else self._numbers[constant]

    def adopt(self, node: Node) -> int:
        """Insert a node and all that it reads; its number."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._numbers:
                stack.pop()
                continue
            missing = [arg for arg in top.args if arg is not None and arg not in self._numbers]
            if missing:
                stack.extend(missing)
                continue
            args = tuple(ABSENT if arg is None else self._numbers[arg] for arg in top.args)
            self._numbers[top] = self.add(self.head_of(top), args, typed(top.types))
            stack.pop()
        return self._numbers[node]

    def peek(self, head: Head, args: Sequence[int]) -> int | None:
        """The e-node of that head over the classes of these arguments, if there is one."""
        return self.known.get((head, *[a if a == ABSENT else self.find(a) for a in args]))

    def add(self, head: Head, args: Sequence[int], analyses: tuple[Analysis, Analysis]) -> int:
        """The e-node of that head over e-nodes, inserted unless its like is there; its number.

        `analyses` are what `typed` says of its types.
        """
        find = self.find
        key = (head, *[a if a == ABSENT else find(a) for a in args])
        known = self.known.get(key)
        return self.insert(key, tuple(args), analyses) if known is None else known

    @atomic
    def insert(self, key: tuple[Any, ...], born: tuple[int, ...], analyses: tuple[Analysis, Analysis]) -> int:
        """A new e-node, of a key that is not `known`: its head, and the classes of its arguments `born`."""
        number = len(self.parents)
        head: Head = key[0]
        classes = key[1:]
        self.parents.append(number)
        self._links.append(None)
        self.heads.append(head)
        self.born.append(born)
        self.args.append(classes)
        self.alive.append(True)
        self.known[key] = number
        self.members[number] = [number]
        readers, known = self.readers, self.analyses
        readers[number] = []
        static = not (isinstance(head.op, Op) and head.op.kept)
        for read in classes if len(classes) < 2 else set(classes):
            if read != ABSENT:
                readers[read].append(number)
                if static and not known[read].static:
                    static = False
        if head.node is None:
            known[number] = analyses[static]
        elif head.op is CONSTANT:
            known[number] = analysed(analyses[True].types, True, head.node, scalar_value(head.node))
        else:
            known[number] = analyses[False]
        self.changed.add(number)
        return number

    @atomic
    def union(self, left: int, right: int, source: Source) -> bool:
        """Merge the classes of two terms; false where they are one already.  Then call `rebuild`."""
        a, b = self.find(left), self.find(right)
        if a == b:
            return False
        self.sources.append(source)
        self._merge(a, b, left, right, len(self.sources) - 1)
        return True

    def _merge(self, a: int, b: int, left: int, right: int, why: int) -> None:
        """Merge two classes by an edge from a term of the one to a term of the other."""
        members, readers = self.members, self.readers
        if len(members[a]) + len(readers[a]) < len(members[b]) + len(readers[b]):
            a, b, left, right = b, a, right, left
        self._link(right, left, why)
        self.parents[b] = a
        members[a] += members.pop(b)
        moved = readers.pop(b)
        readers[a] += moved
        self._moved.append(moved)
        old, other = self.analyses[a], self.analyses.pop(b)
        if old is not other:
            both = self.analyses[a] = old.join(other)
            self.learnt += 1
            if both.static and not (old.static and other.static):
                self._grown.append(a)
        self.changed.discard(b)
        self.changed.add(a)

    @atomic
    def rebuild(self) -> None:
        """Restore congruence: e-nodes that read equal classes are equal, and of equal ones one stays."""
        alive = self.alive
        while self._moved or self._grown:
            moved, self._moved = self._moved, []
            for numbers in moved:
                for number in numbers:
                    if alive[number]:
                        self._renew(number)
            grown, self._grown = self._grown, []
            for group in grown:
                for number in list(self.readers[self.find(group)]):
                    if alive[number]:
                        self._settle(number)

    def _renew(self, number: int) -> None:
        """Bring the arguments of an e-node up to date."""
        head, old = self.heads[number], self.args[number]
        find = self.find
        new = tuple([a if a == ABSENT else find(a) for a in old])
        if new == old:
            return
        known = self.known
        key = (head, *old)
        if known.get(key) == number:
            del known[key]
        self.args[number] = new
        key = (head, *new)
        twin = known.get(key)
        if twin is None:
            known[key] = number
            return
        older, younger = (number, twin) if number < twin else (twin, number)
        known[key] = older  # the oldest of a class must stay
        self.alive[younger] = False
        a, b = find(number), find(twin)
        if a == b:
            self.changed.add(a)
        else:
            self._merge(a, b, number, twin, CONGRUENT)

    def _settle(self, number: int) -> None:
        """A class whose member has come to read constants alone depends on constants alone, too."""
        group = self.find(number)
        old = self.analyses[group]
        head = self.heads[number]
        if old.static or (head.op.kept if isinstance(head.op, Op) else head.op is not ITEM):
            return
        if all(read == ABSENT or self.analyses[self.find(read)].static for read in self.args[number]):
            self.learnt += 1
            self.analyses[group] = analysed(old.types, True, old.constant, old.scalar)
            self._grown.append(group)
            self.changed.add(group)

    def live(self, group: int) -> list[int]:
        """The e-nodes of a class, each once; those that became another's like are dropped."""
        members, alive = self.members[group], self.alive
        if len(members) > 1:
            members[:] = [number for number in members if alive[number]]
        return members

    def term(self, number: int) -> Node:
        """The program that the e-node was inserted as."""
        stack = [number]
        while stack:
            top = stack[-1]
            if top in self._terms:
                stack.pop()
                continue
            missing = [arg for arg in self.born[top] if arg != ABSENT and arg not in self._terms]
            if missing:
                stack.extend(missing)
                continue
            args = [None if arg == ABSENT else self._terms[arg] for arg in self.born[top]]
            self._terms[top] = self.heads[top].build(args)
            stack.pop()
        return self._terms[number]

    def dot(self, classes: Iterable[int] | None = None) -> str:
        """Return Graphviz text of the e-graph, or of some of its classes, as of the last `rebuild`.

        Each e-class is a box around its e-nodes.  An edge leads from an e-node to an e-class that it reads,
        with the place of the argument; e-classes that are left out are drawn as their numbers.

            Path("graph.dot").write_text(graph.dot())      # then: dot -Tsvg graph.dot -o graph.svg
        """
        shown = dict.fromkeys(self.find(number) for number in (self.members if classes is None else classes))
        lines = ["digraph egraph {", "  compound=true; node [shape=box, style=rounded];"]
        edges: list[str] = []
        outside: dict[int, str] = {}
        for number in shown:
            types = ", ".join(map(str, self.term(number).types))
            lines.append(f'  subgraph cluster_{number} {{ style=dotted; label="{number}: {types}";')
            for enode in self.live(number):
                lines.append(f'    n{enode} [label="{str(self.heads[enode].op)}"];')
                for place, argument in enumerate(self.args[enode]):
                    if argument == ABSENT:
                        continue
                    child = self.find(argument)
                    if child in shown:
                        first = self.live(child)[0]
                        edges.append(f"  n{enode} -> n{first} [lhead=cluster_{child}, label={place}];")
                    else:
                        outside[child] = f'  c{child} [label="{child}", style=dashed];'
                        edges.append(f"  n{enode} -> c{child} [label={place}];")
            lines.append("  }")
        return "\n".join([*lines, *outside.values(), *edges, "}", ""])

    # The proof forest: every class is a tree of terms, each edge with the reason for it.

    def _link(self, left: int, right: int, why: int) -> None:
        """Hang the tree of `left` below `right`, after turning its edges towards `left`."""
        step, arrived = left, (right, why)
        while True:
            onward = self._links[step]
            self._links[step] = arrived
            if onward is None:
                return
            arrived, step = (step, onward[1]), onward[0]

    def path(self, left: int, right: int) -> list[tuple[int, int, int]]:
        """Edges (term, term, source or CONGRUENT) that lead from one term to another of its class."""

        def upwards(number: int) -> list[tuple[int, int, int]]:
            edges = []
            while (link := self._links[number]) is not None:
                edges.append((number, *link))
                number = link[0]
            return edges

        up, down = upwards(left), upwards(right)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return up + [(b, a, why) for a, b, why in reversed(down)]


