"""Counts the typed and the opaque nodes of a program, and the bytes of its constants."""

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
    """Nodes with a declaration, and opaque ones by operator; bodies of If, Loop and Scan included."""

    typed: int = 0
    opaque: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (operator, why it is opaque)


def constant_bytes(program: Program) -> int:
    """Return the bytes of constants that the program and its bodies read, after constant folding."""
    bodies = [body for node in program.opaque for _, body in node.attribute("form").bodies]
    args = (arg for node in program.active for arg in node.args)
    read = dict.fromkeys(arg for arg in args if arg is not None and arg.static)
    kinds = [kind for node in read for kind in node.types if isinstance(kind, TensorType)]
    return sum(map(tensor_bytes, kinds)) + sum(map(constant_bytes, bodies))


def stored_bytes(program: Program) -> int:
    """Return the bytes of the constants that a file of the program and of the bodies in it stores.

    Unlike `constant_bytes`, what is computed from constants counts as the constants: Tile(w, 60) as w.
    """
    bodies = [body for node in program.opaque for _, body in node.attribute("form").bodies]
    kinds = [node.types[0] for node in program.nodes if node.op is CONSTANT]
    own = sum(tensor_bytes(kind) for kind in kinds if isinstance(kind, TensorType))
    return own + sum(map(stored_bytes, bodies))


def bytes_to_store(program: Program, own: Set[Node]) -> int:
    """Return the bytes of the constants that a file of the program needs to store.

    Expressions over constants are folded, except those that the original has (`own`), where that is smaller.
    Bodies of If, Loop and Scan are not counted.
    """
    args = [arg for node in program.active for arg in node.args]
    total = 0
    for node in dict.fromkeys([*args, *program.roots]):
        if node is not None and node.static:
            size = sum(tensor_bytes(kind) for kind in node.types if isinstance(kind, TensorType))
            if node in own:
                leaves = [leaf.types[0] for leaf in topological_order([node]) if leaf.op is CONSTANT]
                size = min(size, sum(tensor_bytes(kind) for kind in leaves if isinstance(kind, TensorType)))
            total += size
    return total


def tensor_bytes(kind: TensorType) -> int:
    """Bytes of a tensor's elements; sizes that are not known count as 1."""
    size = 1 if kind.dtype in ("bool", "string") else numpy_dtype(kind.dtype).itemsize
    return size * prod(n for n in kind.shape if isinstance(n, int))


def count_nodes(program: Program) -> Census:
    """Counts over the program and the bodies in it."""
    tally = Census()

    def count(part: Program) -> None:
        for node in part.nodes:
            if node.is_declared:
                tally.typed += 1
            elif node.op is OPAQUE:
                form = node.attribute("form")
                tally.opaque[form.operator] += 1
                tally.reasons[form.operator, form.reason] += 1
                for _, body in form.bodies:
                    count(body)

    count(program)
    return tally
