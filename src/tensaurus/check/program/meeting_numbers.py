"""Numbers that the inputs of programs meet: what is computed from them is compared with a constant there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tensaurus.check.program.replay_sizes import Sizes, shape_at, size_choices
from tensaurus.expr.analysis.turning_points import Watched, turning_points
from tensaurus.expr.evaluate.fields import Array, Field
from tensaurus.expr.ir.integer_types import is_integer, limits
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import evaluate_all
from tensaurus.runtimes.price.operation_counts import operations

__all__ = ["met", "unspecified"]

UNKNOWN = 4  # of every dimension that is not known, where work is estimated
MOST = 1e8  # scalar operations of both programs, beyond which nobody watches what their inputs meet
LONG = 2**62  # the largest integer that an input is filled with
SHIFTS = 0, 0x5555_5555_5555_5555, -0x5555_5555_5555_5555  # three numbers, of both signs in every type


def met(programs: Sequence[Program], names: Sequence[str], seed: int = 0) -> dict[str, list[float]]:
    """Of each of these inputs the numbers at which something that a program computes from it turns.

    Inputs are filled with one number after the other, beside others that are small.  None are found where the
    programs are not evaluated, and of inputs that name places none beyond these.
    """
    if sum(operations(node, UNKNOWN) for program in programs for node in program.active) > MOST:
        return {}
    rng = np.random.default_rng(seed)
    inputs = {node.attribute("name"): node for program in programs for node in program.inputs}
    if not all(isinstance(node.types[0], TensorType) for node in inputs.values()):
        return {}
    sizes = next(iter(size_choices(programs)))
    base = {name: _plain(node, sizes, rng) for name, node in inputs.items()}
    filled = [name for name in names if prod(base[name].shape)]
    found = {name: _points(programs, sizes, base, name, inputs[name]) for name in filled}
    return {name: points for name, points in found.items() if points}


def unspecified(program: Program, name: str, feeds: Mapping[str, Array], field: Field, sizes: Sizes) -> Array:
    """Which elements of an output depend on what nothing specifies (a quotient by the integer 0): those
    that differ where other numbers stand in for it.  A single True, of no dimensions, is all of them."""
    alone = replace(program, outputs=tuple(pair for pair in program.outputs if pair[0] == name))
    field = copy(field)
    found = np.asarray(False)
    first: Any = None
    for shift in SHIFTS:
        field.shift = shift
        try:
            value = evaluate_all([alone], feeds, field, sizes=sizes)[0][name]
        except BackendError:  # a place that there is not, computed from it
            return np.asarray(True)
        if first is None:
            first = value
        elif not isinstance(value, np.ndarray) or not isinstance(first, np.ndarray):
            found = found | (value != first)
        elif value.shape != first.shape:
            return np.asarray(True)
        else:
            found = found | (value != first) & ~((value != value) & (first != first))
    return np.asarray(found)


def _plain(node: Node, sizes: Sizes, rng: np.random.Generator) -> Array:
    kind = node.tensor
    shape = shape_at(kind, sizes)
    if kind.dtype.startswith(("float", "bfloat")):
        return np.asarray(rng.standard_normal(shape))
    drawn = rng.integers(0, 2, shape)
    return np.asarray(drawn, bool if kind.dtype == "bool" else np.int64)


def _points(
    programs: Sequence[Program], sizes: Sizes, base: Mapping[str, Array], name: str, node: Node
) -> list[float]:
    dtype = node.tensor.dtype
    whole = is_integer(dtype)

    def gaps_at(number: float) -> Array | None:
        watched = Watched()
        filled = np.full(base[name].shape, int(number) if whole else number, base[name].dtype)
        try:
            evaluate_all(programs, {**base, name: filled}, watched, sizes=sizes)
        except BackendError:  # a place that there is not
            return None
        return watched.gaps

    if not whole:
        return turning_points(gaps_at)
    low, high = limits(dtype)
    return turning_points(gaps_at, max(low, -LONG), min(high, LONG), whole=True)
