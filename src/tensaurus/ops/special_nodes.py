"""Recognize and write ONNX nodes without arithmetic: constants, copies, sparse initializers, random nodes."""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto, defs

from tensaurus.ops.declare import Op
from tensaurus.ops.schema import schema_of

ONNX_DOMAINS = ("", "ai.onnx")
_SPARSE = "sparse_initializer"


def copy_node(source: str, target: str) -> NodeProto:
    """Return the node that gives a value a second name."""
    return NodeProto(op_type="Identity", name=target, input=[source], output=[target])


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node; None for any other node, and for a sparse tensor."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            held: TensorProto = attribute.t
            return held
        case "value_float":
            return TensorProto(data_type=TensorProto.FLOAT, float_data=[attribute.f])
        case "value_floats":
            count = len(attribute.floats)
            return TensorProto(data_type=TensorProto.FLOAT, dims=[count], float_data=attribute.floats)
        case "value_int":
            return TensorProto(data_type=TensorProto.INT64, int64_data=[attribute.i])
        case "value_ints":
            count = len(attribute.ints)
            return TensorProto(data_type=TensorProto.INT64, dims=[count], int64_data=attribute.ints)
        case "value_string":
            return TensorProto(data_type=TensorProto.STRING, string_data=[attribute.s])
        case "value_strings":
            count = len(attribute.strings)
            return TensorProto(data_type=TensorProto.STRING, dims=[count], string_data=attribute.strings)
    return None


def sparse_node(sparse: SparseTensorProto) -> NodeProto:
    """Return a sparse initializer as a node, the form in which programs hold it."""
    node = NodeProto(op_type="Constant", output=[sparse.values.name])
    node.attribute.add(name=_SPARSE, type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
    return node


def sparse_initializer(node: NodeProto) -> SparseTensorProto | None:
    """Return the sparse initializer that the node carries, named as its output; None for any other node."""
    if [a.name for a in node.attribute] != [_SPARSE]:
        return None
    sparse = SparseTensorProto()
    sparse.CopyFrom(node.attribute[0].sparse_tensor)
    sparse.values.name = node.output[0]
    return sparse


def branches(node: NodeProto) -> dict[bool, str] | None:
    """Return {condition: the attribute that holds the branch which an If then runs}; None for other nodes."""
    if node.op_type != "If" or node.domain not in ONNX_DOMAINS:
        return None
    return {True: "then_branch", False: "else_branch"}


def has_variadic_outputs(op: Op, opset: int) -> bool:
    """Return whether a node must name every output, as a Split must; else the last ones may be absent."""
    last = schema_of(op, opset).outputs[-1]
    return bool(last.option == defs.OpSchema.FormalParameterOption.Variadic)


def is_deterministic(node: NodeProto, opset: int | None) -> bool:
    """Return whether equal inputs give equal outputs, by ONNX's schema; of an If or a Loop always True.

    The importer asks again for each node of a body.  `opset` is the version of the node's domain, None where
    the model imports none.
    """
    if opset is None:
        return False
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    try:
        schema = defs.get_schema(node.op_type, opset, domain)
    except defs.SchemaError:
        return False
    has_bodies = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
    random = bool(schema.non_deterministic)  # type: ignore[attr-defined]  # the stubs lack it
    return has_bodies or not random
