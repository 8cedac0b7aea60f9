"""Finds regions of a program that one kernel could compute.

A region grows from its root to the values that it reads. A value is taken in if only the region reads it, so
that no value is computed twice, or if computing the value again takes less time than writing it to memory.

    maps        trees of elementwise, broadcast and layout operators
    rows        maps with reductions of whole dimensions, all of one length: softmax, normalizations
    windows     poolings, with the maps after and before them
    products    one contraction (convolution, matrix product), alone, with the maps after it, and with maps
                before it, unless these may be fused to a contraction before them
    attention   a contraction of rows that are computed from the result of another contraction
    gates       several small reductions and contractions, one after the other, and maps after them:
                squeeze and excitation

A region's core is its contraction, pooling or reduction. Maps after a core are its epilogue, maps before it
its prologue. Regions overlap, and many are proposed for one operator: extraction chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from tensaurus.expr.ir.float_conversions import is_float, is_rounding_conversion
from tensaurus.finders.fuse.read_patterns import ReadPattern, read_pattern, value_arguments
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType
from tensaurus.rules.language.match import scalar_value
from tensaurus.runtimes.price.operation_counts import bytes_of, elements, is_alias
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["is_literal", "find_regions"]

MAX_NODES = 40  # operators of one region
MAX_STEPS = 120  # scalar functions of one region, which bound the depth of its expression
MAX_LEAVES = 24  # arguments of one kernel
FEW_ELEMENTS, LITTLE_WORK = 1 << 12, 1 << 19  # elements, operations: computed as fast as a kernel is called

Region: TypeAlias = frozenset[Node]
NodeTest: TypeAlias = Callable[[Node], bool]


def find_regions(program: Program, roofline: Roofline) -> tuple[Piece, ...]:
    """Returns the regions of a program, each once, in an order that depends on the program alone."""
    return tuple(_RegionFinder(program, roofline).find_pieces())


def is_literal(node: Node, reader: Node) -> bool:
    """Whether a kernel contains the constant, which `reader` reads, as a number that takes the reader's type.

    Integers stay tensors, which keep their type, and so do floats that the reader rounds to a narrower type.
    """
    dtype = node.tensor.dtype
    rounded = any(
        isinstance(kind, TensorType) and is_rounding_conversion(dtype, kind.dtype) for kind in reader.types
    )
    return scalar_value(node) is not None and is_float(dtype) and not rounded


class _RegionFinder:
    """Grows regions in one program.

    position       the position of each node in the program
    patterns       how each operator reads its arguments, for operators that may be fused
    readers        the nodes that read each value; where each output of a node may be fused on its own, these
                   read the node's arguments
    outputs        the values that the program returns
    epilogue_maps  maps that may be computed in the kernel of a contraction or pooling before them
    """

    def __init__(self, program: Program, roofline: Roofline):
        self.roofline = roofline
        self.position: dict[Node, int] = {}
        self.patterns: dict[Node, ReadPattern] = {}
        self.readers: dict[Node, set[Node]] = {}
        self.outputs = set(program.roots)
        self.epilogue_maps: set[Node] = set()
        # for nodes of several outputs: whether each output may be fused on its own
        split: dict[Node | None, bool] = {}
        for number, node in enumerate(program.nodes):
            self.position[node] = number
            self.readers[node] = set()
            pattern = None if node.op in (INPUT, CONSTANT) or node.static else read_pattern(node)
            if pattern is not None:
                self.patterns[node] = pattern
            if node.op is ITEM:
                split[node.args[0]] = split.get(node.args[0], True) and pattern is not None
        for node in program.nodes:
            if not split.get(node, False):
                for arg in value_arguments(node) if node in self.patterns else node.args:
                    if arg is not None:
                        self.readers[arg].add(node)

    def find_pieces(self) -> Iterator[Piece]:
        """Yields the regions, each once."""
        seen: set[Region] = set()
        for candidate in self._candidate_regions():
            region = self._drop_final_reshapes(candidate)
            if region in seen or not region:
                continue
            seen.add(region)
            piece = self._to_piece(region)
            if 0 < len(piece.leaves) <= MAX_LEAVES:
                yield piece

    def _drop_final_reshapes(self, region: Region) -> Region:
        """Removes reshapes at the end of a region, as runtimes copy nothing for them."""
        while region:
            last = max(region, key=self.position.__getitem__)
            if not (self._is_layout(last) and is_alias(last)):
                break
            region -= {last}
        return region

    def _to_piece(self, region: Region) -> Piece:
        order = sorted(region, key=self.position.__getitem__)
        read = ((arg, node) for node in order for arg in value_arguments(node) if arg is not None)
        leaves = dict.fromkeys(arg for arg, node in read if arg not in region and not is_literal(arg, node))
        return Piece(order[-1], tuple(leaves))

    def _candidate_regions(self) -> Iterator[Region]:
        """Yields the regions of each sort that the module's docstring lists; some more than once."""
        # maps; the same with cheap values computed again; rows; gates
        trees = list(self._map_trees())
        yield from trees
        for tree in trees:
            yield self.grow(tree, self._is_map, repeating=True)
        yield from self._row_regions()
        yield from self._gate_regions(trees)
        # each core alone, and which trees of maps may be its epilogue
        cores = [node for node in self._last_first() if not self.patterns[node].is_map]
        after: dict[Node, list[Region]] = {core: [] for core in cores}
        for core in cores:
            yield frozenset([core])
            for tree in trees:
                if following := self._maps_following(tree, core):
                    after[core].append(tree)
                    self.epilogue_maps |= following
        # products, attention and windows: cores with an epilogue or without, and with prologues
        for core in cores:
            if self.patterns[core].is_contraction:
                for tree in (frozenset[Node](), *after[core]):
                    yield from self._with_prologues(tree | {core})
                    yield from self._attention_regions(tree | {core}, core)
            elif self.patterns[core].has_windows:
                yield from self._with_prologues(frozenset([core]))
        # windows with the maps after them: all poolings that one tree reads together
        for tree in trees:
            windows = [core for core in cores if self.patterns[core].has_windows and tree in after[core]]
            if windows:
                yield from self._with_prologues(tree.union(windows))

    def _last_first(self) -> Iterator[Node]:
        return iter(sorted(self.patterns, key=self.position.__getitem__, reverse=True))

    def _is_map(self, node: Node) -> bool:
        return self.patterns[node].is_map

    def _is_layout(self, node: Node) -> bool:
        return self.patterns[node].is_map and not self.patterns[node].work

    def _may_precede(self, node: Node) -> bool:
        """Whether a map may be fused to the contraction after it: not if it may be fused to one before it."""
        return self._is_layout(node) or self.patterns[node].is_map and node not in self.epilogue_maps

    def _map_trees(self) -> Iterator[Region]:
        """Yields maximal trees of maps, and, where a tree joins several contractions, the branch of each."""
        taken: set[Node] = set()
        roots = [node for node in self._last_first() if self.patterns[node].is_map]
        for root in roots:
            if root in taken:
                continue
            tree = self.grow(frozenset([root]), self._is_map)
            taken |= tree
            yield tree
            for part in sorted(self._joined_branches(tree), key=self.position.__getitem__):
                yield self.grow(frozenset([part]), self._is_map)

    def _joined_branches(self, tree: Region) -> set[Node]:
        """Returns the values of a tree that are joined, each computed from contractions of its own."""
        below: dict[Node, frozenset[Node]] = {}  # the cores from which each value of the tree is computed
        parts: set[Node] = set()
        for node in sorted(tree, key=self.position.__getitem__):
            inputs: dict[Node, frozenset[Node]] = {}
            for arg in self._inputs(node):
                own = (
                    frozenset([arg])
                    if arg in self.patterns and self.patterns[arg].has_reductions
                    else frozenset()
                )
                inputs[arg] = below.get(arg, own)
            below[node] = frozenset[Node]().union(*inputs.values())
            if any(a and b and a != b for a in inputs.values() for b in inputs.values()):
                parts |= {arg for arg, cores in inputs.items() if cores and arg in tree}
        return parts

    def _inputs(self, node: Node) -> Iterator[Node]:
        return (arg for arg in value_arguments(node) if arg is not None)

    def grow(self, start: Region, allowed: NodeTest, repeating: bool = False) -> Region:
        """Extends a region by the allowed operators that it reads, again and again.

        With `repeating`, values that others read, too, are taken in if computing them again is cheap. Nodes
        are visited from the last to the first, so that all readers of a node are decided before the node.
        """
        # leaves: what the region reads at present; waiting: those of them that could join it, the last first
        region, repeated = set(start), set[Node]()
        waiting: list[tuple[int, Node]] = []
        leaves: set[Node] = set()

        def look_below(node: Node) -> None:
            for arg in self._inputs(node):
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
            is_only_here = self._is_read_only_inside(node, region) and self.readers[node].isdisjoint(repeated)
            if len(leaves.union(self._inputs(node))) > MAX_LEAVES:
                continue
            if (is_only_here or repeating and self._is_cheap_to_repeat(node)) and allowed(node):
                region.add(node)
                steps += self.patterns[node].steps
                leaves.remove(node)
                if not is_only_here:
                    repeated.add(node)
                look_below(node)
        return frozenset(region)

    def _is_read_only_inside(self, node: Node, region: Collection[Node]) -> bool:
        """Whether only the region's nodes read the node's value."""
        return node not in self.outputs and all(reader in region for reader in self.readers[node])

    def _is_cheap_to_repeat(self, node: Node) -> bool:
        """Whether computing the value again takes less time than writing it, and reads no more bytes."""
        size = sum(map(bytes_of, node.types))
        read = {arg for arg in self._inputs(node) if not arg.static}
        if sum(bytes_of(arg.types[0]) for arg in read) > size:
            return False
        return self.roofline.seconds(self.patterns[node].work, 0) <= self.roofline.seconds(0, size)

    def _maps_following(self, tree: Region, core: Node) -> set[Node]:
        """Returns the maps of the tree that a kernel can apply to each element of the core as it is computed.

        Returns none unless only the tree reads the core, and each value that is computed from it has a single
        reader, or readers that all read it at their own indices.
        """
        if not self._is_read_only_inside(core, tree):
            return set()
        # carrying: the core and the values computed from it; reading: for each, which reads are pointwise
        carrying = {core}
        reading: dict[Node, list[bool]] = {}
        for node in sorted(tree, key=self.position.__getitem__):
            for number, arg in enumerate(value_arguments(node)):
                if arg is None or arg not in carrying:
                    continue
                pattern = self.patterns[node]
                # no broadcast, and at most one element is read for each element of the output
                if elements(node) > elements(arg) or number not in pattern.once_read_args:
                    return set()
                carrying.add(node)
                reading.setdefault(arg, []).append(number in pattern.pointwise_args)
        one_place = all(
            len(pointwise_reads) == 1 or all(pointwise_reads) for pointwise_reads in reading.values()
        )
        return carrying - {core} if one_place else set()

    def _with_prologues(self, region: Region) -> Iterator[Region]:
        """Yields the region alone, with the layouts before it, and with the maps before it."""
        yield region
        yield self.grow(region, self._is_layout, repeating=True)
        yield self.grow(region, self._may_precede)
        yield self.grow(region, self._may_precede, repeating=True)

    def _cores_below(self, region: Region, wanted: NodeTest) -> list[Node]:
        """Returns the wanted operators that only the region reads."""
        below = dict.fromkeys(arg for node in region for arg in self._inputs(node) if arg not in region)
        cores = [
            n for n in below if n in self.patterns and wanted(n) and self._is_read_only_inside(n, region)
        ]
        return sorted(cores, key=self.position.__getitem__)

    def _attention_regions(self, region: Region, product: Node) -> Iterator[Region]:
        """Yields the contraction with the rows before it and the contraction from which these are computed.

        A pair without rows between (depthwise after pointwise) grows by `_may_precede` instead.
        """
        between = self.grow(region, self._rows_of_one_length())
        if not any(self.patterns[node].row_lengths for node in between - region):
            return
        widest = max((elements(arg) for arg in self._inputs(product) if arg in between), default=0)
        for core in self._cores_below(between, lambda node: self.patterns[node].is_contraction):
            if elements(core) <= widest:  # else the rows reduce it, and storing what they return costs little
                yield from self._with_prologues(between | {core})

    def _row_regions(self) -> Iterator[Region]:
        """Yields maximal regions of maps and reductions of whole dimensions; maps may come last."""
        taken: set[Node] = set()
        for root in self._last_first():
            pattern = self.patterns[root]
            if root in taken or not (pattern.is_map or pattern.row_lengths and not pattern.is_contraction):
                continue
            region = self.grow(frozenset([root]), self._rows_of_one_length(pattern.row_lengths))
            taken |= region
            if any(self.patterns[node].row_lengths for node in region):
                yield region
                yield self.grow(
                    frozenset([root]), self._rows_of_one_length(pattern.row_lengths), repeating=True
                )

    def _gate_regions(self, trees: Sequence[Region]) -> Iterator[Region]:
        """Yields regions of several small reductions and contractions, also with the maps after them."""
        taken: set[Node] = set()
        for root in self._last_first():
            if root not in taken and self._is_small(root):
                region = self.grow(frozenset([root]), self._is_small)
                taken |= region
                if self._count_cores(region) > 1:
                    yield region
        for tree in trees:
            region = self.grow(tree, lambda node: self.patterns[node].is_map or self._is_small(node))
            if self._count_cores(region) > 1:
                yield region

    def _count_cores(self, region: Region) -> int:
        """Returns how many reductions and contractions the region has."""
        return sum(not self.patterns[node].is_map for node in region)

    def _is_small(self, node: Node) -> bool:
        """Whether the value has few elements and either takes little work or reduces whole dimensions."""
        pattern = self.patterns[node]
        is_row_reduction = bool(pattern.row_lengths) and not pattern.is_contraction
        return (
            elements(node) <= FEW_ELEMENTS
            and not pattern.has_windows
            and (is_row_reduction or pattern.work <= LITTLE_WORK)
        )

    def _rows_of_one_length(self, rows: frozenset[int] = frozenset()) -> NodeTest:
        """Returns a test for maps, and for reductions of whole dimensions that all have one length."""
        length = max(rows, default=inf)

        def allowed(node: Node) -> bool:
            nonlocal length
            found = self.patterns[node]
            if found.is_map:
                return True
            if (
                found.is_contraction
                or not found.row_lengths
                or length < inf
                and max(found.row_lengths) != length
            ):
                return False
            length = max(found.row_lengths)
            return True

        return allowed
