"""Every node in a form that the opset has: itself, or its expansion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from onnx import NodeProto, TensorProto

from tensaurus.expr.evaluate.fields import Array
from tensaurus.expr.sizes.size import Size
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import CONSTANT, Node, apply, item, replace_args, source
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.lower.standard_operators import lower_node
from tensaurus.ops import Op
from tensaurus.ops.eop import eop
from tensaurus.ops.leaf_form import ONNX_DOMAINS
from tensaurus.ops.onnx_form import node_proto
from tensaurus.ops.schema import NotInOpset
from tensaurus.system.errors import TensaurusError

__all__ = ["Expand", "Kernels", "can_export", "lower_program", "no_kernels", "node_in_opset"]

# An operator that an opset lacks, as nodes that compute the same; None where nothing is known.
Expand: TypeAlias = Callable[[Node, int], Node | None]

# The kernel that a node of an expression is to be run by; None where it is to be expanded.
Kernels: TypeAlias = Callable[[Node], Kernel | None]


BuildNode: TypeAlias = Callable[[Node, tuple[Node | None, ...]], Node]


def no_kernels(node: Node) -> None:
    """Every expression is expanded."""


def node_in_opset(
    node: Node,
    opset: int,
    names: Sequence[str | None],
    outputs: Sequence[str],
    symbolic: Callable[[Size | tuple[Size, ...]], str],
    fresh: Callable[[str], str] | None = None,
) -> tuple[NodeProto, list[TensorProto]]:
    """The node in this opset, and the initializers of its static inputs.  Raises NotInOpset."""
    assert isinstance(node.op, Op)
    held = {n: a for n, a in zip(names, node.args, strict=True) if n is not None and a is not None}

    def constant_of(name: str) -> Array | None:
        found = held.get(name)
        return found.attribute("data").array if found is not None and found.op is CONSTANT else None

    kinds = node.arg_types()
    return node_proto(
        node.op,
        kinds,
        node.attrs,
        names,
        outputs,
        opset,
        symbolic=symbolic,
        constant_of=constant_of,
        fresh=fresh,
    )


def lower_program(
    program: Program,
    opset: int,
    expand: Expand | None,
    became: dict[Node, Node] | None = None,
    kernels: Kernels = no_kernels,
) -> Program:
    """The program with every node that the opset lacks, and that has no kernel, replaced by its expansion.

    `became` is filled with what each node became.
    """
    written: set[tuple[object, ...]] = set()  # what one node of its kind shows of all

    def lower(node: Node, args: tuple[Node | None, ...]) -> Node:
        made = replace_args(node, args)
        if not isinstance(made.op, Op):
            return made
        if made.op is eop and not made.static and (kernel := kernels(made)) is not None:
            return _pack_arguments(made, kernel, lower)
        reads = tuple(a if a is None or a.op is CONSTANT else a.types for a in made.args)
        kind = (made.op, made.attrs, reads, len(made.types))
        if kind in written:
            return made
        try:
            names = [None if a is None else f"i{k}" for k, a in enumerate(made.args)]
            node_in_opset(made, opset, names, [f"o{k}" for k in range(len(made.types))], "sizes{}".format)
        except NotInOpset as error:
            try:
                found = _find_expansion(made, opset, expand)
            except TensaurusError as reason:
                raise TensaurusError(f"{error}: {reason}", node=program.names.get(node)) from error
            if found is None or found is made:
                raise TensaurusError(
                    f"{error}, and it has no expansion into ONNX operators", node=program.names.get(node)
                ) from error
            return _rebuild_above(found, made.args, lower)
        written.add(kind)
        return made

    return program.rebuild(lower, became)


def _pack_arguments(node: Node, kernel: Kernel, build: BuildNode) -> Node:
    """The node that the kernel computes: over arguments that are packed, where it has them so."""
    if kernel.scope is None:
        return node
    args: list[Node | None] = []
    for arg, packing in zip(node.args, kernel.packing, strict=True):
        if packing is None or arg is None:
            args.append(arg)
        else:
            args.append(_rebuild_above(lower_node(apply(eop, [arg], {"scope": packing})), (arg,), build))
    return apply(eop, args, {"scope": kernel.scope})


def _find_expansion(node: Node, opset: int, expand: Expand | None) -> Node | None:
    """What an operator that an opset lacks is written as; of one that ONNX lacks its expression tells."""
    found = expand(node, opset) if expand is not None else None
    if found is None and isinstance(node.op, Op) and node.op.domain not in ONNX_DOMAINS:
        return lower_node(node)
    return found


def can_export(nodes: Iterable[Node], opset: int, expand: Expand | None) -> bool:
    """Whether what ONNX lacks of these nodes has an expansion, over arguments of their types."""
    for node in nodes:
        if isinstance(node.op, Op) and node.op.domain not in ONNX_DOMAINS:
            args = [
                arg if arg is None or arg.op is CONSTANT else source(f"x{k}", arg.types[0])
                for k, arg in enumerate(node.args)
            ]
            made = replace_args(node, tuple(args))
            try:
                lower_program(Program((), (("y", item(made, 0)),)), opset, expand)
            except TensaurusError:
                return False
    return True


def _rebuild_above(root: Node, stop: Sequence[Node | None], build: BuildNode) -> Node:
    """The expression rebuilt down to the nodes at which it stops."""
    new = {node: node for node in stop if node is not None}
    for node in topological_order([root], new):
        new[node] = build(node, tuple(a and new[a] for a in node.args))
    return new[root]
