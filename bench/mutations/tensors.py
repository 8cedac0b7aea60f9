"""Initializers, and what the file says of itself."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mutations.draw import NUMBERS, SIZES, Draft, Inapplicable, mutation, read_array

MOST = 1 << 20  # elements of a tensor that is written anew
KIND, HEAD = "initializers", "metadata"
RARE = (
    TensorProto.INT4,
    TensorProto.UINT4,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.FLOAT8E4M3FN,
    TensorProto.COMPLEX64,
    TensorProto.DOUBLE,
    TensorProto.STRING,
)
VERSIONS = (
    -1,
    0,
    1,
    2,
    3,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    17,
    18,
    20,
    21,
    22,
    23,
    24,
    25,
    99,
    2**31,
    2**62,
)


@mutation(KIND)
def raw_length(draft: Draft) -> str:
    tensor = draft.tensor()
    if not tensor.HasField("raw_data"):
        raise Inapplicable
    by = draft.one((-4, -1, 1, 4, 8, -len(tensor.raw_data), len(tensor.raw_data)))
    tensor.raw_data = tensor.raw_data[:by] if by < 0 else tensor.raw_data + b"\0" * by
    return f"{tensor.name} by {by}"


@mutation(KIND)
def data_type(draft: Draft) -> str:
    tensor = draft.tensor()
    tensor.data_type = draft.one([*TensorProto.DataType.values(), 99, -1])
    return f"{tensor.name} {tensor.data_type}"


@mutation(KIND)
def dims(draft: Draft) -> str:
    tensor = draft.tensor()
    way = draft.random.randrange(4)
    if way == 0 and len(tensor.dims):
        tensor.dims[draft.random.randrange(len(tensor.dims))] = draft.one(SIZES)
    elif way == 1:
        tensor.dims.append(draft.one((1, 0, 2**31)))
    elif way == 2:
        tensor.dims[:] = reversed(list(tensor.dims))
    else:
        del tensor.dims[:]
    return f"{tensor.name} {list(tensor.dims)}"


@mutation(KIND)
def reshaped(draft: Draft) -> str:
    """Another shape of as many elements, or none at all."""
    tensor = draft.tensor()
    count = int(np.prod(tensor.dims)) if len(tensor.dims) else 1
    shape = draft.one(([count], [1, count], [count, 1], [1] * 9 + [count], [0], [0, 4], [4, 0], [1, 0, 1]))
    if 0 in shape and tensor.HasField("raw_data"):
        tensor.raw_data = b""
    tensor.dims[:] = shape
    return f"{tensor.name} {shape}"


@mutation(KIND)
def elements(draft: Draft) -> str:
    """NaN, infinities, zeros, the extremes."""
    tensor = draft.tensor()
    array = read_array(tensor)
    if not array.size or array.dtype.kind not in "fiu":
        raise Inapplicable
    if array.dtype.kind == "f":
        value = draft.one(NUMBERS)
    else:
        limits = np.iinfo(array.dtype)
        value = draft.one((limits.min, limits.max, 0, 1))
    if draft.random.random() < 0.4:
        array[...] = value
    else:
        array.reshape(-1)[draft.random.randrange(array.size)] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name} {value}"


@mutation(KIND)
def huge(draft: Draft) -> str:
    """A weight of many megabytes, or one that says so."""
    tensor = draft.tensor()
    name, rows = tensor.name, draft.one((2**12, 2**20, 2**31, 2**40))
    tensor.dims[:] = [rows, *list(tensor.dims)[1:]]
    if rows <= 2**20:
        width = int(np.prod(list(tensor.dims)[1:], dtype=np.int64))
        tensor.raw_data = bytes(min(4 * rows * max(0, width), 2**25))
    return f"{name} {list(tensor.dims)}"


@mutation(KIND)
def sparse(draft: Draft) -> str:
    graph = draft.model.graph
    place = draft.one(range(len(graph.initializer)))
    tensor = graph.initializer[place]
    if tensor.data_type != TensorProto.FLOAT or not tensor.HasField("raw_data"):
        raise Inapplicable
    array = read_array(tensor).ravel()
    count = draft.one((0, 1, array.size))
    indices = [draft.one(range(array.size)) if draft.random.random() < 0.2 else k for k in range(count)]
    if draft.random.random() < 0.2 and count:
        indices[0] = draft.one((-1, array.size, 2**62))
    added = graph.sparse_initializer.add()
    added.values.CopyFrom(numpy_helper.from_array(array[:count].copy(), tensor.name))
    added.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64), ""))
    added.dims[:] = tensor.dims if draft.random.random() < 0.8 else [2**40, 2**20]
    said = tensor.name
    del graph.initializer[place]
    return f"{said}, {count} of {array.size}"


@mutation(KIND)
def fields(draft: Draft) -> str:
    """Elements in the wrong field, in two, or in none."""
    tensor = draft.tensor()
    way = draft.random.randrange(4)
    if way == 0:
        tensor.float_data.extend([1.0, 2.0])
    elif way == 1:
        tensor.ClearField("raw_data")
    elif way == 2:
        tensor.ClearField("raw_data")
        tensor.int64_data.extend([2**62] * int(np.prod(tensor.dims, dtype=np.int64) % 4096))
    else:
        tensor.string_data.append(b"\xff")
    return f"{tensor.name} way {way}"


@mutation(KIND)
def names(draft: Draft) -> str:
    graph = draft.model.graph
    tensor = draft.one(graph.initializer)
    way = draft.random.randrange(3)
    if way == 0:
        tensor.name = draft.one(("", *draft.names()))
    elif way == 1:
        graph.initializer.add().CopyFrom(tensor)
    else:
        graph.input.add(name=tensor.name).type.tensor_type.elem_type = draft.one((1, 7))
    return f"{tensor.name} way {way}"


@mutation(KIND)
def external(draft: Draft) -> str:
    """External data elsewhere, cut short, or nowhere."""
    tensor = draft.tensor()
    if tensor.data_location != TensorProto.EXTERNAL:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        tensor.external_data.add(key="location", value="weights.bin")
    entry = draft.one(tensor.external_data)
    numbers = ("", "-1", "1e3", "99999999999999999999", "4", "0x10", "١")
    places = (
        "",
        ".",
        "..",
        "/dev/zero",
        "../../etc/passwd",
        "model.onnx",
        "absent",
        "a\0b",
        "/proc/self/mem",
    )
    entry.value = draft.one(places if entry.key == "location" else numbers)
    return f"{tensor.name} {entry.key} {entry.value!r}"


@mutation(KIND)
def data_file(draft: Draft) -> str:
    """The file beside the model, cut or longer."""
    name = draft.one(draft.seedling.files)
    content = draft.seedling.files[name]
    draft.seedling.files[name] = draft.one((b"", content[: len(content) // 2], content[:-1], content + b"\0"))
    return f"{name} {len(draft.seedling.files[name])}"


@mutation(KIND)
def packed_type(draft: Draft) -> str:
    """Elements of a few bits, or of a type that few kernels know."""
    tensor = draft.tensor()
    kind = draft.one(RARE)
    count = prod(tensor.dims)
    if not 0 <= count <= MOST:
        raise Inapplicable
    if kind == TensorProto.STRING:
        tensor.CopyFrom(helper.make_tensor(tensor.name, kind, tensor.dims, [b"\xff"] * count))
    else:
        bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT8E4M3FN: 8}.get(kind, 16)
        bits = 64 if kind in (TensorProto.COMPLEX64, TensorProto.DOUBLE) else bits
        tensor.raw_data, tensor.data_type = bytes((count * bits + 7) // 8), kind
    return f"{tensor.name} {kind}"


# ------------------------------------------------------------------------------ what the file says of itself


@mutation(HEAD)
def ir_version(draft: Draft) -> str:
    draft.model.ir_version = draft.one((-1, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 99, 2**31, 2**62))
    return f"{draft.model.ir_version}"


@mutation(HEAD)
def opset(draft: Draft) -> str:
    entry = draft.one(draft.model.opset_import)
    entry.version = draft.one(VERSIONS)
    return f"{entry.domain!r} {entry.version}"


@mutation(HEAD)
def imports(draft: Draft) -> str:
    entries = draft.model.opset_import
    way = draft.random.randrange(5)
    if way == 0:
        del entries[:]
    elif way == 1:
        entries.add(domain="", version=draft.one(VERSIONS))
    elif way == 2:
        entries.add(
            domain=draft.one(("ai.onnx", "ai.onnx.ml", "com.microsoft", "nowhere", "é")),
            version=draft.one(VERSIONS),
        )
    elif way == 3 and len(entries):
        entries[0].domain = draft.one(("ai.onnx", "nowhere"))
    elif len(entries):
        entries[0].ClearField("version")
    return f"way {way}"


@mutation(HEAD)
def domains(draft: Draft) -> str:
    node = draft.node()
    node.domain = draft.one(("ai.onnx", "nowhere", "com.microsoft", "ai.onnx.ml", "\n", "é"))
    return f"{node.op_type} in {node.domain!r}"


@mutation(HEAD)
def properties(draft: Draft) -> str:
    key = draft.one(("tensaurus", "tensaurus", "author", "", "\n"))
    for _ in range(draft.one((1, 2, 1000))):
        draft.model.metadata_props.add(
            key=key, value=draft.one(("", "{}", "[1", '{"model": 3}', "null", "x" * 10**4))
        )
    return f"{key!r}"


@mutation(HEAD)
def texts(draft: Draft) -> str:
    model = draft.model
    field, text = (
        draft.one(("producer_name", "doc_string", "domain")),
        draft.one(("", "é" * 99, "\n", "x" * 10**6)),
    )
    setattr(draft.one((model, model.graph)) if field == "doc_string" else model, field, text)
    return field


@mutation(HEAD)
def graph_name(draft: Draft) -> str:
    graph = draft.graph()
    graph.name = draft.one(("", "\n", "é", "a/b"))
    return f"{graph.name!r}"


@mutation(HEAD)
def training(draft: Draft) -> str:
    info = draft.model.training_info.add()
    if draft.random.random() < 0.6:
        info.algorithm.CopyFrom(draft.model.graph)
    if draft.random.random() < 0.3:
        info.initialization.CopyFrom(draft.model.graph)
    info.update_binding.add(key="w", value="nowhere")
    return ""


@mutation(HEAD)
def unset(draft: Draft) -> str:
    field = draft.one(("graph", "ir_version", "opset_import", "producer_name", "functions"))
    draft.model.ClearField(field)
    return str(field)


@mutation(HEAD)
def quantization(draft: Draft) -> str:
    entry = draft.model.graph.quantization_annotation.add(tensor_name=draft.one((*draft.names(), "nowhere")))
    entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nowhere")
    return ""
