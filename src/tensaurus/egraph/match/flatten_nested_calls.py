"""Adds to the e-graph one flat call for nested calls of an operator, see `rules/language/nested_calls`.

    Concat(Concat(x, y), z)                 ->   Concat(x, y, z)          in an argument (`_VariadicCall`)
    Split(Split(x, (1, 4))[1], (1, 3))[0]   ->   Split(x, (1, 1, 3))[1]   in an output (`_SplittingCall`)

Rules merge many tensors two by two, which leaves chains of Concat and Split with a kernel for every link; a
flat call is one kernel.  All orders of merging lead to the same flat call, so congruence merges them.

Only the flattest call is added, which takes in all nested calls; partly flattened calls are of no use.
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
from tensaurus.rules.language.nested_calls import can_join_nested, merge_split_attributes, nested_equation

__all__ = ["flatten"]

MAX_DEPTH = 50  # levels of nested calls that are flattened at once; the next pass flattens deeper ones
MAX_ARGUMENTS = 200  # of one flat call: a tensor joined to itself k times over would be 2**k arguments


def flatten(graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
    """Yield a flat call for each call with others inside, if it takes at most `max_new_enodes` e-nodes."""
    for call in _NestedCalls(graph).calls():
        if call.enode_count <= max_new_enodes:
            yield from call.proposals(graph)


@cache
def _nests_in_argument(op: object) -> bool:
    """Return whether an operator's calls nest in arguments, as those of Concat."""
    return isinstance(op, Op) and op.merge_nested is None and can_join_nested(op)


def _nests_in_output(op: object) -> bool:
    """Return whether an operator's calls nest in outputs, as those of Split."""
    return isinstance(op, Op) and op.merge_nested is not None


_Shape: TypeAlias = "tuple[Head, tuple[_Shape | Type, ...]]"  # of nested calls; types stand for leaves


class _NestedCalls:
    """Finds the calls nested in each call of an e-graph."""

    def __init__(self, graph: EGraph):
        self.graph = graph
        # by e-node; None while the call is in progress
        self._call_of_enode: dict[int, _VariadicCall | _SplittingCall | None] = {}
        self._in_progress: set[int] = set()  # the classes of the calls in progress
        self._enodes_by_head: dict[int, defaultdict[Head, list[int]]] = {}  # the e-nodes of a class, by head

    def calls(self) -> Iterator[_VariadicCall | _SplittingCall]:
        """Yield the calls with others inside."""
        graph, heads = self.graph, self.graph.heads
        live = [enode for enode, is_live in enumerate(graph.is_live) if is_live]
        operators = {head.op for head in heads}
        splitting = {op for op in operators if _nests_in_output(op)}
        variadic = {op for op in operators if _nests_in_argument(op)}
        # classes of which a splitting call reads an output
        read = {
            graph.args[output][0]
            for enode in live
            if heads[enode].op in splitting
            for output in graph.live_members(graph.args[enode][0])
            if heads[output].op is ITEM
        }
        for enode in live:
            op = heads[enode].op
            if op in variadic or op in splitting and graph.find(enode) in read:
                call = self._call(enode)
                if call is not None and any(call.inside):
                    yield call

    def _call(self, enode: int, depth: int = 0) -> _VariadicCall | _SplittingCall | None:
        """Return the call of an e-node with the calls inside; None where it is inside itself, or too deep."""
        if enode not in self._call_of_enode and depth <= MAX_DEPTH:
            self._call_of_enode[enode] = None
            is_variadic = _nests_in_argument(self.graph.heads[enode].op)
            flatten_call = self._flatten_variadic if is_variadic else self._flatten_splitting
            self._call_of_enode[enode] = flatten_call(enode, depth + 1)
        return self._call_of_enode.get(enode)

    def _flatten_variadic(self, enode: int, depth: int) -> _VariadicCall | None:
        """Return a variadic call with the calls among its arguments; None where it would read its own class.

        Max(y, 0) equals y if y is at least 0: flattened again and again it would be a call of ever more
        arguments.  A call that is flattened as part of another may take in fewer calls than by itself; its
        first result stays.
        """
        graph, in_progress = self.graph, self._in_progress
        head, args = graph.heads[enode], graph.args[enode]
        inside: list[_VariadicCall | None] = []
        leaves = set[int]()
        in_progress.add(own := graph.find(enode))
        max_more_args = MAX_ARGUMENTS - len(args)
        for eclass in args:  # takes in the fitting call with most arguments that reads no class in progress
            alike = () if eclass in in_progress else self._group_by_head(eclass).get(head, ())
            calls = [call for other in alike if isinstance(call := self._call(other, depth), _VariadicCall)]
            fitting = [
                call
                for call in calls
                if call.argument_count - 1 <= max_more_args and call.leaves.isdisjoint(in_progress)
            ]
            best = max(fitting, key=lambda call: (call.argument_count, -call.enode), default=None)
            max_more_args -= 0 if best is None else best.argument_count - 1
            inside.append(best)
            leaves |= {eclass} if best is None else best.leaves
        in_progress.discard(own)
        return None if own in leaves else _VariadicCall(enode, tuple(inside), frozenset(leaves))

    def _group_by_head(self, eclass: int) -> dict[Head, list[int]]:
        """Return the e-nodes of a class by head, computed once: large classes are asked for often."""
        if eclass not in self._enodes_by_head:
            alike = self._enodes_by_head[eclass] = defaultdict[Head, list[int]](list)
            for enode in self.graph.live_members(eclass):
                alike[self.graph.heads[enode]].append(enode)
        return self._enodes_by_head[eclass]

    def _flatten_splitting(self, enode: int, depth: int) -> _SplittingCall | None:
        """Return a splitting call with the calls that read its outputs; None where it leaves out outputs."""
        graph, head, args = self.graph, self.graph.heads[enode], self.graph.args[enode]
        op, attrs, kinds = head.op, head.attrs, _types(graph, args)
        if not isinstance(op, Op) or len(kinds) != 1 or len(op.types(kinds, attrs)) != head.outputs:
            return None
        inside: list[_SplittingCall | None] = [None] * head.outputs
        for place in reversed(range(head.outputs)):  # from the last: places before it keep their numbers
            part = graph.peek(output_head(place), (enode,))
            if part is None:
                continue
            readers = sorted({n for n in graph.readers[graph.find(part)] if graph.is_live[n]})
            alike = (other for other in readers if graph.heads[other].op is op)
            calls = [call for other in alike if isinstance(call := self._call(other, depth), _SplittingCall)]
            best = max(calls, key=lambda call: (call.enode_count, -call.enode), default=None)
            if best is None:
                continue
            if (flat := merge_split_attributes(op, kinds[0], attrs, place, best.attrs)) is not None:
                inside[place], attrs = best, flat
        return _SplittingCall(enode, tuple(inside), attrs)


