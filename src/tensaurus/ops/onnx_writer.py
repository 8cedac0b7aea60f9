"""Write a call of a declared operator as an ONNX node of a given opset.

    Squeeze(x, axes=(0,))   ->   opset 11: Squeeze(x, axes=[0])
                                 opset 13: Squeeze(x, a) with the initializer a = [0]

ONNX's own schemas state how an attribute is written; the declaration states what moved between attributes and
inputs and what older versions implied (`declare.Op`).  A node is written only if reading it back
(`onnx_reader`) gives the same canonical attributes: what an opset cannot express is refused (`NotInOpset`),
never approximated.  Floats are rounded once, to the float32 of ONNX's attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, defs, helper, numpy_helper

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Arithmetic
from tensaurus.ops.declare import Attributes, Op, TensorType
from tensaurus.ops.element_type import dtype_code, tensor_text
from tensaurus.ops.onnx_reader import DTYPE_ATTRIBUTES, Array, attribute_parameters, read_node
from tensaurus.ops.schema import (
    NotInOpset,
    attribute_name,
    check_input_types,
    check_output_count,
    formal_inputs,
    schema_of,
)


def write_node(
    op: Op,
    types: Sequence[TensorType | None],
    attrs: Attributes | Mapping[str, Any],
    input_names: Sequence[str | None],
    output_names: Sequence[str],
    opset: int,
    *,
    write_sizes: Callable[[Any], str | None] = lambda sizes: None,
    constant_of: Callable[[str], Array | None] | None = None,
    fresh: Callable[[str], str] = lambda name: name,
    as_given: bool = False,
) -> tuple[NodeProto, list[TensorProto]]:
    """Return the node in this opset, and the initializers of attributes that it has as inputs.

    types, input_names   of the tensor inputs, as the declaration orders them; None (or "") where absent
    attrs                in canonical form
    write_sizes          returns the name of an int64 tensor that holds these sizes, some of them symbols;
                         for a single size, a tensor of rank 0
    constant_of          returns the value of an input that this opset writes as an attribute
    fresh                makes the name of an initializer, OUTPUT.PARAMETER, unique
    as_given             attributes are in any form, and the node is not read back: for random test models

    Raises NotInOpset.
    """
    check_input_types(op, tuple(types), opset)
    check_output_count(op, output_names, opset)
    writer = _NodeWriter(
        op, types, dict(attrs), input_names, output_names, opset, write_sizes, constant_of, fresh
    )
    writer.write_inputs()
    writer.write_attributes()
    if not as_given:
        writer.check_read_back()
    return writer.node, writer.initializers


@dataclass
class _NodeWriter:
    """Writes one node.

    The fields up to `fresh` are parameters of `write_node`; the others are what is written so far:

    tensor_names    the names of the tensors of each input parameter
    static_values   the values of attributes that this opset has as inputs, by the names of their tensors
    """

    op: Op
    types: Sequence[TensorType | None]
    attrs: Mapping[str, Any]
    input_names: Sequence[str | None]
    output_names: Sequence[str]
    opset: int
    write_sizes: Callable[[Any], str | None]
    constant_of: Callable[[str], Array | None] | None
    fresh: Callable[[str], str]
    initializers: list[TensorProto] = field(default_factory=list)
    static_values: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        op = self.op
        self.schema = schema_of(op, self.opset)
        self.node = NodeProto(op_type=op.name, domain=op.domain, output=list(self.output_names))
        self.tensor_names: dict[str, list[str]] = {}
        for k, name in enumerate(self.input_names):
            formal = op.inputs[min(k, len(op.inputs) - 1)].name
            self.tensor_names.setdefault(formal, []).append(name or "")

    def write_inputs(self) -> None:
        """Write the tensors of each input; of an attribute that this opset has as an input, its tensor."""
        op, node, formal_tensors = self.op, self.node, self.schema.inputs
        for k, parameter in enumerate(formal_inputs(op, self.opset)):
            if parameter not in op.attributes:
                node.input.extend(self.tensor_names.get(parameter, [""]))
            elif (value := self.attrs.get(parameter)) is None:
                node.input.append("")
            else:
                formal = formal_tensors[min(k, len(formal_tensors) - 1)]
                node.input.append(self._write_static_input(parameter, formal, value))
        while node.input and not node.input[-1]:
            del node.input[-1]  # absent inputs at the end are left out
        for k, formal in enumerate(formal_tensors):
            is_required = formal.option == defs.OpSchema.FormalParameterOption.Single
            if is_required and not (k < len(node.input) and node.input[k]):
                raise NotInOpset(f"{op.name} of opset {self.opset} needs its input {formal.name}")

    def _write_static_input(self, parameter: str, formal: Any, value: Any) -> str:
        """Return the name of a tensor, an initializer unless it holds symbols, with an attribute's value."""
        if _is_symbolic(value):
            tensor_name = self.write_sizes(value)
            if tensor_name is None:
                raise NotInOpset(f"{self.op.name}: {parameter}={value} is not a number")
            self.static_values[tensor_name] = _object_array(value)
            return tensor_name
        name = self.fresh(f"{self.output_names[0] or self.op.name}.{parameter}")
        shape = (len(value),) if isinstance(value, tuple) else ()
        flat = value if isinstance(value, tuple) else (value,)
        tensor = numpy_helper.from_array(_as_array(flat, shape, self._static_dtype(formal, value)), name)
        self.initializers.append(tensor)
        self.static_values[name] = numpy_helper.to_array(tensor)
        return name

    def _static_dtype(self, formal: Any, value: Any) -> str:
        """Return the element type of a static input: that of inputs it must match, else the plainest."""
        for attribute, source in self.op.dtype_inputs.items():
            if self.schema.inputs[self.op.order.index(source)].type_str == formal.type_str:
                return str(self.attrs[attribute])
        for kind, other in zip(self.types, self.schema.inputs, strict=False):
            if kind is not None and other.type_str == formal.type_str:
                return kind.dtype
        flat = value if isinstance(value, tuple) else (value,)
        are_integers = all(isinstance(v, int) for v in flat)
        are_bools = bool(flat) and all(isinstance(v, bool) for v in flat)
        for dtype in ("bool", "int64", "float32") if are_bools else ("int64", "float32", "bool"):
            if tensor_text(dtype) in formal.types and (are_integers or dtype == "float32"):
                return dtype
        for dtype in ("float32", "float64", "float16", "int32"):
            if tensor_text(dtype) in formal.types:
                return dtype
        raise NotInOpset(f"{self.op.name}: cannot write {formal.name}={value}")

    def write_attributes(self) -> None:
        """Write each attribute that the schema requires, or that differs from the schema's default."""
        for parameter in attribute_parameters(self.op, self.opset):
            if parameter in self.op.attributes:
                value = self.attrs.get(parameter)
            else:
                value = self._constant_input(parameter)
            if value is not None:
                formal = self.schema.attributes[attribute_name(self.op, parameter)]
                proto = _encode(self.op, formal, value)
                if formal.required or proto != formal.default_value:
                    self.node.attribute.append(proto)

    def _constant_input(self, parameter: str) -> Any:
        """Return the value of a tensor input that this opset writes as an attribute, None if it is absent."""
        names = [name for name in self.tensor_names.get(parameter, ()) if name]
        if not names:
            return None
        value = self.constant_of(names[0]) if self.constant_of is not None else None
        if value is None or value.size != 1 and value.ndim != 1:
            raise NotInOpset(f"{self.op.name} of opset {self.opset} needs a constant {parameter}")
        return value.item() if value.size == 1 and value.ndim == 0 else tuple(value.tolist())

    def check_read_back(self) -> None:
        """Raise NotInOpset unless reading the node gives the inputs and attributes that it was made of."""
        description = f"{self.op.name} of opset {self.opset}"
        args, attrs_read = read_node(self.op, self.node, self.opset, self.static_values.get)
        # an input that became an attribute is read back as an array: its name is lost
        if self.constant_of is None or not any(isinstance(a, np.ndarray) for a in args):
            expected = [name or None for name in self.input_names]
            while expected and expected[-1] is None:
                expected.pop()
            if list(args) != expected:
                raise NotInOpset(f"{description} cannot take these inputs")
        try:
            canonical = dict(self.op.canonical(self.types, attrs_read))
        except Untypable as error:
            raise NotInOpset(f"{description}: {error}") from error
        for name, value in self.attrs.items():
            if _round_to_float32(canonical.get(name)) != _round_to_float32(value):
                raise NotInOpset(f"{description} cannot say {name}={value}")


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, Arithmetic) or isinstance(value, tuple) and any(map(_is_symbolic, value))


