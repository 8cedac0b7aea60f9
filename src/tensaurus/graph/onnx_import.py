"""From ONNX to a program, losing nothing.

An operator with a declaration becomes a node that the algebra understands; every other one is carried as
it is (`opaque.Form`), the bodies of If, Loop and Scan as programs of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from tensaurus.algebra.size import Size, Symbol, polynomial
from tensaurus.errors import TensaurusError
from tensaurus.graph.node import (
    Data,
    Node,
    OtherType,
    Type,
    apply,
    constant,
    dtype_name,
    item,
    opaque,
    source,
)
from tensaurus.graph.opaque import Form
from tensaurus.graph.program import Program
from tensaurus.graph.values import Known, known
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.onnx_form import from_onnx

ONNX_DOMAINS = ("", "ai.onnx")
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass(frozen=True)
class Frame:
    """What ONNX says around a graph: kept for export.

    model       the ModelProto without its graph's nodes, initializers and value infos
    inputs      ValueInfoProtos of the graph's inputs, overridable initializers included
    outputs     ValueInfoProtos of the graph's outputs
    defaults    TensorProtos of initializers that a caller may override (inputs of the same name)
    fixed       True where --shape fixed a size: the interface then states the fixed sizes
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
    """The version of ONNX's own operators that the model uses, 1 where it names none."""
    return max((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), default=1)


def load_model(path: str | Path) -> ModelProto:
    """Read and check a model file with its external data.

    Raises TensaurusError naming the file and the reason: unreadable, not ONNX, external data missing or
    outside the model's folder, or refused by ONNX's checker.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise TensaurusError(f"cannot be read: {error.strerror}", file=path) from error
    model = ModelProto()
    try:
        model.ParseFromString(raw)
    except Exception as error:  # protobuf's DecodeError, and its own RuntimeErrors
        raise TensaurusError("is not an ONNX model, or is truncated", file=path) from error
    if not model.HasField("graph") or not model.opset_import and not model.graph.node:
        raise TensaurusError("is not an ONNX model, or is truncated", file=path)
    _load_external(model, file)
    try:
        onnx.checker.check_model(model if model.ByteSize() < 2**31 - 1 else str(file))
    except Exception as error:
        raise TensaurusError(f"ONNX's checker refuses it: {_first_line(error)}", file=path) from error
    return model


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of the graph and of the bodies in it: initializers and attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in _graphs(attribute):
                yield from tensors_of(body)


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def _load_external(model: ModelProto, file: Path) -> None:
    folder = file.parent.resolve()
    for tensor in tensors_of(model.graph):
        if not uses_external_data(tensor):
            continue
        place = next((e.value for e in tensor.external_data if e.key == "location"), "")
        target = (folder / place).resolve()
        if not place or not target.is_relative_to(folder):
            raise TensaurusError(
                f"the external data of tensor {tensor.name} is at {place!r}, outside the model's folder",
                file=file,
                remedy="Move the data beside the model.",
            )
        if not target.is_file():
            raise TensaurusError(
                f"the external data of tensor {tensor.name} is missing: {place}",
                file=file,
                remedy="Put the data file beside the model.",
            )
        try:
            load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:
            raise TensaurusError(
                f"the external data of tensor {tensor.name} cannot be read: {_first_line(error)}", file=file
            ) from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def fix_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]], file: str | Path | None = None) -> None:
    """Write the given sizes into the model's inputs.  Raises TensaurusError where they contradict it."""
    initial = {t.name for t in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in initial}
    bound: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise TensaurusError(
                f"has no input {name}", file=file, remedy=f"Its inputs are {', '.join(inputs) or 'none'}."
            )
        kind = inputs[name].type.tensor_type
        if not kind.HasField("shape"):
            for size in shape:
                kind.shape.dim.add().dim_value = size
            continue
        if len(kind.shape.dim) != len(shape):
            raise TensaurusError(
                f"input {name} has {len(kind.shape.dim)} dimensions, not {len(shape)}", file=file
            )
        for place, (dim, size) in enumerate(zip(kind.shape.dim, shape, strict=True)):
            if dim.HasField("dim_value") and dim.dim_value > 0 and dim.dim_value != size:
                raise TensaurusError(
                    f"input {name} has size {dim.dim_value} in dimension {place}, not {size}", file=file
                )
            if _named(dim.dim_param) and bound.setdefault(dim.dim_param, size) != size:
                raise TensaurusError(
                    f"--shape gives {dim.dim_param} both {bound[dim.dim_param]} and {size}", file=file
                )
            dim.dim_value = size
    for entry in inputs.values():
        for dim in entry.type.tensor_type.shape.dim:
            if dim.dim_param in bound and _named(dim.dim_param):
                dim.dim_value = bound[dim.dim_param]