@dataclass(frozen=True)
class _VariadicCall:
    """A variadic call, with the nested call that is each of its arguments, or None."""

    enode: int
    inside: tuple[_VariadicCall | None, ...]
    leaves: frozenset[int]  # the classes that the flat call reads

    @cached_property
    def argument_count(self) -> int:
        """The number of arguments of the flat call."""
        return sum(1 if call is None else call.argument_count for call in self.inside)

    @property
    def enode_count(self) -> int:
        """The number of e-nodes of the flat call."""
        return 1

    def proposals(self, graph: EGraph) -> Iterator[Proposal]:
        """Yield the equality of the nested calls and the flat call."""
        yield Proposal(_variadic_equation(self._shape(graph)), self._args(graph))

    def _args(self, graph: EGraph) -> tuple[int, ...]:
        """Return the arguments of the flat call."""
        inside = zip(graph.original_args[self.enode], self.inside, strict=True)
        return tuple(arg for own, call in inside for arg in ((own,) if call is None else call._args(graph)))

    def _shape(self, graph: EGraph) -> _Shape:
        inside = zip(graph.args[self.enode], self.inside, strict=True)
        analyses, find = graph.analyses, graph.find
        parts = (analyses[find(own)].types[0] if call is None else call._shape(graph) for own, call in inside)
        return graph.heads[self.enode], tuple(parts)


@lru_cache(10_000)
def _variadic_equation(shape: _Shape) -> Equation:
    """Return the equation of nested calls of this shape and the flat call."""
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
    """A call and the place of one of its outputs."""

    enode: int
    place: int


@dataclass(frozen=True)
class _SplittingCall:
    """A splitting call, with the nested call that reads each output, or None.

    attrs  the attributes of the flat call
    """

    enode: int
    inside: tuple[_SplittingCall | None, ...]
    attrs: Attributes

    @cached_property
    def leaves(self) -> tuple[tuple[_Link, ...], ...]:
        """For each output of the flat call, the links that lead to it, from this call inwards."""
        return tuple(
            (_Link(self.enode, place), *below)
            for place, call in enumerate(self.inside)
            for below in (((),) if call is None else call.leaves)
        )

    @property
    def enode_count(self) -> int:
        """The number of e-nodes of the flat call and its outputs, at most."""
        return 1 + len(self.leaves)

    def proposals(self, graph: EGraph) -> Iterator[Proposal]:
        """Yield for each output of a nested call that is in the e-graph its equality with a flat one."""
        head, original_args = graph.heads[self.enode], graph.original_args[self.enode]
        (kind,) = graph.analyses[graph.find(original_args[0])].types
        for place, leaf in enumerate(self.leaves):
            enode, output = leaf[-1]
            if graph.peek(output_head(output), (enode,)) is not None:
                links = tuple((graph.heads[link.enode], link.place) for link in leaf)
                yield Proposal(
                    _splitting_equation(head, kind, links, self.attrs, len(self.leaves), place), original_args
                )


@lru_cache(10_000)
def _splitting_equation(
    head: Head, kind: Type, links: tuple[tuple[Head, int], ...], attrs: Attributes, outputs: int, place: int
) -> Equation:
    """Return the equation of an output of nested calls, along the links, and an output of the flat call."""
    leaf = nested = source("x", kind)
    for call, output in links:
        nested = item(call.build([nested]), output)
    flat = item(operator_head(head.op, attrs, outputs).build([leaf]), place)
    # an output of the outer call that no nested call reads moves to another place in the flat call
    name = f"{'nested' if len(links) > 1 else 'beside-nested'}-{str(head.op).lower()}"
    return nested_equation(name, nested, flat, [leaf])


def _types(graph: EGraph, eclasses: Sequence[int]) -> tuple[TensorType, ...]:
    """Return the types of the classes that are tensors."""
    kinds = [graph.analyses[eclass].types[0] for eclass in eclasses if eclass != ABSENT]
    return tuple(kind for kind in kinds if isinstance(kind, TensorType))