def _object_array(value: Any) -> Array:
    """Return sizes, some of them symbols, as an array of objects: of rank 0 for a single size."""
    cells = np.empty(len(value) if isinstance(value, tuple) else (), object)
    cells[... if isinstance(value, tuple) else ()] = value
    return cells


def _as_array(numbers: Sequence[Any], shape: Sequence[int], dtype: str) -> Array:
    """Return integers, floats and fractions as an array of an element type."""
    python_numbers = [v if isinstance(v, (bool, int)) else float(v) for v in numbers]
    return np.array(python_numbers, helper.tensor_dtype_to_np_dtype(dtype_code(dtype))).reshape(shape)


def _encode(op: Op, formal: Any, value: Any) -> AttributeProto:
    """Return the attribute with the type that the schema demands."""
    name = formal.name
    if _is_symbolic(value):
        raise NotInOpset(f"{op.name}: {name}={value} is not a number")
    proto = AttributeProto(name=name, type=int(formal.type))  # type: ignore[arg-type]
    match int(formal.type):
        case AttributeProto.FLOAT:
            if isinstance(value, tuple):
                raise NotInOpset(f"{op.name}: {name}={value} is not a number")
            proto.f = float(value)
        case AttributeProto.INT:
            is_dtype = name in DTYPE_ATTRIBUTES and isinstance(value, str)
            proto.i = dtype_code(value) if is_dtype else _as_integer(op, name, value)
        case AttributeProto.STRING:
            proto.s = value if isinstance(value, bytes) else str(value).encode()
        case AttributeProto.FLOATS:
            proto.floats.extend(float(v) for v in value)
        case AttributeProto.INTS:
            proto.ints.extend(_as_integer(op, name, v) for v in value)
        case AttributeProto.STRINGS:
            proto.strings.extend(v if isinstance(v, bytes) else str(v).encode() for v in value)
        case AttributeProto.TENSOR:
            dtype, shape, numbers = value  # as `onnx_reader` returns a tensor
            proto.t.CopyFrom(numpy_helper.from_array(_as_array(numbers, shape, dtype)))
        case _:
            raise NotInOpset(f"{op.name}: cannot write the attribute {name}")
    return proto


def _as_integer(op: Op, name: str, value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    raise NotInOpset(f"{op.name}: {name}={value} is not an integer")


def _round_to_float32(value: Any) -> Any:
    """Return an attribute with its numbers rounded as ONNX stores them."""
    if isinstance(value, tuple):
        return tuple(map(_round_to_float32, value))
    if isinstance(value, (Fraction, float)):
        return float(np.float32(float(value)))
    return value
