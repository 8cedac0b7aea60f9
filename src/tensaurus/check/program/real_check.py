"""Compares two programs in float64, for laws that hold in no other field or have no error bound there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensaurus.check.inputs.integer_uses import Limits, shared_index_limits
from tensaurus.check.program.field_check import FieldCheck
from tensaurus.check.program.meeting_numbers import find_meeting_numbers, unspecified_elements
from tensaurus.check.program.replay_sizes import Sizes, shape_at, size_choices
from tensaurus.expr.analysis.breaking_values import draw_integers, draw_integers_near
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.integer_types import is_integer, to_int64
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import evaluate_all

__all__ = ["check_reals"]

TOLERANCE = 1e-9  # of float64 results, relative to the largest element: about 10^7 roundings of it
TINY = 1e-300  # absolute tolerance: smaller numbers count as 0
DRAWS = 8  # draws of the inputs; the first one has small integers, at which both programs must be valid


def _draw_inputs(
    program: Program,
    sizes: Sizes,
    rng: np.random.Generator,
    near: Mapping[str, Sequence[float]],
    index_limits: Mapping[str, Limits],
    from_whole_type: bool,
) -> dict[str, np.ndarray[Any, Any]]:
    return {
        (name := node.attribute("name")): _draw_input(
            node.tensor, sizes, rng, near.get(name, []), index_limits.get(name), from_whole_type
        )
        for node in program.inputs
    }


def check_reals(a: Program, b: Program, seed: int) -> FieldCheck:
    """Compare two programs in float64, at numbers near the turning points of their inputs and at others.

    Inputs that hold indices are drawn from the indices that are valid in both programs.
    """
    index_limits = shared_index_limits(a, b)
    names = [
        name
        for node in a.inputs
        if node.tensor.dtype != "bool" and (name := node.attribute("name")) not in index_limits
    ]
    near = find_meeting_numbers([a, b], names, seed)
    for draw in range(DRAWS):
        # evaluate both programs at the first sizes that fit; by `bool(draw)` all draws but the first take
        # integers of the whole type, and numbers near turning points
        outputs: list[dict[str, Any]] = []
        reason = ""
        for sizes in size_choices([a, b]):
            rng = np.random.default_rng([seed, draw])
            feeds = _draw_inputs(a, sizes, rng, near, index_limits, bool(draw))
            try:
                outputs = evaluate_all([a, b], feeds, Reals(), sizes=sizes)
                break
            except BackendError as error:
                reason = reason or str(error)
        if not outputs and not draw:
            return FieldCheck(False, 0, 0, 1.0, reason)
        if not outputs:  # the integers drawn are indices that do not exist
            continue
        # compare output by output; elements that nothing specifies may differ
        left, right = outputs
        for name, value in left.items():
            shapes = np.shape(value), np.shape(right[name])
            if shapes[0] != shapes[1]:
                unspecified = unspecified_elements(a, name, feeds, Reals(), sizes)
                if draw and unspecified.ndim == 0 and unspecified:
                    continue
                return FieldCheck(False, 1, 0, 1.0, f"shapes differ in float64: {shapes[0]} and {shapes[1]}")
            largest = np.max(np.abs(value), initial=0.0, where=np.isfinite(value))
            same = np.isclose(right[name], value, rtol=0, atol=TOLERANCE * largest + TINY, equal_nan=True)
            if not same.all() and draw:
                same |= unspecified_elements(a, name, feeds, Reals(), sizes)
            if not same.all():
                return FieldCheck(False, 1, 0, 1.0, f"{int((~same).sum())} elements differ in float64")
    return FieldCheck(True, 1, 0, 1.0)


def _draw_input(
    kind: TensorType,
    sizes: Sizes,
    rng: np.random.Generator,
    near: Sequence[float],
    index_limits: Limits | None,
    from_whole_type: bool,
) -> np.ndarray[Any, Any]:
    """Draw one input: within its index limits, or else integers from their whole type or small ones."""
    shape = shape_at(kind, sizes)
    if index_limits is not None:
        return np.asarray(rng.integers(*index_limits, shape, endpoint=True))
    if kind.dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if is_integer(kind.dtype):
        if from_whole_type:
            draw = draw_integers_near if near and rng.random() < 0.5 else draw_integers
            return to_int64(draw(kind.dtype, shape, rng, [int(n) for n in near]))
        return np.asarray(rng.integers(0, 10, shape))
    plain = np.asarray(rng.standard_normal(shape) * 4)
    if not near or not from_whole_type:
        return plain
    # next to turning points: at the point itself rounding decides on which side a result lies
    beside = np.asarray([n + step * max(1, abs(n)) for n in near for step in (-1 / 64, 1 / 64)])
    return np.where(rng.random(shape) < 0.5, rng.choice(beside, shape), plain)
