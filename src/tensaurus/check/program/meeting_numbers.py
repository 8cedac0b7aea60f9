"""Finds numbers at which an input meets a constant of a program: a comparison, a rounding or the like turns.

Of x * 3 + 5 < 100 these are the numbers around 31: two programs may differ there and agree at all others.
A gap says how far such an operation is from turning: here 100 - (x * 3 + 5).  `turning_points` looks for
numbers at which a gap changes its sign.

`unspecified_elements` finds elements of outputs about which ONNX says nothing, as of integers divided by 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tensaurus.check.program.replay_sizes import Sizes, shape_at, size_choices
from tensaurus.expr.analysis.turning_points import GapRecorder, turning_points
from tensaurus.expr.evaluate.fields import Array, Field
from tensaurus.expr.ir.integer_types import integer_limits, is_integer
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import evaluate_all
from tensaurus.runtimes.price.operation_counts import operations

__all__ = ["find_meeting_numbers", "unspecified_elements"]

UNKNOWN_SIZE = 4  # stands for every open size where work is estimated
MAX_OPERATIONS = 1e8  # scalar operations of all programs together; larger ones are not searched for numbers
MAX_FILL = 2**62  # the largest integer with which an input is filled
# Bits that the field flips in each unspecified integer, as a quotient by 0: what differs with different bits
# depends on such an integer.  0, and a number of each sign in every integer type.
SHIFTS = 0, 0x5555_5555_5555_5555, -0x5555_5555_5555_5555


def find_meeting_numbers(
    programs: Sequence[Program], names: Sequence[str], seed: int = 0
) -> dict[str, list[float]]:
    """Return for each of these inputs the numbers at which something that a program computes from it turns.

    The input is filled with one number after the other, beside small other inputs.  No numbers are found
    where the programs cannot be evaluated: for an input that holds indices, none beyond the valid indices.
    """
    if (
        sum(operations(node, UNKNOWN_SIZE) for program in programs for node in program.active)
        > MAX_OPERATIONS
    ):
        return {}
    rng = np.random.default_rng(seed)
    inputs = {node.attribute("name"): node for program in programs for node in program.inputs}
    if not all(isinstance(node.types[0], TensorType) for node in inputs.values()):
        return {}
    sizes = next(iter(size_choices(programs)))
    base = {name: _small_values(node, sizes, rng) for name, node in inputs.items()}
    filled = [name for name in names if prod(base[name].shape)]
    found = {name: _turning_points_of(programs, sizes, base, name, inputs[name]) for name in filled}
    return {name: points for name, points in found.items() if points}


def unspecified_elements(
    program: Program, name: str, feeds: Mapping[str, Array], field: Field, sizes: Sizes
) -> Array:
    """Return which elements of an output are unspecified: those that depend on a quotient by the integer 0.

    They differ if another number stands in for the quotient.  A True of no dimensions means all elements.
    """
    alone = replace(program, outputs=tuple(pair for pair in program.outputs if pair[0] == name))
    field = copy(field)
    found = np.asarray(False)
    first: Any = None
    for shift in SHIFTS:
        field.flipped_bits = shift
        try:
            value = evaluate_all([alone], feeds, field, sizes=sizes)[0][name]
        except BackendError:  # the unspecified number is an index that does not exist
            return np.asarray(True)
        # each later result is compared with the first one
        if first is None:
            first = value
        elif not isinstance(value, np.ndarray) or not isinstance(first, np.ndarray):
            found = found | (value != first)
        elif value.shape != first.shape:
            return np.asarray(True)
        else:
            found = found | (value != first) & ~((value != value) & (first != first))  # two NaN are equal
    return np.asarray(found)


def _small_values(node: Node, sizes: Sizes, rng: np.random.Generator) -> Array:
    kind = node.tensor
    shape = shape_at(kind, sizes)
    if kind.dtype.startswith(("float", "bfloat")):
        return np.asarray(rng.standard_normal(shape))
    drawn = rng.integers(0, 2, shape)
    return np.asarray(drawn, bool if kind.dtype == "bool" else np.int64)


def _turning_points_of(
    programs: Sequence[Program], sizes: Sizes, base: Mapping[str, Array], name: str, node: Node
) -> list[float]:
    """Return the numbers at which something turns if the input `name` is filled with one number."""
    dtype = node.tensor.dtype
    whole = is_integer(dtype)

    def gaps_at(number: float) -> Array | None:
        """The gap of every operation that may turn, where the input is filled with a number."""
        watched = GapRecorder()
        filled = np.full(base[name].shape, int(number) if whole else number, base[name].dtype)
        try:
            evaluate_all(programs, {**base, name: filled}, watched, sizes=sizes)
        except BackendError:  # the number is an index that does not exist
            return None
        return watched.gaps

    if not whole:
        return turning_points(gaps_at)
    low, high = integer_limits(dtype)
    return turning_points(gaps_at, max(low, -MAX_FILL), min(high, MAX_FILL), whole=True)
