"""Finds the numbers near which a model may turn, and draws inputs from them: feeds of the kind "edges".

Of a model with Clip(x, 0, 6) the float input x gets numbers around 0 and 6.  An input holds a group of them
at once; where all groups have no room in one feed, there are several feeds, each with the next group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from onnx import ModelProto

from tensaurus.check.inputs.feed import InputValues
from tensaurus.check.inputs.model_constants import (
    HUGE_NUMBER,
    NUMBERS_BESIDE_ONE,
    ModelConstants,
    numbers_beside,
)
from tensaurus.check.inputs.model_interface import dtype_of, is_float, required_inputs
from tensaurus.check.inputs.try_shapes import Shape
from tensaurus.expr.ir.integer_types import integer_limits
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array

MAX_EDGE_FEEDS = 4  # feeds of the kind "edges", which hold numbers near the models' constants
# Edge feeds of a model all of whose inputs together have at most SMALL_ELEMENTS elements.
MAX_SMALL_EDGE_FEEDS, SMALL_ELEMENTS = 24, 64
LOOP_COUNTS = (0, 1, 2, 3, 5)  # numbers of rounds of a Loop that are tried


def edge_indices(low: int, high: int, values: InputValues) -> list[int]:
    """Return the least and the largest index, 0, and the rows in which the models differ."""
    return list(dict.fromkeys([low, 0, high, *(row for row in values.rows if low <= row <= high)]))


def integers_beside(values: InputValues, name: str, low: int, high: int) -> list[int]:
    """Return numbers in the range: its ends, and those at most 1 away from a constant or a turning point."""
    constants = values.constants
    whole = [*constants.integers, *(round(number) for number in constants.numbers)]
    whole += [int(number) for number in values.uses.turning_numbers.get(name, ())]
    near = dict.fromkeys([low, low + 1, -1, 0, 1, high - 1, high])
    near.update(dict.fromkeys(n + step for n in whole for step in (-1, 0, 1)))
    return [n for n in near if low <= n <= high]


def floats_beside(constants: ModelConstants, dtype: np.dtype[np.generic]) -> list[float]:
    """Return the numbers beside constants that are finite in the type; 0 where there are none."""
    near = dict.fromkeys(n for number in constants.numbers for n in numbers_beside(number, dtype))
    with np.errstate(all="ignore"):
        fine = np.isfinite(np.asarray(list(near), np.float64).astype(dtype).astype(np.float64))
    return [n for n, kept in zip(near, fine, strict=True) if kept] or [0.0]


def _group_by_feed(candidates: Sequence[float], size: int) -> list[Sequence[float]]:
    """Cut the candidates into groups that an input holds at once; beside huge ones others have no effect."""
    plain = [n for n in candidates if abs(n) <= HUGE_NUMBER]
    rest = [n for n in candidates if abs(n) > HUGE_NUMBER]
    step = max(size, 1)
    return [part[k : k + step] for part in (plain, rest) for k in range(0, len(part), step)]


def draw_edges(candidates: Sequence[float], shape: Shape, part: int, rng: np.random.Generator) -> Array:
    """Return the numbers of one group, each at least once, at random positions."""
    groups = _group_by_feed(candidates, prod(shape))
    group = groups[part % len(groups)]
    exact = max(map(abs, group)) >= 2**53  # float64 would round the largest
    pool = np.asarray(group, object if exact else np.float64)
    return np.asarray(rng.permutation(pool[np.arange(prod(shape)) % len(pool)])).reshape(shape)


def _edge_groups(
    model: ModelProto, shapes: Mapping[str, Shape], values: InputValues
) -> Iterator[list[Sequence[float]]]:
    """Yield for each input the groups of numbers near constants that its edge feeds hold."""
    for value in required_inputs(model):
        dtype, size = dtype_of(value), prod(shapes[value.name])
        if dtype is None or dtype.kind in "bc" or not size:
            continue
        if is_float(value):
            yield _group_by_feed(floats_beside(values.constants, dtype), size)
        elif value.name in values.uses.index_limits:
            yield _group_by_feed(edge_indices(*values.uses.index_limits[value.name], values), size)
        elif value.name in values.uses.loop_counts:
            yield _group_by_feed(LOOP_COUNTS, size)
        elif value.name in values.uses.unrestricted:
            ends = integer_limits(dtype_name(value.type.tensor_type.elem_type))
            yield _group_by_feed(integers_beside(values, value.name, *ends), size)


def edge_feed_count(model: ModelProto, shapes: Mapping[str, Shape], values: InputValues) -> int:
    """Return how many edge feeds hold numbers near every constant for every input; at most the maximum."""
    most = max((len(groups) for groups in _edge_groups(model, shapes, values)), default=1)
    return min(most, _max_edge_feeds(shapes))


def _max_edge_feeds(shapes: Mapping[str, Shape]) -> int:
    return MAX_SMALL_EDGE_FEEDS if sum(map(prod, shapes.values())) <= SMALL_ELEMENTS else MAX_EDGE_FEEDS


def count_untried_constants(model: ModelProto, shapes: Mapping[str, Shape], values: InputValues) -> int:
    """Return how many constants no edge feed comes near; each has NUMBERS_BESIDE_ONE numbers in groups."""
    most = _max_edge_feeds(shapes)
    over = (sum(map(len, groups[most:])) for groups in _edge_groups(model, shapes, values))
    return values.constants.omitted_count + -(-max(over, default=0) // NUMBERS_BESIDE_ONE)
