"""Grows a region of a program from its root to the values that it reads.

    Relu(Add(x, Exp(y)))   from Relu, by elementwise operators   ->   {Relu, Add, Exp}

A value is taken in if only the region reads it, so that no value is computed twice, or, on request, if
computing the value again takes less time than writing it to memory.  `fusion_region` decides from which roots
and by which operators regions grow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from tensaurus.expr.ir.float_conversions import is_float, is_rounding_conversion
from tensaurus.finders.fuse.read_patterns import ReadPattern, read_pattern, value_arguments
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.rules.language.match import scalar_value
from tensaurus.runtimes.price.operation_counts import bytes_of
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["MAX_LEAVES", "MAX_NODES", "MAX_STEPS", "Region", "RegionGrower", "is_literal"]

MAX_NODES = 40  # operators of one region
MAX_STEPS = 120  # scalar functions of one region, which bound the depth of its expression
MAX_LEAVES = 24  # arguments of one kernel

Region: TypeAlias = frozenset[Node]
NodeTest: TypeAlias = Callable[[Node], bool]


def is_literal(node: Node, reader: Node) -> bool:
    """Whether a kernel contains the constant, which `reader` reads, as a number that takes the reader's type.

    Integers stay tensors, which keep their type, and so do floats that the reader rounds to a narrower type.
    """
    dtype = node.tensor.dtype
    rounded = any(
        isinstance(kind, TensorType) and is_rounding_conversion(dtype, kind.dtype) for kind in reader.types
    )
    return scalar_value(node) is not None and is_float(dtype) and not rounded


class RegionGrower:
    """Knows who reads each value of one program, and grows regions by that.

    position  the position of each node in the program
    patterns  how each operator reads its arguments, for operators that may be fused
    readers   the nodes that read each value; where each output of a node may be fused on its own, these read
              the node's arguments
    outputs   the values that the program returns
    """

    def __init__(self, program: Program, roofline: Roofline):
        self.roofline = roofline
        self.position: dict[Node, int] = {}
        self.patterns: dict[Node, ReadPattern] = {}
        self.readers: dict[Node, set[Node]] = {}
        self.outputs = set(program.roots)
        # for nodes of several outputs: whether each output may be fused on its own
        is_fused_by_output: dict[Node | None, bool] = {}
        for number, node in enumerate(program.nodes):
            self.position[node] = number
            self.readers[node] = set()
            pattern = None if node.op in (INPUT, CONSTANT) or node.static else read_pattern(node)
            if pattern is not None:
                self.patterns[node] = pattern
            if node.op is ITEM:
                owner = node.args[0]
                is_fused_by_output[owner] = is_fused_by_output.get(owner, True) and pattern is not None
        for node in program.nodes:
            if not is_fused_by_output.get(node, False):
                for arg in value_arguments(node) if node in self.patterns else node.args:
                    if arg is not None:
                        self.readers[arg].add(node)

    def grow(self, start: Region, is_allowed: NodeTest, repeating: bool = False) -> Region:
        """Extends a region by the allowed operators that it reads, again and again.

        With `repeating`, values that others read, too, are taken in if computing them again is cheap. Nodes
        are visited from the last to the first, so that all readers of a node are decided before the node.
        """
        # leaves: what the region reads at present; waiting: those of them that could join it, the last first
        region, repeated = set(start), set[Node]()
        waiting: list[tuple[int, Node]] = []
        leaves: set[Node] = set()

        def look_below(node: Node) -> None:
            for arg in self.inputs(node):
                if arg not in leaves and arg not in region and not is_literal(arg, node):
                    leaves.add(arg)
                    if arg in self.patterns:
                        heappush(waiting, (-self.position[arg], arg))

        for node in start:
            look_below(node)
        steps = sum(self.patterns[node].steps for node in region)
        while waiting and len(region) < MAX_NODES:
            _, node = heappop(waiting)
            if steps + self.patterns[node].steps > MAX_STEPS:
                continue
            # a repeated reader is computed outside the region, too, and reads the node there
            is_only_here = self.is_read_only_inside(node, region) and self.readers[node].isdisjoint(repeated)
            if len(leaves.union(self.inputs(node))) > MAX_LEAVES:
                continue
            if (is_only_here or repeating and self._is_cheap_to_repeat(node)) and is_allowed(node):
                region.add(node)
                steps += self.patterns[node].steps
                leaves.remove(node)
                if not is_only_here:
                    repeated.add(node)
                look_below(node)
        return frozenset(region)

    def is_read_only_inside(self, node: Node, region: Collection[Node]) -> bool:
        """Whether only the region's nodes read the node's value."""
        return node not in self.outputs and all(reader in region for reader in self.readers[node])

    def _is_cheap_to_repeat(self, node: Node) -> bool:
        """Whether computing the value again takes less time than writing it, and reads no more bytes."""
        size = sum(map(bytes_of, node.types))
        read = {arg for arg in self.inputs(node) if not arg.static}
        if sum(bytes_of(arg.types[0]) for arg in read) > size:
            return False
        return self.roofline.seconds(self.patterns[node].work, 0) <= self.roofline.seconds(0, size)

    def inputs(self, node: Node) -> Iterator[Node]:
        """Returns the arguments that the node's value is computed from."""
        return (arg for arg in value_arguments(node) if arg is not None)
