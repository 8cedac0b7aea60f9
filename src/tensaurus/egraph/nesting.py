"""Calls inside calls of one operator enter the e-graph as one call: see `rules/nesting`.

Merges of many tensors are found as merges of two, whose chains of Concat and Split would each cost a kernel
for every link: what is extracted is to know the one kernel that they are.  And as every order of merging two
amounts to the same one call, congruence makes them one.

A call takes in all that is nested in it, of several ways the finest: between it and the one call lie many
that take in a part, and nobody needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

from tensaurus.egraph.egraph import ABSENT, EGraph, Source, operator_head, output_head, typed
from tensaurus.graph.node import ITEM, Node, item
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.declare import Attributes
from tensaurus.rules.equation import Equation
from tensaurus.rules.nesting import calling, joins, nested_equation, parted

__all__ = ["nest"]

DEEPEST = 50  # calls inside each other that are taken in at once; what is left is taken in next
PASSES = 12  # over all calls, each taking in what the ones before have made
WIDEST = 200  # arguments of one call: a tensor joined to itself k times over is 2**k of them


def nest(graph: EGraph, limit: int) -> int:
    """Insert one call for each call that has others inside, within so many e-nodes; how many it found.

    The e-graph must be rebuilt, and is afterwards.
    """
    known: set[tuple[int, ...]] = set()
    for _ in range(PASSES):
        fresh = [call for call in _Nests(graph).calls() if call.numbers not in known]
        if not fresh:
            break
        known.update(call.numbers for call in fresh)
        equal: list[tuple[int, int, Source]] = []
        for call in fresh:
            if len(graph) + call.size <= limit:
                equal += call.insert(graph)
        for left, right, source in equal:
            graph.union(left, right, source)
        graph.rebuild()
    return len(known)


@cache
def _kinds() -> dict[object, bool]:
    """The operators that nest: true where in an argument, false where in an output."""
    ops = registry.values()
    return {op: op.nested is None for op in ops if op.nested is not None or joins(op)}


class _Nests:
    """What is nested in each call of an e-graph."""

    def __init__(self, graph: EGraph):
        self.graph = graph
        self._known: dict[int, _Joined | _Parted | None] = {}  # of each e-node; None while it is looked at

    def calls(self) -> Iterator[_Joined | _Parted]:
        """Those that have others inside."""
        graph = self.graph
        kept = (n for n, alive in enumerate(graph.alive) if alive and n not in graph.filtered)
        kinds = _kinds()
        found = [(n, kinds[op]) for n in kept if (op := graph.heads[n].op) in kinds]
        read = {
            graph.args[part][0]
            for number, joining in found
            if not joining
            for part in graph.live(graph.args[number][0])
            if graph.heads[part].op is ITEM
        }  # classes of which a call reads an output
        for number, joining in found:
            if joining or graph.find(number) in read:
                call = self._call(number)
                if call is not None and len(call.numbers) > 1:
                    yield call

    def _call(self, number: int, depth: int = 0) -> _Joined | _Parted | None:
        """A call with those inside it; None where it would be inside itself, or is too deep."""
        if number not in self._known and depth <= DEEPEST:
            self._known[number] = None
            take = self._join if _kinds()[self.graph.heads[number].op] else self._part
            self._known[number] = take(number, depth + 1)
        return self._known.get(number)

    def _join(self, number: int, depth: int) -> _Joined:
        """A variadic call, with those that it reads."""
        graph, head, args = self.graph, self.graph.heads[number], self.graph.args[number]
        inside: list[_Joined | None] = []
        room = WIDEST - len(args)
        for group in args:
            alike = (other for other in graph.live(group) if graph.heads[other] is head)
            found = [call for other in alike if isinstance(call := self._call(other, depth), _Joined)]
            fitting = [call for call in found if call.count - 1 <= room]
            best = max(fitting, key=lambda call: (call.count, -call.number), default=None)
            room -= 0 if best is None else best.count - 1
            inside.append(best)
        return _Joined(number, tuple(inside))

    def _part(self, number: int, depth: int) -> _Parted | None:
        """A call of several outputs, with those that read them; None where not all of those are wanted."""
        graph, head, args = self.graph, self.graph.heads[number], self.graph.args[number]
        op, attrs, kinds = head.op, head.attrs, _types(graph, args)
        if not isinstance(op, Op) or len(kinds) != 1 or len(op.types(kinds, attrs)) != head.outputs:
            return None
        inside: list[tuple[int, _Parted] | None] = [None] * head.outputs
        for place in reversed(range(head.outputs)):
            part = graph.peek(output_head(place), (number,))
            if part is None:
                continue
            readers = sorted({n for n in graph.readers[graph.find(part)] if graph.alive[n]})
            alike = (other for other in readers if graph.heads[other].op is op)
            found = [call for other in alike if isinstance(call := self._call(other, depth), _Parted)]
            best = max(found, key=lambda call: (call.size, -call.number), default=None)
            if best is not None and (flat := parted(op, kinds[0], attrs, place, best.attrs)) is not None:
                inside[place], attrs = (part, best), flat
        return _Parted(number, tuple(inside), attrs)


@dataclass(frozen=True)
class _Joined:
    """A variadic call, with the calls inside it, by argument."""

    number: int
    inside: tuple[_Joined | None, ...]

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

    def insert(self, graph: EGraph) -> list[tuple[int, int, Source]]:
        """The one call, and what it is equal to."""
        facts = typed(graph.facts[graph.find(self.number)].types)
        return [(self.number, graph.add(graph.heads[self.number], self._args(graph), facts), self)]

    def _args(self, graph: EGraph) -> tuple[int, ...]:
        """The one call's arguments."""
        told = zip(graph.born[self.number], self.inside, strict=True)
        return tuple(arg for own, call in told for arg in ((own,) if call is None else call._args(graph)))

    def _nested(self, graph: EGraph) -> Node:
        """The calls as they are nested."""
        told = zip(graph.born[self.number], self.inside, strict=True)
        args = [graph.term(own) if call is None else call._nested(graph) for own, call in told]
        return graph.heads[self.number].build(args)

    def _needs(self, graph: EGraph) -> Iterator[tuple[int, int]]:
        for own, call in zip(graph.born[self.number], self.inside, strict=True):
            if call is not None:
                yield own, call.number
                yield from call._needs(graph)

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        """The calls are the one."""
        head, args = graph.heads[self.number], self._args(graph)
        names = [f"x{place}" for place in range(len(args))]
        left = iter(names)

        def said(call: _Joined) -> str:
            parts = [next(left) if inner is None else said(inner) for inner in call.inside]
            return calling(head.op, parts, head.attrs)

        leaves = [graph.term(arg) for arg in args]
        nested, flat = self._nested(graph), head.build(leaves)
        one = calling(head.op, names, head.attrs)
        name = f"nested-{str(head.op).lower()}"
        found = nested_equation(name, (said(self), nested), (one, flat), leaves)
        return [found], _apart(self._needs(graph))


