"""From a program to ONNX: the same interface, the same opset, every node in the form that opset has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from tensaurus.algebra.expr import tensors
from tensaurus.algebra.field import Array, Reals
from tensaurus.algebra.interpret import interpret
from tensaurus.algebra.size import Floor, Largest, Size, Symbol, terms_of
from tensaurus.errors import TensaurusError
from tensaurus.files import replacing
from tensaurus.graph.node import CONSTANT, INPUT, ITEM, OPAQUE, Data, Node, constant
from tensaurus.graph.opaque import Form
from tensaurus.graph.program import Program, topological
from tensaurus.ops import Op, TensorType
from tensaurus.ops.onnx_form import NotInOpset, node_proto

# An operator that an opset lacks, as nodes that compute the same; None where nothing is known.
Expand: TypeAlias = Callable[[Node, int], Node | None]

TWO_GIGABYTES = 2**31 - 2**20
GROWTH = 1 << 20  # bytes that a folded constant may have beyond those it is computed from


def fold(program: Program) -> Program:
    """Every maximal expression over constants becomes a constant: computed in float64, rounded once.

    What would grow by more than a mebibyte (Expand of a scalar) stays an expression.
    """
    values: dict[Node, Array] = {}
    field = Reals()
    wanted = {
        arg for node in program.nodes if not node.static for arg in node.args if arg is not None and arg.static
    } | {node for _, node in program.outputs if node.static}

    def value(node: Node) -> Array:
        for item in topological([node]):
            if item in values:
                continue
            if item.op is CONSTANT:
                values[item] = field.lift(item.attribute("data").array)
            else:
                values[item] = evaluated(item, values, field)
        return values[node]

    folded: dict[Node, Node] = {}
    for node in sorted(wanted, key=lambda n: n.serial):
        if node.op is CONSTANT or not _foldable(node):
            continue
        kind = node.tensor
        folded[node] = constant(Data(value(node).astype(_numpy_dtype(kind.dtype)).reshape(kind.shape)))
    return program.replaced(folded) if folded else program


def _foldable(node: Node) -> bool:
    needed = topological([node])
    plain = all(
        isinstance(n.types[0], TensorType) and n.types[0].static and _numpy_dtype(n.types[0].dtype).kind in "fiub"
        for n in needed
    )
    if not plain:
        return False
    before = sum(prod(n.types[0].shape) for n in needed if n.op is CONSTANT)  # type: ignore[union-attr]
    return prod(node.tensor.shape) * 4 <= before * 4 + GROWTH  # type: ignore[operator]


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype("V")


def evaluated(node: Node, values: Mapping[Node, Array], field: Any) -> Array:
    """One declared node (or one output of it) in a field, given its arguments' elements."""
    owner, index = node, 0
    if node.op is ITEM:
        assert node.args[0] is not None
        owner, index = node.args[0], node.attribute("index")
        if owner in values:
            return values[owner]
    op = owner.op
    assert isinstance(op, Op)
    kinds = tuple(None if a is None else a.tensor for a in owner.args)
    scope = op.scopes(kinds, owner.attrs)[index]
    needed = set(tensors(scope))
    leaves = {
        leaf: values[arg]
        for leaf, arg in zip(op.tensors(kinds), owner.args, strict=True)
        if leaf is not None and arg is not None and leaf in needed
    }
    return interpret(scope, leaves, field)


def export_model(program: Program, *, folded: bool = True, expand: Expand | None = None) -> ModelProto:
    """The ONNX model of a whole program.  Raises TensaurusError for a node that its opset cannot say."""
    frame = program.frame
    work = lowered(fold(program) if folded else program, frame.opset, expand)
    model = ModelProto()
    model.CopyFrom(frame.model)
    used = {n for n, _ in work.outputs} | {i.attribute("name") for i in work.inputs}
    writer = Writer(frame.opset, used | {t.name for t in frame.defaults})
    writer.inputs(work, [i.attribute("name") for i in work.inputs])
    writer.write(work)
    graph = model.graph
    graph.node.extend(writer.nodes)
    graph.initializer.extend([*frame.defaults, *writer.initializers])
    graph.input.extend(_interface(frame.inputs, work.inputs, frame.fixed))
    graph.output.extend(_interface(frame.outputs, [n for _, n in work.outputs], frame.fixed))
    # from version 4 on an initializer need not be an input as well; ours are not
    model.ir_version = max(model.ir_version, 4)
    return model


def _interface(values: Sequence[ValueInfoProto], nodes: Sequence[Node], fixed: bool) -> list[ValueInfoProto]:
    result = []
    for value, node in zip(values, nodes, strict=True):
        entry = ValueInfoProto()
        entry.CopyFrom(value)
        kind = node.type
        if fixed and isinstance(kind, TensorType):
            shape = entry.type.tensor_type.shape
            if len(shape.dim) != kind.rank:
                del shape.dim[:]
                for _ in kind.shape:
                    shape.dim.add()
            for dim, size in zip(shape.dim, kind.shape, strict=True):
                if isinstance(size, int):
                    dim.dim_value = size
        result.append(entry)
    return result


