"""One ONNX graph while its nodes become ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from tensaurus.expr.sizes.size import Arithmetic, Floor, Largest, Symbol, polynomial, terms_of
from tensaurus.graph.ir.known_integers import KnownElements, known_elements
from tensaurus.graph.ir.node import CONSTANT, Node, Type, apply, constant, item, opaque, source
from tensaurus.graph.ir.opaque import OpaqueForm, operator_name
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.tensor_data import TensorData, numpy_dtype
from tensaurus.graph.onnx.onnx_frame import Frame, graph_without_content, graphs_in, initializer_names
from tensaurus.graph.onnx.value_types import Location, ValueTypes, describe_contradiction
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_form import scope_text
from tensaurus.ops.leaf_form import (
    ONNX_DOMAINS,
    branches,
    constant_tensor,
    has_variadic_outputs,
    is_deterministic,
    sparse_node,
)
from tensaurus.ops.onnx_form import from_onnx
from tensaurus.ops.undeclared import why_undeclared
from tensaurus.system.errors import TensaurusError

_NON_TENSOR_TYPES = frozenset({"sequence_type", "optional_type", "map_type", "sparse_tensor_type"})


class GraphImporter:
    """One graph while it is imported: its names, and the importer of the graph around it for a body.

    An `open` one is the branch of an If that is known to be taken: its nodes are those of the graph around.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: frozenset[tuple[str, str]],
        types: ValueTypes,
        outer: GraphImporter | None = None,
        *,
        graph: GraphProto,
        open: bool = False,
    ):
        self.opsets, self.functions, self.types, self.outer = opsets, functions, types, outer
        self.opset, self.open = opsets.get("", 1), open
        self.counter: Iterator[int] = outer.counter if outer is not None else count()
        number = next(self.counter)
        self.infos, self.stated = types.infos[number], types.stated[number]
        # sizes keep their names in a body without inputs; those of a loop may differ in each iteration
        shared = outer is not None and not graph.input
        scope = outer.place.scope if outer is not None and shared else str(number or "")
        self.place: Location = Location(str(number), scope)
        self.names: dict[str, Node] = {}
        self.captured: dict[str, tuple[Node, Node]] = {}  # name: (the body's input, the outer node)
        self.given: set[Symbol] = set(outer.given) if outer is not None else set()
        self.memo: KnownElements = outer.memo if outer is not None and open else {}
        self.inner: dict[Node, str] = {}  # the names in branches taken
        self.read = {name for g in graphs_in(graph) for node in g.node for name in node.input}
        self.read.update(value.name for g in graphs_in(graph) for value in g.output)

    def take(self, value: ValueInfoProto) -> None:
        """Define an input of the graph."""
        stated = value.type if value.type.WhichOneof("value") else self.infos.get(value.name, TypeProto())
        kind = self.type_of(stated, value.name)
        self.names[value.name] = source(value.name, kind)
        if isinstance(kind, TensorType):
            self.given.update(s for s in map(symbol_of, kind.shape) if s is not None)

    def type_of(self, proto: TypeProto, name: str) -> Type:
        try:
            return self.types.of(proto, name, self.place)
        except ValueError as error:
            raise TensaurusError(f"the value {name} has a type that ONNX does not define: {error}") from error

    def hints(self) -> dict[Node, str]:
        return {**self.inner, **{node: name for name, node in reversed(self.names.items())}}

    def lookup(self, name: str) -> Node:
        if name in self.names:
            return self.names[name]
        if name in self.captured:
            return self.captured[name][0]
        if self.outer is None:
            raise TensaurusError(f"the value {name} is used before it is defined")
        node = self.outer.lookup(name)
        if self.open or node.op is CONSTANT:
            return node
        label = f"outer:{name}"
        while label in self.names:
            label = f"outer:{label}"
        inside = source(label, node.types[0])
        self.captured[name] = (inside, node)
        value = known_elements(node, self.outer.memo)
        if value is not None:
            self.memo[inside] = value
        return inside

    def run(self, graph: GraphProto, skip: set[str] | frozenset[str] = frozenset()) -> None:
        """Define what the initializers and nodes of the graph define."""
        for tensor in graph.initializer:
            if tensor.name not in skip:
                self.names[tensor.name] = constant(_tensor_data(tensor))
        for sparse in graph.sparse_initializer:
            if sparse.values.name not in skip:
                self.add(sparse_node(sparse))
        for proto in graph.node:
            try:
                self.add(proto)
            except TensaurusError as error:
                error.node = error.node or proto.name or next(iter(proto.output), None)
                raise

    def add(self, proto: NodeProto) -> None:
        """Define the outputs of one ONNX node."""
        known_here = proto.domain in ONNX_DOMAINS and (proto.domain, proto.op_type) not in self.functions
        tensor = constant_tensor(proto) if known_here else None
        if tensor is not None:
            return self.define(proto.output, [constant(_tensor_data(tensor))])
        choice = branches(proto) if known_here else None
        if choice is not None:
            for attribute in proto.attribute:
                if len(attribute.g.output) != len(proto.output):
                    raise TensaurusError(f"its {attribute.name} has another number of outputs than the node")
            if {attribute.name for attribute in proto.attribute} != set(choice.values()):
                raise TensaurusError(f"it lacks the attribute {' or '.join(choice.values())}")
            condition = known_elements(self.lookup(proto.input[0]), self.memo)
            if condition is not None and condition.size == 1:
                return self.take_branch(proto, choice[bool(condition.item())])
        domain = "" if proto.domain in ONNX_DOMAINS else proto.domain
        op = registry.get(proto.op_type) if (proto.domain, proto.op_type) not in self.functions else None
        if (scope := scope_text(proto)) is not None:
            typed = partial(self.compiled, scope)
        elif op is not None and op.domain == domain:
            typed = partial(self.declared, op)
        else:
            return self.add_opaque(proto, why_undeclared(operator_name(proto)))
        try:
            node = typed(proto)
        except Untypable as error:
            return self.add_opaque(proto, str(error))
        except Exception as error:  # a declaration that fails leaves the node as it is
            return self.add_opaque(proto, f"{type(error).__name__}: {error}")
        self.define(proto.output, [item(node, place) for place in range(len(node.types))])

    def take_branch(self, proto: NodeProto, taken: str) -> None:
        """Define the outputs of an If whose condition is known: those of the branch in attribute `taken`."""
        outputs: list[Node] = []
        for attribute in proto.attribute:
            if attribute.name == taken:
                graph = attribute.g
                inner = GraphImporter(
                    self.opsets, self.functions, self.types, self, graph=graph, open=True
                )
                inner.run_body(graph)
                outputs = [inner.lookup(value.name) for value in graph.output]
                self.inner.update(inner.hints())
            else:
                for _ in graphs_in(attribute.g):
                    next(self.counter)
        self.define(proto.output, outputs)

    def define(self, names: Sequence[str], nodes: Sequence[Node]) -> None:
        for name, node in zip(names, nodes, strict=False):
            if name:
                if name in self.names:
                    raise TensaurusError(f"the value {name} is defined twice")
                self.names[name] = node

    def declared(self, op: Op, proto: NodeProto) -> Node:
        if any(name not in self.read for name in proto.output):
            bare = NodeProto()
            bare.CopyFrom(proto)
            bare.output[:] = [name if name in self.read else "" for name in proto.output]
            proto = bare
        names, attrs = from_onnx(op, proto, self.opset, self.constant_of, self.dtype_of)
        args = [self.argument(a, names) for a in names]
        wanted = max((i + 1 for i, name in enumerate(proto.output) if name), default=1)
        node = apply(op, args, attrs, 0 if has_variadic_outputs(op, self.opset) else wanted)
        for size in _symbolic_sizes(node.attrs):
            self.require(size, node)
        self.compare(proto, node)
        return node

    def compiled(self, scope: str, proto: NodeProto) -> Node:
        """The expression that a kernel was compiled from."""
        node = apply(eop, [self.lookup(name) for name in proto.input], {"scope": scope})
        self.compare(proto, node)
        return node

    def compare(self, proto: NodeProto, node: Node) -> None:
        """Raise Untypable where ONNX's inference or the model itself has other types for the outputs.

        Exporters leave stale shapes behind, which runtimes overlook: only inferred ones count.
        """
        for name, kind in zip(proto.output, node.types, strict=False):
            if not name or not isinstance(kind, TensorType):
                continue
            inferred, stated = (infos.get(name, TypeProto()) for infos in (self.infos, self.stated))
            copied = stated.tensor_type.HasField("shape")  # perhaps to the inferred shape
            differs = describe_contradiction(kind, stated, element=True)
            if differs := differs or describe_contradiction(kind, inferred, element=copied):
                raise Untypable(f"its output {name} is {differs}")

    def require(self, size: Any, node: Node) -> None:
        """Raise Untypable where a size could not be computed in front of the node on export."""
        own = {polynomial(n) for a in node.args if a is not None for n in a.tensor.shape}
        if polynomial(size) in own:
            return
        for factors, _ in terms_of(size):
            for atom in factors:
                if polynomial(atom) in own or isinstance(atom, Symbol) and atom in self.given:
                    continue
                if isinstance(atom, Floor):
                    self.require(atom.top, node)
                    self.require(atom.bottom, node)
                elif isinstance(atom, Largest):
                    for arg in atom.args:
                        self.require(arg, node)
                else:
                    raise Untypable(f"the size {atom} is known only at run time")

    def argument(self, name: Any, names: Sequence[Any]) -> Node | None:
        if isinstance(name, np.ndarray):  # a constant that this opset writes as an attribute
            first = next((n for n in names if isinstance(n, str)), None)
            if first is None:
                raise Untypable("a constant without a tensor that says its type")
            return constant(name.astype(numpy_dtype(self.lookup(first).tensor.dtype)))
        return self.lookup(name) if name else None

    def dtype_of(self, name: str) -> str:
        return self.lookup(name).tensor.dtype

    def constant_of(self, name: str) -> np.ndarray[Any, Any] | None:
        node = self.lookup(name)
        value = known_elements(node, self.memo)
        if value is None or value.dtype.kind == "O":
            return value
        return value.astype(numpy_dtype(node.tensor.dtype), copy=False)

    def add_opaque(self, proto: NodeProto, reason: str) -> None:
        """Define the outputs of a node that we carry as it is."""
        args: list[Node | None] = [self.lookup(name) if name else None for name in proto.input]
        bare = NodeProto()
        bare.CopyFrom(proto)
        for field_name in ("input", "output", "name", "attribute"):
            bare.ClearField(field_name)
        imported: list[tuple[str, GraphImporter, GraphProto]] = []
        for attribute in proto.attribute:
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)
            for graph in graphs:
                inner = GraphImporter(self.opsets, self.functions, self.types, self, graph=graph)
                inner.run_body(graph)
                imported.append((attribute.name, inner, graph))
            if attribute.type == AttributeProto.GRAPHS:
                bare.attribute.add(name=attribute.name, type=AttributeProto.GRAPHS)
            elif attribute.type != AttributeProto.GRAPH:
                bare.attribute.add().CopyFrom(attribute)
        ends = [inner.lookup(o.name) for _, inner, graph in imported for o in graph.output]
        used = set(topological_order(ends))
        captured = {
            name: pair for _, inner, _ in imported for name, pair in inner.captured.items() if pair[0] in used
        }
        inside = tuple(node for node, _ in captured.values())
        bodies = tuple((name, inner.program(graph, inside)) for name, inner, graph in imported)
        form = OpaqueForm(
            bare.SerializeToString(deterministic=True),
            len(args),
            tuple(bool(name) for name in proto.output),
            bodies,
            reason,
        )
        args += [node for _, node in captured.values()]
        domain = "" if proto.domain in ONNX_DOMAINS else proto.domain
        types = self.output_types(proto, self.opsets.get(domain, 1), args[: form.inputs], bodies)
        kinds = [self.infos[name].WhichOneof("value") for name in proto.output if name in self.infos]
        one_of_many = (
            (proto.domain, proto.op_type) in self.functions
            or not is_deterministic(proto, self.opsets.get(domain))
            or any(node.identity is not None for _, body in bodies for node in body.nodes)
            # two merged outputs would need a copy, which old opsets have for tensors alone
            or (self.opset < 16 and not _NON_TENSOR_TYPES.isdisjoint(kinds))
        )
        node = opaque(form, args, types, effects=one_of_many)
        self.define(proto.output, [item(node, place) for place in range(len(types))])

    def output_types(
        self, proto: NodeProto, opset: int, args: Sequence[Node | None], bodies: Sequence[tuple[str, Program]]
    ) -> list[Type]:
        """The types of an opaque node's outputs: what our own knowledge of its arguments adds to ONNX's."""
        kinds = [None if a is None else a.types[0] for a in args]
        values = [None if a is None else known_elements(a, self.memo) for a in args]
        plain = [None if v is None or v.dtype.kind == "O" else v for v in values]
        for place, (arg, value) in enumerate(zip(args, plain, strict=True)):
            if arg is not None and value is not None:
                plain[place] = value.astype(numpy_dtype(arg.tensor.dtype))
        stated = [self.infos.get(name, TypeProto()) for name in proto.output]
        local = (proto.domain, proto.op_type) in self.functions
        try:
            types = self.types.of_outputs(proto, 0 if local else opset, kinds, plain, self.place, stated)
        except ValueError as error:
            raise TensaurusError(f"it has a type that ONNX does not define: {error}") from error
        if branches(proto) is not None and len(bodies) == 2 and not local:
            for k, pair in enumerate(zip(*(body.outputs for _, body in bodies), strict=True)):
                (_, one), (_, other) = pair
                if one.types == other.types and isinstance(one.types[0], TensorType):
                    types[k] = one.types[0]
        return types

    # ---------------------------------------------------------------------------------- bodies

    def run_body(self, graph: GraphProto) -> None:
        """Import a body."""
        initial = initializer_names(graph)
        for value in graph.input:
            if value.name in initial:
                raise TensaurusError(f"{value.name} is an input and an initializer of the same body")
            self.take(value)
        self.run(graph)
        for value in graph.output:
            self.lookup(value.name)

    def program(self, graph: GraphProto, captured: tuple[Node, ...]) -> Program:
        """The body, whose nodes are all defined, as a program."""
        shell = ModelProto()
        shell.graph.CopyFrom(graph_without_content(graph))
        for domain, version in self.opsets.items():
            shell.opset_import.add(domain=domain, version=version)
        return Program(
            inputs=tuple(self.names[i.name] for i in graph.input),
            outputs=tuple((o.name, self.lookup(o.name)) for o in graph.output),
            captured=captured,
            names=self.hints(),
            frame=Frame(shell, tuple(graph.input), tuple(graph.output)),
        )


def _tensor_data(tensor: TensorProto) -> TensorData:
    try:
        return TensorData(proto=tensor)
    except Exception as error:  # whatever numpy or protobuf find wrong with it
        raise TensaurusError(f"the tensor {tensor.name} cannot be read: {error}") from error


def symbol_of(size: Any) -> Symbol | None:
    """The symbol that the size is, None for any other size."""
    terms = terms_of(size)
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        atom = terms[0][0][0]
        return atom if isinstance(atom, Symbol) else None
    return None


def _symbolic_sizes(value: Any) -> Iterator[Any]:
    """Every symbolic size in an attribute."""
    if isinstance(value, Arithmetic):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _symbolic_sizes(part)
