"""Calls inside calls of one operator enter the e-graph as one call: see `rules/language/nested_calls`.

Merges of many tensors are found as merges of two, whose chains of Concat and Split would each cost a kernel
for every link: what is extracted is to know the one kernel that they are.  And as every order of merging two
amounts to the same one call, congruence makes them one.

A call takes in all that is nested in it, of several ways the finest: between it and the one call lie many
that take in a part, and nobody needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Head, operator_head, output_head
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.graph.ir.node import ITEM, Node, Type, item, source
from tensaurus.ops import Op, TensorType
from tensaurus.ops.declare import Attributes
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.nested_calls import joins, nested_equation, parted

__all__ = ["nest"]

DEEPEST = 50  # calls inside each other that are taken in at once; what is left is taken in next
WIDEST = 200  # arguments of one call: a tensor joined to itself k times over is 2**k of them


def nest(graph: EGraph, room: int) -> Iterator[Proposal]:
    """One call for each call that has others inside, within so many e-nodes."""
    for call in _Nests(graph).calls():
        if call.size <= room:
            yield from call.proposals(graph)


@cache
def _joining(op: object) -> bool | None:
    """Whether an operator's calls nest in an argument, or else in an output; None where they do not."""
    if not isinstance(op, Op) or (op.nested is None and not joins(op)):
        return None
    return op.nested is None


_Shape: TypeAlias = "tuple[Head, tuple[_Shape | Type, ...]]"  # of calls: which are inside, and types


class _Nests:
    """What is nested in each call of an e-graph."""

    def __init__(self, graph: EGraph):
        self.graph = graph
        self._known: dict[int, _Joined | _Parted | None] = {}  # of each e-node; None while it is looked at
        self._opened: set[int] = set()  # the classes of the calls that are looked at
        self._alike: dict[int, defaultdict[Head, list[int]]] = {}  # the e-nodes of a class, by head

    def calls(self) -> Iterator[_Joined | _Parted]:
        """Those that have others inside."""
        graph = self.graph
        kept = (n for n, alive in enumerate(graph.alive) if alive)
        ways = {op: _joining(op) for op in {head.op for head in graph.heads}}
        calls = [(n, way) for n in kept if (way := ways[graph.heads[n].op]) is not None]
        read = {
            graph.args[part][0]
            for number, joining in calls
            if not joining
            for part in graph.live(graph.args[number][0])
            if graph.heads[part].op is ITEM
        }  # classes of which a call reads an output
        for number, joining in calls:
            if joining or graph.find(number) in read:
                call = self._call(number)
                if call is not None and len(call.numbers) > 1:
                    yield call

    def _call(self, number: int, depth: int = 0) -> _Joined | _Parted | None:
        """A call with those inside it; None where it would be inside itself, or is too deep."""
        if number not in self._known and depth <= DEEPEST:
            self._known[number] = None
            take = self._join if _joining(self.graph.heads[number].op) else self._part
            self._known[number] = take(number, depth + 1)
        return self._known.get(number)

    def _join(self, number: int, depth: int) -> _Joined | None:
        """A variadic call, with those that it reads; None where it would read what it is itself.

        Max(y, 0) is a way to write y once y is larger than 0: taken in again and again it would be calls of
        ever more arguments, which no program has room for.  Looked at inside another call it may take in less
        than alone: it is not looked at again.
        """
        graph, opened = self.graph, self._opened
        head, args = graph.heads[number], graph.args[number]
        inside: list[_Joined | None] = []
        leaves = set[int]()
        opened.add(own := graph.find(number))
        room = WIDEST - len(args)
        for group in args:
            alike = () if group in opened else self._by_head(group).get(head, ())
            calls = [call for other in alike if isinstance(call := self._call(other, depth), _Joined)]
            fitting = [call for call in calls if call.count - 1 <= room and call.leaves.isdisjoint(opened)]
            best = max(fitting, key=lambda call: (call.count, -call.number), default=None)
            room -= 0 if best is None else best.count - 1
            inside.append(best)
            leaves |= {group} if best is None else best.leaves
        opened.discard(own)
        return None if own in leaves else _Joined(number, tuple(inside), frozenset(leaves))

    def _by_head(self, group: int) -> dict[Head, list[int]]:
        """The e-nodes of a class: it has thousands, and a merge of it is asked for by every other."""
        if group not in self._alike:
            alike = self._alike[group] = defaultdict[Head, list[int]](list)
            for number in self.graph.live(group):
                alike[self.graph.heads[number]].append(number)
        return self._alike[group]

    def _part(self, number: int, depth: int) -> _Parted | None:
        """A call of several outputs, with those that read them; None where not all of those are wanted."""
        graph, head, args = self.graph, self.graph.heads[number], self.graph.args[number]
        op, attrs, kinds = head.op, head.attrs, _types(graph, args)
        if not isinstance(op, Op) or len(kinds) != 1 or len(op.types(kinds, attrs)) != head.outputs:
            return None
        inside: list[_Parted | None] = [None] * head.outputs
        for place in reversed(range(head.outputs)):
            part = graph.peek(output_head(place), (number,))
            if part is None:
                continue
            readers = sorted({n for n in graph.readers[graph.find(part)] if graph.alive[n]})
            alike = (other for other in readers if graph.heads[other].op is op)
            calls = [call for other in alike if isinstance(call := self._call(other, depth), _Parted)]
            best = max(calls, key=lambda call: (call.size, -call.number), default=None)
            if best is not None and (flat := parted(op, kinds[0], attrs, place, best.attrs)) is not None:
                inside[place], attrs = best, flat
        return _Parted(number, tuple(inside), attrs)


