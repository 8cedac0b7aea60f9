"""The largest number that an output of a model can be, where its last operators bound it.

A detector's sigmoid may stay at 1e-5 on noise: what its kernels know are values from 0 to 1 all the same.
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

__all__ = ["reach"]

KNOWN = (TypeError, ValueError, ArithmeticError, LookupError)
DEEP = 4  # operators before an output that are looked at


def reach(graph: onnx.GraphProto, output: str) -> float:
    """Of the output of that name, in magnitude; 0 where nothing is known."""
    producers = {name: node for node in graph.node for name in node.output}
    low, high = _of(output, producers, DEEP)
    return max(abs(low), abs(high)) if isfinite(low) and isfinite(high) else 0.0


def _of(name: str, producers: dict[str, onnx.NodeProto], deep: int) -> Bounds:
    node = producers.get(name)
    if node is None or not deep or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return ANY
    op = registry.get(node.op_type)
    if not isinstance(op, Op) or not (examples := examples_of(op)):
        return ANY
    kinds, _ = examples[0]
    try:
        scopes = op.scopes(kinds, op.canonical(kinds, {a.name: _value(a) for a in node.attribute}))
    except (Untypable, *KNOWN):  # of these attributes no example is
        return ANY
    given: dict[Source, Bounds] = {}
    for tensor, read in zip(op.tensors(kinds), node.input, strict=False):
        if tensor is not None:
            given[tensor] = _of(read, producers, deep - 1)
    return bounds(scopes[0], given)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return Fraction(value) if isinstance(value, float) else tuple(value) if isinstance(value, list) else value
