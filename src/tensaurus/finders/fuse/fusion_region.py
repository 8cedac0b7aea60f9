"""Finds regions of a program that one kernel could compute.

In goes a program, out come pieces of it: `composition` makes one eOperator of each. Regions grow from a root
to the values that only they read, or that are cheap to compute again (`region_growth`).

    maps        trees of elementwise, broadcast and layout operators
    rows        maps with reductions of whole dimensions, all of one length: softmax, normalizations
    windows     poolings, with the maps after and before them
    products    one contraction (convolution, matrix product), alone, with the maps after it, and with maps
                before it, unless these may be fused to a contraction before them
    attention   a contraction of rows that are computed from the result of another contraction
    gates       several small reductions and contractions, one after the other, and maps after them:
                squeeze and excitation

A region's core is its contraction, pooling or reduction. Maps after a core are its epilogue, maps before it
its prologue. With `repeating` a region grows to values that others read, too, which are then computed twice.
Regions overlap, and many are proposed for one operator: extraction chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensaurus.finders.fuse.read_patterns import ReadPattern, value_arguments
from tensaurus.finders.fuse.region_growth import MAX_LEAVES, Region, RegionGrower, is_literal
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.operation_counts import elements, is_alias
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["find_regions"]

MAX_SMALL_ELEMENTS = 1 << 12  # a small value has up to so many elements, and takes up to MAX_SMALL_WORK
MAX_SMALL_WORK = 1 << 19  # scalar operations: they take about as long as calling a kernel


def find_regions(program: Program, roofline: Roofline) -> tuple[Piece, ...]:
    """Returns the regions of a program, each once, in an order that depends on the program alone."""
    return tuple(_RegionFinder(program, roofline).find_pieces())


class _RegionFinder(RegionGrower):
    """Finds the regions of one program.

    epilogue_maps  maps that may be computed in the kernel of a contraction or pooling before them
    """

    def __init__(self, program: Program, roofline: Roofline):
        super().__init__(program, roofline)
        self.epilogue_maps: set[Node] = set()

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
        trees = list(self._map_trees())
        yield from trees
        for tree in trees:
            yield self.grow(tree, self._is_map, repeating=True)
        yield from self._row_regions()
        yield from self._gate_regions(trees)
        yield from self._core_regions(trees)

    def _last_first(self) -> Iterator[Node]:
        return iter(sorted(self.patterns, key=self.position.__getitem__, reverse=True))

    def _is_map(self, node: Node) -> bool:
        return self.patterns[node].is_map

    def _is_layout(self, node: Node) -> bool:
        return self.patterns[node].is_map and not self.patterns[node].work

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
            for arg in self.inputs(node):
                is_core = arg in self.patterns and self.patterns[arg].has_reductions
                inputs[arg] = below.get(arg, frozenset([arg] if is_core else ()))
            below[node] = frozenset[Node]().union(*inputs.values())
            if any(a and b and a != b for a in inputs.values() for b in inputs.values()):
                parts |= {arg for arg, cores in inputs.items() if cores and arg in tree}
        return parts

    def _row_regions(self) -> Iterator[Region]:
        """Yields maximal regions of maps and reductions of whole dimensions; maps may come last."""
        taken: set[Node] = set()
        for root in self._last_first():
            pattern = self.patterns[root]
            if root in taken or not (pattern.is_map or pattern.row_lengths and not pattern.is_contraction):
                continue
            region = self.grow(frozenset([root]), _RowTest(self.patterns, root))
            taken |= region
            if any(self.patterns[node].row_lengths for node in region):
                yield region
                yield self.grow(frozenset([root]), _RowTest(self.patterns, root), repeating=True)

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
            elements(node) <= MAX_SMALL_ELEMENTS
            and not pattern.has_windows
            and (is_row_reduction or pattern.work <= MAX_SMALL_WORK)
        )

    def _core_regions(self, trees: Sequence[Region]) -> Iterator[Region]:
        """Yields the regions of products, attention and windows: each core, then cores with maps around."""
        cores = [node for node in self._last_first() if not self.patterns[node].is_map]
        epilogues: dict[Node, list[Region]] = {core: [] for core in cores}
        for core in cores:
            yield frozenset([core])
            for tree in trees:
                if maps := self._maps_following(tree, core):
                    epilogues[core].append(tree)
                    self.epilogue_maps |= maps
        for core in cores:
            if self.patterns[core].is_contraction:
                for tree in (frozenset[Node](), *epilogues[core]):
                    yield from self._with_prologues(tree | {core})
                    yield from self._attention_regions(tree | {core}, core)
            elif self.patterns[core].has_windows:
                yield from self._with_prologues(frozenset([core]))
        # windows with the maps after them: all poolings that one tree reads together
        for tree in trees:
            windows = [core for core in cores if self.patterns[core].has_windows and tree in epilogues[core]]
            if windows:
                yield from self._with_prologues(tree.union(windows))

    def _maps_following(self, tree: Region, core: Node) -> set[Node]:
        """Returns the maps of the tree that a kernel can apply to each element of the core as it is computed.

        Returns none unless only the tree reads the core, and each value that is computed from it has a single
        reader, or readers that all read it at their own indices.
        """
        if not self.is_read_only_inside(core, tree):
            return set()
        from_core = {core}  # the core and the values computed from it
        is_pointwise: dict[Node, list[bool]] = {}  # for each of these, whether each read of it is pointwise
        for node in sorted(tree, key=self.position.__getitem__):
            for number, arg in enumerate(value_arguments(node)):
                if arg is None or arg not in from_core:
                    continue
                pattern = self.patterns[node]
                # no broadcast, and at most one element is read for each element of the output
                if elements(node) > elements(arg) or number not in pattern.once_read_args:
                    return set()
                from_core.add(node)
                is_pointwise.setdefault(arg, []).append(number in pattern.pointwise_args)
        has_one_place = all(len(each) == 1 or all(each) for each in is_pointwise.values())
        return from_core - {core} if has_one_place else set()

    def _with_prologues(self, region: Region) -> Iterator[Region]:
        """Yields the region alone, with the layouts before it, and with the maps before it."""
        yield region
        yield self.grow(region, self._is_layout, repeating=True)
        yield self.grow(region, self._may_precede)
        yield self.grow(region, self._may_precede, repeating=True)

    def _may_precede(self, node: Node) -> bool:
        """Whether a map may be fused to the contraction after it: not if it may be fused to one before it."""
        return self._is_layout(node) or self.patterns[node].is_map and node not in self.epilogue_maps

    def _attention_regions(self, region: Region, product: Node) -> Iterator[Region]:
        """Yields the contraction with the rows before it and the contraction from which these are computed.

        Without rows between the two contractions there is no such region.
        """
        between = self.grow(region, _RowTest(self.patterns))
        if not any(self.patterns[node].row_lengths for node in between - region):
            return
        widest = max((elements(arg) for arg in self.inputs(product) if arg in between), default=0)
        below = {arg for node in between for arg in self.inputs(node)}.intersection(self.patterns) - between
        for core in sorted(below, key=self.position.__getitem__):
            if not self.patterns[core].is_contraction or not self.is_read_only_inside(core, between):
                continue
            if elements(core) <= widest:  # else the rows reduce it, and storing what they return costs little
                yield from self._with_prologues(between | {core})


class _RowTest:
    """Allows maps, and reductions of whole dimensions if all in the region have one length.

    length  of the reductions at the root and of those allowed so far; None before the first one
    """

    def __init__(self, patterns: Mapping[Node, ReadPattern], root: Node | None = None):
        self.patterns = patterns
        self.length = max(patterns[root].row_lengths, default=None) if root is not None else None

    def __call__(self, node: Node) -> bool:
        pattern = self.patterns[node]
        if pattern.is_map:
            return True
        if pattern.is_contraction or not pattern.row_lengths:
            return False
        length = max(pattern.row_lengths)
        if self.length is not None and length != self.length:
            return False
        self.length = length
        return True