def _named(parameter: str) -> bool:
    """True for a dim_param that names a size; `?`, `unk__7` and the like stand for any."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*", parameter)) and not parameter.startswith("unk__")


def import_model(
    model: ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, file: str | Path | None = None
) -> Program:
    """The program of a checked model.  `shapes` fixes sizes of inputs.  Raises TensaurusError."""
    work = ModelProto()
    work.CopyFrom(model)
    fix_shapes(work, shapes or {}, file)
    initial = {t.name for t in work.graph.initializer}
    overridable = set() if work.ir_version < 4 else {i.name for i in work.graph.input} & initial
    graph = work.graph
    opset = opset_of(work)
    typed = _inferred(work)
    frame_model = ModelProto()
    frame_model.CopyFrom(work)
    for name in ("node", "initializer", "sparse_initializer", "value_info", "input", "output"):
        frame_model.graph.ClearField(name)
    inputs = [i for i in graph.input if i.name not in initial or i.name in overridable]
    room = Room(opset, typed)
    for value in inputs:
        room.define(value.name, source(value.name, room.declared_type(value)))
    for sparse in graph.sparse_initializer:
        dense = NodeProto(op_type="Constant", output=[sparse.values.name])
        dense.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
        room.add_opaque(dense, "a sparse tensor")
    defaults = tuple(t for t in graph.initializer if t.name in overridable)
    room.run(graph, skip=overridable)
    frame = Frame(
        frame_model, tuple(inputs), tuple(graph.output), defaults, fixed=bool(shapes)
    )
    return Program(
        inputs=tuple(room.names[i.name] for i in inputs),
        outputs=tuple((o.name, room.lookup(o.name)) for o in graph.output),
        names=room.hints(),
        frame=frame,
    )


def _inferred(model: ModelProto) -> dict[int, dict[str, TypeProto]]:
    """Types by graph (in order of a walk) and name, from ONNX's own inference where it succeeds."""
    light = ModelProto()
    light.CopyFrom(model)
    bodies = list(_walk(light.graph))
    for body in bodies:
        del body.value_info[:]
    for tensor in tensors_of(light.graph):
        if len(tensor.raw_data) > 65536:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="unread")
    try:
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # inference is advice; what it cannot type stays untyped
        light = model
    result: dict[int, dict[str, TypeProto]] = {}
    for place, (graph, original) in enumerate(zip(_walk(light.graph), _walk(model.graph), strict=True)):
        names = {v.name: v.type for v in original.value_info}
        names.update({v.name: v.type for v in (*graph.output, *graph.value_info)})
        result[place] = names
    return result


