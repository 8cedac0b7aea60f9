"""Count the nodes of a program that rewrites may change, the others, and the bytes of its constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from math import prod

from tensaurus.graph.ir.node import CONSTANT, OPAQUE, Node
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType


@dataclass
class Census:
    """How many nodes have an expression (typed nodes), and how many are kept as they are (opaque nodes).

    The nodes in bodies of If, Loop and Scan are included.
    """

    typed: int = 0
    opaque: Counter[str] = field(default_factory=Counter)  # by operator
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (operator, why it is opaque)


def folded_constant_bytes(program: Program) -> int:
    """Return the bytes of the constants that the program and its bodies read, after constant folding."""
    args = (arg for node in program.active for arg in node.args)
    constants = dict.fromkeys(arg for arg in args if arg is not None and arg.static)
    return sum(map(_output_bytes, constants)) + sum(map(folded_constant_bytes, program.bodies))


def unfolded_constant_bytes(program: Program) -> int:
    """Return the bytes of the constants that a file of the program and its bodies stores, without folding.

    Unlike in `folded_constant_bytes`, an expression over constants counts as its constants: Tile(w, 60) as w.
    """
    constants = (node for node in program.nodes if node.op is CONSTANT)
    return sum(map(_output_bytes, constants)) + sum(map(unfolded_constant_bytes, program.bodies))


def fewest_stored_bytes(program: Program, original_nodes: Set[Node]) -> int:
    """Return the fewest bytes of constants that a file of the program can store, bodies not counted.

    Expressions over constants are folded; those that the original model has may also stay as they are, where
    their constants take fewer bytes.
    """
    args = [arg for node in program.active for arg in node.args]
    total = 0
    for node in dict.fromkeys([*args, *program.roots]):
        if node is not None and node.static:
            size = _output_bytes(node)
            if node in original_nodes:
                leaves = (leaf for leaf in topological_order([node]) if leaf.op is CONSTANT)
                size = min(size, sum(map(_output_bytes, leaves)))
            total += size
    return total


def _output_bytes(node: Node) -> int:
    return sum(tensor_bytes(kind) for kind in node.types if isinstance(kind, TensorType))


def tensor_bytes(kind: TensorType) -> int:
    """Return the bytes of a tensor's elements; symbolic sizes count as 1."""
    size = 1 if kind.dtype in ("bool", "string") else numpy_dtype(kind.dtype).itemsize
    return size * prod(n for n in kind.shape if isinstance(n, int))


def count_nodes(program: Program) -> Census:
    """Count the nodes of the program and of the bodies in it."""
    census = Census()

    def count(part: Program) -> None:
        for node in part.nodes:
            if node.is_declared:
                census.typed += 1
            elif node.op is OPAQUE:
                form = node.attribute("form")
                census.opaque[form.operator] += 1
                census.reasons[form.operator, form.reason] += 1
                for _, body in form.bodies:
                    count(body)

    count(program)
    return census
