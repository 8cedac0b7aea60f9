"""Joins a model that is fast at some sizes with one that runs at all sizes, so that no open size is lost.

    y = If (x has the sizes [1, 3, 640, 640]) then fast(x) else general(x)

Generated kernels, and some rewrites, hold for the sizes at which they were made.  The condition takes a few
microseconds; each branch is a whole model with its own weights.  (onnxruntime arranges weights for its
kernels only where they are in the graph that reads them: shared ones would cost a ResNet-18 a tenth.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, TypeProto, compose

from tensaurus.ops.branch_nodes import MIN_OPSET, choose_graph, compare_sizes, copy_value
from tensaurus.ops.special_nodes import ONNX_DOMAINS
from tensaurus.system.errors import TensaurusError

__all__ = ["given_branch", "guard_sizes"]

# prefixes of the names in the two branches, and in the condition
FAST, GENERAL, CONDITION = "given_sizes/", "other_sizes/", "choose_sizes/"
CHOICE = f"{CONDITION}choice"  # name of the node that chooses


def guard_sizes(fast: ModelProto, general: ModelProto, sizes: Mapping[str, Sequence[int]]) -> ModelProto:
    """Return a model that runs `fast` where the inputs have these sizes, and `general` where they do not.

    Both have the same inputs, outputs and opset; `sizes` are those of inputs that `general` leaves open.
    Raises TensaurusError where the opset lacks what the choice needs, or nothing is computed.
    """
    version = next((entry.version for entry in general.opset_import if entry.domain in ONNX_DOMAINS), 1)
    if version < MIN_OPSET:
        raise TensaurusError(f"a choice between sizes needs opset {MIN_OPSET}, the model has {version}")
    joined = ModelProto()
    joined.CopyFrom(general)
    for part in ("node", "initializer", "sparse_initializer", "value_info", "quantization_annotation"):
        joined.graph.ClearField(part)
    inputs = {value.name for value in general.graph.input}
    defaults = [tensor for tensor in general.graph.initializer if tensor.name in inputs]
    joined.graph.initializer.extend(defaults)
    domains = {entry.domain for entry in joined.opset_import}
    joined.opset_import.extend(entry for entry in fast.opset_import if entry.domain not in domains)
    nodes, weight, condition = compare_sizes(sizes, CONDITION)
    joined.graph.initializer.append(weight)
    # an output that is an input itself is not computed
    computed = [place for place, output in enumerate(general.graph.output) if output.name not in inputs]
    if not computed:
        raise TensaurusError("the model computes nothing")
    given = _write_branch(fast.graph, computed, FAST)
    other = _write_branch(general.graph, computed, GENERAL)
    outputs = [joined.graph.output[place].name for place in computed]
    choice = choose_graph(condition, outputs, given, other, CHOICE)
    joined.graph.node.extend([*nodes, choice])
    return joined


def given_branch(model: ModelProto) -> GraphProto | None:
    """Return the graph that runs at the given sizes in a model that `guard_sizes` made; None in others."""
    choice = model.graph.node[-1] if model.graph.node else None
    if choice is None or choice.name != CHOICE:
        return None
    return next((attribute.g for attribute in choice.attribute if attribute.name == "then_branch"), None)


def _write_branch(graph: GraphProto, outputs: Sequence[int], prefix: str) -> GraphProto:
    """Return a model's graph as a branch that reads the inputs around it.

    `outputs` are the places of its outputs that it returns.
    """
    branch = GraphProto()
    branch.CopyFrom(graph)
    inputs = {value.name for value in graph.input}
    for part in ("input", "output", "initializer", "value_info", "quantization_annotation"):
        branch.ClearField(part)
    # a weight that is an input is its default value, which the graph around the branch has
    branch.initializer.extend(tensor for tensor in graph.initializer if tensor.name not in inputs)
    branch.output.extend(graph.output[place] for place in outputs)
    made = {name for node in graph.node for name in node.output}
    for output in branch.output:
        if output.name not in made:  # a weight, or an input: a branch returns what it computes
            copied = f"{output.name}/output"
            branch.node.append(copy_value(output.name, copied))
            output.name = copied
        _forget_sizes(output.type)  # the branches may state different ones
    sparse = (tensor.values for tensor in branch.sparse_initializer)
    # bodies read weights, too
    name_map = {tensor.name: prefix + tensor.name for tensor in (*branch.initializer, *sparse)}
    return compose.add_prefix_graph(branch, prefix, rename_inputs=False, inplace=True, name_map=name_map)


def _forget_sizes(kind: TypeProto) -> None:
    """Let a type, or that of its elements, state no shape."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            kind.tensor_type.ClearField("shape")
        case "sequence_type":
            _forget_sizes(kind.sequence_type.elem_type)
        case "optional_type":
            _forget_sizes(kind.optional_type.elem_type)
