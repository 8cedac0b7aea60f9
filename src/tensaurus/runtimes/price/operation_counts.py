"""What a program must do at least: arithmetic, and bytes that have to move."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.index_map import is_reshape
from tensaurus.expr.analysis.work_counts import flops, multiply_adds
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import Arithmetic
from tensaurus.expr.sizes.size import evaluate as value_of
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, Type
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop

__all__ = ["Demand", "aliases", "bytes_of", "demand", "elements", "free", "number_of", "operations"]

UNKNOWN = 64  # what a size that is not known counts as


@dataclass(frozen=True)
class Demand:
    """Of one run; nodes over constants alone are left out, as runtimes fold them."""

    multiply_adds: int
    """Products added up in convolutions and matrix products; opaque nodes count none."""
    compulsory: int
    """Bytes of inputs, outputs and weights: each crosses the memory bus once, unless it is cached."""
    traffic: int
    """Bytes that the operators read and write, each taken alone; fusion and caches save some of it."""
    opaque: int
    """Nodes of which nothing is counted but what they read and write."""


def demand(program: Program) -> Demand:
    """Counted from the operators' expressions."""
    products = traffic = opaque = 0
    weights: set[Node] = set()
    for node in program.active:
        read = {arg for arg in node.args if arg is not None}
        weights |= {arg for arg in read if arg.static}
        traffic += sum(bytes_of(kind) for value in (*read, node) for kind in value.types)
        opaque += not node.declared
        products += sum(number_of(multiply_adds(scope)) for scope in scopes_of(node))
    ends = {*weights, *program.inputs, *(node for _, node in program.outputs)}
    compulsory = sum(bytes_of(kind) for value in ends for kind in value.types)
    return Demand(products, compulsory, traffic, opaque)


def bytes_of(kind: Type) -> int:
    """Of a tensor of numbers; others count none."""
    if not isinstance(kind, TensorType) or kind.dtype == "string":
        return 0
    return elements_of(kind) * np.dtype(kind.dtype).itemsize


def free(node: Node) -> bool:
    """Whether it computes nothing in a run, or what every candidate computes."""
    return node.static or node.op in (INPUT, CONSTANT, ITEM, OPAQUE)


def aliases(node: Node) -> bool:
    """Whether it only gives its input another shape, so that a runtime copies nothing."""
    found = scopes_of(node)
    return node.op is not eop and len(found) == 1 and is_reshape(found[0])


def elements(node: Node) -> int:
    """How many its tensors have."""
    return sum(elements_of(kind) for kind in node.types if isinstance(kind, TensorType))


def operations(node: Node, unknown: int = UNKNOWN) -> int:
    """Scalar operations of one node; sizes that are not known count as `unknown`, opaque nodes as none."""
    return sum(number_of(flops(scope), unknown) for scope in scopes_of(node))


def scopes_of(node: Node) -> tuple[Scope, ...]:
    """The expression of each of the node's outputs; none of an opaque node."""
    if not isinstance(node.op, Op):
        return ()
    kinds = node.kinds()
    return tuple(node.op.scopes(kinds, node.attrs)[: len(node.types)])


def elements_of(kind: TensorType) -> int:
    """How many the tensor has."""
    return prod(number_of(n) for n in kind.shape)


def number_of(size: Any, unknown: int = UNKNOWN) -> int:
    """The size, with `unknown` in the place of every symbol in it."""
    return int(value_of(size, lambda atom: unknown)) if isinstance(size, Arithmetic) else int(size)


