"""Bounds the elements of a model's output by the value ranges of its last operators.

The scores of a detector, a sigmoid's output, may all stay below 1e-5 on noise.  Kernels approximate a sigmoid
to a rounding of its largest value, 1, even then: so errors are judged relative to 1, not to 1e-5.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import Any

import onnx

from tensaurus.expr.analysis.interval_bounds import ANY, Bounds, bounds
from tensaurus.expr.ir.scope import Source
from tensaurus.ops import Op, Untypable, registry
from tensaurus.ops.examples import examples_of

__all__ = ["largest_magnitude"]

EVALUATION_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError)
MAX_DEPTH = 4  # operators before an output that are followed backwards


def largest_magnitude(graph: onnx.GraphProto, output: str) -> float:
    """Return the largest magnitude that an element of the output may have; 0 where no bound is known."""
    producers = {name: node for node in graph.node for name in node.output}
    low, high = _bounds_of(output, producers, MAX_DEPTH)
    return max(abs(low), abs(high)) if isfinite(low) and isfinite(high) else 0.0


def _bounds_of(name: str, producers: dict[str, onnx.NodeProto], depth: int) -> Bounds:
    """Return bounds of a tensor's elements.

    They are computed at the shapes of an example of its operator, since the model's may be open.  If the
    model sums more elements than the example, the bound is too small, which makes the comparison stricter.
    """
    node = producers.get(name)
    if node is None or not depth or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return ANY
    op = registry.get(node.op_type)
    if not isinstance(op, Op) or not (examples := examples_of(op)):
        return ANY
    kinds, _ = examples[0]
    try:
        scopes = op.scopes(kinds, op.canonical(kinds, {a.name: _attribute_value(a) for a in node.attribute}))
    except (Untypable, *EVALUATION_ERRORS):  # the example's shapes do not go with these attributes
        return ANY
    input_bounds: dict[Source, Bounds] = {}
    for tensor, read in zip(op.tensors(kinds), node.input, strict=False):
        if tensor is not None:
            input_bounds[tensor] = _bounds_of(read, producers, depth - 1)
    return bounds(scopes[0], input_bounds)


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return Fraction(value) if isinstance(value, float) else tuple(value) if isinstance(value, list) else value
