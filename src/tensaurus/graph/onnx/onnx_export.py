"""Export a program as an ONNX model with the original's interface and opset.

`GraphWriter.prepare` folds constants and expands what the opset lacks, `GraphWriter.write` makes one ONNX
node of each call that is left, and the program's frame (`onnx_frame.Frame`) is put around them.
"""

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
from tensaurus.graph.analysis.constant_folding import fold_constants
from tensaurus.graph.ir.census import unfolded_constant_bytes
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.opaque import OpaqueForm
from tensaurus.graph.ir.program import Program
from tensaurus.graph.lower.program_lowering import Expand, Kernels, lower_program, no_kernels, write_in_opset
from tensaurus.graph.onnx.build import TensorMap
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN, make_kernel_node
from tensaurus.ops.size_nodes import SizeWriter
from tensaurus.ops.special_nodes import ONNX_DOMAINS, copy_node, sparse_initializer

MIN_SHARED_ELEMENTS = 256  # a constant that several bodies read is written once if it has more elements
DEFAULT_OPSET = 14  # of ONNX's operators, in a model that imports none but needs an Identity


def export_model(
    program: Program, *, folded: bool = True, expand: Expand | None = None, kernels: Kernels = no_kernels
) -> ModelProto:
    """Return the ONNX model of a program.  Raises TensaurusError as `export_with_tensors` does."""
    return export_with_tensors(program, folded=folded, expand=expand, kernels=kernels)[0]


def export_with_tensors(
    program: Program,
    *,
    folded: bool = True,
    expand: Expand | None = None,
    kernels: Kernels = no_kernels,
    weights: WeightFiles | None = None,
    max_constant_bytes: float = inf,
    watch: Callable[[Program], None] = lambda program: None,
) -> tuple[ModelProto, TensorMap]:
    """Return the ONNX model of a program, and which nodes each of its tensors stands for.

    folded              whether expressions over constants become constants
    expand, kernels     expansions of operators that the opset lacks, and kernels of eOperators (`ops/eop`)
    weights             writes large initializers to files of their own
    max_constant_bytes  folding adds constants up to this total; the program's own constants may take more
    watch               is called with the program that is written, after folding and expansion

    Raises TensaurusError for a node that the opset lacks, and that has no expansion.
    """
    frame = program.frame
    names = {t.name for t in frame.defaults}
    budget = ConstantBudget(max_constant_bytes - unfolded_constant_bytes(program))
    writer = GraphWriter(
        frame.opset, names, budget, folded=folded, expand=expand, kernels=kernels, weights=weights
    )
    prepared = writer.prepare(program)
    watch(prepared)
    inputs = [i.attribute("name") for i in prepared.inputs]
    writer.used_names.update(inputs, (name for name, _ in prepared.outputs))
    writer.write(prepared, inputs)
    model = ModelProto()
    model.CopyFrom(frame.model)
    graph = model.graph
    graph.node.extend(writer.nodes)
    graph.initializer.extend([*frame.defaults, *writer.initializers])
    graph.sparse_initializer.extend(writer.sparse)
    graph.input.extend(_interface_values(frame.inputs, prepared.inputs, frame.fixed))
    graph.output.extend(_interface_values(frame.outputs, [n for _, n in prepared.outputs], frame.fixed))
    # from IR version 4 on an initializer need not be an input as well
    model.ir_version = max(model.ir_version, 4)
    uses_onnx = any(node.domain in ONNX_DOMAINS for node in graph.node)
    if uses_onnx and not any(entry.domain in ONNX_DOMAINS for entry in model.opset_import):
        # a model without any import (before IR version 3) has the first opset
        version = DEFAULT_OPSET if model.opset_import else frame.opset
        model.opset_import.add(domain="", version=version)
    if writer.runs_kernels and all(entry.domain != KERNEL_DOMAIN for entry in model.opset_import):
        model.opset_import.add(domain=KERNEL_DOMAIN, version=1)
    return model, writer.tensor_map(program, prepared)


