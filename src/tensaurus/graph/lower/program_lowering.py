"""Replace each node that an opset lacks by nodes that the opset has.

    Gelu(x) in opset 17   ->   Mul(Mul(0.5, x), Add(1, Erf(Div(x, sqrt 2))))

An expansion comes from the rules (`Expand`); an operator that ONNX lacks altogether is written by its
expression (`expression_lowering`).  An eOperator (an expression used as an operator) for which a kernel was
generated stays: it is exported as a custom operator (`graph/onnx/onnx_export`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from onnx import NodeProto, TensorProto

from tensaurus.expr.evaluate.fields import Array
from tensaurus.expr.sizes.size import Size
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import CONSTANT, Node, apply, item, replace_args, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.lower.expression_lowering import lower_node
from tensaurus.ops import Op
from tensaurus.ops.eop import eop
from tensaurus.ops.onnx_writer import write_node
from tensaurus.ops.schema import NotInOpset
from tensaurus.ops.special_nodes import ONNX_DOMAINS
from tensaurus.system.errors import TensaurusError

# Returns equal nodes for an operator that the opset lacks, None where no expansion is known.
Expand: TypeAlias = Callable[[Node, int], Node | None]

# Returns the kernel that computes an eOperator, None where the eOperator is to be expanded.
Kernels: TypeAlias = Callable[[Node], Kernel | None]

# Rebuilds a node on new arguments.
BuildNode: TypeAlias = Callable[[Node, tuple[Node | None, ...]], Node]


def no_kernels(node: Node) -> None:
    """Return None for every node, so that all eOperators are expanded."""


def write_in_opset(
    node: Node,
    opset: int,
    names: Sequence[str | None],
    outputs: Sequence[str],
    write_sizes: Callable[[Size | tuple[Size, ...]], str],
    fresh: Callable[[str], str] = lambda name: name,
) -> tuple[NodeProto, list[TensorProto]]:
    """Return the node as this opset has it, with initializers for attributes that became inputs.

    names, outputs  the tensors that the node reads (None for an absent one) and those that it computes
    write_sizes     writes sizes, some of them symbols, as an int64 tensor, and returns the tensor's name
    fresh           makes the name of an initializer unique

    Raises NotInOpset where the opset lacks the operator, its types or its attributes.
    """
    assert isinstance(node.op, Op)
    arg_of = {n: a for n, a in zip(names, node.args, strict=True) if n is not None and a is not None}

    def constant_of(name: str) -> Array | None:
        arg = arg_of.get(name)
        return arg.attribute("data").array if arg is not None and arg.op is CONSTANT else None

    call = node.op, node.arg_types(), node.attrs, names, outputs, opset
    return write_node(*call, write_sizes=write_sizes, constant_of=constant_of, fresh=fresh)


def lower_program(
    program: Program,
    opset: int,
    expand: Expand | None,
    became: dict[Node, Node] | None = None,
    kernels: Kernels = no_kernels,
) -> Program:
    """Return the program with every node that the opset lacks, and that has no kernel, expanded.

    `became` is filled with the new node for each old one.  Raises TensaurusError where no expansion is known.
    """
    known_kinds: set[tuple[object, ...]] = set()  # of calls that the opset has

    def lower(node: Node, args: tuple[Node | None, ...]) -> Node:
        rebuilt = replace_args(node, args)
        if not isinstance(rebuilt.op, Op):
            return rebuilt
        if rebuilt.op is eop and not rebuilt.static and (kernel := kernels(rebuilt)) is not None:
            return _pack_arguments(rebuilt, kernel, lower)
        kind = _call_kind(rebuilt)
        if kind in known_kinds:
            return rebuilt
        try:  # to write the node, under any names
            names = [None if a is None else f"i{k}" for k, a in enumerate(rebuilt.args)]
            outputs = [f"o{k}" for k in range(len(rebuilt.types))]
            write_in_opset(rebuilt, opset, names, outputs, "sizes{}".format)
        except NotInOpset as error:
            try:
                expansion = _find_expansion(rebuilt, opset, expand)
            except TensaurusError as reason:
                raise TensaurusError(f"{error}: {reason}", node=program.names.get(node)) from error
            if expansion is rebuilt:
                raise TensaurusError(
                    f"{error}, and it has no expansion into ONNX operators", node=program.names.get(node)
                ) from error
            return _rebuild_above(expansion, rebuilt.args, lower)
        known_kinds.add(kind)
        return rebuilt

    return program.rebuild(lower, became)


def _call_kind(node: Node) -> tuple[object, ...]:
    """Return what decides whether an opset has the call: operator, attributes, arguments, number of outputs.

    A constant argument counts with its value, as an old opset may have it as an attribute; others by type.
    """
    args = tuple(a if a is None or a.op is CONSTANT else a.types for a in node.args)
    return node.op, node.attrs, args, len(node.types)


def _pack_arguments(node: Node, kernel: Kernel, build: BuildNode) -> Node:
    """Return the node that the kernel computes: its arguments in the layouts that the kernel reads."""
    if kernel.scope is None:  # the kernel reads the arguments as they are
        return node
    args: list[Node | None] = []
    for arg, packing in zip(node.args, kernel.packing, strict=True):
        if packing is None or arg is None:
            args.append(arg)
        else:
            args.append(_rebuild_above(lower_node(apply(eop, [arg], {"scope": packing})), (arg,), build))
    return apply(eop, args, {"scope": kernel.scope})


def _find_expansion(node: Node, opset: int, expand: Expand | None) -> Node:
    """Return the expansion of an operator that the opset lacks: by a rule, else by its expression."""
    found = expand(node, opset) if expand is not None else None
    return lower_node(node) if found is None else found


def can_export(nodes: Iterable[Node], opset: int, expand: Expand | None) -> bool:
    """Return whether every node has an expansion in the opset, or is an operator of ONNX."""
    for node in nodes:
        if isinstance(node.op, Op) and node.op.domain not in ONNX_DOMAINS:
            args = [
                arg if arg is None or arg.op is CONSTANT else source(f"x{k}", arg.types[0])
                for k, arg in enumerate(node.args)
            ]
            rebuilt = replace_args(node, tuple(args))
            try:
                lower_program(Program((), (("y", item(rebuilt, 0)),)), opset, expand)
            except TensaurusError:
                return False
    return True


def _rebuild_above(root: Node, stop: Sequence[Node | None], build: BuildNode) -> Node:
    """Return the root with all nodes between it and `stop` rebuilt."""
    new = {node: node for node in stop if node is not None}
    for node in topological_order([root], new):
        new[node] = build(node, tuple(a and new[a] for a in node.args))
    return new[root]
