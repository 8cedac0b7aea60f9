"""Where the derivation of several expressions together begins: where parts of them are merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from tensaurus.expr.ir.scope import Scope, Source, Tensor
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.finders.derive.derivation_search import Derived, Search
from tensaurus.finders.derive.derivation_state import INTENSE, State
from tensaurus.finders.derive.linear_regions import Part
from tensaurus.finders.derive.merge_expressions import joined
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.graph.ir.node import Node

__all__ = ["searched", "together"]

WAYS = 2  # of each expression by the same rules
BEST = 8  # states with merged parts
TRIED = 64  # choices of one derivation for each root


def searched(
    part: Part,
    roots: Sequence[Scope],
    nodes: Sequence[tuple[Tensor, Node]],
    search: Search,
    alone: Sequence[Sequence[Derived]],
) -> list[Derived]:
    """What a search finds for a part, the fastest first; of several products what can be merged.

    roots  its expressions, over tensors that are these nodes (`Part.expressions`)
    alone  what was found for each product of several
    """
    if len(roots) == 1:
        return search.run(roots, nodes)
    own = [[part.names[leaf] for leaf in one.leaves] for one in part.alone]
    return search.run(
        roots, nodes, together(roots, nodes, tuple(zip(own, alone, strict=True)), search.intense)
    )


def together(
    roots: Sequence[Scope],
    nodes: Sequence[tuple[Tensor, Node]],
    alone: Sequence[tuple[Sequence[Node], Sequence[Derived]]],
    intense: float = INTENSE,
) -> Iterator[State]:
    """The states in which parts of several roots are merged, at once, or after the same rules were applied to
    each root, one after the other, as far as operators.

    alone    for each root the nodes that its leaves are, and what was found for it over tensors of its own
    intense  operations for each element moved of what is merged
    """
    tensors = {node: x for x, node in nodes}
    first = State(tuple(map(read_through, roots)), tuple(nodes))
    ways = [_by_rules(found) for _, found in alone]
    names: list[Mapping[Tensor, Source]] = [
        {x: tensors[leaf] for one in found[:1] for (x, _), leaf in zip(one.path[0].nodes, own, strict=True)}
        for own, found in alone
    ]
    yield from map(first.joined, joined(first.intense(intense)))
    choices = (
        paths
        for rules in ways[0]
        if all(rules in other for other in ways)
        for paths in product(*(way[rules][:WAYS] for way in ways))
    )
    found = (
        state.joined(step)
        for paths in islice(choices, TRIED)
        for state in (_after(first, paths, names),)
        for step in joined(state.intense(intense))
    )
    yield from islice(found, BEST)


def _after(first: State, paths: Sequence[Sequence[State]], names: Sequence[Mapping[Tensor, Source]]) -> State:
    made = first
    for place, path in enumerate(paths):
        for state in path[1:]:
            root = read_through(replace_tensors(state.roots[0], names[place]))
            roots = (*made.roots[:place], root, *made.roots[place + 1 :])
            made = State(roots, made.nodes, (*made.moves, state.moves[-1]), made)
    return made


def _by_rules(found: Sequence[Derived]) -> Mapping[tuple[str, ...], list[Sequence[State]]]:
    """Their paths as far as no part is an operator, each once, by the rules that were applied."""
    made: dict[tuple[str, ...], dict[tuple[Any, ...], Sequence[State]]] = {}
    for one in found:
        path = [state for state in one.path if len(state.nodes) == len(one.path[0].nodes)]
        rules = tuple(state.moves[-1].rule for state in path[1:])
        if rules:
            made.setdefault(rules, {}).setdefault(path[-1].key, path)
    return {rules: list(paths.values()) for rules, paths in made.items()}
