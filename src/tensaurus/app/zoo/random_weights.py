"""Gives random weights to a model that ships without weights, as the test models of onnx do."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from tensaurus.app.zoo.shipped import Shape

__all__ = ["randomize_weights"]


def randomize_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy whose float weights are seeded random numbers, scaled to keep activations moderate.

    Weights are float initializers of rank 1 and more and ConstantOfShape nodes. Both become initializers that
    are no longer inputs, which needs IR version 4. Integers, such as shapes, stay.
    """
    rng = np.random.default_rng(seed)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    # 1. the weights, with their shapes: float ConstantOfShape nodes of known shape, and float initializers
    filled = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    initial = {tensor.name: tensor for tensor in graph.initializer}
    shapes: dict[str, Shape] = {
        name: tuple(numpy_helper.to_array(initial[node.input[0]]).tolist())
        for name, node in filled.items()
        if node.input[0] in initial and _fill_value(node).dtype == np.float32
    }
    shapes |= {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims)
    }
    # 2. draw each weight by its reader: the first node that reads it, as the input of that index (of several
    # nodes the first remains, as it is written last)
    readers = {name: (node, index) for node in reversed(graph.node) for index, name in enumerate(node.input)}
    weights = [
        numpy_helper.from_array(_draw_weight(name, shape, readers, rng), name)
        for name, shape in sorted(shapes.items())
    ]
    # 3. the graph without the nodes that became weights, and without initializers that only these read
    nodes = [node for node in graph.node if node.output[0] not in shapes]
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in shapes and tensor.name in read]
    inputs = [value for value in graph.input if value.name not in initial]
    new_graph = onnx.helper.make_graph(nodes, graph.name, inputs, list(graph.output), kept + weights)
    result.graph.CopyFrom(new_graph)
    result.ir_version = max(result.ir_version, 4)
    return result


def _fill_value(node: onnx.NodeProto) -> np.ndarray:
    """Return the value that a ConstantOfShape repeats; by default float32 zero."""
    return numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)


def _draw_weight(
    name: str,
    shape: Shape,
    readers: Mapping[str, tuple[onnx.NodeProto, int]],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw a weight at the scale of the operator that reads it, also through an Unsqueeze or Reshape."""

    def reader(name: str, *passing: str) -> tuple[onnx.NodeProto, int]:
        """Return the reader of a tensor, passing over nodes of these operators; an empty node if none."""
        node, index = readers.get(name, (onnx.NodeProto(output=[""]), 0))
        return reader(node.output[0], *passing) if node.op_type in passing else (node, index)

    # inputs of a BatchNormalization: x, 1 scale, 2 bias, 3 mean, 4 variance
    node, index = reader(name, "Unsqueeze", "Reshape")
    if node.op_type == "BatchNormalization" and index == 4:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if (node.op_type == "BatchNormalization" and index == 1) or (node.op_type == "Mul" and len(shape) == 1):
        residual = reader(node.output[0])[0].op_type == "Sum"  # of a block, else the variance doubles
        return ((0.4 if residual else 1.0) * rng.uniform(0.5, 1.3, shape)).astype(np.float32)
    if len(shape) == 1:
        return 0.1 * rng.standard_normal(shape, np.float32)  # bias and mean
    flipped = any(item.name == "transB" and item.i for item in node.attribute)
    if node.op_type in ("Gemm", "MatMul"):
        return rng.standard_normal(shape, np.float32) / np.float32(shape[-1 if flipped else -2] ** 0.5)
    # a convolution; a ReLU after it (and after its normalization) halves the mean square
    gain = 2 if reader(node.output[0], "BatchNormalization")[0].op_type == "Relu" else 1
    return rng.standard_normal(shape, np.float32) * np.float32((gain / max(1, prod(shape[1:]))) ** 0.5)
