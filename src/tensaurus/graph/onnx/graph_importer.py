"""Import one ONNX graph: a model's graph, or a body of If, Loop or Scan.

    y = Relu(x)                ->   a typed node, as Relu is declared
    y = NonZero(x)             ->   an opaque node: "the size of its output depends on values"
    y = If(true) {Relu(x)}     ->   the nodes of the branch that is taken

Typed nodes may be rewritten; an opaque node is kept as the model states it, and says why.  `onnx_import`
imports the graph of a model with this class, and adds the model's frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.known_integers import KnownElements, known_elements
from tensaurus.graph.ir.node import CONSTANT, Node, Type, apply, constant, item, opaque, source
from tensaurus.graph.ir.opaque import OpaqueForm, operator_name
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.attribute_sizes import require_computable_sizes
from tensaurus.graph.onnx.onnx_frame import (
    Frame,
    graph_without_content,
    graphs_in,
    initializer_names,
    node_without_bodies,
)
from tensaurus.graph.onnx.value_types import Location, ValueTypes, describe_contradiction, symbol_of
from tensaurus.graph.onnx.weight_files import read_elements
from tensaurus.ops import Op, TensorType, Untypable, registry
from tensaurus.ops.eop import eop
from tensaurus.ops.kernel_nodes import scope_text
from tensaurus.ops.onnx_reader import read_node
from tensaurus.ops.special_nodes import (
    ONNX_DOMAINS,
    branches,
    constant_tensor,
    has_variadic_outputs,
    is_deterministic,
    sparse_node,
)
from tensaurus.ops.undeclared import why_undeclared
from tensaurus.system.errors import InvalidModel, TensaurusError

_NON_TENSOR_TYPES = frozenset({"sequence_type", "optional_type", "map_type", "sparse_tensor_type"})


class CapturedValue(NamedTuple):
    """A value that a body reads from the graph around it: an input of the body, and the node outside."""

    inside: Node
    outside: Node


class _ImportedBody(NamedTuple):
    """A body of an opaque node, the attribute that holds it, and the importer that has imported it."""

    attribute: str
    graph: GraphProto
    importer: GraphImporter


class GraphImporter:
    """Imports one graph, and by further importers (`outer` is this one) the bodies in it.

    A branch of an If that is known to be taken (`is_taken_branch`) becomes part of the graph around it.

    opsets, types  the version of each domain that the model imports; the types of all its values
    counter        numbers the graphs in the order of `graphs_in`, as the entries of `types`
    infos          by name: the type that ONNX infers, completed by the one that the model states
    stated         by name: the type that the model itself states, which may be stale
    functions      (domain, operator) of the model's own functions: their nodes stay opaque
    names          the node of each value by its name
    captured       by name: the values of the graph around this body that the body reads
    input_symbols  sizes of inputs: on export, nodes can compute every size that consists of them
    known          elements of integer nodes (`known_integers`)
    location       where values are defined: equal names of sizes mean equal sizes in one scope
    branch_names   names of nodes in branches that are taken
    names_read     all values that are read in the graph and its bodies
    folder         of files that hold large initializers (`weight_files`); None where the model holds all
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: frozenset[tuple[str, str]],
        types: ValueTypes,
        outer: GraphImporter | None = None,
        *,
        graph: GraphProto,
        is_taken_branch: bool = False,
        folder: Path | None = None,
    ):
        self.opsets, self.functions, self.types, self.outer = opsets, functions, types, outer
        self.opset, self.is_taken_branch, self.folder = opsets.get("", 1), is_taken_branch, folder
        self.counter: Iterator[int] = outer.counter if outer is not None else count()
        number = next(self.counter)
        self.infos, self.stated = types.infos[number], types.stated[number]
        # An If's branch has no inputs: a size named N in it is the N of the graph around it.  The body of a
        # Loop or Scan has inputs, whose N may be another number in each iteration: it has a scope of its own.
        shared = outer is not None and not graph.input
        scope = outer.location.scope if outer is not None and shared else str(number or "")
        self.location: Location = Location(str(number), scope)
        self.names: dict[str, Node] = {}
        self.captured: dict[str, CapturedValue] = {}
        self.input_symbols: set[Symbol] = set(outer.input_symbols) if outer is not None else set()
        self.known: KnownElements = outer.known if outer is not None and is_taken_branch else {}
        self.branch_names: dict[Node, str] = {}
        self.names_read = {name for g in graphs_in(graph) for node in g.node for name in node.input}
        self.names_read.update(value.name for g in graphs_in(graph) for value in g.output)

    def add_input(self, value: ValueInfoProto) -> None:
        """Define an input of the graph."""
        stated = value.type if value.type.WhichOneof("value") else self.infos.get(value.name, TypeProto())
        kind = self.type_of(stated, value.name)
        self.names[value.name] = source(value.name, kind)
        if isinstance(kind, TensorType):
            self.input_symbols.update(s for s in map(symbol_of, kind.shape) if s is not None)

    def type_of(self, proto: TypeProto, name: str) -> Type:
        """Return the type of a value.  Raises TensaurusError where its element type is unknown."""
        try:
            return self.types.type_of(proto, name, self.location)
        except ValueError as error:
            raise InvalidModel(f"the value {name} has a type that ONNX does not define: {error}") from error

    def node_names(self) -> dict[Node, str]:
        """Return the first name of each node."""
        return {**self.branch_names, **{node: name for name, node in reversed(self.names.items())}}

    def lookup(self, name: str) -> Node:
        """Return the node of a value; a value of the graph around a body becomes an input of the body."""
        if name in self.names:
            return self.names[name]
        if name in self.captured:
            return self.captured[name].inside
        if self.outer is None:
            raise InvalidModel(f"the value {name} is used, but nothing defines it")
        node = self.outer.lookup(name)
        if self.is_taken_branch or node.op is CONSTANT:  # a body stores constants itself
            return node
        label = f"outer:{name}"
        while label in self.names:
            label = f"outer:{label}"
        inside = source(label, node.types[0])
        self.captured[name] = CapturedValue(inside, node)
        value = known_elements(node, self.outer.known)
        if value is not None:
            self.known[inside] = value
        return inside

    def import_nodes(self, graph: GraphProto, skip: set[str] | frozenset[str] = frozenset()) -> None:
        """Import the initializers, except those in `skip`, and the nodes of the graph."""
        for tensor in graph.initializer:
            if tensor.name not in skip:
                self.names[tensor.name] = constant(read_elements(tensor, self.folder))
        for sparse in graph.sparse_initializer:
            if sparse.values.name not in skip:
                self.import_node(sparse_node(sparse))
        for proto in graph.node:
            try:
                self.import_node(proto)
            except TensaurusError as error:
                error.node = error.node or proto.name or next(iter(proto.output), None)
                raise

    def is_function(self, proto: NodeProto) -> bool:
        """Return whether the node calls a function of the model, which hides any operator of its name."""
        return (proto.domain, proto.op_type) in self.functions

    def import_node(self, proto: NodeProto) -> None:
        """Import one ONNX node and define its outputs."""
        if proto.domain in ONNX_DOMAINS and not self.is_function(proto):
            if (tensor := constant_tensor(proto)) is not None:
                return self.define(proto.output, [constant(read_elements(tensor))])
            if (branch := self.known_branch(proto)) is not None:
                return self.take_branch(proto, branch)
        try:
            node = self.build_typed(proto)
        except Untypable as error:
            return self.import_opaque(proto, str(error))
        except Exception as error:  # a declaration that fails leaves the node as it is
            return self.import_opaque(proto, f"{type(error).__name__}: {error}")
        self.define(proto.output, [item(node, k) for k in range(len(node.types))])

    def known_branch(self, proto: NodeProto) -> str | None:
        """Return the attribute with the only branch of an If that is ever run; None for any other node."""
        attribute_of_condition = branches(proto)
        if attribute_of_condition is None:
            return None
        for attribute in proto.attribute:
            if len(attribute.g.output) != len(proto.output):
                raise InvalidModel(f"its {attribute.name} has another number of outputs than the node")
        if {attribute.name for attribute in proto.attribute} != set(attribute_of_condition.values()):
            raise InvalidModel(f"it lacks the attribute {' or '.join(attribute_of_condition.values())}")
        condition = known_elements(self.lookup(proto.input[0]), self.known)
        if condition is None or condition.size != 1:
            return None
        return attribute_of_condition[bool(condition.item())]

    def take_branch(self, proto: NodeProto, taken: str) -> None:
        """Define the outputs of an If with a known condition: import the branch in attribute `taken`."""
        outputs: list[Node] = []
        for attribute in proto.attribute:
            if attribute.name == taken:
                graph = attribute.g
                common = self.opsets, self.functions, self.types
                inner = GraphImporter(*common, self, graph=graph, is_taken_branch=True)
                inner.import_body(graph)
                outputs = [inner.lookup(value.name) for value in graph.output]
                self.branch_names.update(inner.node_names())
            else:
                for _ in graphs_in(attribute.g):  # the other branch keeps its numbers in `types`
                    next(self.counter)
        self.define(proto.output, outputs)

    def define(self, names: Sequence[str], nodes: Sequence[Node]) -> None:
        """Name nodes.  Raises TensaurusError for a name that is defined already."""
        for name, node in zip(names, nodes, strict=False):
            if name:
                if name in self.names:
                    raise InvalidModel(f"the value {name} is defined twice")
                self.names[name] = node

    def build_typed(self, proto: NodeProto) -> Node:
        """Return the node as a typed node.  Raises Untypable where it must stay opaque, and says why."""
        if (scope := scope_text(proto)) is not None:  # the call of a kernel, in a model of ours: an eOperator
            node = apply(eop, [self.lookup(name) for name in proto.input], {"scope": scope})
        else:
            op = registry.get(proto.op_type)
            if op is None or op.domain != _domain(proto) or self.is_function(proto):
                raise Untypable(why_undeclared(operator_name(proto)))
            node = self.build_declared(op, proto)
        self.check_types(proto, node)
        return node

    def build_declared(self, op: Op, proto: NodeProto) -> Node:
        """Return the node of a declared operator.  Raises Untypable."""
        if any(name not in self.names_read for name in proto.output):  # the declaration may lack this output
            bare = NodeProto()
            bare.CopyFrom(proto)
            bare.output[:] = [name if name in self.names_read else "" for name in proto.output]
            proto = bare
        names, attrs = read_node(op, proto, self.opset, self.constant_of, self.dtype_of)
        args = [self.argument(a, names) for a in names]
        # outputs up to the last one that is read; 0 stands for all, as of a Split
        wanted = max((i + 1 for i, name in enumerate(proto.output) if name), default=1)
        node = apply(op, args, attrs, 0 if has_variadic_outputs(op, self.opset) else wanted)
        require_computable_sizes(node, self.input_symbols)
        return node

    def check_types(self, proto: NodeProto, node: Node) -> None:
        """Raise Untypable where ONNX's inference has other types for the outputs, or the model other dtypes.

        The model's own shapes do not count: exporters leave stale ones, which runtimes ignore.
        """
        for name, kind in zip(proto.output, node.types, strict=False):
            if not name or not isinstance(kind, TensorType):
                continue
            inferred, stated = (infos.get(name, TypeProto()) for infos in (self.infos, self.stated))
            has_stated_shape = stated.tensor_type.HasField("shape")  # inference copies it, stale or not
            differs = describe_contradiction(kind, stated, element=True)
            if differs := differs or describe_contradiction(kind, inferred, element=has_stated_shape):
                raise Untypable(f"its output {name} is {differs}")

    def argument(self, name: Any, names: Sequence[Any]) -> Node | None:
        """Return the node of an argument: a name, or a constant that this opset has as an attribute."""
        if isinstance(name, np.ndarray):
            first = next((n for n in names if isinstance(n, str)), None)
            if first is None:
                raise Untypable("a constant without a tensor that says its type")
            return constant(name.astype(numpy_dtype(self.lookup(first).tensor.dtype)))
        return self.lookup(name) if name else None

    def dtype_of(self, name: str) -> str:
        return self.lookup(name).tensor.dtype

    def constant_of(self, name: str) -> np.ndarray[Any, Any] | None:
        return self.elements_of(self.lookup(name))

    def elements_of(self, node: Node) -> np.ndarray[Any, Any] | None:
        """Return the elements of a node in its type (symbols as objects), None where they are not known."""
        value = known_elements(node, self.known)
        if value is None or value.dtype.kind == "O":
            return value
        return value.astype(numpy_dtype(node.tensor.dtype), copy=False)

    def import_opaque(self, proto: NodeProto, reason: str) -> None:
        """Import a node as opaque, with its bodies as programs, and define its outputs."""
        args: list[Node | None] = [self.lookup(name) if name else None for name in proto.input]
        imported = list(self.import_bodies(proto))
        captured = _captured_values(imported)
        inside = tuple(value.inside for value in captured)
        bodies = tuple((b.attribute, b.importer.program(b.graph, inside)) for b in imported)
        form = OpaqueForm(
            node_without_bodies(proto).SerializeToString(deterministic=True),
            len(args),
            tuple(bool(name) for name in proto.output),
            bodies,
            reason,
        )
        types = self.output_types(proto, args, bodies)
        all_args = [*args, *(value.outside for value in captured)]
        node = opaque(form, all_args, types, effects=self.must_stay_separate(proto, bodies))
        self.define(proto.output, [item(node, k) for k in range(len(types))])

    def import_bodies(self, proto: NodeProto) -> Iterator[_ImportedBody]:
        """Import the graphs in the attributes of a node, each by an importer of its own."""
        for attribute in proto.attribute:
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for graph in graphs:
                inner = GraphImporter(self.opsets, self.functions, self.types, self, graph=graph)
                inner.import_body(graph)
                yield _ImportedBody(attribute.name, graph, inner)

    def must_stay_separate(self, proto: NodeProto, bodies: Sequence[tuple[str, Program]]) -> bool:
        """Return whether the node must not be merged with an equal one.

        Separate are functions (which may be random), random operators, nodes with such nodes in their bodies,
        and those whose outputs are no tensors in old opsets, in which no Identity can copy these outputs.
        """
        kinds = [self.infos[name].WhichOneof("value") for name in proto.output if name in self.infos]
        return (
            self.is_function(proto)
            or not is_deterministic(proto, self.opsets.get(_domain(proto)))
            or any(node.identity is not None for _, body in bodies for node in body.nodes)
            or (self.opset < 16 and not _NON_TENSOR_TYPES.isdisjoint(kinds))
        )

    def output_types(
        self, proto: NodeProto, args: Sequence[Node | None], bodies: Sequence[tuple[str, Program]]
    ) -> list[Type]:
        """Return the types of an opaque node's outputs: ONNX's inference given the types of arguments."""
        kinds = [None if a is None else a.types[0] for a in args]
        elements = [None if a is None else self.elements_of(a) for a in args]
        values = [None if v is None or v.dtype.kind == "O" else v for v in elements]  # without symbols
        stated = [self.infos.get(name, TypeProto()) for name in proto.output]
        opset = 0 if self.is_function(proto) else self.opsets.get(_domain(proto), 1)
        try:
            types = self.types.output_types(proto, opset, kinds, values, self.location, stated)
        except ValueError as error:
            raise InvalidModel(f"it has a type that ONNX does not define: {error}") from error
        # the types on which both branches of an If agree are more exact than those of inference
        if branches(proto) is not None and len(bodies) == 2 and not self.is_function(proto):
            for k, pair in enumerate(zip(*(body.outputs for _, body in bodies), strict=True)):
                (_, one), (_, other) = pair
                if one.types == other.types and isinstance(one.types[0], TensorType):
                    types[k] = one.types[0]
        return types

    def import_body(self, graph: GraphProto) -> None:
        """Import the inputs, nodes and outputs of a body."""
        initial = initializer_names(graph)
        for value in graph.input:
            if value.name in initial:
                raise InvalidModel(f"{value.name} is an input and an initializer of the same body")
            self.add_input(value)
        self.import_nodes(graph)
        for value in graph.output:
            self.lookup(value.name)

    def program(self, graph: GraphProto, captured: tuple[Node, ...]) -> Program:
        """Return an imported body as a program."""
        shell = ModelProto()
        shell.graph.CopyFrom(graph_without_content(graph))
        for domain, version in self.opsets.items():
            shell.opset_import.add(domain=domain, version=version)
        return Program(
            inputs=tuple(self.names[i.name] for i in graph.input),
            outputs=tuple((o.name, self.lookup(o.name)) for o in graph.output),
            captured=captured,
            names=self.node_names(),
            frame=Frame(shell, tuple(graph.input), tuple(graph.output)),
        )


def _domain(proto: NodeProto) -> str:
    """Return the domain of the node's operator, "" for ONNX's own."""
    return "" if proto.domain in ONNX_DOMAINS else proto.domain


def _captured_values(bodies: Sequence[_ImportedBody]) -> list[CapturedValue]:
    """Return the values that some body captures and needs for its outputs, each once.

    All bodies of a node get all of them; bodies that capture one value share its input, which is interned.
    """
    ends = [body.importer.lookup(output.name) for body in bodies for output in body.graph.output]
    used = set(topological_order(ends))
    captured = (pair for body in bodies for pair in body.importer.captured.items())
    return list({name: value for name, value in captured if value.inside in used}.values())
