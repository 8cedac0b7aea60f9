"""Write a declared operator as an ONNX node of a given opset, and read it back.

ONNX's own schemas state how an attribute is written; the declaration states what moved between attributes and
inputs and what older versions implied (`declare.Op`: a *static input* is an attribute of the declaration that
ONNX has as an input): Squeeze's axes are an attribute in opset 11, and in opset 13 an input, written as an
initializer.  A node is written only if reading it back gives the same canonical attributes: what an opset
cannot express is refused (`NotInOpset`), never approximated.  Floats are rounded once, to the float32 of
ONNX's attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, defs, helper, numpy_helper

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.sizes.size import Arithmetic
from tensaurus.ops.declare import Attributes, Op, TensorType, hashable
from tensaurus.ops.element_type import dtype_code, dtype_name, tensor_text
from tensaurus.ops.schema import (
    NotInOpset,
    attribute_name,
    formal_inputs,
    implied_attributes,
    max_outputs,
    schema_of,
)

Array: TypeAlias = np.ndarray[Any, Any]

# attributes that ONNX writes as the integer of an element type, and we as its name
DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "precision", "stash_type"})


def node_proto(
    op: Op,
    types: Sequence[TensorType | None],
    attrs: Attributes | Mapping[str, Any],
    input_names: Sequence[str | None],
    output_names: Sequence[str],
    opset: int,
    *,
    symbolic: Callable[[Any], str | None] | None = None,
    constant_of: Callable[[str], Array | None] | None = None,
    fresh: Callable[[str], str] | None = None,
    as_given: bool = False,
) -> tuple[NodeProto, list[TensorProto]]:
    """Return the node in this opset and the initializers of its static inputs.

    types, input_names   of the tensor inputs, as the declaration orders them; None (or "") where absent
    attrs                in canonical form
    symbolic             returns the name of an int64 tensor that holds these sizes, some of them symbols;
                         for a single size, a tensor of rank 0
    constant_of          returns the value of an input that this opset writes as an attribute
    fresh                makes the name of an initializer unique (by default it is OUTPUT.PARAMETER)
    as_given             attributes are in any form, and the node is not read back: for random test models
    """
    schema = schema_of(op, opset)
    attr_values = dict(attrs)
    check_types(op, tuple(types), opset)
    _check_outputs(op, output_names, opset)
    sources: dict[str, list[str]] = {}  # by parameter of the declaration: the names of its tensors
    for k, name in enumerate(input_names):
        formal = op.inputs[min(k, len(op.inputs) - 1)].name
        sources.setdefault(formal, []).append(name or "")
    node = NodeProto(op_type=op.name, domain=op.domain, output=list(output_names))
    initializers: list[TensorProto] = []
    static_values: dict[str, Any] = {}  # by the name of a static input's tensor, to read the node back
    order = formal_inputs(op, opset)
    # write each input: the name of its tensor, or of an initializer or computed tensor with the static value
    for k, parameter in enumerate(order):
        if parameter not in op.attributes:
            node.input.extend(sources.get(parameter, [""]))
            continue
        value = attr_values.get(parameter)
        if value is None:
            node.input.append("")
            continue
        name = f"{output_names[0] or op.name}.{parameter}"
        if _is_symbolic(value):
            tensor_name = symbolic(value) if symbolic is not None else None
            if tensor_name is None:
                raise NotInOpset(f"{op.name}: {parameter}={value} is not a number")
            name, static_values[tensor_name] = tensor_name, _object_array(value)
        else:
            name = fresh(name) if fresh is not None else name
            formal_input = schema.inputs[min(k, len(schema.inputs) - 1)]
            dtype = _static_dtype(op, schema, formal_input, types, attr_values, value)
            tensor = _static_tensor(name, value, dtype)
            initializers.append(tensor)
            static_values[name] = numpy_helper.to_array(tensor)
        node.input.append(name)
    while node.input and not node.input[-1]:
        del node.input[-1]  # absent inputs at the end are left out
    for k, formal_input_schema in enumerate(schema.inputs):
        required = formal_input_schema.option == defs.OpSchema.FormalParameterOption.Single
        if required and not (k < len(node.input) and node.input[k]):
            raise NotInOpset(f"{op.name} of opset {opset} needs its input {formal_input_schema.name}")
    # write each attribute that is required or differs from the schema's default
    for parameter in (*op.attributes, *(i.name for i in op.inputs)):
        name = attribute_name(op, parameter)
        if parameter in order or name not in schema.attributes:
            continue
        if parameter in op.attributes:
            value = attr_values.get(parameter)
        else:  # a tensor input that this opset writes as an attribute
            value = _constant_attribute(op, parameter, sources, constant_of, opset)
        if value is not None:
            proto = _encode(op, schema.attributes[name], value)
            formal_attribute = schema.attributes[name]
            if formal_attribute.required or proto != formal_attribute.default_value:
                node.attribute.append(proto)
    if not as_given:
        _check_read_back(op, node, types, attr_values, input_names, opset, static_values, constant_of)
    return node, initializers


def _check_outputs(op: Op, names: Sequence[str], opset: int) -> None:
    """Raise NotInOpset where an old version lacks one of these outputs."""
    count = max_outputs(op, opset)
    if count is not None and any(names[count:]):
        raise NotInOpset(f"{op.name} of opset {opset} has {count} outputs")


@lru_cache(maxsize=4096)
def check_types(op: Op, types: tuple[TensorType | None, ...], opset: int) -> None:
    """Raise NotInOpset unless the schema allows the element types, and equal ones where it demands that."""
    schema = schema_of(op, opset)
    order = formal_inputs(op, opset)
    dtype_by_type_variable: dict[str, str] = {}
    for k, kind in enumerate(types):
        formal = op.inputs[min(k, len(op.inputs) - 1)].name
        if kind is None:
            continue
        if formal not in order:
            if attribute_name(op, formal) not in schema.attributes:
                raise NotInOpset(f"{op.name} of opset {opset} has no input {formal}")
            continue
        formal_schema = schema.inputs[min(order.index(formal), len(schema.inputs) - 1)]
        if tensor_text(kind.dtype) not in formal_schema.types:
            raise NotInOpset(f"{op.name} of opset {opset} does not take {kind.dtype}")
        if (
            formal_schema.is_homogeneous
            and dtype_by_type_variable.setdefault(formal_schema.type_str, kind.dtype) != kind.dtype
        ):
            raise NotInOpset(f"{op.name} of opset {opset} does not take {kind.dtype} beside others")


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, Arithmetic) or isinstance(value, tuple) and any(map(_is_symbolic, value))


def _object_array(value: Any) -> Array:
    """Return sizes, some of them symbols, as an array of objects: of rank 0 for a single size."""
    cells = np.empty(len(value) if isinstance(value, tuple) else (), object)
    cells[... if isinstance(value, tuple) else ()] = value
    return cells


def _static_dtype(
    op: Op,
    schema: defs.OpSchema,
    formal: Any,
    types: Sequence[TensorType | None],
    attrs: Mapping[str, Any],
    value: Any,
) -> str:
    """Return the element type of a static input: that of inputs it must match, else the plainest allowed."""
    for attribute, source in op.dtype_inputs.items():
        if schema.inputs[op.order.index(source)].type_str == formal.type_str:
            return str(attrs[attribute])
    for kind, other in zip(types, schema.inputs, strict=False):
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
    raise NotInOpset(f"{op.name}: cannot write {formal.name}={value}")


def _static_tensor(name: str, value: Any, dtype: str) -> TensorProto:
    flat = value if isinstance(value, tuple) else (value,)
    kind = helper.tensor_dtype_to_np_dtype(dtype_code(dtype))
    numbers = [v if isinstance(v, (bool, int)) else float(v) for v in flat]
    array = np.array(numbers, dtype=kind).reshape((len(flat),) if isinstance(value, tuple) else ())
    return numpy_helper.from_array(array, name)


def _constant_attribute(
    op: Op,
    parameter: str,
    sources: Mapping[str, Sequence[str]],
    constant_of: Callable[[str], Array | None] | None,
    opset: int,
) -> Any:
    names = [n for n in sources.get(parameter, ()) if n]
    if not names:
        return None
    value = constant_of(names[0]) if constant_of is not None else None
    if value is None or value.size != 1 and value.ndim != 1:
        raise NotInOpset(f"{op.name} of opset {opset} needs a constant {parameter}")
    return value.item() if value.size == 1 and value.ndim == 0 else tuple(value.tolist())


def _encode(op: Op, schema: Any, value: Any) -> AttributeProto:
    """Return the attribute with the type that the schema demands."""
    name = schema.name
    if _is_symbolic(value):
        raise NotInOpset(f"{op.name}: {name}={value} is not a number")
    proto = AttributeProto(name=name, type=int(schema.type))  # type: ignore[arg-type]
    match int(schema.type):
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
            dtype, shape, numbers = value  # as `_decode` returns a tensor
            kind = helper.tensor_dtype_to_np_dtype(dtype_code(dtype))
            python_numbers = [v if isinstance(v, (bool, int)) else float(v) for v in numbers]
            proto.t.CopyFrom(numpy_helper.from_array(np.array(python_numbers, kind).reshape(shape)))
        case _:
            raise NotInOpset(f"{op.name}: cannot write the attribute {name}")
    return proto


def _as_integer(op: Op, name: str, value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    raise NotInOpset(f"{op.name}: {name}={value} is not an integer")


def _check_read_back(
    op: Op,
    node: NodeProto,
    types: Sequence[TensorType | None],
    attrs: Mapping[str, Any],
    names: Sequence[str | None],
    opset: int,
    static_values: Mapping[str, Array],
    constant_of: Callable[[str], Array | None] | None,
) -> None:
    """Raise NotInOpset unless reading the node gives the inputs and attributes that it was written from."""
    args, read = from_onnx(op, node, opset, static_values.get)
    # an input that became an attribute is read back as an array: its name is lost
    if constant_of is None or not any(isinstance(a, np.ndarray) for a in args):
        expected = [n or None for n in names]
        while expected and expected[-1] is None:
            expected.pop()
        if list(args) != expected:
            raise NotInOpset(f"{op.name} of opset {opset} cannot take these inputs")
    try:
        attrs_read = dict(op.canonical(types, read))
    except Untypable as error:
        raise NotInOpset(f"{op.name} of opset {opset}: {error}") from error
    for name, value in attrs.items():
        if round_to_float32(attrs_read.get(name)) != round_to_float32(value):
            raise NotInOpset(f"{op.name} of opset {opset} cannot say {name}={value}")


def round_to_float32(value: Any) -> Any:
    """Return an attribute with its numbers rounded as ONNX stores them."""
    if isinstance(value, tuple):
        return tuple(map(round_to_float32, value))
    if isinstance(value, (Fraction, float)):
        return float(np.float32(float(value)))
    return value


def from_onnx(
    op: Op,
    node: NodeProto,
    opset: int,
    constant_of: Callable[[str], Array | None],
    dtype_of: Callable[[str], str] | None = None,
) -> tuple[tuple[str | Array | None, ...], dict[str, Any]]:
    """Return the tensor inputs and the attributes, not yet canonical, of an ONNX node.

    An input is the name of a tensor, None where absent, or an array: a constant that this opset writes as an
    attribute, to be cast to the type of the first input.  `constant_of` returns the value of a static input,
    if it is known; an object array may hold symbolic sizes, whose element type `dtype_of` returns (else
    int64). Raises NotInOpset or Untypable.
    """
    schema = schema_of(op, opset)
    _check_outputs(op, node.output, opset)
    attrs = implied_attributes(op, opset)
    order = formal_inputs(op, opset)
    written = {a.name: a for a in node.attribute}
    for name, attribute in written.items():
        formal_attribute = schema.attributes.get(name)
        if formal_attribute is not None and attribute.type != int(formal_attribute.type):  # type: ignore[call-overload]
            raise Untypable(f"{op.name}: the attribute {name} is of another type")
    # read each input: a tensor's name into `args`, by parameter; a static input's value into `attrs`
    args: dict[str, list[str | Array | None]] = {}
    for k, name in enumerate(node.input):
        if k >= len(order) and not op.is_variadic:
            if name:
                raise Untypable(f"{op.name} of opset {opset} has {len(order)} inputs, not {len(node.input)}")
            continue
        parameter = order[min(k, len(order) - 1)]
        if parameter not in op.attributes:
            args.setdefault(parameter, []).append(name or None)
        elif name:
            value = constant_of(name)
            if value is None:
                raise Untypable(f"{op.name}: its input {parameter} ({name}) is not constant")
            attrs[parameter] = _attribute_of_constant(value)
            for attribute, source in op.dtype_inputs.items():
                if source == parameter:
                    dtype = "int64" if value.dtype.kind == "O" else value.dtype.name
                    attrs[attribute] = dtype if dtype_of is None else dtype_of(name)
    # read each attribute; where the parameter is a tensor input, the value becomes an array
    for parameter in (*op.attributes, *(i.name for i in op.inputs)):
        name = attribute_name(op, parameter)
        if parameter in order or name not in schema.attributes or name not in written:
            continue
        value = _decode(op, written.pop(name))
        if parameter in op.attributes:
            attrs[parameter] = value
        else:
            numbers = [float(v) for v in value] if isinstance(value, tuple) else float(value)
            args[parameter] = [np.asarray(numbers, np.float32)]
    # the attributes that are left over have no parameter: the schema must know them, with their defaults
    for name, attribute in written.items():
        formal_attribute = schema.attributes.get(name)
        if formal_attribute is None:
            raise Untypable(f"{op.name} of opset {opset} has no attribute {name}")
        if formal_attribute.default_value != attribute and not _same_value(
            formal_attribute.default_value, attribute
        ):
            raise Untypable(f"{op.name}: the attribute {name} is not supported")
    if op.output_count is not None and attrs[op.output_count] is None:
        attrs[op.output_count] = len(node.output)
    for parameter in op.attributes:
        if parameter not in attrs:
            raise Untypable(f"{op.name} needs its {parameter}")
    result: list[str | Array | None] = []
    for formal in op.inputs:
        result.extend(args.get(formal.name, [] if formal.is_variadic else [None]))
    while result and result[-1] is None:
        result.pop()
    return tuple(result), attrs


def _same_value(a: AttributeProto, b: AttributeProto) -> bool:
    try:
        return bool(onnx.helper.get_attribute_value(a) == onnx.helper.get_attribute_value(b))
    except ValueError:
        return False


def _attribute_of_constant(value: Array) -> Any:
    """Return a constant as an attribute: a tuple for rank 1, a number for rank 0."""
    if value.ndim > 1:
        raise Untypable(f"a static input of rank {value.ndim}")
    return hashable(value.tolist())


def _decode(op: Op, attribute: AttributeProto) -> Any:
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
            if array.size > 1024 or array.dtype.kind not in "biuf":
                raise Untypable(f"{op.name}: the tensor in {attribute.name} is not supported")
            return dtype_name(attribute.t.data_type), array.shape, hashable(array.ravel().tolist())
    raise Untypable(f"{op.name}: the attribute {attribute.name} is not supported")