class _Link(NamedTuple):
    """A call, the place of one of its outputs, and its e-node where another call reads it, else -1."""

    number: int
    place: int
    part: int


@dataclass(frozen=True)
class _Parted:
    """A call of several outputs, with those inside, (output, call on it); the one call's attributes."""

    number: int
    inside: tuple[tuple[int, _Parted] | None, ...]
    attrs: Attributes

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The e-nodes of the calls."""
        return (self.number, *(n for found in self.inside if found is not None for n in found[1].numbers))

    @cached_property
    def leaves(self) -> tuple[tuple[_Link, ...], ...]:
        """Of each output of the one call, the way to it."""
        return tuple(
            (_Link(self.number, place, -1 if found is None else found[0]), *below)
            for place, found in enumerate(self.inside)
            for below in (((),) if found is None else found[1].leaves)
        )

    @property
    def size(self) -> int:
        """E-nodes that the one call takes at most."""
        return 1 + len(self.leaves)

    def insert(self, graph: EGraph) -> list[tuple[int, int, Source]]:
        """The one call, and what its outputs are equal to."""
        op = graph.heads[self.number].op
        types = tuple(
            graph.facts[graph.find(leaf[-1].number)].types[leaf[-1].place] for leaf in self.leaves
        )
        head = operator_head(op, self.attrs, len(types))
        flat = graph.add(head, graph.born[self.number], typed(types))
        equal: list[tuple[int, int, Source]] = []
        for place, (leaf, kind) in enumerate(zip(self.leaves, types, strict=True)):
            number, output, _ = leaf[-1]
            old = graph.peek(output_head(output), (number,))
            if old is not None:
                new = graph.add(output_head(place), (flat,), typed((kind,)))
                equal.append((old, new, _Part(leaf, old, flat, place)))
        return equal


@dataclass(frozen=True)
class _Part:
    """An output of nested calls, and which of the one call it is.

    An equation of its own for every output: nobody may read the others.
    """

    leaf: tuple[_Link, ...]
    old: int  # the e-node of the nested output
    flat: int  # the one call
    place: int

    def evidence(self, graph: EGraph) -> tuple[list[Equation], list[tuple[int, int]]]:
        """The output is that of the one call."""
        heads, born = graph.heads, graph.born
        op = heads[self.flat].op
        leaf = node = graph.term(born[self.leaf[0].number][0])
        said = "x"
        needs = [(born[self.old][0], self.leaf[-1].number)]
        for link in self.leaf:
            node = item(heads[link.number].build([node]), link.place)
            said = f"{calling(op, [said], heads[link.number].attrs)}[{link.place}]"
        for above, below in pairwise(self.leaf):
            needs += [(born[below.number][0], above.part), (born[above.part][0], above.number)]
        one = f"{calling(op, ['x'], heads[self.flat].attrs)}[{self.place}]"
        flat = item(graph.term(self.flat), self.place)
        kind = "nested" if len(self.leaf) > 1 else "beside-nested"
        name = f"{kind}-{str(op).lower()}"
        return [nested_equation(name, (said, node), (one, flat), [leaf])], _apart(needs)


def _types(graph: EGraph, groups: Sequence[int]) -> tuple[TensorType, ...]:
    """Of tensors."""
    kinds = [graph.facts[group].types[0] for group in groups if group != ABSENT]
    return tuple(kind for kind in kinds if isinstance(kind, TensorType))


def _apart(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in pairs if a != b]
