"""Compare both sides of a rule on its instances, and return the first counterexample.

Elements are drawn for the leaves (`draw_elements`), and both sides are evaluated in a field.  A difference
does not count where numbers overflow, where results are NaN whatever the inputs are, and where the left side
converts a number in a way that machines do differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from tensaurus.expr.evaluate.fields import Array, Field, Reals
from tensaurus.expr.ir.integer_types import Overflow, integer_limits, is_integer
from tensaurus.graph.ir.node import Node
from tensaurus.rules.test.counterexample import Counterexample, results_differ
from tensaurus.rules.test.draw_elements import ElementDraws, draw_leaf_values, evaluate_roots
from tensaurus.rules.test.instances import Instance

__all__ = ["compare", "compare_once", "find_counterexample", "to_indices"]

T = TypeVar("T")

TAME_LIMIT = 8.0  # magnitude at which exp and similar functions are far below the largest float
SCALES = 1.0, -1.0, 0.25  # factors of inputs: some are in the domain of every function
INDEX_SPANS = (3, 2, 1)  # sizes of a dimension to which indices are limited


def find_counterexample(
    instances: Sequence[Instance], fields: Sequence[Field], draws: ElementDraws
) -> Counterexample | None:
    """Return the first instance on which the sides differ, None where there is none."""
    for place, instance in enumerate(instances):
        for trial, field in enumerate(fields):
            rng = np.random.default_rng((draws.seed, place, trial))
            values = draw_leaf_values(instance, field, rng, draws)
            if (shown := compare(instance, values, field)) is not None:
                return shown
    return None


def compare(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    """Return where the sides differ.

    A difference that is not finite is tried again at smaller values: float64 may have overflowed.  A result
    that is NaN in float64, such as the mean of no elements, has no value in another field either.
    """
    shown = compare_once(instance, values, field)
    if shown is None or not isinstance(field, Reals) and _is_undefined(shown):
        return None
    if isinstance(field, Reals) and _has_unspecified_conversion(shown):
        return None
    if shown.is_finite:
        return shown
    return compare_once(instance, {leaf: _limit_magnitude(v) for leaf, v in values.items()}, field)


def _has_unspecified_conversion(shown: Counterexample) -> bool:
    """Return whether the left side converts a number to a type that lacks it: machines then differ.

    If only the right side does, the rule is wrong.
    """
    values = {shown.instance.nodes[name]: value for name, value in shown.inputs.items()}
    try:
        evaluate_roots(shown.instance.left, values, Reals(strict=True))
    except Overflow:
        return True
    return False


def _is_undefined(shown: Counterexample) -> bool:
    """Return whether float64 has no number on either side at this index, whatever the inputs are."""
    reals = Reals()
    for scale in SCALES:
        values = draw_leaf_values(shown.instance, reals, np.random.default_rng(0))
        values = {leaf: abs(v) * scale if v.dtype.kind == "f" else v for leaf, v in values.items()}
        for roots in (shown.instance.left, shown.instance.right):
            sides = _with_valid_indices(values, partial(evaluate_roots, roots, field=reals))
            side = None if sides is None else sides[shown.root]
            if side is None or side.dtype.kind != "f" or not np.isnan(side[shown.index]).all():
                return False
    return True


def _limit_magnitude(data: Array) -> Array:
    return np.clip(data, -TAME_LIMIT, TAME_LIMIT) if data.dtype.kind == "f" else data


def compare_once(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    return _with_valid_indices(values, lambda v: _first_difference(instance, v, field))


def _with_valid_indices(values: dict[Node, Array], ask: Callable[[dict[Node, Array]], T]) -> T | None:
    """Return what `ask` returns for the values; if an index is out of bounds, for integers limited to a span.

    None where no span is small enough.
    """
    for span in (None, *INDEX_SPANS):
        moved = values
        if span is not None:
            moved = {leaf: to_indices(v, span, leaf.tensor.dtype) for leaf, v in values.items()}
        try:
            return ask(moved)
        except IndexError:
            continue
    return None


def to_indices(data: Array, span: int, dtype: str) -> Array:
    """Return integers as indices into `span` elements; types with negatives count from both ends."""
    if not is_integer(dtype):
        return data
    below = span if integer_limits(dtype)[0] < 0 else 0
    return (data % (span + below) - below).astype(data.dtype)


def _first_difference(instance: Instance, values: dict[Node, Array], field: Field) -> Counterexample | None:
    left, right = (evaluate_roots(roots, values, field) for roots in (instance.left, instance.right))
    for root, (a, b) in enumerate(zip(left, right, strict=True)):
        if results_differ(a, b, field):
            inputs = {name: values[node] for name, node in instance.nodes.items() if node in values}
            return Counterexample(instance, inputs, a, b, root, field.name)
    return None
