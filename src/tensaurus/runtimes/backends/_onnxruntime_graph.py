"""Traces the kernels of the graph that onnxruntime runs back to the tensors of the model.

    running: Conv(x, w) -> z, activation Relu; in the model Conv(x, w) -> y, Relu(y) -> z: computes {y, z}

Three graphs are compared: the *model*; the *running* graph, after all of onnxruntime's optimizations; and the
*earlier* graph, before layouts were chosen, in which the model's tensors still have their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from tensaurus.runtimes.backends._kernels import Kernel, trace_tensors

if TYPE_CHECKING:
    import onnx

__all__ = ["trace_kernels"]

BLOCKED = "com.microsoft.nchwc"  # the domain of operators on blocked layouts
# Operators that onnxruntime inserts to change layouts or types.
CONVERSIONS = frozenset({"ReorderInput", "ReorderOutput", "Transpose", "Cast"})


def trace_kernels(
    model: onnx.ModelProto,
    running: Sequence[onnx.NodeProto],
    earlier: Callable[[], Sequence[onnx.NodeProto]],
) -> list[Kernel]:
    """Return the nodes of the running graph as kernels, with the model's tensors that each computes.

    Blocked layouts rename tensors.  `earlier` returns the nodes of the earlier graph, which tells the old
    names; it is called only if a tensor was renamed.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    renamed = any(name and name not in makers for node in running for name in node.output)
    # optimizing a model with thousands of outputs once more takes many seconds
    model_names = _earlier_names(running, earlier()) if renamed else {}
    inputs = {value.name for value in model.graph.input}
    known = makers.keys() | inputs
    ends = [
        _NodeTensors(
            {model_names.get(n, n) for n in node.input}, {model_names.get(n, n) for n in node.output}
        )
        for node in running
    ]
    kernels: list[Kernel] = []
    for group, node, own in zip(_linked_groups(ends, known), running, ends, strict=True):
        tensors = trace_tensors(sorted(own.made), own.read, makers, inputs)
        if not tensors and len(group) > 1:  # the walk passed tensors that the model lacks: trace the group
            stops = set[str]().union(*(ends[place].read for place in group)) & known
            outputs = set[str]().union(*(ends[place].made for place in group)) & known
            tensors = trace_tensors(sorted(outputs), stops, makers, inputs)
        moves = not tensors and node.op_type in CONVERSIONS
        read, made = tuple(node.input), tuple(node.output)
        kernels.append(Kernel(node.name, node.op_type, read, made, tensors, moves, node.domain))
    return kernels


class _NodeTensors(NamedTuple):
    """The tensors that a node of the running graph reads and makes, by the model's names."""

    read: set[str]
    made: set[str]


def _linked_groups(ends: Sequence[_NodeTensors], known: AbstractSet[str]) -> list[list[int]]:
    """Return for each node the group of nodes that tensors unknown to the model connect with it.

    onnxruntime runs a matrix product with a sum as a Gemm between two Reshapes, which form such a group.
    """
    groups = [[place] for place in range(len(ends))]
    makers = {name: place for place, (_, made) in enumerate(ends) for name in made - known if name}
    for place, (read, _) in enumerate(ends):
        for name in read & makers.keys():
            one, other = groups[makers[name]], groups[place]
            if one is not other:
                one += other
                for member in other:
                    groups[member] = one
    return groups


def _earlier_names(running: Sequence[onnx.NodeProto], earlier: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Return {name in the running graph: name in the earlier graph}, as far as it can be told.

    A node's *twin* is the node of the earlier graph that it replaces: their inputs correspond, in order.
    """
    before = {node.output[0]: node for node in earlier}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in earlier:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    old_names = {name: name for name in (*readers, *(name for node in earlier for name in node.output))}
    # onnxruntime names a node on blocked layouts after the first output of the node that it replaces
    twins = [before.get(node.name.removesuffix("_nchwc")) for node in running]
    # backwards, as a node without a name is found by its output, whose old name its readers tell
    for node, twin in reversed([*zip(running, twins, strict=True)]):
        if node.domain == BLOCKED and node.op_type == "ReorderOutput":
            old_names.setdefault(node.input[0], node.output[0])
            continue
        if twin is None and node.domain != BLOCKED:  # a part of a function has no name
            twin = before.get(old_names.get(node.output[0], ""))
        for name, own in zip(node.input, twin.input if twin is not None else (), strict=False):
            old_names.setdefault(name, own)
    # a tensor that no twin reads is the sum that the kernel of a convolution computes, too
    for node, twin in zip(running, twins, strict=True):
        if twin is not None and (name := _end_of_fusion(node, twin, readers)):
            old_names.setdefault(node.output[0], name)
    return old_names


def _end_of_fusion(
    node: onnx.NodeProto, twin: onnx.NodeProto, readers: Mapping[str, Sequence[onnx.NodeProto]]
) -> str | None:
    """Return the name of a node's output in the earlier graph, in which `twin` is the same node.

    The node may have taken in a sum and an activation that read its twin.
    """
    name = str(twin.output[0])
    # a sum that was taken in added an input, an activation an attribute: walk over as many readers
    taken = sum(map(bool, node.input)) - sum(map(bool, twin.input))
    activated = [any(a.name == "activation" for a in each.attribute) for each in (node, twin)]
    for _ in range(taken + activated[0] - activated[1]):
        if len(after := readers.get(name, ())) != 1:
            return None
        name = str(after[0].output[0])
    return name
