"""What a runtime makes of a program: which of its operators run as one, and what each is charged with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op
from tensaurus.runtimes.backends import Kernel

__all__ = ["charged", "fused_pieces", "nodes_of"]

MOST = 12  # operators of one kernel; more than that were not traced, but missed an end


def fused_pieces(nodes: Mapping[str, Node], kernels: Iterable[frozenset[str]]) -> list[Piece]:
    """Pieces of several operators that a runtime runs as one kernel, by the tensors that each computes.

    `nodes` are what the model's tensors are (`Tensors.written`).
    """
    return [piece for names in kernels if (piece := _piece(names, nodes)) is not None]


def nodes_of(names: Iterable[str], nodes: Mapping[str, Node]) -> set[Node]:
    """What is computed for these tensors in a run, calls of several outputs with those that are read."""
    inner = {nodes[name] for name in names if name in nodes}
    inner |= {node.args[0] for node in inner if node.op is ITEM and node.args[0] is not None}
    return {node for node in inner if not node.static and node.op not in (INPUT, CONSTANT)}


def charged(profile: Sequence[tuple[Kernel, float]]) -> list[tuple[frozenset[str], float]]:
    """The model's tensors that each kernel computes, and the seconds that it is charged with.

    A conversion is on the bill of the kernels that read it, as they ask for the layout; where none does, of
    the kernel that it reads.  What could not be traced is on nobody's.
    """
    kernels, taken = [kernel for kernel, _ in profile], [seconds for _, seconds in profile]
    makers = {name: place for place, kernel in enumerate(kernels) for name in kernel.outputs if name}
    readers: list[set[int]] = [set() for _ in kernels]
    for place, kernel in enumerate(kernels):
        for name in kernel.inputs:
            if name in makers:
                readers[makers[name]].add(place)
    for place, kernel in enumerate(kernels):
        if kernel.conversion and readers[place]:
            for reader in readers[place]:
                taken[reader] += taken[place] / len(readers[place])
            taken[place] = 0.0
    for place, kernel in reversed(list(enumerate(kernels))):
        made = {makers[name] for name in kernel.inputs if name in makers}
        if kernel.conversion and made:
            for maker in made:
                taken[maker] += taken[place] / len(made)
            taken[place] = 0.0
    return [(kernel.tensors, cost) for kernel, cost in zip(kernels, taken, strict=True) if cost > 0.0]


def _piece(names: frozenset[str], nodes: Mapping[str, Node]) -> Piece | None:
    """The piece of these tensors; None unless it has one root and several declared operators."""
    inner = nodes_of(names, nodes)
    read = {arg for node in inner for arg in node.args}
    roots = [node for node in inner if node not in read]
    if len(roots) != 1 or not all(isinstance(node.op, Op) or node.op is ITEM for node in inner):
        return None
    if not 2 <= sum(isinstance(node.op, Op) for node in inner) <= MOST:
        return None
    return Piece(roots[0], tuple(dict.fromkeys(_leaves(roots[0], inner))))


def _leaves(root: Node, inner: set[Node]) -> Iterator[Node]:
    """What the nodes read that is not among them, in the order of a walk from the root."""
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        for arg in node.args:
            if arg is not None and arg not in seen:
                seen.add(arg)
                if arg in inner:
                    stack.append(arg)
                else:
                    yield arg