def _walk(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in _graphs(attribute):
                yield from _walk(body)


class Room:
    """One graph while it is imported: its names, and the room around it for a body."""

    def __init__(
        self,
        opset: int,
        typed: Mapping[int, Mapping[str, TypeProto]],
        outer: Room | None = None,
        counter: Iterator[int] | None = None,
    ):
        self.opset = opset
        self.typed = typed
        self.outer = outer
        self.counter = counter if counter is not None else iter(range(1 << 30))
        self.infos = typed.get(next(self.counter), {})
        self.names: dict[str, Node] = {}
        self.captured: dict[str, tuple[Node, Node]] = {}  # name: (the body's input, the outer node)
        self.memo: Known = outer.memo if outer is not None else {}

    def define(self, name: str, node: Node) -> None:
        self.names[name] = node

    def hints(self) -> dict[Node, str]:
        return {node: name for name, node in reversed(self.names.items())}

    def lookup(self, name: str) -> Node:
        if name in self.names:
            return self.names[name]
        if name in self.captured:
            return self.captured[name][0]
        if self.outer is None:
            raise TensaurusError(f"the value {name} is used and nowhere defined")
        node = self.outer.lookup(name)
        if node.op.name == "constant":
            return node
        inside = source(f"outer:{name}", node.type)
        self.captured[name] = (inside, node)
        value = known(node, self.memo)
        if value is not None:
            self.memo[inside] = value
        return inside

    def declared_type(self, value: ValueInfoProto) -> Type:
        return self.type_of(value.type, value.name)

    def type_of(self, proto: TypeProto, name: str) -> Type:
        """Our type of a value; sizes that ONNX leaves open become symbols named after it."""
        if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
            return OtherType(proto.SerializeToString(deterministic=True))
        if proto.tensor_type.elem_type == 0:
            return OtherType(proto.SerializeToString(deterministic=True))
        shape: list[Size] = []
        label = re.sub(r"\W", "_", name)
        for place, dim in enumerate(proto.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            elif _named(dim.dim_param):
                shape.append(polynomial(Symbol(dim.dim_param)))
            else:
                shape.append(polynomial(Symbol(f"{label}_{place}")))
        return TensorType(dtype_name(proto.tensor_type.elem_type), tuple(shape))

    def run(self, graph: GraphProto, skip: set[str] | frozenset[str] = frozenset()) -> None:
        for tensor in graph.initializer:
            if tensor.name not in skip:
                self.define(tensor.name, constant(Data(proto=tensor)))
        for proto in graph.node:
            self.add(proto)

    def add(self, proto: NodeProto) -> None:
        """Define the outputs of one ONNX node."""
        if proto.op_type == "Constant" and proto.domain in ONNX_DOMAINS:
            data = constant_value(proto)
            if data is not None:
                return self.define(proto.output[0], constant(data))
        op = registry.get(proto.op_type) if proto.domain in ONNX_DOMAINS else None
        if op is None or op.domain:
            return self.add_opaque(proto, "no declaration")
        try:
            node, wanted = self.declared(op, proto)
        except Untypable as error:
            return self.add_opaque(proto, str(error))
        for place, name in enumerate(proto.output[:wanted]):
            if name:
                self.define(name, item(node, place))

    def declared(self, op: Op, proto: NodeProto) -> tuple[Node, int]:
        names, attrs = from_onnx(op, proto, self.opset, self.constant_of)
        args = [self.argument(a, names) for a in names]
        every = apply(op, args, attrs, 0)
        named = max((i + 1 for i, name in enumerate(proto.output) if name), default=1)
        if len(every.types) == len(proto.output):
            return every, len(every.types)
        return apply(op, args, attrs, named), named

    def argument(self, name: Any, names: Sequence[Any]) -> Node | None:
        if isinstance(name, np.ndarray):  # a constant that this opset writes as an attribute
            first = self.lookup(next(n for n in names if isinstance(n, str))).tensor
            return constant(name.astype(first.dtype))
        return self.lookup(name) if name else None

    def constant_of(self, name: str) -> np.ndarray[Any, Any] | None:
        return known(self.lookup(name), self.memo)

    def add_opaque(self, proto: NodeProto, reason: str) -> None:
        args: list[Node | None] = [self.lookup(name) if name else None for name in proto.input]
        bare = NodeProto()
        bare.CopyFrom(proto)
        for field_name in ("input", "output", "name", "attribute"):
            bare.ClearField(field_name)
        rooms: list[tuple[str, Room, GraphProto]] = []
        for attribute in proto.attribute:
            if attribute.type == AttributeProto.GRAPH:
                room = Room(self.opset, self.typed, self, self.counter)
                self.body(room, attribute.g)
                rooms.append((attribute.name, room, attribute.g))
            elif attribute.type == AttributeProto.GRAPHS:
                raise TensaurusError(f"attribute {attribute.name} holds several graphs", node=proto.name)
            else:
                bare.attribute.add().CopyFrom(attribute)
        captured = {name: pair for _, room, _ in rooms for name, pair in room.captured.items()}
        bodies = tuple(
            (name, room.program(graph, tuple(inside for inside, _ in captured.values())))
            for name, room, graph in rooms
        )
        form = Form(
            bare.SerializeToString(deterministic=True),
            len(args),
            tuple(bool(name) for name in proto.output),
            bodies,
            reason,
        )
        args += [node for _, node in captured.values()]
        types = [self.type_of(self.infos.get(name, TypeProto()), name) for name in proto.output]
        unknown = proto.domain not in ONNX_DOMAINS or proto.op_type in RANDOM or any(
            node.op.name == "opaque" and any(key == "identity" for key, _ in node.attrs)
            for _, body in bodies
            for node in body.nodes
        )
        node = opaque(form, args, types, effects=unknown or proto.op_type == "Dropout")
        for place, name in enumerate(proto.output):
            if name:
                self.define(name, item(node, place))

    def body(self, room: Room, graph: GraphProto) -> None:
        initial = {t.name for t in graph.initializer}
        for value in graph.input:
            if value.name not in initial:
                room.define(value.name, source(value.name, room.declared_type(value)))
        room.run(graph)
        for value in graph.output:
            room.lookup(value.name)

    def program(self, graph: GraphProto, captured: tuple[Node, ...]) -> Program:
        """This room, a body whose nodes are all defined, as a program."""
        shell = ModelProto()
        shell.graph.name = graph.name
        shell.graph.doc_string = graph.doc_string
        outputs = tuple((o.name, self.lookup(o.name)) for o in graph.output)
        late = {inside for inside, _ in self.captured.values()} - set(captured)
        assert not late, late
        initial = {t.name for t in graph.initializer}
        values = tuple(i for i in graph.input if i.name not in initial)
        return Program(
            inputs=tuple(self.names[i.name] for i in values),
            outputs=outputs,
            captured=captured,
            names=self.hints(),
            frame=Frame(shell, values, tuple(graph.output)),
        )


def constant_value(proto: NodeProto) -> Data | None:
    """What a Constant node holds, None for a sparse tensor."""
    for attribute in proto.attribute:
        match attribute.name:
            case "value":
                return Data(proto=attribute.t)
            case "value_float":
                return Data(np.asarray(attribute.f, np.float32))
            case "value_floats":
                return Data(np.asarray(attribute.floats, np.float32))
            case "value_int":
                return Data(np.asarray(attribute.i, np.int64))
            case "value_ints":
                return Data(np.asarray(attribute.ints, np.int64))
            case "value_string":
                return Data(np.asarray(attribute.s, object))
            case "value_strings":
                return Data(np.asarray(list(attribute.strings), object))
    return None