@dataclass(frozen=True)
class _Joined:
    """A variadic call, with the calls inside it, by argument."""

    number: int
    inside: tuple[_Joined | None, ...]
    leaves: frozenset[int]  # the classes that the one call reads

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The e-nodes of the calls."""
        return (self.number, *(n for call in self.inside if call is not None for n in call.numbers))

    @cached_property
    def count(self) -> int:
        """Arguments of the one call."""
        return sum(1 if call is None else call.count for call in self.inside)

    @property
    def size(self) -> int:
        """E-nodes that the one call takes."""
        return 1

    def proposals(self, graph: EGraph) -> Iterator[Proposal]:
        """The calls are the one."""
        yield Proposal(_joined(self._shape(graph)), self._args(graph))

    def _args(self, graph: EGraph) -> tuple[int, ...]:
        """The one call's arguments."""
        inside = zip(graph.born[self.number], self.inside, strict=True)
        return tuple(arg for own, call in inside for arg in ((own,) if call is None else call._args(graph)))

    def _shape(self, graph: EGraph) -> _Shape:
        inside = zip(graph.args[self.number], self.inside, strict=True)
        analyses, find = graph.analyses, graph.find
        parts = (analyses[find(own)].types[0] if call is None else call._shape(graph) for own, call in inside)
        return graph.heads[self.number], tuple(parts)


@lru_cache(10_000)
def _joined(shape: _Shape) -> Equation:
    """Calls of this shape are one call."""
    leaves: list[Node] = []

    def nested(part: _Shape | Type) -> Node:
        if isinstance(part, tuple):
            head, parts = part
            return head.build([nested(inner) for inner in parts])
        leaves.append(source(f"x{len(leaves)}", part))
        return leaves[-1]

    calls = nested(shape)
    head = shape[0]
    return nested_equation(f"nested-{str(head.op).lower()}", calls, head.build(leaves), leaves)


class _Link(NamedTuple):
    """A call, and the place of one of its outputs."""

    number: int
    place: int


@dataclass(frozen=True)
class _Parted:
    """A call of several outputs, with those inside, (output, call on it); the one call's attributes."""

    number: int
    inside: tuple[_Parted | None, ...]
    attrs: Attributes

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The e-nodes of the calls."""
        return (self.number, *(n for call in self.inside if call is not None for n in call.numbers))

    @cached_property
    def leaves(self) -> tuple[tuple[_Link, ...], ...]:
        """Of each output of the one call, the way to it."""
        return tuple(
            (_Link(self.number, place), *below)
            for place, call in enumerate(self.inside)
            for below in (((),) if call is None else call.leaves)
        )

    @property
    def size(self) -> int:
        """E-nodes that the one call takes at most."""
        return 1 + len(self.leaves)

    def proposals(self, graph: EGraph) -> Iterator[Proposal]:
        """Of every output that is read, which of the one call it is; nobody may read the others."""
        head, born = graph.heads[self.number], graph.born[self.number]
        (kind,) = graph.analyses[graph.find(born[0])].types
        for place, leaf in enumerate(self.leaves):
            number, output = leaf[-1]
            if graph.peek(output_head(output), (number,)) is not None:
                links = tuple((graph.heads[link.number], link.place) for link in leaf)
                yield Proposal(_parted(head, kind, links, self.attrs, len(self.leaves), place), born)


@lru_cache(10_000)
def _parted(
    head: Head, kind: Type, links: tuple[tuple[Head, int], ...], attrs: Attributes, outputs: int, place: int
) -> Equation:
    """An output of calls, each on an output of the one before, is one of the one call."""
    leaf = nested = source("x", kind)
    for call, output in links:
        nested = item(call.build([nested]), output)
    flat = item(operator_head(head.op, attrs, outputs).build([leaf]), place)
    name = f"{'nested' if len(links) > 1 else 'beside-nested'}-{str(head.op).lower()}"
    return nested_equation(name, nested, flat, [leaf])


def _types(graph: EGraph, groups: Sequence[int]) -> tuple[TensorType, ...]:
    """Of tensors."""
    kinds = [graph.analyses[group].types[0] for group in groups if group != ABSENT]
    return tuple(kind for kind in kinds if isinstance(kind, TensorType))
