"""From a program to ONNX: the same interface, the same opset, every node in the form that opset has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

from tensaurus.expr.sizes.size import Size, polynomial
from tensaurus.graph.analysis.constant_folding import evaluate_node, fold_constants
from tensaurus.graph.ir.census import stored_bytes
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.opaque import OpaqueForm
from tensaurus.graph.ir.program import Program
from tensaurus.graph.lower.lowering import Expand, Kernels, lower_program, no_kernels, node_in_opset
from tensaurus.graph.onnx.build import TensorMap
from tensaurus.graph.onnx.model_file import save_model
from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_form import KERNELS, kernel_proto
from tensaurus.ops.leaf_form import ONNX_DOMAINS, copy_node, sparse_initializer
from tensaurus.ops.size_form import SizeForm

__all__ = ["evaluate_node", "export_with_tensors", "export_model", "fold_constants", "save_model"]

MIN_SHARED_ELEMENTS = 256  # elements of a constant that two bodies read and neither should repeat
DEFAULT_OPSET = 14  # of ONNX's own operators, where a model imports none and needs a copy


def export_model(
    program: Program, *, folded: bool = True, expand: Expand | None = None, kernels: Kernels = no_kernels
) -> ModelProto:
    """The ONNX model of a whole program.  Raises TensaurusError for a node that its opset cannot say."""
    return export_with_tensors(program, folded=folded, expand=expand, kernels=kernels)[0]


def export_with_tensors(
    program: Program,
    *,
    folded: bool = True,
    expand: Expand | None = None,
    kernels: Kernels = no_kernels,
    weights: WeightFiles | None = None,
    most: float = inf,
    watch: Callable[[Program], None] = lambda program: None,
) -> tuple[ModelProto, TensorMap]:
    """The ONNX model of a whole program, and what its tensors are; `weights` takes its large initializers.

    Constants are folded into at most `most` bytes, where they are not more unfolded.

    It runs where the kernels that it was given are known.  `watch` is given the program as it is written.

    Raises TensaurusError for a node that its opset cannot say.
    """
    frame = program.frame
    names = {t.name for t in frame.defaults}
    room = ConstantBudget(most - stored_bytes(program))
    writer = GraphWriter(
        frame.opset, names, room, folded=folded, expand=expand, kernels=kernels, weights=weights
    )
    work = writer.prepared(program)
    watch(work)
    inputs = [i.attribute("name") for i in work.inputs]
    writer.used.update(inputs, (name for name, _ in work.outputs))
    writer.write(work, inputs)
    model = ModelProto()
    model.CopyFrom(frame.model)
    graph = model.graph
    graph.node.extend(writer.nodes)
    graph.initializer.extend([*frame.defaults, *writer.initializers])
    graph.sparse_initializer.extend(writer.sparse)
    graph.input.extend(_interface_values(frame.inputs, work.inputs, frame.fixed))
    graph.output.extend(_interface_values(frame.outputs, [n for _, n in work.outputs], frame.fixed))
    # from version 4 on an initializer need not be an input as well; ours are not
    model.ir_version = max(model.ir_version, 4)
    own = any(node.domain in ONNX_DOMAINS for node in graph.node)
    if own and not any(entry.domain in ONNX_DOMAINS for entry in model.opset_import):
        # one that imports nothing, which IR versions before 3 cannot, is of the first opset
        version = DEFAULT_OPSET if model.opset_import else frame.opset
        model.opset_import.add(domain="", version=version)
    if writer.runs_kernels and all(entry.domain != KERNELS for entry in model.opset_import):
        model.opset_import.add(domain=KERNELS, version=1)
    return model, writer.tensors(program, work)


def _interface_values(
    values: Sequence[ValueInfoProto], nodes: Sequence[Node], fixed: bool
) -> Iterator[ValueInfoProto]:
    """The inputs or outputs as the model stated them, with the sizes that --shape fixed."""
    for value, node in zip(values, nodes, strict=True):
        entry = ValueInfoProto()
        entry.CopyFrom(value)
        kind = node.types[0]
        if fixed and isinstance(kind, TensorType):
            shape = entry.type.tensor_type.shape
            if len(shape.dim) != kind.rank:
                del shape.dim[:]
                for _ in kind.shape:
                    shape.dim.add()
            for dim, size in zip(shape.dim, kind.shape, strict=True):
                if isinstance(size, int):
                    dim.dim_value = size
        yield entry


@dataclass
class ConstantBudget:
    """How many bytes of constants more a model may store than it does; shared by all of its bodies."""

    left: float

    def fold(self, program: Program, became: dict[Node, Node]) -> Program:
        """Fold as much of the program as there is room for."""
        before = stored_bytes(program)
        made = fold_constants(program, became, before + self.left)
        if made is not program:
            self.left -= stored_bytes(made) - before
        return made


class GraphWriter:
    """One graph while it is written; a body has the writer of the graph around it as `outer`."""

    def __init__(
        self,
        opset: int,
        used: set[str],
        room: ConstantBudget,
        outer: GraphWriter | None = None,
        *,
        folded: bool,
        expand: Expand | None,
        kernels: Kernels,
        weights: WeightFiles | None = None,
    ):
        self.opset, self.used, self.room, self.outer, self.weights = opset, used, room, outer, weights
        self.folded, self.expand, self.kernels = folded, expand, kernels
        self.runs_kernels = False
        self.names: dict[Node, str] = {}
        self.visible: dict[Node, str] = {}  # values that exist where the next node will stand
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.sparse: list[SparseTensorProto] = []
        self.items: dict[Node, dict[int, Node]] = defaultdict(dict)
        self.hints: Mapping[Node, str] = {}
        self.reading: Node | None = None  # the node that needs a size
        self.became: dict[Node, Node] = {}  # of the program's nodes, what is written for each
        self.sizes = SizeForm(opset, self.dimension, self.place, self.fresh)

    def prepared(self, program: Program) -> Program:
        """The program folded, with every node that the opset lacks replaced by its expansion."""
        folded: dict[Node, Node] = {}
        lower: dict[Node, Node] = {}
        made = self.room.fold(program, folded) if self.folded else program
        work = lower_program(made, self.opset, self.expand, lower, self.kernels)
        constants: dict[Node, Node] = {}  # of expansions
        if self.folded and work.roots != made.roots:
            work = self.room.fold(work, constants)
        self.became = {
            n: constants.get(lower[m], lower[m])
            for n in program.nodes
            if (m := folded.get(n, n)) in lower
        }
        return work

    def fresh(self, hint: str) -> str:
        """A name that no value has yet, the hint itself if it is free."""
        name, count = hint, 0
        while name in self.used:
            count += 1
            name = f"{hint}_{count}"
        self.used.add(name)
        return name

    def write(self, program: Program, inputs: Sequence[str]) -> None:
        """Write every node, and name inputs and outputs as the caller says (`used` holds these names)."""
        self.hints = program.names
        for node, name in zip(program.inputs, inputs, strict=True):
            self.names[node] = self.visible[node] = name
        for node in program.nodes:
            if node.op is ITEM:
                assert node.args[0] is not None
                self.items[node.args[0]][node.attribute("index")] = node
        copies: list[tuple[str, Node]] = []
        for name, node in program.outputs:
            if self.names.get(node) == name:
                continue  # an input that is an output under the same name
            if node.op in (INPUT, CONSTANT) or node in self.names:
                copies.append((name, node))
            else:
                self.names[node] = name
        for node in _shared_by_bodies(program):
            self.name(node)
        for node in program.nodes:
            if node.op is OPAQUE:
                self.emit_opaque(node)
            elif isinstance(node.op, Op):
                self.emit(node)
        self.nodes += [copy_node(self.name(node), name) for name, node in copies]

    def name(self, node: Node) -> str:
        """The name of a value, a constant written at its first use."""
        found = self.names.get(node)
        if found is not None:
            return found
        assert node.op is CONSTANT, f"{node} is used before it is written"
        above = self.outer
        while above is not None:
            if node in above.names:
                return above.names[node]
            above = above.outer
        name = self.named(node, "constant")
        data = node.attribute("data")
        outside = self.weights and self.weights.outside(data, name)
        self.initializers.append(outside or data.proto(name))
        return name

    def named(self, node: Node, hint: str) -> str:
        if node not in self.names:
            self.names[node] = self.fresh(self.hint(node) or hint)
        return self.names[node]

    def hint(self, node: Node) -> str | None:
        """The name that the node had in the model, here or around this body."""
        return self.hints.get(node) or (self.outer.hint(node) if self.outer is not None else None)

    def outputs(self, node: Node, wanted: Sequence[bool] = ()) -> list[str]:
        """The names of the node's outputs, empty for those not wanted."""
        label = str(node.op.name).lower()
        if len(node.types) == 1:
            return [self.named(node, label)]
        names = []
        for place in range(len(node.types)):
            read = self.items[node].get(place)
            if read is not None:
                names.append(self.named(read, label))
            else:
                names.append(self.fresh(f"{label}_{place}") if not wanted or wanted[place] else "")
        return names

    def emit(self, node: Node) -> None:
        self.reading = node
        kernel = self.kernels(node) if node.op is eop else None
        if kernel is not None:
            self.runs_kernels = True
            names, (output,) = [self.name(a) for a in node.args if a is not None], self.outputs(node)
            self.nodes.append(kernel_proto(kernel.name, node.attribute("scope"), names, output))
            return self.reveal(node)
        proto, initializers = node_in_opset(
            node,
            self.opset,
            [None if a is None else self.name(a) for a in node.args],
            self.outputs(node),
            self.sizes.tensor,
            self.fresh,
        )
        used = set(proto.input)
        proto.name = proto.output[0]
        self.initializers.extend(t for t in initializers if t.name in used)
        self.nodes.append(proto)
        self.reveal(node)

    def emit_opaque(self, node: Node) -> None:
        form: OpaqueForm = node.attribute("form")
        proto = form.proto
        proto.input.extend("" if a is None else self.name(a) for a in node.args[: form.inputs])
        captured = node.args[form.inputs :]
        graphs = [(attribute, self.body(body, captured)) for attribute, body in form.bodies]
        lists = {a.name: a for a in proto.attribute if a.type == AttributeProto.GRAPHS}
        for attribute, graph in graphs:
            if attribute in lists:
                lists[attribute].graphs.append(graph)
            else:
                proto.attribute.add(name=attribute, type=AttributeProto.GRAPH).g.CopyFrom(graph)
        proto.output.extend(self.outputs(node, form.outputs))
        # equal nodes of two models are one, so that a node has no name of its own; of values each has one
        proto.name = next(filter(None, proto.output), "")
        sparse = sparse_initializer(proto)
        if sparse is not None:
            self.sparse.append(sparse)
        else:
            self.nodes.append(proto)
        self.reveal(node)

    def reveal(self, node: Node) -> None:
        """The node is written: sizes may be read from its outputs from here on."""
        for value in self.items[node].values() if len(node.types) > 1 else [node]:
            self.visible[value] = self.names[value]

    def body(self, program: Program, captured: Sequence[Node | None]) -> GraphProto:
        """A body of If, Loop or Scan; its names differ from all others of the model."""
        inner = GraphWriter(
            self.opset,
            self.used,
            self.room,
            self,
            folded=self.folded,
            expand=self.expand,
            kernels=self.kernels,
        )
        for inside, outside in zip(program.captured, captured, strict=True):
            assert outside is not None
            inner.names[inside] = inner.visible[inside] = self.name(outside)
        work = inner.prepared(program)
        inputs = [self.fresh(i.attribute("name")) for i in work.inputs]
        outputs = [self.fresh(name) for name, _ in work.outputs]
        pairs = zip(outputs, (node for _, node in work.outputs), strict=True)
        inner.write(replace(work, outputs=tuple(pairs)), inputs)
        self.runs_kernels |= inner.runs_kernels
        frame = program.frame
        graph = GraphProto()
        graph.CopyFrom(frame.model.graph)
        graph.node.extend(inner.nodes)
        graph.initializer.extend(inner.initializers)
        graph.sparse_initializer.extend(inner.sparse)
        for values, names, target in (
            (frame.inputs, inputs, graph.input),
            (frame.outputs, outputs, graph.output),
        ):
            for value, name in zip(values, names, strict=True):
                entry = target.add()
                entry.CopyFrom(value)
                entry.name = name
        return graph

    def tensors(self, program: Program, work: Program) -> TensorMap:
        """What the tensors are of a program that was prepared, and written as `work`."""
        names = [*((name, node) for node, name in self.names.items()), *work.outputs]
        written = {name: node for name, node in names if node.op not in (INPUT, CONSTANT)}
        places = [(self.names.get(made), node) for node, made in self.became.items()]
        found: dict[str, set[Node]] = {}
        for name, node in [*places, *program.outputs]:
            if name is not None and name in written and node.op not in (INPUT, CONSTANT):
                owner = node.args[0] if node.op is ITEM else node
                assert owner is not None
                found.setdefault(name, set()).add(owner)
        named, made_here = set(found), {name for proto in self.nodes for name in proto.output if name}
        for proto in reversed(self.nodes):  # what is computed for others only
            meant = set[Node]().union(*(found.get(name, ()) for name in proto.output))
            for name in proto.input:
                if name in made_here and name not in named:
                    found.setdefault(name, set()).update(meant)
        return TensorMap(written, {name: frozenset(nodes) for name, nodes in found.items()})

    # ------------------------------------------------------------------ sizes that are not numbers

    def place(self, proto: NodeProto | TensorProto) -> None:
        if isinstance(proto, NodeProto):
            self.nodes.append(proto)
        else:
            self.initializers.append(proto)

    def dimension(self, size: Size) -> tuple[str, int] | None:
        """A value that has the size as a dimension, those first that the reading node reads."""
        own = [a for a in self.reading.args if a is not None] if self.reading is not None else []
        writer: GraphWriter | None = self
        candidates = [(node, self.visible[node]) for node in own if node in self.visible]
        while writer is not None:
            candidates += writer.visible.items()
            writer = writer.outer
        for node, name in candidates:
            kind = node.types[0]
            if isinstance(kind, TensorType):
                for place, other in enumerate(kind.shape):
                    if not isinstance(other, int) and polynomial(other) == size:
                        return name, place
        return None


def _shared_by_bodies(program: Program) -> list[Node]:
    """Large constants that several bodies read: written around them, not in each."""
    count: Counter[Node] = Counter()
    for node in program.nodes:
        if node.op is OPAQUE:
            for _, body in node.attribute("form").bodies:
                count.update(_constants_within(body))
    shared = (node for node, times in count.items() if times > 1)
    return [node for node in shared if prod(node.attribute("data").shape) > MIN_SHARED_ELEMENTS]


def _constants_within(program: Program) -> set[Node]:
    found = {node for node in program.nodes if node.op is CONSTANT}
    for node in program.nodes:
        if node.op is OPAQUE:
            for _, body in node.attribute("form").bodies:
                found |= _constants_within(body)
    return found
