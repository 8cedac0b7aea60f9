"""Compares two programs in float64, for laws that hold in no other field or have no error bound there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
        try:
            outcome = _evaluate_at_draw(a, b, [seed, draw], near, index_limits, from_whole_type=bool(draw))
        except BackendError as error:
            if not draw:
                return FieldCheck(False, 0, 0, 1.0, str(error))
            continue  # the integers drawn are indices that do not exist
        for name in outcome.left:
            # at small integers, as in the first draw, every element is specified
            if difference := _difference(a, name, outcome, may_be_unspecified=bool(draw)):
                return FieldCheck(False, 1, 0, 1.0, difference)
    return FieldCheck(True, 1, 0, 1.0)


class _Outcome(NamedTuple):
    """One draw of the inputs, and the outputs of both programs by name."""

    sizes: Sizes
    feeds: dict[str, np.ndarray[Any, Any]]
    left: dict[str, Any]
    right: dict[str, Any]


def _evaluate_at_draw(
    a: Program,
    b: Program,
    seeds: Sequence[int],
    near: Mapping[str, Sequence[float]],
    index_limits: Mapping[str, Limits],
    from_whole_type: bool,
) -> _Outcome:
    """Evaluate both programs at the first sizes that fit.  Raises BackendError where none do."""
    reason: BackendError | None = None
    for sizes in size_choices([a, b]):
        rng = np.random.default_rng(seeds)
        feeds = {
            (name := node.attribute("name")): _draw_input(
                node.tensor, sizes, rng, near.get(name, []), index_limits.get(name), from_whole_type
            )
            for node in a.inputs
        }
        try:
            left, right = evaluate_all([a, b], feeds, Reals(), sizes=sizes)
            return _Outcome(sizes, feeds, left, right)
        except BackendError as error:
            reason = reason or error
    raise reason or BackendError("")


def _difference(a: Program, name: str, outcome: _Outcome, may_be_unspecified: bool) -> str:
    """Return in words how an output differs, "" where it does not: unspecified elements may differ."""
    value, other = outcome.left[name], outcome.right[name]

    def unspecified() -> np.ndarray[Any, Any]:
        return unspecified_elements(a, name, outcome.feeds, Reals(), outcome.sizes)

    if np.shape(value) != np.shape(other):
        if may_be_unspecified and (found := unspecified()).ndim == 0 and found:
            return ""
        return f"shapes differ in float64: {np.shape(value)} and {np.shape(other)}"
    largest = np.max(np.abs(value), initial=0.0, where=np.isfinite(value))
    same = np.isclose(other, value, rtol=0, atol=TOLERANCE * largest + TINY, equal_nan=True)
    if not same.all() and may_be_unspecified:
        same |= unspecified()
    return "" if same.all() else f"{int((~same).sum())} elements differ in float64"


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
