"""Make instances that single changes do not reach: several attributes right at once, or one large size.

`verify_rule` tries them after the instances that examples and single changes give.  The words factor, level
and triple are those of `covering_array`; a `Mutation` holds types and attributes that are changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.graph.ir.node import Node, source
from tensaurus.ops import TensorType
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.test.coverage import Dimension, flatten_attributes
from tensaurus.rules.test.covering_array import Factor, Triple
from tensaurus.rules.test.draw_types import Assignment
from tensaurus.rules.test.instances import Instance, InstanceMaker
from tensaurus.rules.test.mutate_instance import Mutation
from tensaurus.rules.test.thresholds import comparisons_in, sizes_where_answers_change

__all__ = ["combine_attributes", "large_instances"]

TRIES_PER_COMBINATION = 4  # draws of one combination before it is given up
BASE_CANDIDATES = 6  # random instances, of which the one that shares most levels is changed
MAX_RESIZES = 2  # other sizes that are changed at the same time
MAX_LARGE_SIZE = 5000  # largest size of a large instance
MIN_LARGE_SIZE = 500  # smallest large size where the law names no number
MAX_ELEMENTS = 1 << 14  # of one tensor with a large size


def combine_attributes(maker: InstanceMaker, tries: int) -> Iterator[Instance]:
    """Yield instances with combinations of levels (see `covering_array`) that no instance has had."""
    waiting: list[Triple] = []
    while tries > 0 and maker.made:
        if not waiting:
            waiting = maker.covering.missing_triples()
            maker.rng.shuffle(waiting)
            if not waiting:
                return
        triple = waiting.pop()
        for _ in range(TRIES_PER_COMBINATION):
            if maker.covering.contains(triple):
                break
            tries -= 1
            instance = _instance_with(maker, triple)
            if instance is not None:
                yield instance
        else:
            maker.covering.given_up.add(triple)


def _instance_with(maker: InstanceMaker, triple: Triple) -> Instance | None:
    """Return an instance with the levels of the triple, made from an instance that has most of them."""
    rng = maker.rng
    drawn = [maker.made[int(rng.integers(len(maker.made)))] for _ in range(BASE_CANDIDATES)]
    change = maker.start_mutation(max(drawn, key=lambda one: _shared_levels(maker, one, triple)))
    for factor, level in triple:
        if not _set_level(change, factor, maker.covering.levels[factor][level]):
            return None
    fixed = [factor for factor, _ in triple]
    for _ in range(int(rng.integers(MAX_RESIZES + 1))):
        change.resize(apart=[(name, place) for name, place in fixed if place is not None])
    return maker.make_instance(change.types, change.values)


def _shared_levels(maker: InstanceMaker, instance: Instance, triple: Triple) -> int:
    row = maker.covering.row(instance.nodes, flatten_attributes(instance.values))
    return sum(factor in row and row[factor][0] == level for factor, level in triple)


def _set_level(change: Mutation, factor: Factor, value: Any) -> bool:
    """Set an attribute, or the size of a dimension; return whether that was possible."""
    name, place = factor
    if place is not None:  # a dimension, counted from the last: -1, -2, ...
        kind = change.types.get(name)
        if kind is None or kind.rank < -place:
            return False
        if kind.shape[place] != value:
            change.resize((name, place), new=value)
        return True
    return change.set_attribute(name, value)


def large_instances(maker: InstanceMaker, wanted: int, tries: int) -> Iterator[Instance]:
    """Yield up to `wanted` instances with one large size, near a threshold of the law or random."""
    rng = maker.rng
    for _ in range(tries):
        if wanted <= 0:
            return
        change = _start_mutation(maker)
        places = [(name, k) for name, kind in change.types.items() for k in range(-kind.rank, 0)]
        if not places:
            continue
        place = places[int(rng.integers(len(places)))]
        for _ in range(int(rng.integers(MAX_RESIZES + 1))):
            change.resize(apart=[place], new=int(rng.integers(1, 4)))
        sizes = sizes_near_thresholds(maker.rule, change, place)
        any_size = not sizes or rng.random() < 0.3
        new = int(rng.integers(MIN_LARGE_SIZE, MAX_LARGE_SIZE + 1)) if any_size else int(rng.choice(sizes))
        change.resize(place, new=new)
        instance = maker.make_instance(change.types, change.values, largest=MAX_ELEMENTS)
        if instance is not None:
            wanted -= 1
            yield instance


def _start_mutation(maker: InstanceMaker) -> Mutation:
    """Return a mutation of an instance, or of random types: a law may have no small instance."""
    if maker.made and maker.rng.random() < 0.8:
        return maker.start_mutation(maker.made[int(maker.rng.integers(len(maker.made)))])
    drawn = Assignment(maker.rule, maker.rng)
    drawn.draw(maker.applications, {})
    return maker.mutation(drawn.types, drawn.values)


def sizes_near_thresholds(rule: Rule, change: Mutation, place: Dimension) -> list[int]:
    """Return sizes of this dimension near the law's numbers, and near where the law's comparisons change."""

    def nodes_at(size: int) -> dict[str, Node]:
        nodes = {name: source(name, kind) for name, kind in change.types.items()}
        name, where = place
        shape = [*change.types[name].shape]
        shape[where] = size
        return {**nodes, name: source(name, TensorType(change.types[name].dtype, tuple(shape)))}

    comparisons = comparisons_in(rule)
    found: list[int] = []
    if comparisons:
        found = sizes_where_answers_change(comparisons, nodes_at, change.values, MAX_LARGE_SIZE)
    named = [n for n in change.law_integers if 1 < n <= MAX_LARGE_SIZE]
    return [n + step for n in (*named, *found) for step in (-1, 0, 1) if n + step > 0]
