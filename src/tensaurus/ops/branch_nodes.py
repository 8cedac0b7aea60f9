"""Write a choice between two graphs, by the sizes of inputs, as ONNX nodes (of version 9 or newer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["MIN_OPSET", "choose_graph", "compare_sizes", "copy_value"]

MIN_OPSET = 9  # ONNX's version from which on these nodes are valid


def compare_sizes(
    sizes: Mapping[str, Sequence[int]], prefix: str
) -> tuple[list[NodeProto], TensorProto, str]:
    """Return nodes that tell whether tensors have these sizes, a weight that they read, and their result.

    The result is the name of one truth value; all names begin with the prefix.
    """
    nodes: list[NodeProto] = []

    def append(operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        name = f"{prefix}{name}"
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    numbers = np.array([size for shape in sizes.values() for size in shape], np.int64)
    wanted = numpy_helper.from_array(numbers, f"{prefix}wanted")
    shapes = [append("Shape", [name], f"sizes_{number}") for number, name in enumerate(sizes)]
    found = append("Concat", shapes, "found", axis=0)
    is_same = append("Equal", [found, wanted.name], "is_same")
    as_numbers = append("Cast", [is_same], "numbers", to=TensorProto.INT32)
    least = append("ReduceMin", [as_numbers], "least", keepdims=0)
    return nodes, wanted, append("Cast", [least], "all_same", to=TensorProto.BOOL)


def choose_graph(
    condition: str, outputs: Sequence[str], then: GraphProto, other: GraphProto, name: str
) -> NodeProto:
    """Return the node that runs one of two graphs, whose outputs it returns."""
    return helper.make_node("If", [condition], outputs, name, then_branch=then, else_branch=other)


def copy_value(value: str, name: str) -> NodeProto:
    """Return a node that gives a value another name."""
    return helper.make_node("Identity", [value], [name], name)