def _interface_values(
    values: Sequence[ValueInfoProto], nodes: Sequence[Node], fixed: bool
) -> Iterator[ValueInfoProto]:
    """Yield the inputs or outputs as the model states them, with the sizes that --shape fixed.

    Exporters state wrong shapes of outputs, which runtimes ignore: they stay, as callers may read them.
    """
    for value, node in zip(values, nodes, strict=True):
        entry = ValueInfoProto()
        entry.CopyFrom(value)
        kind = node.types[0]
        if fixed and isinstance(kind, TensorType):
            shape, stated = entry.type.tensor_type.shape, stated_sizes(entry.type)
            if stated is None:
                stated = [None] * kind.rank
                for _ in stated:
                    shape.dim.add()
            if len(stated) == kind.rank:
                for dim, known, size in zip(shape.dim, stated, kind.shape, strict=True):
                    if known is None and isinstance(size, int):
                        dim.dim_value = size
        yield entry


@dataclass
class ConstantBudget:
    """How many more bytes of constants folding may add, to a model and its bodies together."""

    remaining: float

    def fold(self, program: Program, became: dict[Node, Node]) -> Program:
        """Return the program with constants folded, as far as the remaining bytes allow."""
        before = unfolded_constant_bytes(program)
        folded = fold_constants(program, became, before + self.remaining)
        if folded is not program:
            self.remaining -= unfolded_constant_bytes(folded) - before
        return folded


