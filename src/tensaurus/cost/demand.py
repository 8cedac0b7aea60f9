"""What a program must do at least: arithmetic, and bytes that have to move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensaurus.algebra.analysis import multiply_adds
from tensaurus.cost.operators import elements_of, number_of, scopes_of
from tensaurus.graph.node import Node, Type
from tensaurus.graph.program import Program
from tensaurus.ops import TensorType

__all__ = ["Demand", "demand"]


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
        traffic += sum(_bytes(kind) for value in (*read, node) for kind in value.types)
        opaque += not node.declared
        products += sum(number_of(multiply_adds(scope)) for scope in scopes_of(node))
    ends = {*weights, *program.inputs, *(node for _, node in program.outputs)}
    compulsory = sum(_bytes(kind) for value in ends for kind in value.types)
    return Demand(products, compulsory, traffic, opaque)


def _bytes(kind: Type) -> int:
    """Of a tensor of numbers; others count none."""
    if not isinstance(kind, TensorType) or kind.dtype == "string":
        return 0
    return elements_of(kind) * np.dtype(kind.dtype).itemsize