def lowered(program: Program, opset: int, expand: Expand | None) -> Program:
    """The program with every node that the opset lacks replaced by its expansion."""

    def lower(node: Node, args: tuple[Node | None, ...]) -> Node:
        from tensaurus.graph.node import again

        made = again(node, args)
        if not isinstance(made.op, Op):
            return made
        try:
            _proto(made, opset)
        except NotInOpset as error:
            found = expand(made, opset) if expand is not None else None
            if found is None or found is made:
                raise TensaurusError(
                    f"{error}, and no expansion is known", node=program.names.get(node)
                ) from error
            inner = Program((), (("", found),)).rebuilt(
                lambda n, a: lower(n, a) if n not in set(made.args) else n
            )
            return inner.outputs[0][1]
        return made

    needs = any(isinstance(node.op, Op) for node in program.nodes)
    return program.rebuilt(lower) if needs else program


def _proto(node: Node, opset: int) -> NodeProto:
    """The node alone, with placeholder names: whether the opset can say it."""
    assert isinstance(node.op, Op)
    names = [None if a is None else f"i{k}" for k, a in enumerate(node.args)]
    held = {f"i{k}": a for k, a in enumerate(node.args) if a is not None}

    def constant_of(name: str) -> Array | None:
        found = held.get(name)
        return found.attribute("data").array if found is not None and found.op is CONSTANT else None

    kinds = [None if a is None else a.tensor for a in node.args]
    outputs = [f"o{k}" for k in range(len(node.types))]
    proto, _ = node_proto(
        node.op, kinds, node.attrs, names, outputs, opset, constant_of=constant_of, symbolic=lambda sizes: "s"
    )
    return proto


