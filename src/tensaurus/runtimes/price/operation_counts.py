"""Counts the work of nodes and programs from their expressions: operations, elements, and bytes moved.

Where a size is not a number, UNKNOWN_SIZE or another given number stands for each symbol in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tensaurus.expr.analysis.reshape_map import is_reshape
from tensaurus.expr.analysis.work_counts import flops, multiply_adds
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import Arithmetic
from tensaurus.expr.sizes.size import evaluate as value_of
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, Type
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.ops.eop import eop

__all__ = [
    "Work",
    "bytes_of",
    "count_work",
    "elements",
    "is_alias",
    "is_free",
    "number_of",
    "operations",
    "product_operations",
]

UNKNOWN_SIZE = 64  # stands for every open size, unless the caller gives another number


@dataclass(frozen=True)
class Work:
    """The work of one run, without nodes over constants only, which runtimes fold.

    multiply_adds     products that are added up in convolutions and matrix products, opaque nodes left out
    compulsory_bytes  of inputs, outputs and weights: each crosses the memory bus once, unless it is cached
    traffic_bytes     that all operators read and write; fusion and caches save some of them
    opaque_nodes      number of opaque nodes, of which only the bytes read and written count
    """

    multiply_adds: int
    compulsory_bytes: int
    traffic_bytes: int
    opaque_nodes: int


def count_work(program: Program) -> Work:
    """Count the work of one run from the operators' expressions."""
    products = traffic = opaque = 0
    weights: set[Node] = set()
    for node in program.active:
        read = {arg for arg in node.args if arg is not None}
        weights |= {arg for arg in read if arg.static}
        traffic += sum(bytes_of(kind) for value in (*read, node) for kind in value.types)
        opaque += not node.is_declared
        products += sum(number_of(multiply_adds(scope)) for scope in scopes_of(node))
    ends = {*weights, *program.inputs, *(node for _, node in program.outputs)}
    compulsory = sum(bytes_of(kind) for value in ends for kind in value.types)
    return Work(products, compulsory, traffic, opaque)


def bytes_of(kind: Type) -> int:
    """Return the bytes of a tensor of numbers; 0 for other types."""
    if not isinstance(kind, TensorType) or kind.dtype == "string":
        return 0
    return elements_of(kind) * np.dtype(kind.dtype).itemsize


def is_free(node: Node) -> bool:
    """Return whether a node counts as free when programs are compared.

    It computes nothing in a run, or it is opaque, and so no rewrite replaces it by something cheaper.
    """
    return node.static or node.op in (INPUT, CONSTANT, ITEM, OPAQUE)


def is_alias(node: Node) -> bool:
    """Return whether a node only gives its input another shape, so that a runtime copies nothing.

    An eOperator is none: its kernel writes every element.
    """
    scopes = scopes_of(node)
    return node.op is not eop and len(scopes) == 1 and is_reshape(scopes[0])


def elements(node: Node) -> int:
    """Return how many elements the outputs of a node have."""
    return sum(elements_of(kind) for kind in node.types if isinstance(kind, TensorType))


def operations(node: Node, unknown: int = UNKNOWN_SIZE) -> int:
    """Return the scalar operations of one node, open sizes counted as `unknown`; 0 for opaque nodes."""
    return sum(number_of(flops(scope), unknown) for scope in scopes_of(node))


def product_operations(node: Node) -> int:
    """Return the operations of one node in sums of products, each a multiplication and an addition."""
    return 2 * sum(number_of(multiply_adds(scope)) for scope in scopes_of(node))


def scopes_of(node: Node) -> tuple[Scope, ...]:
    """Return the expression of each output of a node; none for an opaque node."""
    if not isinstance(node.op, Op):
        return ()
    kinds = node.arg_types()
    return tuple(node.op.scopes(kinds, node.attrs)[: len(node.types)])


def elements_of(kind: TensorType) -> int:
    """Return how many elements a tensor has."""
    return prod(number_of(n) for n in kind.shape)


def number_of(size: Any, unknown: int = UNKNOWN_SIZE) -> int:
    """Return the value of a size with `unknown` in the place of every symbol."""
    return int(value_of(size, lambda atom: unknown)) if isinstance(size, Arithmetic) else int(size)
