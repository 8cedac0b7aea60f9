"""Implements the e-graph: e-classes of hash-consed e-nodes, congruence restored in batches (egg, POPL'21).

E-nodes are numbered as they are inserted; an e-class has the number of one of its e-nodes, the root of the
union-find.  The number of an e-node names a term, too: the operator over the e-nodes that were its arguments
when it was inserted (`original_args`).  Arguments have smaller numbers than their readers, so every e-node
stands for one concrete, acyclic program, whatever classes are merged later.  Proofs speak of these terms
(`egraph_proof`).

    0: x    1: one    2: Mul(0, 1)    3: Relu(2)

Once 2 and 0 are merged, e-node 3 reads the class {0, 2} (`args`), but its term is still Relu(Mul(x, one)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tensaurus.egraph.core.class_analysis import Analysis, AnalysisPair, make_analysis, types_only
from tensaurus.egraph.core.enode_head import Head, operator_head
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.match import scalar_value
from tensaurus.system.deadline import atomic

__all__ = ["ABSENT", "CONGRUENT", "EGraph", "ProofEdge", "Source"]

ABSENT = -1  # stands for an optional input that an operator does not have
CONGRUENT = -1  # `source` of a proof edge between e-nodes of one head with equal arguments


class Source(Protocol):
    """The origin of an equality of two terms: a rule's match, or a finder's equation."""

    def evidence(self, graph: EGraph) -> tuple[Sequence[Equation], Sequence[tuple[int, int]]]:
        """Return equations between programs, and pairs of terms on whose equality they rely."""


class ProofEdge(NamedTuple):
    """A step of a proof: why two terms are equal, by an index into `EGraph.sources` or CONGRUENT."""

    left: int
    right: int
    source: int

    def reversed(self) -> ProofEdge:
        """Return the step from right to left."""
        return ProofEdge(self.right, self.left, self.source)


class EGraph:
    """An e-graph: insert terms, merge their classes, then `rebuild`.

    Between a `union` and the next `rebuild` only `find` is up to date.
    """

    def __init__(self) -> None:
        # Of each e-node, by its number:
        self.heads: list[Head] = []
        self.original_args: list[tuple[int, ...]] = []  # the e-nodes over which it was inserted
        self.args: list[tuple[int, ...]] = []  # the classes of its arguments, as of the last rebuild
        self.is_live: list[bool] = []  # False where an older e-node became equal to it
        self.union_find: list[int] = []  # an e-node nearer to the root of its class; of a root, itself
        self._proof_edges: list[ProofEdge | None] = []  # towards the root of its tree of the proof forest
        # Of each e-class, by its number:
        self.analyses: dict[int, Analysis] = {}
        self.members: dict[int, list[int]] = {}  # its e-nodes, some no longer live
        self.readers: dict[int, list[int]] = {}  # egg's parents: e-nodes, live or not, with this argument
        self.sources: list[Source] = []  # why unions were made; proof edges hold the index
        self.dirty_classes: set[int] = set()  # those that changed since all patterns were last searched
        self.programs: list[Program] = []  # good programs in the e-graph, for finders that look at programs
        self.analysis_version = 0  # grows whenever the analysis of a class changes
        self.hashcons: dict[tuple[Any, ...], int] = {}  # {(head, *classes of arguments): e-node}
        self._heads: dict[Any, Head] = {}  # of inputs, constants and opaque nodes
        self._moved_readers: list[list[int]] = []  # readers of classes merged into others since `rebuild`
        self._newly_static: list[int] = []  # classes now known to depend on constants only
        self._enode_of_node: dict[Node, int] = {}  # the e-node of each node that `insert_term` inserted
        self._terms: dict[int, Node] = {}  # cache of `term`

    def __len__(self) -> int:
        """Return how many different e-nodes there are."""
        return len(self.hashcons)

    def find(self, enode: int) -> int:
        """Return the class of an e-node."""
        parents = self.union_find
        root = enode
        while parents[root] != root:
            root = parents[root]
        while parents[enode] != root:
            parents[enode], enode = root, parents[enode]
        return root

    @property
    def classes(self) -> Iterator[int]:
        """Every class."""
        return iter(self.members)

    def head_of(self, node: Node) -> Head:
        """Return the head of the e-node for this node."""
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

    def enode_of(self, node: Node) -> int | None:
        """Return the e-node of a node that was inserted by `insert_term`, else None."""
        return self._enode_of_node.get(node)

    def constant_of(self, enode: int) -> int:
        """Return the constant of known elements in an e-node's class; the e-node itself if there is none."""
        constant = self.analyses[self.find(enode)].constant
        return enode if constant is None else self._enode_of_node[constant]

    def insert_term(self, node: Node) -> int:
        """Insert a node with all its arguments, and return its e-node."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._enode_of_node:
                stack.pop()
                continue
            missing = [arg for arg in top.args if arg is not None and arg not in self._enode_of_node]
            if missing:
                stack.extend(missing)
                continue
            args = tuple(ABSENT if arg is None else self._enode_of_node[arg] for arg in top.args)
            self._enode_of_node[top] = self.add(self.head_of(top), args, types_only(top.types))
            stack.pop()
        return self._enode_of_node[node]

    def peek(self, head: Head, args: Sequence[int]) -> int | None:
        """Return the e-node of that head over the classes of these arguments, None if there is none."""
        return self.hashcons.get((head, *[a if a == ABSENT else self.find(a) for a in args]))

    def add(self, head: Head, args: Sequence[int], analyses: AnalysisPair) -> int:
        """Return the e-node of that head over these e-nodes, inserted unless an equal one exists.

        `analyses`, from `types_only` of its types, are those of its class if not static and if static.
        """
        find = self.find
        key = (head, *[a if a == ABSENT else find(a) for a in args])
        known = self.hashcons.get(key)
        return self.insert(key, tuple(args), analyses) if known is None else known

    @atomic
    def insert(self, key: tuple[Any, ...], original_args: tuple[int, ...], analyses: AnalysisPair) -> int:
        """Insert an e-node over the e-nodes `original_args` and return it.

        `key`, (head, *classes of `original_args`), must not be in `hashcons`; `analyses` are those of `add`.
        """
        # the e-node begins as a class of its own
        enode = len(self.union_find)
        head: Head = key[0]
        classes = key[1:]
        self.union_find.append(enode)
        self._proof_edges.append(None)
        self.heads.append(head)
        self.original_args.append(original_args)
        self.args.append(classes)
        self.is_live.append(True)
        self.hashcons[key] = enode
        self.members[enode] = [enode]
        readers, analysis_of = self.readers, self.analyses
        readers[enode] = []
        # it is static if its operator may be folded and all its arguments are static
        static = not (isinstance(head.op, Op) and head.op.is_never_folded)
        for read in classes if len(classes) < 2 else set(classes):
            if read != ABSENT:
                readers[read].append(enode)
                if static and not analysis_of[read].static:
                    static = False
        if head.node is None:
            analysis_of[enode] = analyses.static if static else analyses.dynamic
        elif head.op is CONSTANT:
            value = scalar_value(head.node)
            analysis_of[enode] = make_analysis(analyses.static.types, True, head.node, value)
        else:
            analysis_of[enode] = analyses.dynamic  # an input or an opaque node
        self.dirty_classes.add(enode)
        return enode

    @atomic
    def union(self, left: int, right: int, source: Source) -> bool:
        """Merge two terms' classes; return False where they were one already.  Call `rebuild` afterwards."""
        a, b = self.find(left), self.find(right)
        if a == b:
            return False
        self.sources.append(source)
        self._merge(a, b, left, right, len(self.sources) - 1)
        return True

    def _merge(self, a: int, b: int, left: int, right: int, source: int) -> None:
        """Merge classes `a` and `b`, whose terms `left` and `right` are equal (see `ProofEdge.source`)."""
        members, readers = self.members, self.readers
        if len(members[a]) + len(readers[a]) < len(members[b]) + len(readers[b]):
            a, b, left, right = b, a, right, left  # the smaller class, `b`, joins `a`: less is moved
        self._add_proof_edge(ProofEdge(right, left, source))
        self.union_find[b] = a
        members[a] += members.pop(b)
        moved = readers.pop(b)
        readers[a] += moved
        self._moved_readers.append(moved)
        old, other = self.analyses[a], self.analyses.pop(b)
        if old is not other:
            both = self.analyses[a] = old.join(other)
            self.analysis_version += 1
            if both.static and not (old.static and other.static):  # its readers may be static by now
                self._newly_static.append(a)
        self.dirty_classes.discard(b)
        self.dirty_classes.add(a)

    @atomic
    def rebuild(self) -> None:
        """Restore congruence: merge e-nodes of one head with equal arguments; only the oldest stays live."""
        is_live = self.is_live
        while self._moved_readers or self._newly_static:
            moved, self._moved_readers = self._moved_readers, []
            for enodes in moved:
                for enode in enodes:
                    if is_live[enode]:
                        self._update_args(enode)
            newly_static, self._newly_static = self._newly_static, []
            for eclass in newly_static:
                for enode in list(self.readers[self.find(eclass)]):
                    if is_live[enode]:
                        self._propagate_static(enode)

    def _update_args(self, enode: int) -> None:
        """Replace the arguments of an e-node by their present classes, and merge it with an equal e-node."""
        head, old = self.heads[enode], self.args[enode]
        find = self.find
        new = tuple([a if a == ABSENT else find(a) for a in old])
        if new == old:
            return
        hashcons = self.hashcons
        key = (head, *old)
        if hashcons.get(key) == enode:
            del hashcons[key]
        self.args[enode] = new
        key = (head, *new)
        twin = hashcons.get(key)
        if twin is None:
            hashcons[key] = enode
            return
        older, younger = (enode, twin) if enode < twin else (twin, enode)
        hashcons[key] = older  # of two equal e-nodes the older stays live: matches and proofs name it
        self.is_live[younger] = False
        a, b = find(enode), find(twin)
        if a == b:
            self.dirty_classes.add(a)  # so that the index of matches drops `younger`
        else:
            self._merge(a, b, enode, twin, CONGRUENT)

    def _propagate_static(self, enode: int) -> None:
        """Mark the class of an e-node as static if all arguments of the e-node are static by now.

        Opaque nodes and what is never folded run even on constants.
        """
        eclass = self.find(enode)
        old = self.analyses[eclass]
        head = self.heads[enode]
        if old.static or (head.op.is_never_folded if isinstance(head.op, Op) else head.op is not ITEM):
            return
        if all(read == ABSENT or self.analyses[self.find(read)].static for read in self.args[enode]):
            self.analysis_version += 1
            self.analyses[eclass] = make_analysis(old.types, True, old.constant, old.scalar)
            self._newly_static.append(eclass)
            self.dirty_classes.add(eclass)

    def live_members(self, eclass: int) -> list[int]:
        """Return the live e-nodes of a class, and drop the others from its members."""
        members, is_live = self.members[eclass], self.is_live
        if len(members) > 1:
            members[:] = [enode for enode in members if is_live[enode]]
        return members

    def term(self, enode: int) -> Node:
        """Return the term of an e-node: the program as which it was inserted, whatever was merged later."""
        stack = [enode]
        while stack:
            top = stack[-1]
            if top in self._terms:
                stack.pop()
                continue
            missing = [arg for arg in self.original_args[top] if arg != ABSENT and arg not in self._terms]
            if missing:
                stack.extend(missing)
                continue
            args = [None if arg == ABSENT else self._terms[arg] for arg in self.original_args[top]]
            self._terms[top] = self.heads[top].build(args)
            stack.pop()
        return self._terms[enode]

    def dot(self, classes: Iterable[int] | None = None) -> str:
        """Return Graphviz text of the e-graph, or of some of its classes, as of the last `rebuild`.

        Each e-class is a box around its e-nodes.  An edge leads from an e-node to an e-class that it reads,
        with the place of the argument; e-classes that are left out are drawn as their numbers.

            Path("graph.dot").write_text(graph.dot())      # then: dot -Tsvg graph.dot -o graph.svg
        """
        shown = dict.fromkeys(self.find(enode) for enode in (self.members if classes is None else classes))
        lines = ["digraph egraph {", "  compound=true; node [shape=box, style=rounded];"]
        edges: list[str] = []
        outside: dict[int, str] = {}
        for eclass in shown:
            types = ", ".join(map(str, self.term(eclass).types))
            lines.append(f'  subgraph cluster_{eclass} {{ style=dotted; label="{eclass}: {types}";')
            for enode in self.live_members(eclass):
                lines.append(f'    n{enode} [label="{str(self.heads[enode].op)}"];')
                for place, argument in enumerate(self.args[enode]):
                    if argument == ABSENT:
                        continue
                    child = self.find(argument)
                    if child in shown:
                        first = self.live_members(child)[0]
                        edges.append(f"  n{enode} -> n{first} [lhead=cluster_{child}, label={place}];")
                    else:
                        outside[child] = f'  c{child} [label="{child}", style=dashed];'
                        edges.append(f"  n{enode} -> c{child} [label={place}];")
            lines.append("  }")
        return "\n".join([*lines, *outside.values(), *edges, "}", ""])

    # The proof forest: the terms of every class form a tree of proof edges.  The path between two terms says
    # why they are equal.

    def _add_proof_edge(self, edge: ProofEdge) -> None:
        """Hang the tree of `edge.left` below `edge.right`: edges from `edge.left` to its root are turned."""
        new: ProofEdge | None = edge
        while new is not None:
            old = self._proof_edges[new.left]
            self._proof_edges[new.left] = new
            new = None if old is None else old.reversed()

    def proof_path(self, left: int, right: int) -> list[ProofEdge]:
        """Return the edges that lead from one term to another of the same class."""

        def path_to_root(term: int) -> list[ProofEdge]:
            edges = []
            while (edge := self._proof_edges[term]) is not None:
                edges.append(edge)
                term = edge.right
            return edges

        up, down = path_to_root(left), path_to_root(right)
        while up and down and up[-1] == down[-1]:  # drop the edges above the lowest common ancestor
            up.pop()
            down.pop()
        return up + [edge.reversed() for edge in reversed(down)]
