"""Repair formal errors before ONNX's checker runs: models that all runtimes accept but the checker refuses.

Such models lack a name, an import of a domain, or the shape of an input, or list nodes in a wrong order.
`sort_nodes` mends the order in the model itself; all else is mended in a copy that only the checker sees.
"""

from __future__ import annotations

from collections import deque

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from tensaurus.graph.onnx.onnx_frame import bodies_of, graphs_in
from tensaurus.ops.special_nodes import ONNX_DOMAINS

CHECKED_IR_VERSION = 4  # from this IR version on, initializers need not be inputs as well


def normalize_model(model: ModelProto) -> ModelProto:
    """Return a copy that the checker accepts, to be checked instead of the model.

    The copy has a name and no metadata (the checker refuses a key that is there twice), imports every domain
    that its nodes use, and has a shape for every input and output.  Nodes are unchanged but for the name of
    ONNX's own domain, which is "" here; initializers are unchanged.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    if not copy.opset_import and copy.ir_version < 3:  # such models are older than imports of domains
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
            # where a type is missing, it becomes float; where a shape is missing, that of a scalar
            value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
            value.type.tensor_type.shape.SetInParent()
    return copy


def _newest_version(domain: str) -> int:
    """Return the newest version of a domain, which runtimes assume where a model names none."""
    schemas = (schema for schema in onnx.defs.get_all_schemas() if schema.domain == domain)
    return max((schema.since_version for schema in schemas), default=1)


def sort_nodes(graph: GraphProto) -> None:
    """Sort the nodes of the graph and of its bodies, in place: each value is defined before it is read.

    A graph with a cycle stays unsorted: the checker reports the cycle.
    """
    for part in graphs_in(graph):
        order = _topological_order(part)
        if order is not None:
            nodes = [NodeProto.FromString(part.node[position].SerializeToString()) for position in order]
            del part.node[:]
            part.node.extend(nodes)


def _topological_order(graph: GraphProto) -> list[int] | None:
    """Return the positions of the nodes in topological order; None if they have it already, or on a cycle."""
    producer = {name: position for position, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producer[name] for name in _names_read(node) if name in producer} for node in graph.node]
    if all(before < position for position, others in enumerate(needs) for before in others):
        return None
    readers: list[list[int]] = [[] for _ in needs]
    for position, others in enumerate(needs):
        for before in others:
            readers[before].append(position)
    missing = [len(others) for others in needs]  # of each node: how many nodes that it reads are not in order
    ready = deque(position for position, count in enumerate(missing) if not count)
    order = []
    while ready:
        position = ready.popleft()
        order.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return order if len(order) == len(needs) else None


def _names_read(node: NodeProto) -> set[str]:
    """Return the names that a node and the bodies in it read.

    Names that a body itself defines are among them; no node outside the body defines them, too.
    """
    names = set(node.input)
    for body in (inner for graph in bodies_of(node) for inner in graphs_in(graph)):
        names.update(name for reader in body.node for name in reader.input)
        names.update(value.name for value in body.output)
    return names
