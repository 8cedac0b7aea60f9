"""Finds which operators of a program a runtime runs as one kernel, and charges kernels with their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import Op
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.runtimes.backends import Kernel

__all__ = ["charge_kernels", "conversion_seconds", "fused_pieces", "nodes_of"]

MAX_OPERATORS = 12  # of one kernel; a larger set comes from a trace that went past the kernel's inputs


def fused_pieces(nodes: Mapping[str, Node], kernels: Iterable[frozenset[str]]) -> list[Piece]:
    """Return the pieces of a program, of several operators each, that a runtime runs as one kernel.

    `kernels` holds the tensors that each kernel computes, `nodes` the node of each tensor
    (`TensorMap.written`).
    """
    return [piece for names in kernels if (piece := _piece_of(names, nodes)) is not None]


def nodes_of(names: Iterable[str], nodes: Mapping[str, Node]) -> set[Node]:
    """Return the nodes that a run computes for these tensors; with an output of a call, the call itself."""
    inner = {nodes[name] for name in names if name in nodes}
    inner |= {node.args[0] for node in inner if node.op is ITEM and node.args[0] is not None}
    return {node for node in inner if not node.static and node.op not in (INPUT, CONSTANT)}


def conversion_seconds(profile: Sequence[tuple[Kernel, float]]) -> float:
    """Return the seconds of all layout conversions in a run."""
    return sum(seconds for kernel, seconds in profile if kernel.conversion)


def charge_kernels(
    profile: Sequence[tuple[Kernel, float]], usual: float = inf
) -> list[tuple[frozenset[str], float]]:
    """Return for each kernel the model's tensors that it computes, and the seconds that it is charged with.

    The time of a layout conversion is charged to the kernels that read its result, as they need the layout;
    if there are none, to the kernel whose result it converts.  A conversion that could not be traced keeps
    its own time.

    [(reorder, 2 us), (conv of the reordered x, 10 us)]   ->   [(tensors of the conv, 12 us)]

    Generated kernels compute on plain tensors.  One among operators on a blocked layout causes conversions:
    of its own tensors or, beyond a Concat, of others.  The `usual` seconds are those of the conversions in
    the original.  Where a run has more, the share of each conversion that is beyond them is charged to the
    generated kernels that tensors connect with the conversion, if there are any.
    """
    kernels, charges = [kernel for kernel, _ in profile], [seconds for _, seconds in profile]
    makers = {name: place for place, kernel in enumerate(kernels) for name in kernel.outputs if name}
    readers: list[set[int]] = [set() for _ in kernels]
    for place, kernel in enumerate(kernels):
        for name in kernel.inputs:
            if name in makers:
                readers[makers[name]].add(place)
    total = conversion_seconds(profile)
    if total > usual:
        causes = _causes_of_conversions(kernels, readers)
        for place, causing in causes.items():
            moved = charges[place] * (1 - usual / total)
            charges[place] -= moved
            for cause in causing:
                charges[cause] += moved / len(causing)
    for place, kernel in enumerate(kernels):  # in order: a chain of conversions passes its time on
        if kernel.conversion and readers[place]:
            for reader in readers[place]:
                charges[reader] += charges[place] / len(readers[place])
            charges[place] = 0.0
    # what is left are conversions that nothing reads; backwards, for the same reason
    for place, kernel in reversed(list(enumerate(kernels))):
        made = {makers[name] for name in kernel.inputs if name in makers}
        if kernel.conversion and made:
            for maker in made:
                charges[maker] += charges[place] / len(made)
            charges[place] = 0.0
    return [(kernel.tensors, cost) for kernel, cost in zip(kernels, charges, strict=True) if cost > 0.0]


def _causes_of_conversions(kernels: Sequence[Kernel], readers: Sequence[set[int]]) -> dict[int, list[int]]:
    """Return the generated kernels in the regions beside each conversion; conversions without are left out.

    Kernels are in one region if tensors connect them without a conversion in between.
    """
    neighbours: list[set[int]] = [set() for _ in kernels]
    for place, reading in enumerate(readers):
        for reader in reading:
            neighbours[place].add(reader)
            neighbours[reader].add(place)
    causes: dict[int, list[int]] = {}
    seen: set[int] = set()
    for start, kernel in enumerate(kernels):
        if kernel.domain != KERNEL_DOMAIN or start in seen:
            continue
        # walk over the region of a generated kernel, up to the conversions around it
        generated, conversions, waiting = list[int](), set[int](), [start]
        seen.add(start)
        while waiting:
            place = waiting.pop()
            if kernels[place].domain == KERNEL_DOMAIN:
                generated.append(place)
            for other in neighbours[place] - seen:
                if kernels[other].conversion:
                    conversions.add(other)
                else:
                    seen.add(other)
                    waiting.append(other)
        for conversion in conversions:
            causes.setdefault(conversion, []).extend(generated)
    return causes


def _piece_of(names: frozenset[str], nodes: Mapping[str, Node]) -> Piece | None:
    """Return the piece of these tensors; None unless it has one root and several declared operators."""
    inner = nodes_of(names, nodes)
    read = {arg for node in inner for arg in node.args}
    roots = [node for node in inner if node not in read]
    if len(roots) != 1 or not all(isinstance(node.op, Op) or node.op is ITEM for node in inner):
        return None
    if not 2 <= sum(isinstance(node.op, Op) for node in inner) <= MAX_OPERATORS:
        return None
    return Piece(roots[0], tuple(dict.fromkeys(_leaves(roots[0], inner))))


def _leaves(root: Node, inner: set[Node]) -> Iterator[Node]:
    """Yield the arguments of the nodes that are not among them, in the order of a walk from the root."""
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
