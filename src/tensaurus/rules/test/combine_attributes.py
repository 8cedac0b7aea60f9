"""Instances that single changes do not reach: several attributes right at once, and one size of hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensaurus.graph.ir.node import Node, source
from tensaurus.ops import TensorType
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.test.coverage import Dimension, flat
from tensaurus.rules.test.covering_array import Factor, Triple
from tensaurus.rules.test.draw_types import Assignment
from tensaurus.rules.test.instances import Instance, Maker
from tensaurus.rules.test.mutate_instance import Change
from tensaurus.rules.test.thresholds import compared, turns

__all__ = ["combined", "large"]

AGAIN = 4  # tries of one combination
BASES = 6  # instances of which the one that is nearest to it is changed
RESIZED = 2  # sizes that are changed beside it at most
LONGEST = 5000  # a large size
LONG = 500  # at least, where the law names none
ELEMENTS = 1 << 14  # of one tensor with a large size


def combined(maker: Maker, tries: int) -> Iterator[Instance]:
    """Instances of so many draws that have what none has had at once: see `covering`."""
    waiting: list[Triple] = []
    while tries > 0 and maker.made:
        if not waiting:
            waiting = maker.covering.missing()
            maker.rng.shuffle(waiting)
            if not waiting:
                return
        triple = waiting.pop()
        for _ in range(AGAIN):
            if maker.covering.has(triple):
                break
            tries -= 1
            instance = _like(maker, triple)
            if instance is not None:
                yield instance
        else:
            maker.covering.given_up.add(triple)


def _like(maker: Maker, triple: Triple) -> Instance | None:
    """One with the levels of the triple, made of an instance that has most of them."""
    rng = maker.rng
    drawn = [maker.made[int(rng.integers(len(maker.made)))] for _ in range(BASES)]
    change = maker.change_of(max(drawn, key=lambda one: _likeness(maker, one, triple)))
    for factor, level in triple:
        if not _put(change, factor, maker.covering.levels[factor][level]):
            return None
    fixed = [factor for factor, _ in triple]
    for _ in range(int(rng.integers(RESIZED + 1))):
        change.resize(apart=[(name, place) for name, place in fixed if place is not None])
    return maker.instance(change.types, change.values)


def _likeness(maker: Maker, instance: Instance, triple: Triple) -> int:
    row = maker.covering.row(instance.nodes, flat(instance.values))
    return sum(factor in row and row[factor][0] == level for factor, level in triple)


def _put(change: Change, factor: Factor, value: Any) -> bool:
    """Whether the change now has the value there."""
    name, place = factor
    if place is not None:
        kind = change.types.get(name)
        if kind is None or kind.rank < -place:
            return False
        if kind.shape[place] != value:
            change.resize((name, place), new=value)
        return True
    return change.put(name, value)


def large(maker: Maker, wanted: int, tries: int) -> Iterator[Instance]:
    """Up to so many of these tries with one size of hundreds: around what the law compares, or any."""
    rng = maker.rng
    for _ in range(tries):
        if wanted <= 0:
            return
        change = _base(maker)
        places = [(name, k) for name, kind in change.types.items() for k in range(-kind.rank, 0)]
        if not places:
            continue
        place = places[int(rng.integers(len(places)))]
        for _ in range(int(rng.integers(RESIZED + 1))):
            change.resize(apart=[place], new=int(rng.integers(1, 4)))
        sizes = thresholds(maker.rule, change, place)
        any_size = not sizes or rng.random() < 0.3
        new = int(rng.integers(LONG, LONGEST + 1)) if any_size else int(rng.choice(sizes))
        change.resize(place, new=new)
        instance = maker.instance(change.types, change.values, largest=ELEMENTS)
        if instance is not None:
            wanted -= 1
            yield instance


def _base(maker: Maker) -> Change:
    """An instance to be changed, or types that are none as they are: there may be small ones of no law."""
    if maker.made and maker.rng.random() < 0.8:
        return maker.change_of(maker.made[int(maker.rng.integers(len(maker.made)))])
    drawn = Assignment(maker.rule, maker.rng)
    drawn.draw(maker.applications, {})
    return Change(drawn.types, drawn.values, maker.applications, maker.rng, maker.tied, maker.whole)


def thresholds(rule: Rule, change: Change, place: Dimension) -> list[int]:
    """Sizes at this place around the law's numbers, and around where its comparisons turn."""

    def nodes_at(size: int) -> dict[str, Node]:
        nodes = {name: source(name, kind) for name, kind in change.types.items()}
        name, where = place
        shape = [*change.types[name].shape]
        shape[where] = size
        return {**nodes, name: source(name, TensorType(change.types[name].dtype, tuple(shape)))}

    comparisons = compared(rule)
    found = turns(comparisons, nodes_at, change.values, LONGEST) if comparisons else []
    named = [n for n in change.numbers if 1 < n <= LONGEST]
    return [n + step for n in (*named, *found) for step in (-1, 0, 1) if n + step > 0]