class GraphWriter:
    """Writes one graph; for a body, `outer` is the writer of the graph around it.

    used_names      all names of the model
    original_names  names of nodes in the original model
    names           the name of each value of this graph, written or not
    visible         names of the values that are defined before the next node
    items           {node of several outputs: {number of an output: the ITEM that stands for this output}}
    current         the node that is being written; a symbolic size is looked up in its arguments first
    became          {node of the program: the node written in its place, after folding and expansion}
    sizes           writes the nodes that compute symbolic sizes
    """

    def __init__(
        self,
        opset: int,
        used_names: set[str],
        budget: ConstantBudget,
        outer: GraphWriter | None = None,
        *,
        folded: bool,
        expand: Expand | None,
        kernels: Kernels,
        weights: WeightFiles | None = None,
    ):
        self.opset, self.used_names, self.budget = opset, used_names, budget
        self.outer, self.weights = outer, weights
        self.folded, self.expand, self.kernels = folded, expand, kernels
        self.runs_kernels = False
        self.names: dict[Node, str] = {}
        self.visible: dict[Node, str] = {}
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.sparse: list[SparseTensorProto] = []
        self.items: dict[Node, dict[int, Node]] = defaultdict(dict)
        self.original_names: Mapping[Node, str] = {}
        self.current: Node | None = None
        self.became: dict[Node, Node] = {}
        self.sizes = SizeWriter(opset, self.find_dimension, self.add_size_node, self.fresh_name)

    def prepare(self, program: Program) -> Program:
        """Return the program with constants folded and every node that the opset lacks expanded."""
        folded: dict[Node, Node] = {}
        lowered: dict[Node, Node] = {}
        constants: dict[Node, Node] = {}  # folded in expansions
        folded_program = self.budget.fold(program, folded) if self.folded else program
        prepared = lower_program(folded_program, self.opset, self.expand, lowered, self.kernels)
        if self.folded and prepared.roots != folded_program.roots:
            prepared = self.budget.fold(prepared, constants)
        for node in program.nodes:
            if (lowered_node := lowered.get(folded.get(node, node))) is not None:
                self.became[node] = constants.get(lowered_node, lowered_node)
        return prepared

    def fresh_name(self, hint: str) -> str:
        """Return a name that no value has yet: the hint itself if it is free."""
        name, count = hint, 0
        while name in self.used_names:
            count += 1
            name = f"{hint}_{count}"
        self.used_names.add(name)
        return name

    def write(self, program: Program, inputs: Sequence[str]) -> None:
        """Write every node; inputs and outputs have the given names, which `used_names` holds already."""
        self.original_names = program.names
        # name the inputs, the outputs, and what bodies share, before any node is written
        for node, name in zip(program.inputs, inputs, strict=True):
            self.names[node] = self.visible[node] = name
        for node in program.nodes:
            if node.op is ITEM:
                owner, index = node.owner
                self.items[owner][index] = node
        copies: list[tuple[str, Node]] = []  # outputs that need an Identity, as their node has another name
        for name, node in program.outputs:
            if self.names.get(node) == name:
                continue  # an input that is also an output, under the same name
            if node.op in (INPUT, CONSTANT) or node in self.names:
                copies.append((name, node))
            else:
                self.names[node] = name
        for node in _shared_by_bodies(program):
            self.name(node)
        for node in program.nodes:
            if node.op is OPAQUE:
                self.write_opaque(node)
            elif isinstance(node.op, Op):
                self.write_node(node)
        self.nodes += [copy_node(self.name(node), name) for name, node in copies]

    def name(self, node: Node) -> str:
        """Return the name of a value; a constant is written at its first use."""
        writer: GraphWriter | None = self
        assert node in self.names or node.op is CONSTANT, f"{node} is used before it is written"
        while writer is not None:
            if node in writer.names:
                return writer.names[node]
            writer = writer.outer
        name = self.name_or_create(node, "constant")
        data = node.attribute("data")
        external = self.weights and self.weights.store(data, name)
        self.initializers.append(external or data.proto(name))
        return name

    def name_or_create(self, node: Node, hint: str) -> str:
        """Return the node's name; a new one is the original's, or made from the hint."""
        if node not in self.names:
            self.names[node] = self.fresh_name(self.model_name(node) or hint)
        return self.names[node]

    def model_name(self, node: Node) -> str | None:
        """Return the name that the node had in the model, in this graph or in one around it."""
        return self.original_names.get(node) or (self.outer.model_name(node) if self.outer else None)

    def output_names(self, node: Node, wanted: Sequence[bool] = ()) -> list[str]:
        """Return the names of a node's outputs; "" for one that nothing reads if `wanted` excludes it."""
        label = str(node.op.name).lower()
        if len(node.types) == 1:
            return [self.name_or_create(node, label)]
        names = []
        for k in range(len(node.types)):
            read = self.items[node].get(k)
            if read is not None:
                names.append(self.name_or_create(read, label))
            else:
                names.append(self.fresh_name(f"{label}_{k}") if not wanted or wanted[k] else "")
        return names

    def write_node(self, node: Node) -> None:
        """Write a declared node: as a call of its kernel, or as the opset has it."""
        self.current = node
        kernel = self.kernels(node) if node.op is eop else None
        if kernel is not None:
            self.runs_kernels = True
            names, (output,) = [self.name(a) for a in node.args if a is not None], self.output_names(node)
            self.nodes.append(make_kernel_node(kernel.name, node.attribute("scope"), names, output))
            return self.mark_written(node)
        inputs, outputs = [None if a is None else self.name(a) for a in node.args], self.output_names(node)
        proto, added = write_in_opset(node, self.opset, inputs, outputs, self.sizes.tensor, self.fresh_name)
        proto.name = proto.output[0]
        self.initializers.extend(tensor for tensor in added if tensor.name in set(proto.input))
        self.nodes.append(proto)
        self.mark_written(node)

    def write_opaque(self, node: Node) -> None:
        """Write an opaque node as the model stated it, with its bodies."""
        form: OpaqueForm = node.attribute("form")
        proto = form.proto
        proto.input.extend("" if a is None else self.name(a) for a in node.args[: form.inputs])
        captured = node.args[form.inputs :]
        graphs = [(attribute, self.write_body(body, captured)) for attribute, body in form.bodies]
        lists = {a.name: a for a in proto.attribute if a.type == AttributeProto.GRAPHS}
        for attribute, graph in graphs:
            if attribute in lists:
                lists[attribute].graphs.append(graph)
            else:
                proto.attribute.add(name=attribute, type=AttributeProto.GRAPH).g.CopyFrom(graph)
        proto.output.extend(self.output_names(node, form.outputs))
        # equal nodes are one object, perhaps of two models, and so have no name: take the first output's
        proto.name = next(filter(None, proto.output), "")
        sparse = sparse_initializer(proto)
        if sparse is not None:
            self.sparse.append(sparse)
        else:
            self.nodes.append(proto)
        self.mark_written(node)

    def mark_written(self, node: Node) -> None:
        """Let later nodes read sizes from the outputs of a node that was written."""
        for value in self.items[node].values() if len(node.types) > 1 else [node]:
            self.visible[value] = self.names[value]

    def write_body(self, program: Program, captured: Sequence[Node | None]) -> GraphProto:
        """Return a body of If, Loop or Scan; its names differ from all others of the model."""
        model = self.opset, self.used_names, self.budget, self
        inner = GraphWriter(*model, folded=self.folded, expand=self.expand, kernels=self.kernels)
        for inside, outside in zip(program.captured, captured, strict=True):
            assert outside is not None
            inner.names[inside] = inner.visible[inside] = self.name(outside)
        prepared = inner.prepare(program)
        inputs = [self.fresh_name(i.attribute("name")) for i in prepared.inputs]
        outputs = [self.fresh_name(name) for name, _ in prepared.outputs]
        pairs = zip(outputs, (node for _, node in prepared.outputs), strict=True)
        inner.write(replace(prepared, outputs=tuple(pairs)), inputs)
        self.runs_kernels |= inner.runs_kernels
        frame = program.frame
        graph = GraphProto()
        graph.CopyFrom(frame.model.graph)
        graph.node.extend(inner.nodes)
        graph.initializer.extend(inner.initializers)
        graph.sparse_initializer.extend(inner.sparse)
        interface = (frame.inputs, inputs, graph.input), (frame.outputs, outputs, graph.output)
        for values, names, target in interface:
            for value, name in zip(values, names, strict=True):
                entry = target.add()
                entry.CopyFrom(value)
                entry.name = name
        return graph

    def tensor_map(self, program: Program, prepared: Program) -> TensorMap:
        """Return what each tensor of the written model stands for (`TensorMap`).

        That is the node of `prepared` that it holds, and the nodes of the original `program` that it helps to
        compute.
        """
        # the tensors that the model has, and for each the nodes of `program` that became it
        names = [*((name, node) for node, name in self.names.items()), *prepared.outputs]
        written = {name: node for name, node in names if node.op not in (INPUT, CONSTANT)}
        rebuilt = [(self.names.get(new_node), node) for node, new_node in self.became.items()]
        computed: dict[str, set[Node]] = {}
        for name, node in [*rebuilt, *program.outputs]:
            if name is not None and name in written and node.op not in (INPUT, CONSTANT):
                computed.setdefault(name, set()).add(node.owner[0])
        known, defined_here = set(computed), {name for proto in self.nodes for name in proto.output if name}
        for proto in reversed(self.nodes):  # tensors inside expansions belong to the nodes that read them
            readers = set[Node]().union(*(computed.get(name, ()) for name in proto.output))
            for name in proto.input:
                if name in defined_here and name not in known:
                    computed.setdefault(name, set()).update(readers)
        return TensorMap(written, {name: frozenset(nodes) for name, nodes in computed.items()})

    # ------------------------------------------------------------------ sizes that are not numbers

    def add_size_node(self, proto: NodeProto | TensorProto) -> None:
        """Write a node or a constant that computes a symbolic size."""
        if isinstance(proto, NodeProto):
            self.nodes.append(proto)
        else:
            self.initializers.append(proto)

    def find_dimension(self, size: Size) -> tuple[str, int] | None:
        """Return (name, dimension) of a value that has the size, arguments of the current node first."""
        args = [a for a in self.current.args if a is not None] if self.current is not None else []
        writer: GraphWriter | None = self
        candidates = [(node, self.visible[node]) for node in args if node in self.visible]
        while writer is not None:
            candidates += writer.visible.items()
            writer = writer.outer
        for node, name in candidates:
            kind = node.types[0]
            if isinstance(kind, TensorType):
                for d, other in enumerate(kind.shape):
                    if not isinstance(other, int) and polynomial(other) == size:
                        return name, d
        return None


def _shared_by_bodies(program: Program) -> list[Node]:
    """Return large constants that several bodies read, to be written once in the graph around them."""
    count = Counter(node for body in program.bodies for node in _constants_within(body))
    shared = (node for node, times in count.items() if times > 1)
    return [node for node in shared if prod(node.attribute("data").shape) > MIN_SHARED_ELEMENTS]


def _constants_within(program: Program) -> set[Node]:
    constants = {node for node in program.nodes if node.op is CONSTANT}
    return constants.union(*map(_constants_within, program.bodies))
