"""Read an ONNX node as a call of a declared operator: its tensor arguments and its attributes.

    Squeeze(x, axes=[0])         opset 11   ->   DeclaredCall(("x",), {"axes": (0,)})
    Squeeze(x, a), a = [0]       opset 13   ->   DeclaredCall(("x",), {"axes": (0,)})

The declaration says which parameters moved between attributes and inputs, and what older opsets implied
(`declare.Op`).  The import of a model calls this, and `onnx_writer`, which reads every node that it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.ops.declare import Op, hashable
from tensaurus.ops.element_type import dtype_name
from tensaurus.ops.schema import (
    attribute_name,
    check_output_count,
    formal_inputs,
    implied_attributes,
    schema_of,
)

Array: TypeAlias = np.ndarray[Any, Any]
Argument: TypeAlias = str | Array | None

# attributes that ONNX writes as the integer of an element type, and we as its name
DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "precision", "stash_type"})
MAX_TENSOR_ATTRIBUTE = 1024  # elements of a tensor in an attribute: larger ones are weights, not parameters


class DeclaredCall(NamedTuple):
    """An ONNX node by the parameters of its declaration.

    args   for each tensor input the name of its tensor, None where it is absent, or an array: a constant that
           this opset writes as an attribute, to be cast to the type of the first input
    attrs  the attributes, not yet canonical
    """

    args: tuple[Argument, ...]
    attrs: dict[str, Any]


def read_node(
    op: Op,
    node: NodeProto,
    opset: int,
    constant_of: Callable[[str], Array | None],
    dtype_of: Callable[[str], str] | None = None,
) -> DeclaredCall:
    """Return the call of the operator that an ONNX node of this opset makes.

    constant_of  returns the value of an input that the declaration has as an attribute, None where it is not
                 known; an object array may hold symbolic sizes
    dtype_of     returns the element type of such an input; by default that of its value, int64 for symbols

    Raises NotInOpset or Untypable.
    """
    check_output_count(op, node.output, opset)
    attrs = implied_attributes(op, opset)
    written = {attribute.name: attribute for attribute in node.attribute}
    _check_attribute_types(op, opset, written)
    args = _read_inputs(op, node, opset, attrs, constant_of, dtype_of)
    for parameter in attribute_parameters(op, opset):
        name = attribute_name(op, parameter)
        if name not in written:
            continue
        value = _decode(op, written.pop(name))
        if parameter in op.attributes:
            attrs[parameter] = value
        else:  # a tensor input that this opset writes as an attribute
            numbers = [float(v) for v in value] if isinstance(value, tuple) else float(value)
            args[parameter] = [np.asarray(numbers, np.float32)]
    _check_undeclared_attributes(op, opset, written)
    if op.output_count is not None and attrs[op.output_count] is None:
        attrs[op.output_count] = len(node.output)
    for parameter in op.attributes:
        if parameter not in attrs:
            raise Untypable(f"{op.name} needs its {parameter}")
    ordered: list[Argument] = []
    for formal in op.inputs:
        ordered.extend(args.get(formal.name, [] if formal.is_variadic else [None]))
    while ordered and ordered[-1] is None:
        ordered.pop()
    return DeclaredCall(tuple(ordered), attrs)


def attribute_parameters(op: Op, opset: int) -> Iterator[str]:
    """Yield the parameters of the declaration, tensors among them, that this opset writes as attributes."""
    schema, inputs = schema_of(op, opset), formal_inputs(op, opset)
    for parameter in (*op.attributes, *(i.name for i in op.inputs)):
        if parameter not in inputs and attribute_name(op, parameter) in schema.attributes:
            yield parameter


def _check_attribute_types(op: Op, opset: int, written: dict[str, AttributeProto]) -> None:
    """Raise Untypable where an attribute has another type than in the schema."""
    formal_attributes = schema_of(op, opset).attributes
    for name, attribute in written.items():
        formal = formal_attributes.get(name)
        if formal is not None and attribute.type != int(formal.type):  # type: ignore[call-overload]
            raise Untypable(f"{op.name}: the attribute {name} is of another type")


def _read_inputs(
    op: Op,
    node: NodeProto,
    opset: int,
    attrs: dict[str, Any],
    constant_of: Callable[[str], Array | None],
    dtype_of: Callable[[str], str] | None,
) -> dict[str, list[Argument]]:
    """Return the names of the tensors of each parameter; put the values of static inputs into `attrs`."""
    parameters = formal_inputs(op, opset)
    args: dict[str, list[Argument]] = {}
    for k, name in enumerate(node.input):
        if k >= len(parameters) and not op.is_variadic:
            if name:
                raise Untypable(
                    f"{op.name} of opset {opset} has {len(parameters)} inputs, not {len(node.input)}"
                )
            continue
        parameter = parameters[min(k, len(parameters) - 1)]
        if parameter not in op.attributes:
            args.setdefault(parameter, []).append(name or None)
        elif name:
            value = constant_of(name)
            if value is None:
                raise Untypable(f"{op.name}: its input {parameter} ({name}) is not constant")
            if value.ndim > 1:
                raise Untypable(f"a static input of rank {value.ndim}")
            attrs[parameter] = hashable(value.tolist())
            for attribute, source in op.dtype_inputs.items():
                if source == parameter:
                    dtype = "int64" if value.dtype.kind == "O" else value.dtype.name
                    attrs[attribute] = dtype if dtype_of is None else dtype_of(name)
    return args


def _check_undeclared_attributes(op: Op, opset: int, written: dict[str, AttributeProto]) -> None:
    """Raise Untypable unless attributes that the declaration lacks have the schema's default values."""
    formal_attributes = schema_of(op, opset).attributes
    for name, attribute in written.items():
        formal = formal_attributes.get(name)
        if formal is None:
            raise Untypable(f"{op.name} of opset {opset} has no attribute {name}")
        if formal.default_value != attribute and not _have_same_value(formal.default_value, attribute):
            raise Untypable(f"{op.name}: the attribute {name} is not supported")


def _have_same_value(a: AttributeProto, b: AttributeProto) -> bool:
    try:
        return bool(helper.get_attribute_value(a) == helper.get_attribute_value(b))
    except ValueError:
        return False


def _decode(op: Op, attribute: AttributeProto) -> Any:
    """Return the value of an attribute; of a tensor (element type, shape, elements)."""
    match attribute.type:
        case AttributeProto.FLOAT:
            return hashable(float(attribute.f))
        case AttributeProto.INT:
            return dtype_name(attribute.i) if attribute.name in DTYPE_ATTRIBUTES else int(attribute.i)
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "surrogateescape")
        case AttributeProto.FLOATS:
            return hashable([float(v) for v in attribute.floats])
        case AttributeProto.INTS:
            return tuple(int(v) for v in attribute.ints)
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8", "surrogateescape") for s in attribute.strings)
        case AttributeProto.TENSOR:
            array = numpy_helper.to_array(attribute.t)
            if array.size > MAX_TENSOR_ATTRIBUTE or array.dtype.kind not in "biuf":
                raise Untypable(f"{op.name}: the tensor in {attribute.name} is not supported")
            return dtype_name(attribute.t.data_type), array.shape, hashable(array.ravel().tolist())
    raise Untypable(f"{op.name}: the attribute {attribute.name} is not supported")
