"""Read ONNX messages: frames (all that a model has beside nodes and weights), tensors, bodies, light copies.

A light copy of a model has no large tensors, so that it can be checked and sent to other processes quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from tensaurus.ops.special_nodes import ONNX_DOMAINS

MAX_LIGHT_ELEMENTS = 4096  # a light copy keeps smaller tensors: inference may read them as shapes

AnyMessage = TypeVar("AnyMessage", bound=Message)


@dataclass(frozen=True)
class Frame:
    """Everything that a model has beside its nodes and weights: kept for export.

    model       the ModelProto without its graph's nodes, initializers and value infos
    inputs      inputs of the graph, overridable initializers included
    outputs     outputs of the graph
    defaults    initializers that a caller may override (inputs of the same name)
    fixed       whether --shape fixed a size: the interface then states the fixed sizes
    """

    model: ModelProto
    inputs: tuple[ValueInfoProto, ...]
    outputs: tuple[ValueInfoProto, ...]
    defaults: tuple[TensorProto, ...] = ()
    fixed: bool = False

    @property
    def opset(self) -> int:
        return opset_of(self.model)


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's own operators that a model imports, 1 where it imports none."""
    return opsets_of(model).get("", 1)


def opsets_of(model: ModelProto) -> dict[str, int]:
    """Return the version of each domain that a model imports; ONNX's own domain is ""."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain in ONNX_DOMAINS else entry.domain
        opsets[domain] = max(opsets.get(domain, 1), entry.version)
    return opsets


def initializer_names(graph: GraphProto) -> set[str]:
    """Return the names of a graph's initializers, dense and sparse."""
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def stated_sizes(kind: TypeProto) -> list[int | None] | None:
    """Return the sizes of a tensor, None for each unknown size; None for a tensor of unknown rank."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in kind.tensor_type.shape.dim
    ]


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def graphs_in(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graph and all bodies in it, each before those within it."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs_in(body)


def attribute_tensors(nodes: Iterator[NodeProto] | list[NodeProto]) -> Iterator[TensorProto]:
    """Yield every tensor in the attributes of nodes, without bodies."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (*attribute.sparse_tensors, attribute.sparse_tensor):
                yield sparse.values
                yield sparse.indices


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model: in initializers and attributes, bodies and functions."""
    roots = [model.graph]
    for info in model.training_info:
        roots += [info.initialization, info.algorithm]
    for function in model.functions:
        yield from attribute_tensors(list(function.node))
        roots += [body for node in function.node for body in bodies_of(node)]
    for root in roots:
        for graph in graphs_in(root):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield sparse.values
                yield sparse.indices
            yield from attribute_tensors(list(graph.node))


CONTENT_FIELDS = frozenset({"node", "initializer", "sparse_initializer", "value_info"})


def graph_without_content(graph: GraphProto) -> GraphProto:
    """Return a graph's name, documentation and metadata, without nodes, values and interface."""
    return _copy_fields(graph, GraphProto(), {*CONTENT_FIELDS, "input", "output"})


def node_without_bodies(proto: NodeProto) -> NodeProto:
    """Return a node's operator and attributes, without names; an attribute with a list of bodies is empty."""
    bare = NodeProto()
    bare.CopyFrom(proto)
    for field_name in ("input", "output", "name", "attribute"):
        bare.ClearField(field_name)
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.GRAPHS:
            bare.attribute.add(name=attribute.name, type=AttributeProto.GRAPHS)
        elif attribute.type != AttributeProto.GRAPH:
            bare.attribute.add().CopyFrom(attribute)
    return bare


def light_copy(model: ModelProto) -> ModelProto:
    """Return the model without the elements of large tensors, which are marked as external data instead."""
    copy = _copy_fields(model, ModelProto(), ("graph",))
    _copy_light_graph(model.graph, copy.graph)
    return copy


def _copy_fields(message: AnyMessage, copy: AnyMessage, skipped: Iterable[str] = ()) -> AnyMessage:
    """Copy every field that is not skipped, and return the copy."""
    for field, value in message.ListFields():
        if field.name in skipped:
            continue
        if isinstance(value, Message):
            getattr(copy, field.name).CopyFrom(value)
        elif hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        else:
            setattr(copy, field.name, value)
    return copy


def _copy_light_graph(graph: GraphProto, copy: GraphProto) -> None:
    _copy_fields(graph, copy, ("node", "initializer"))
    for tensor in graph.initializer:
        copy_light_tensor(tensor, copy.initializer.add())
    for node in graph.node:
        added = copy.node.add()
        if all(a.type in _SMALL_ATTRIBUTES for a in node.attribute):
            added.CopyFrom(node)
            continue
        _copy_fields(node, added, ("attribute",))
        for attribute in node.attribute:
            other = added.attribute.add()
            _copy_fields(attribute, other, ("t", "g", "graphs"))
            if attribute.HasField("t"):
                copy_light_tensor(attribute.t, other.t)
            if attribute.HasField("g"):
                _copy_light_graph(attribute.g, other.g)
            for body in attribute.graphs:
                _copy_light_graph(body, other.graphs.add())


_SMALL_ATTRIBUTES = frozenset({
    AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING,
    AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS,
})  # fmt: skip


def copy_light_tensor(tensor: TensorProto, copy: TensorProto) -> None:
    """Copy a tensor; a large one without elements, marked as external data."""
    if not tensor.HasField("raw_data") or prod(tensor.dims) <= MAX_LIGHT_ELEMENTS:
        copy.CopyFrom(tensor)
        return
    copy.dims.extend(tensor.dims)
    copy.data_type, copy.name = tensor.data_type, tensor.name
    if tensor.HasField("doc_string"):
        copy.doc_string = tensor.doc_string
    copy.metadata_props.extend(tensor.metadata_props)
    copy.data_location = TensorProto.EXTERNAL
