"""The e-graph: classes of equal nodes, hash-consed, with congruence restored in batches (egg, POPL'21).

Every e-node has a number, and so has the term that it was inserted as: its operator over the numbers that its
arguments had then.  Arguments come before what reads them, so every number stands for one concrete, acyclic
program, however the classes grow together.  Proofs speak of these terms; see `egraph/proof`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Protocol, TypeAlias

from tensaurus.graph.node import CONSTANT, INPUT, ITEM, OPAQUE, Leaf, Node, Type, again, apply, item
from tensaurus.ops import Op, TensorType
from tensaurus.rules.match import scalar_value

__all__ = [
    "ABSENT",
    "CONGRUENT",
    "EGraph",
    "Equation",
    "Fact",
    "Head",
    "Kind",
    "Source",
    "kind",
    "operator_head",
    "typed",
]

ABSENT = -1  # in place of an optional input that is not there
CONGRUENT = -1  # the reason of an edge between e-nodes of one head whose arguments are equal

Attributes: TypeAlias = tuple[tuple[str, Any], ...]  # as nodes have them
Kind: TypeAlias = str  # what a pattern asks of an e-node: its operator, how many arguments; see `kind`


class Head:
    """What an e-node is but for its arguments: an operator with attributes, or a leaf.  Interned."""

    __slots__ = ("op", "attrs", "outputs", "node")

    def __init__(self, op: Op | Leaf, attrs: Attributes, outputs: int, node: Node | None = None):
        self.op, self.attrs, self.outputs = op, attrs, outputs
        self.node = node  # an input, a constant, or an opaque node with arguments of its own

    def build(self, args: Sequence[Node | None]) -> Node:
        """The node over these arguments."""
        if isinstance(self.op, Op):
            return apply(self.op, args, dict(self.attrs), self.outputs)
        if self.op is ITEM:
            assert args[0] is not None
            return item(args[0], self.attrs[0][1])
        assert self.node is not None
        return again(self.node, tuple(args))

    def __repr__(self) -> str:
        return f"<{self.op} {dict(self.attrs)}>"


@dataclass(frozen=True)
class Fact:
    """What is known of a class: types of its outputs, and whether it depends on constants alone.

    `constant` is a node of known elements in it, `scalar` its value where there is just one element; `code`
    is a number for the types and for `static`.
    """

    types: tuple[Type, ...]
    code: int
    static: bool
    constant: Node | None
    scalar: Fraction | None

    @property
    def tensor(self) -> TensorType | None:
        """The type of the only output, if it is a tensor."""
        only = self.types[0] if len(self.types) == 1 else None
        return only if isinstance(only, TensorType) else None


@dataclass(frozen=True)
class Equation:
    """Programs that are equal pair by pair, all for one reason: a rule, for instance."""

    reason: Any
    left: tuple[Node, ...]
    right: tuple[Node, ...]


class Source(Protocol):
    """Where an equality of two terms comes from."""

    def evidence(self, graph: EGraph) -> tuple[Sequence[Equation], Sequence[tuple[int, int]]]:
        """Equations between programs, and pairs of terms whose equality it took besides."""


# Of operators, attributes and types there are few: all e-graphs share them, and what rules know of them.
_operators: dict[Any, Head] = {}
_codes: dict[tuple[tuple[Type, ...], bool], int] = {}


def operator_head(op: Op | Leaf, attrs: Attributes, outputs: int) -> Head:
    """The head of an operator's nodes, or of an output's."""
    key = (op, attrs, outputs)
    head = _operators.get(key)
    if head is None:
        head = _operators[key] = Head(op, attrs, outputs)
    return head


def _fact(types: tuple[Type, ...], static: bool, constant: Node | None, scalar: Fraction | None) -> Fact:
    return Fact(types, _codes.setdefault((types, static), len(_codes)), static, constant, scalar)


@cache
def kind(op: Op | Leaf, arguments: int, index: int | None = None) -> Kind:
    """The kind of e-nodes of an operator; `index` is the place of an output.  Texts know their own hash."""
    return f"{op.name}/{arguments}" if index is None else f"{op.name}/{arguments} {index}"


@cache
def typed(types: tuple[Type, ...]) -> tuple[Fact, Fact]:
    """What is known of a class by its types alone: where it depends on inputs, and where it does not."""
    return _fact(types, False, None, None), _fact(types, True, None, None)


class EGraph:
    """Add nodes, merge them, rebuild; in between, classes may be out of date (`find` is not)."""

    def __init__(self) -> None:
        self.heads: list[Head] = []  # of each e-node
        self.born: list[tuple[int, ...]] = []  # its arguments as it was inserted: numbers of e-nodes
        self.args: list[tuple[int, ...]] = []  # its arguments' classes, as of the last rebuild
        self.alive: list[bool] = []  # false: another e-node became the same one
        self.facts: dict[int, Fact] = {}  # of each class
        self.members: dict[int, list[int]] = {}  # of each class, its e-nodes
        self.readers: dict[int, list[int]] = {}  # of each class, the e-nodes that read it
        self.filtered: set[int] = set()  # e-nodes that are not to be extracted: they would close a cycle
        self.sources: list[Source] = []  # of the edges in the proof forest
        self.changed: set[int] = set()  # classes with new members since they were last asked for
        self.learnt = 0  # how often more was found out of a class than of its members
        self._parents: list[int] = []
        self._known: dict[tuple[Head, tuple[int, ...]], int] = {}
        self._heads: dict[Any, Head] = {}
        self._pending: list[int] = []
        self._links: list[tuple[int, int] | None] = []  # proof forest: (next e-node, source or CONGRUENT)
        self._numbers: dict[Node, int] = {}
        self._terms: dict[int, Node] = {}

    def __len__(self) -> int:
        """How many different e-nodes there are."""
        return len(self._known)

    def find(self, number: int) -> int:
        """The class of an e-node."""
        parents = self._parents
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

    def known(self, number: int) -> int:
        """The constant of known elements in the class of an e-node, the e-node itself where there is none."""
        constant = self.facts[self.find(number)].constant
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
        return self._known.get((head, tuple(a if a == ABSENT else self.find(a) for a in args)))

    def add(self, head: Head, args: Sequence[int], facts: tuple[Fact, Fact]) -> int:
        """The e-node of that head over e-nodes, inserted unless its like is there; its number.

        `facts` are what `typed` says of its types.
        """
        find = self.find
        classes = tuple([a if a == ABSENT else find(a) for a in args])
        known = self._known.get((head, classes))
        if known is not None:
            return known
        number = len(self._parents)
        self._parents.append(number)
        self._links.append(None)
        self.heads.append(head)
        self.born.append(tuple(args))
        self.args.append(classes)
        self.alive.append(True)
        self._known[head, classes] = number
        self.members[number] = [number]
        self.readers[number] = []
        for read in set(classes):
            if read != ABSENT:
                self.readers[read].append(number)
        self.facts[number] = self._known_of(head, classes, facts)
        self.changed.add(number)
        return number

    def _known_of(self, head: Head, classes: tuple[int, ...], facts: tuple[Fact, Fact]) -> Fact:
        if head.node is None:
            for read in classes:
                if read != ABSENT and not self.facts[read].static:
                    return facts[False]
            return facts[True]
        if head.op is not CONSTANT:
            return facts[False]
        return _fact(facts[True].types, True, head.node, scalar_value(head.node))

    def union(self, left: int, right: int, source: Source) -> bool:
        """Merge the classes of two terms; false where they are one already.  Then call `rebuild`."""
        if self.find(left) == self.find(right):
            return False
        self.sources.append(source)
        self._merge(left, right, len(self.sources) - 1)
        return True

    def _merge(self, left: int, right: int, why: int) -> None:
        a, b = self.find(left), self.find(right)
        self._link(left, right, why)
        if len(self.members[a]) + len(self.readers[a]) < len(self.members[b]) + len(self.readers[b]):
            a, b = b, a
        self._parents[b] = a
        self.members[a] += self.members.pop(b)
        self.readers[a] += self.readers.pop(b)
        old, other = self.facts[a], self.facts.pop(b)
        if old is not other:
            self.facts[a] = _both(old, other)
            self.learnt += 1
        self.changed.discard(b)
        self.changed.add(a)
        self._pending.append(a)

    def rebuild(self) -> None:
        """Restore congruence: e-nodes that read equal classes are equal, and of equal ones one stays."""
        while self._pending:
            todo = {self.find(number) for number in self._pending}
            self._pending.clear()
            for group in todo:
                self._repair(self.find(group))

    def _repair(self, group: int) -> None:
        """Bring the e-nodes that read this class up to date."""
        kept: dict[int, None] = {}
        for number in self.readers[group]:
            if not self.alive[number]:
                continue
            head, old = self.heads[number], self.args[number]
            new = tuple(a if a == ABSENT else self.find(a) for a in old)
            if new != old:
                if self._known.get((head, old)) == number:
                    del self._known[head, old]
                self.args[number] = new
                twin = self._known.get((head, new), number)
                self._known[head, new] = older = min(number, twin)  # the oldest of a class must stay
                if twin != number:
                    younger = max(number, twin)
                    self.alive[younger] = False
                    if younger not in self.filtered:  # one of the two was live, and so they are
                        self.filtered.discard(older)
                    if self.find(twin) != self.find(number):
                        self._merge(number, twin, CONGRUENT)
                    else:
                        self.changed.add(self.find(number))
                    if younger == number:
                        continue
            if not self.facts[self.find(number)].static:
                self._settle(number)
            kept[number] = None
        here = self.find(group)
        if here == group:
            self.readers[group] = list(kept)
        else:  # merged into another class meanwhile, which is pending itself
            self._pending.append(here)

    def _settle(self, number: int) -> None:
        """A class whose member has come to read constants alone depends on constants alone, too."""
        head = self.heads[number]
        if not isinstance(head.op, Op) and head.op is not ITEM:
            return
        if all(read == ABSENT or self.facts[self.find(read)].static for read in self.args[number]):
            group = self.find(number)
            old = self.facts[group]
            self.learnt += 1
            self.facts[group] = _fact(old.types, True, old.constant, old.scalar)
            self._pending.append(group)
            self.changed.add(group)

    def live(self, group: int) -> list[int]:
        """The e-nodes of a class, each once; those that became another's like are dropped."""
        members = self.members[group]
        if not all(self.alive[number] for number in members):
            members[:] = [number for number in members if self.alive[number]]
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


def _both(a: Fact, b: Fact) -> Fact:
    """What is known of a class that two became; raises ValueError where their types differ."""
    if a.types != b.types:
        raise ValueError(f"a union of {a.types} and {b.types}")
    constant = a.constant or b.constant
    scalar = a.scalar if a.scalar is not None else b.scalar
    return _fact(a.types, a.static or b.static, constant, scalar)