class Writer:
    """One graph while it is written; a body has the writer of the graph around it as `outer`."""

    def __init__(self, opset: int, used: set[str], outer: Writer | None = None):
        self.opset = opset
        self.used = used
        self.outer = outer
        self.names: dict[Node, str] = {}
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.items: dict[Node, dict[int, Node]] = defaultdict(dict)
        self.program: Program | None = None

    def fresh(self, hint: str) -> str:
        """A name that no value has yet, the hint itself if it is free."""
        name, count = hint, 0
        while name in self.used:
            count += 1
            name = f"{hint}_{count}"
        self.used.add(name)
        return name

    def inputs(self, program: Program, names: Sequence[str]) -> None:
        for node, name in zip(program.inputs, names, strict=True):
            self.names[node] = name

    def write(self, program: Program) -> None:
        """Write every node, and name the outputs as the program does (`used` holds these names)."""
        self.program = program
        for node in program.nodes:
            if node.op is ITEM:
                assert node.args[0] is not None
                self.items[node.args[0]][node.attribute("index")] = node
        late: list[tuple[str, Node]] = []
        for name, node in program.outputs:
            if node.op in (INPUT, CONSTANT) or node in self.names:
                late.append((name, node))
            else:
                self.names[node] = name
        for node in program.nodes:
            if node.op not in (INPUT, CONSTANT, ITEM):
                self.emit(node)
        for name, node in late:
            self.nodes.append(NodeProto(op_type="Identity", input=[self.name(node)], output=[name]))

    def name(self, node: Node) -> str:
        """The name of a value, a constant written at its first use."""
        found = self.names.get(node)
        if found is not None:
            return found
        if node.op is CONSTANT:
            if self.outer is not None:
                above = self.outer.known(node)
                if above is not None:
                    return above
            name = self.named(node, "constant")
            self.initializers.append(node.attribute("data").proto(name))
            return name
        raise AssertionError(f"{node} is used before it is written")

    def known(self, node: Node) -> str | None:
        return self.names.get(node) or (self.outer.known(node) if self.outer is not None else None)

    def named(self, node: Node, hint: str) -> str:
        if node not in self.names:
            assert self.program is not None
            self.names[node] = self.fresh(self.program.names.get(node, hint))
        return self.names[node]

    def outputs(self, node: Node) -> list[str]:
        label = str(node.op.name).lower()
        if len(node.types) == 1:
            return [self.named(node, label)]
        return [
            self.named(self.items[node][k], label) if k in self.items[node] else self.fresh(f"{label}_{k}")
            for k in range(len(node.types))
        ]

    def emit(self, node: Node) -> None:
        if node.op is OPAQUE:
            return self.emit_opaque(node)
        assert isinstance(node.op, Op)
        names = [None if a is None else self.name(a) for a in node.args]
        by_name = {n: a for n, a in zip(names, node.args, strict=True) if n is not None and a is not None}

        def constant_of(name: str) -> Array | None:
            found = by_name.get(name)
            return found.attribute("data").array if found is not None and found.op is CONSTANT else None

        kinds = [None if a is None else a.tensor for a in node.args]
        proto, initializers = node_proto(
            node.op,
            kinds,
            node.attrs,
            names,
            self.outputs(node),
            self.opset,
            symbolic=self.sizes,
            constant_of=constant_of,
            fresh=self.fresh,
        )
        used = set(proto.input)
        proto.name = proto.output[0]
        self.initializers.extend(t for t in initializers if t.name in used)
        self.nodes.append(proto)

    def emit_opaque(self, node: Node) -> None:
        form: Form = node.attribute("form")
        proto = form.proto
        proto.input.extend("" if a is None else self.name(a) for a in node.args[: form.inputs])
        names = self.outputs(node) if node.types else []
        proto.output.extend(n if wanted else "" for n, wanted in zip(names, form.outputs, strict=True))
        captured = node.args[form.inputs :]
        for attribute, body in form.bodies:
            proto.attribute.add(name=attribute, type=onnx.AttributeProto.GRAPH).g.CopyFrom(
                self.body(body, captured)
            )
        self.nodes.append(proto)

    def body(self, program: Program, captured: Sequence[Node | None]) -> GraphProto:
        frame = program.frame
        inner = Writer(self.opset, self.used, self)
        for inside, outside in zip(program.captured, captured, strict=True):
            assert outside is not None
            inner.names[inside] = self.name(outside)
        work = lowered(program, self.opset, None)
        entries = [(i, self.fresh(i.attribute("name"))) for i in work.inputs]
        inner.names.update(entries)
        exits = [self.fresh(name) for name, _ in work.outputs]
        renamed = Program(
            work.inputs,
            tuple((new, node) for new, (_, node) in zip(exits, work.outputs, strict=True)),
            work.captured,
            work.names,
            frame,
        )
        inner.write(renamed)
        graph = GraphProto()
        graph.CopyFrom(frame.model.graph)
        graph.node.extend(inner.nodes)
        graph.initializer.extend(inner.initializers)
        for values, names, target in (
            (frame.inputs, [n for _, n in entries], graph.input),
            (frame.outputs, exits, graph.output),
        ):
            for value, name in zip(values, names, strict=True):
                entry = target.add()
                entry.CopyFrom(value)
                entry.name = name
        return graph

    # ------------------------------------------------------------------ sizes that are not numbers

    def sizes(self, sizes: tuple[Size, ...]) -> str:
        """The name of an int64 vector that holds these sizes, computed from the shapes of inputs."""
        parts = [self.size(size) for size in sizes]
        return self.operator("Concat", parts, axis=0) if len(parts) > 1 else parts[0]

    def size(self, size: Size) -> str:
        total: str | None = None
        for factors, coefficient in terms_of(size):
            parts = [] if coefficient == 1 and factors else [self.number(int(coefficient))]
            parts += [self.atom(a) for a in factors]
            product = parts[0]
            for part in parts[1:]:
                product = self.operator("Mul", [product, part])
            total = product if total is None else self.operator("Add", [total, product])
        return total if total is not None else self.number(0)

    def atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            return self.symbol(atom)
        if isinstance(atom, Floor):
            # ONNX's integer division truncates; a size in a floor is brought above zero by its remainder
            top, bottom = self.size(atom.top), self.size(atom.bottom)
            rest = self.operator("Mod", [top, bottom])
            return self.operator("Div", [self.operator("Sub", [top, rest]), bottom])
        if isinstance(atom, Largest):
            return self.operator("Max", [self.size(a) for a in atom.args])
        raise NotInOpset(f"the size {atom} cannot be computed")

    def symbol(self, symbol: Symbol) -> str:
        """One entry of the shape of a value that has this size."""
        assert self.program is not None
        for node in self.program.nodes:
            if node in self.names and isinstance(node.types[0], TensorType) and len(node.types) == 1:
                for place, size in enumerate(node.types[0].shape):
                    if terms_of(size) == (((symbol,), 1),):
                        shape = self.operator("Shape", [self.names[node]])
                        return self.operator("Gather", [shape, self.number(place)])
        raise NotInOpset(f"no value has the size {symbol}")

    def number(self, value: int) -> str:
        return self.name(constant(np.asarray([value], np.int64)))

    def operator(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self.fresh(f"size_{op_type.lower()}")
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [name], **attributes))
        return name


def save_model(model: ModelProto, path: str | Path) -> None:
    """Write the model, beside first and then renamed; above 2 GB its weights go to PATH.data."""
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size < TWO_GIGABYTES:
        with replacing(path) as beside:
            beside.write_bytes(model.SerializeToString(deterministic=True))
        return
    location = f"{Path(path).name}.data"
    with replacing(Path(path).with_name(location)) as data, replacing(path) as beside:
        stored = ModelProto()
        stored.CopyFrom(model)
        with data.open("wb") as file:
            for tensor in stored.graph.initializer:
                if len(tensor.raw_data) < 1024:
                    continue
                file.write(b"\0" * (-file.tell() % 4096))
                start, length = file.tell(), len(tensor.raw_data)
                file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in (("location", location), ("offset", start), ("length", length)):
                    tensor.external_data.add(key=key, value=str(value))
        beside.write_bytes(stored.SerializeToString(deterministic=True))
