"""Derives several expressions of one tensor together, so that they can become one operator.

    MatMul(x, w), MatMul(x, v)   ->   start state  E[i, j], E[i, 8 + j],  E = L[i, k](sum[c](x[i, c] * ...))

A search over all expressions at once would spend its budget on each of them alone.  So it begins at states in
which some of the expressions are merged already (`merge_expressions`): as they are, or after the rules that
helped each of them when it was derived alone.

A root is one of the expressions; a path is the states from a root to a program that was found for it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

from tensaurus.expr.ir.scope import Scope, Source, Tensor
from tensaurus.expr.ir.walk import replace_tensors
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.finders.derive.derivation_state import State
from tensaurus.finders.derive.linear_regions import LinearRegion
from tensaurus.finders.derive.merge_expressions import joined
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.graph.ir.node import Node

__all__ = ["search_region"]

PATHS_PER_RULES = 2  # paths of one expression, by the same sequence of rules, that are tried
MAX_MERGED_STATES = 8  # start states in which something was rewritten before it was merged
MAX_PATH_CHOICES = 64  # choices of one path for each expression that are tried to find these states


class _RootPrograms(NamedTuple):
    """The leaves of one root, and the programs that were found for the root alone, over their own tensors."""

    leaves: Sequence[Node]
    programs: Sequence[DerivedProgram]


def search_region(
    region: LinearRegion, roots: Sequence[Scope], nodes: Sequence[tuple[Tensor, Node]], search: Search,
    single_programs: Sequence[Sequence[DerivedProgram]]
) -> list[DerivedProgram]:
    """Return the programs found for a region's expressions, the fastest first.

    `single_programs` are the programs that were found for each of the region's products alone.
    """
    if len(roots) == 1:
        return search.run(roots, nodes)
    alone = [
        _RootPrograms([region.names[leaf] for leaf in single.leaves], programs)
        for single, programs in zip(region.single_regions, single_programs, strict=True)
    ]
    return search.run(roots, nodes, _start_states(roots, nodes, alone, search.min_intensity))


def _start_states(
    roots: Sequence[Scope], nodes: Sequence[tuple[Tensor, Node]], alone: Sequence[_RootPrograms],
    min_intensity: float
) -> Iterator[State]:
    """Yield states in which parts of several roots are merged.

    First come merges of the roots as they are, then merges after the same sequence of rules was applied to
    each root, taken from the path to a program that was found for it alone.  Expressions are merged that
    take at least `min_intensity` operations for each element moved.
    """
    first = State(tuple(map(read_through, roots)), tuple(nodes))
    yield from _merge_stages(first, min_intensity)
    tensor_of = {node: x for x, node in nodes}
    renamings = [_rename_tensors(root, tensor_of) for root in alone]
    paths = islice(_equal_paths(alone), MAX_PATH_CHOICES)
    merged = (s for choice in paths for s in _merge_stages(_follow(first, choice, renamings), min_intensity))
    yield from islice(merged, MAX_MERGED_STATES)


def _merge_stages(state: State, min_intensity: float) -> Iterator[State]:
    return map(state.after_joint_step, joined(state.compute_bound_stages(min_intensity)))


def _rename_tensors(root: _RootPrograms, tensor_of: Mapping[Node, Tensor]) -> Mapping[Tensor, Source]:
    """Return {tensor of the root's own derivation: tensor of the joint one}, by the leaves in their order."""
    if not root.programs:
        return {}
    own_nodes = root.programs[0].path[0].nodes  # all programs of one root begin at one state
    return {x: tensor_of[leaf] for (x, _), leaf in zip(own_nodes, root.leaves, strict=True)}


def _equal_paths(alone: Sequence[_RootPrograms]) -> Iterator[tuple[Sequence[State], ...]]:
    """Yield choices of one path for each root, all by the same sequence of rules."""
    paths_by_rules = [_group_paths(root.programs) for root in alone]
    for rules in paths_by_rules[0]:
        if all(rules in paths for paths in paths_by_rules):
            yield from product(*(paths[rules][:PATHS_PER_RULES] for paths in paths_by_rules))


def _follow(
    first: State, paths: Sequence[Sequence[State]], renamings: Sequence[Mapping[Tensor, Source]]
) -> State:
    """Return the state after each root went its own path, one root after the other."""
    current = first
    for number, path in enumerate(paths):
        for state in path[1:]:
            root = read_through(replace_tensors(state.roots[0], renamings[number]))
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
