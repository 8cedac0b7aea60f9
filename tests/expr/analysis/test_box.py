"""Boxes against sets of index tuples."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.analysis.box import (
    Box,
    Progression,
    difference,
    full_box,
    intersect_progressions,
    intersection,
    interval_progression,
    is_empty,
    is_partition,
    split_into_progressions,
    subtract_boxes,
    subtract_progression,
)
from tensaurus.expr.sizes.size import Symbol, evaluate, polynomial

sides = st.builds(Progression, st.integers(-6, 6), st.integers(-1, 9), st.integers(1, 6))
boxes = st.lists(sides, min_size=2, max_size=2).map(lambda s: Box(tuple(s)))

N, K = (polynomial(Symbol(name, 1)) for name in "NK")


def members(side: Progression, sizes: dict[Any, int] | None = None) -> set[int]:
    start, count = (evaluate(n, (sizes or {}).__getitem__) for n in (side.start, side.count))
    return {start + side.step * k for k in range(count)}


def places(box: Box) -> set[tuple[int, ...]]:
    return set(product(*map(members, box.sides)))


@given(sides, sides)
@settings(max_examples=400)
def test_progressions_are_sets(a: Progression, b: Progression) -> None:
    common = intersect_progressions(a, b)
    assert common is not None and members(common) == members(a) & members(b)
    rest = subtract_progression(a, b)
    assert rest is not None and all(side.count != 0 for side in rest)
    assert sum(len(members(side)) for side in rest) == len(members(a) - members(b))
    assert set().union(*map(members, rest)) == members(a) - members(b)
    assert all((i in a) == (i in members(a)) for i in range(-20, 60))
    assert (a == b) == (members(a) == members(b))


@given(boxes, boxes)
@settings(max_examples=200)
def test_intersections_and_differences_are_those_of_sets(a: Box, b: Box) -> None:
    common = intersection(a, b)
    assert common is not None and places(common) == places(a) & places(b)
    assert is_empty(a) == (not places(a)) and a.points == len(places(a))
    rest = difference(a, b)
    assert rest is not None
    assert sum(len(places(piece)) for piece in rest) == len(places(a) - places(b))
    assert set().union(*map(places, rest)) == places(a) - places(b)
    assert is_partition([*rest, common], a)


@given(boxes, st.lists(boxes, max_size=4))
@settings(max_examples=300)
def test_partitions_are_told(box: Box, others: list[Box]) -> None:
    rest = subtract_boxes(box, others)
    assert rest is not None
    assert set().union(*map(places, rest)) == places(box) - set().union(*map(places, others))
    every = [place for other in others for place in places(other)]
    assert is_partition(others, box) == (len(every) == len(set(every)) and set(every) == places(box))
    assert is_partition(rest, box) == (places(box).isdisjoint(every))


@given(st.sets(st.integers(0, 30)))
@settings(max_examples=200)
def test_indices_are_few_progressions(indices: set[int]) -> None:
    found = list(split_into_progressions(np.array(sorted(indices), int)))
    assert sorted(i for side in found for i in members(side)) == sorted(indices)
    assert len(found) <= max(1, len(indices))


def test_runs_and_lattices_are_one_progression_each() -> None:
    assert [str(s) for s in split_into_progressions(np.array([2, 4, 6, 8]))] == ["2:9:2"]
    assert [str(s) for s in split_into_progressions(np.array([0, 2, 3, 4, 5]))] == ["0:1", "2:6"]
    assert list(split_into_progressions(np.array([], int))) == []


def test_rank_0_has_one_place() -> None:
    assert full_box(()).points == 1 and () in full_box(())
    assert difference(full_box(()), full_box(())) == () and is_partition([full_box(())], full_box(()))
    assert is_partition([], full_box(())) is False


@pytest.mark.parametrize("start", [0, 1, N, N - 1])
@pytest.mark.parametrize("stop", [0, 2, K, N, N + K])
@pytest.mark.parametrize("low", [0, K, 3])
def test_symbolic_intervals_hold_for_all_symbols(start: Any, stop: Any, low: Any) -> None:
    a, b = interval_progression(start, stop), interval_progression(low, N + 2)
    common, rest = intersect_progressions(a, b), subtract_progression(a, b)
    assert common is not None and rest is not None
    for n, k in product(range(1, 6), repeat=2):
        sizes = {Symbol("N", 1): n, Symbol("K", 1): k}
        first, second = members(a, sizes), members(b, sizes)
        assert members(common, sizes) == first & second
        pieces = [members(side, sizes) for side in rest]
        assert set().union(*pieces) == first - second
        assert sum(map(len, pieces)) == len(first - second)


def test_what_symbols_do_not_decide_is_none() -> None:
    assert is_empty(full_box((N,))) is False and is_empty(full_box((N - 1,))) is None
    lattice = Box((Progression(0, N, 2),))
    assert intersection(lattice, full_box((K,))) is None and difference(lattice, full_box((K,))) is None
    assert is_partition([full_box((N,)), Box((interval_progression(N, N + K),))], full_box((N + K,))) is True
    assert is_partition([full_box((N,))], full_box((K,))) is None
    with pytest.raises(ValueError, match="symbols"):
        assert 3 in Progression(0, N)
    with pytest.raises(ValueError, match="step"):
        Progression(0, 3, 0)
