"""Starts the derivation of several expressions of one tensor at states in which parts of them are merged.

A search over all expressions at once would spend its budget on each of them alone.  In the start
states here expressions are merged as they are, or after the rules that helped each when it was derived alone.
A root is one of the region's expressions; a path is the states from a root alone to a program for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from tensaurus.expr.ir.scope import Scope, Source, Tensor
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, State
from tensaurus.finders.derive.linear_regions import LinearRegion
from tensaurus.finders.derive.merge_expressions import joined
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.graph.ir.node import Node

__all__ = ["joint_start_states", "search_region"]

PATHS_PER_RULES = 2  # paths of one expression, by the same sequence of rules, that are tried
MAX_MERGED_STATES = 8  # start states in which something was rewritten before it was merged
MAX_PATH_CHOICES = 64  # choices of one path for each expression that are tried to find these states


def search_region(
    region: LinearRegion, roots: Sequence[Scope], nodes: Sequence[tuple[Tensor, Node]], search: Search,
    single_programs: Sequence[Sequence[DerivedProgram]]
) -> list[DerivedProgram]:
    """Return the programs found for a region's expressions, the fastest first.

    `single_programs` are the programs that were found for each of the region's products alone.
    """
    if len(roots) == 1:
        return search.run(roots, nodes)
    leaves = [[region.names[leaf] for leaf in single.leaves] for single in region.single_regions]
    alone = tuple(zip(leaves, single_programs, strict=True))
    return search.run(roots, nodes, joint_start_states(roots, nodes, alone, search.min_intensity))


def joint_start_states(
    roots: Sequence[Scope], nodes: Sequence[tuple[Tensor, Node]],
    alone: Sequence[tuple[Sequence[Node], Sequence[DerivedProgram]]], min_intensity: float = MIN_INTENSITY
) -> Iterator[State]:
    """Yield states in which parts of several roots are merged.

    First come merges of the roots as they are, then merges after the same sequence of rules was applied to
    each root, taken from the path to a program that was found for it alone.

    alone          for each root its leaves, and the programs that were found for it over its own tensors
    min_intensity  operations for each element moved that an expression must have to be merged
    """
    tensors = {node: x for x, node in nodes}
    first = State(tuple(map(read_through, roots)), tuple(nodes))
    paths_by_rules = [_group_paths(programs) for _, programs in alone]
    # all programs of one root begin at one state, whose tensors stand for the root's leaves in order
    names: list[Mapping[Tensor, Source]] = [
        {x: tensors[y] for one in programs[:1] for (x, _), y in zip(one.path[0].nodes, leaves, strict=True)}
        for leaves, programs in alone
    ]
    yield from map(first.after_joint_step, joined(first.compute_bound(min_intensity)))
    # one path for each root, all by the same rules
    choices = (
        paths
        for rules in paths_by_rules[0]
        if all(rules in other for other in paths_by_rules)
        for paths in product(*(grouped[rules][:PATHS_PER_RULES] for grouped in paths_by_rules))
    )
    merged = (
        state.after_joint_step(step)
        for paths in islice(choices, MAX_PATH_CHOICES)
        for state in (_replay_paths(first, paths, names),)
        for step in joined(state.compute_bound(min_intensity))
    )
    yield from islice(merged, MAX_MERGED_STATES)


def _replay_paths(
    first: State, paths: Sequence[Sequence[State]], names: Sequence[Mapping[Tensor, Source]]
) -> State:
    """Return the state after each root went its own path, one root after the other.

    `names` has for each root {tensor of its own derivation: tensor of the joint one}.
    """
    current = first
    for number, path in enumerate(paths):
        for state in path[1:]:
            root = read_through(replace_tensors(state.roots[0], names[number]))
            roots = (*current.roots[:number], root, *current.roots[number + 1 :])
            current = State(roots, current.nodes, (*current.applied, state.applied[-1]), current)
    return current


def _group_paths(programs: Sequence[DerivedProgram]) -> Mapping[tuple[str, ...], list[Sequence[State]]]:
    """Return {names of the applied rules: paths}, each path cut before anything became an operator."""
    grouped: dict[tuple[str, ...], dict[tuple[Any, ...], Sequence[State]]] = {}
    for program in programs:
        path = [state for state in program.path if len(state.nodes) == len(program.path[0].nodes)]
        rules = tuple(state.applied[-1].rule for state in path[1:])
        if rules:
            grouped.setdefault(rules, {}).setdefault(path[-1].key, path)
    return {rules: list(paths.values()) for rules, paths in grouped.items()}
