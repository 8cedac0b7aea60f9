"""What ONNX's checker refuses for its form alone, though every runtime knows what is meant."""

from __future__ import annotations

from collections import deque

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from tensaurus.graph.onnx.onnx_frame import bodies_of, graphs_in
from tensaurus.ops.leaf_form import ONNX_DOMAINS

CHECKED_IR_VERSION = 4  # from this IR version on, initializers need not be inputs as well


def normalize_model(model: ModelProto) -> ModelProto:
    """A copy in the form that the checker asks for, to be checked in the model's place.

    It has a name and no metadata, imports every domain that its nodes use, and says a shape for every input
    and output; its nodes and tensors are the model's.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    if not copy.opset_import and copy.ir_version < 3:
        copy.opset_import.add(domain="", version=1)
    copy.ir_version = max(copy.ir_version, CHECKED_IR_VERSION)
    del copy.metadata_props[:]
    copy.graph.name = copy.graph.name or "graph"
    for entry in copy.opset_import:
        entry.domain = "" if entry.domain in ONNX_DOMAINS else entry.domain
    imported = {entry.domain for entry in copy.opset_import}
    for node in (node for graph in graphs_in(copy.graph) for node in graph.node):
        if node.domain in ONNX_DOMAINS:
            node.domain = ""
        elif node.domain not in imported:
            imported.add(node.domain)
            copy.opset_import.add(domain=node.domain, version=_newest_version(node.domain))
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
            value.type.tensor_type.shape.SetInParent()
    return copy


def _newest_version(domain: str) -> int:
    """The version of the domain that runtimes take where a model names none."""
    schemas = (schema for schema in onnx.defs.get_all_schemas() if schema.domain == domain)
    return max((schema.since_version for schema in schemas), default=1)


def sort_nodes(graph: GraphProto) -> None:
    """Put the nodes of the graph and its bodies behind what they read, where they are not.

    Nodes on a cycle stay where they are: the checker names one.
    """
    for part in graphs_in(graph):
        order = _topological_order(part)
        if order is not None:
            nodes = [NodeProto.FromString(part.node[place].SerializeToString()) for place in order]
            del part.node[:]
            part.node.extend(nodes)


def _topological_order(graph: GraphProto) -> list[int] | None:
    """Places of the nodes in an order that defines before it reads; None where theirs does, or none does."""
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needs = [{maker[name] for name in _names_read(node) if name in maker} for node in graph.node]
    if all(before < place for place, others in enumerate(needs) for before in others):
        return None
    readers: list[list[int]] = [[] for _ in needs]
    for place, others in enumerate(needs):
        for before in others:
            readers[before].append(place)
    missing = [len(others) for others in needs]
    ready = deque(place for place, count in enumerate(missing) if not count)
    order = []
    while ready:
        place = ready.popleft()
        order.append(place)
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return order if len(order) == len(needs) else None


def _names_read(node: NodeProto) -> set[str]:
    """The names that the node and the bodies in it read."""
    names = set(node.input)
    for body in (inner for graph in bodies_of(node) for inner in graphs_in(graph)):
        names.update(name for reader in body.node for name in reader.input)
        names.update(value.name for value in body.output)
    return names
