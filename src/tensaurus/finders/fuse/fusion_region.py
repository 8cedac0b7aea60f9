"""Regions of a program that one kernel could compute: what is read inside only, and what is cheap to repeat.

A region grows from its root to what it reads.  A value is taken in where nobody outside reads it, so that
nothing is computed twice; where repeating it costs less than writing it, in spite of other readers.

    maps        trees of elementwise, broadcast and layout operators
    rows        those with reductions of whole dimensions, all of one length: softmax, normalisations
    windows     poolings, with the maps after and before them
    products    one contraction, alone, with the maps after it, and with those before it that follow no other
    attention   a contraction of rows that are computed of another contraction's
    gates       several reductions and contractions of few elements, one after the other, and maps after them:
                squeeze and excitation
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from tensaurus.finders.fuse.read_patterns import Access, access, arguments
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.match import scalar_value
from tensaurus.runtimes.price.operation_counts import aliases, bytes_of, elements
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["is_literal", "regions"]

NODES = 40  # operators of one region
DEPTH = 120  # functions of them: an eOperator has those of all that were fused to it, and one is as deep
LEAVES = 24  # arguments of one kernel
FEW, LITTLE = 1 << 12, 1 << 19  # elements, and operations, of what takes no longer than calling a kernel does

Region: TypeAlias = frozenset[Node]
Allowed: TypeAlias = Callable[[Node], bool]


def regions(program: Program, roofline: Roofline) -> tuple[Piece, ...]:
    """The regions of a program, each once, in an order that depends on the program alone."""
    return tuple(_Flow(program, roofline).pieces())


def is_literal(node: Node) -> bool:
    """Whether a kernel has the constant as a number; integers keep their type as tensors."""
    return scalar_value(node) is not None and "float" in node.tensor.dtype


class _Flow:
    """Who reads what in a program."""

    def __init__(self, program: Program, roofline: Roofline):
        self.roofline = roofline
        self.place: dict[Node, int] = {}
        self.access: dict[Node, Access] = {}
        self.readers: dict[Node, set[Node]] = {}
        self.outputs = set(program.roots)
        self.following: set[Node] = set()  # maps that may be computed where a contraction or pooling is
        split: dict[Node | None, bool] = {}  # calls of several outputs: whether each is a value of its own
        for number, node in enumerate(program.nodes):
            self.place[node] = number
            self.readers[node] = set()
            found = None if node.op in (INPUT, CONSTANT) or node.static else access(node)
            if found is not None:
                self.access[node] = found
            if node.op is ITEM:
                split[node.args[0]] = split.get(node.args[0], True) and found is not None
        for node in program.nodes:
            if not split.get(node, False):
                for arg in arguments(node) if node in self.access else node.args:
                    if arg is not None:
                        self.readers[arg].add(node)

    def pieces(self) -> Iterator[Piece]:
        """The regions, each once."""
        seen: set[Region] = set()
        for whole in self._all():
            region = self._ending(whole)
            if region in seen or not region:
                continue
            seen.add(region)
            piece = self._piece(region)
            if 0 < len(piece.leaves) <= LEAVES:
                yield piece

    def _ending(self, region: Region) -> Region:
        """Without reshapes at its end: nothing is copied for them."""
        while region:
            last = max(region, key=self.place.__getitem__)
            if not (self._layouts(last) and aliases(last)):
                break
            region -= {last}
        return region

    def _piece(self, region: Region) -> Piece:
        order = sorted(region, key=self.place.__getitem__)
        read = (arg for node in order for arg in arguments(node) if arg is not None)
        leaves = dict.fromkeys(arg for arg in read if arg not in region and not is_literal(arg))
        return Piece(order[-1], tuple(leaves))

    def _all(self) -> Iterator[Region]:
        cones = list(self._cones())
        yield from cones
        for cone in cones:
            yield self.grown(cone, self._maps, repeating=True)
        yield from self._rows()
        yield from self._gates(cones)
        cores = [node for node in self._downwards() if not self.access[node].maps]
        after: dict[Node, list[Region]] = {core: [] for core in cores}
        for core in cores:
            yield frozenset([core])
            for cone in cones:
                if following := self._following(cone, core):
                    after[core].append(cone)
                    self.following |= following
        for core in cores:
            if self.access[core].product:
                for cone in (frozenset[Node](), *after[core]):
                    yield from self._with_prologue(cone | {core})
                    yield from self._attention(cone | {core}, core)
            elif self.access[core].windows:
                yield from self._with_prologue(frozenset([core]))
        for cone in cones:
            beside = [core for core in cores if self.access[core].windows and cone in after[core]]
            if beside:
                yield from self._with_prologue(cone.union(beside))

    def _downwards(self) -> Iterator[Node]:
        return iter(sorted(self.access, key=self.place.__getitem__, reverse=True))

    def _maps(self, node: Node) -> bool:
        return self.access[node].maps

    def _layouts(self, node: Node) -> bool:
        return self.access[node].maps and not self.access[node].work

    def _free(self, node: Node) -> bool:
        """Maps that need not be computed before a contraction, as they are after another."""
        return self._layouts(node) or self.access[node].maps and node not in self.following

    def _cones(self) -> Iterator[Region]:
        """Maximal trees of maps, and below where several contractions come together those of each."""
        taken: set[Node] = set()
        roots = [node for node in self._downwards() if self.access[node].maps]
        for root in roots:
            if root in taken:
                continue
            cone = self.grown(frozenset([root]), self._maps)
            taken |= cone
            yield cone
            for part in sorted(self._parts(cone), key=self.place.__getitem__):
                yield self.grown(frozenset([part]), self._maps)

    def _parts(self, cone: Region) -> set[Node]:
        """Values of a tree that are joined, each computed of contractions of its own."""
        below: dict[Node, frozenset[Node]] = {}
        parts: set[Node] = set()
        for node in sorted(cone, key=self.place.__getitem__):
            inputs: dict[Node, frozenset[Node]] = {}
            for arg in self._inputs(node):
                own = frozenset([arg]) if arg in self.access and self.access[arg].reduces else frozenset()
                inputs[arg] = below.get(arg, own)
            below[node] = frozenset[Node]().union(*inputs.values())
            if any(a and b and a != b for a in inputs.values() for b in inputs.values()):
                parts |= {arg for arg, cores in inputs.items() if cores and arg in cone}
        return parts

    def _inputs(self, node: Node) -> Iterator[Node]:
        return (arg for arg in arguments(node) if arg is not None)

    def grown(self, start: Region, allowed: Allowed, repeating: bool = False) -> Region:
        """With what it reads of the allowed operators, and so on.

        Values that others read, too, are taken in where `repeating` is cheap.  From the last to the first:
        when a value is looked at, it is known which of its readers are in.
        """
        region, repeated = set(start), set[Node]()
        waiting: list[tuple[int, Node]] = []
        leaves: set[Node] = set()

        def look_below(node: Node) -> None:
            for arg in self._inputs(node):
                if arg not in leaves and arg not in region and not is_literal(arg):
                    leaves.add(arg)
                    if arg in self.access:
                        heappush(waiting, (-self.place[arg], arg))

        for node in start:
            look_below(node)
        steps = sum(self.access[node].steps for node in region)
        while waiting and len(region) < NODES:
            _, node = heappop(waiting)
            if steps + self.access[node].steps > DEPTH:
                continue
            own = self._inside(node, region) and self.readers[node].isdisjoint(repeated)
            if len(leaves.union(self._inputs(node))) > LEAVES:
                continue
            if (own or repeating and self._cheap(node)) and allowed(node):
                region.add(node)
                steps += self.access[node].steps
                leaves.remove(node)
                if not own:
                    repeated.add(node)
                look_below(node)
        return frozenset(region)

    def _inside(self, node: Node, region: Collection[Node]) -> bool:
        """Whether the region's nodes alone read it."""
        return node not in self.outputs and all(reader in region for reader in self.readers[node])

    def _cheap(self, node: Node) -> bool:
        """Whether computing it once more takes less than writing it, and reading what it reads no more."""
        size = sum(map(bytes_of, node.types))
        read = {arg for arg in self._inputs(node) if not arg.static}
        if sum(bytes_of(arg.types[0]) for arg in read) > size:
            return False
        return self.roofline.seconds(self.access[node].work, 0) <= self.roofline.seconds(0, size)

    def _following(self, cone: Region, core: Node) -> set[Node]:
        """The maps that are computed of the core; none where they cannot be where its elements are.

        Nothing else reads the core, every element is needed at one place, and no element is needed twice.
        """
        if not self._inside(core, cone):
            return set()
        carrying = {core}
        reading: dict[Node, list[bool]] = {}
        for node in sorted(cone, key=self.place.__getitem__):
            for number, arg in enumerate(arguments(node)):
                if arg is None or arg not in carrying:
                    continue
                found = self.access[node]
                if elements(node) > elements(arg) or number not in found.once:
                    return set()
                carrying.add(node)
                reading.setdefault(arg, []).append(number in found.pointwise)
        one_place = all(len(ways) == 1 or all(ways) for ways in reading.values())
        return carrying - {core} if one_place else set()

    def _with_prologue(self, region: Region) -> Iterator[Region]:
        """Alone; with what is laid out before it; with what is computed before it, too."""
        yield region
        yield self.grown(region, self._layouts, repeating=True)
        yield self.grown(region, self._free)
        yield self.grown(region, self._free, repeating=True)

    def _cores(self, region: Region, wanted: Allowed) -> list[Node]:
        """What the region alone reads."""
        below = dict.fromkeys(arg for node in region for arg in self._inputs(node) if arg not in region)
        found = [n for n in below if n in self.access and wanted(n) and self._inside(n, region)]
        return sorted(found, key=self.place.__getitem__)

    def _attention(self, region: Region, product: Node) -> Iterator[Region]:
        """The contraction with rows before it that are computed of another contraction's.

        A pair without rows between (depthwise after pointwise) would grow by `_free` instead.
        """
        between = self.grown(region, self._alike())
        if not any(self.access[node].rows for node in between - region):
            return
        widest = max((elements(arg) for arg in self._inputs(product) if arg in between), default=0)
        for core in self._cores(between, lambda node: self.access[node].product):
            if elements(core) <= widest:  # else its rows are summed up, and little is read of them
                yield from self._with_prologue(between | {core})

    def _rows(self) -> Iterator[Region]:
        """Maximal regions of maps and of reductions of whole dimensions; some do not end in a reduction."""
        taken: set[Node] = set()
        for root in self._downwards():
            found = self.access[root]
            if root in taken or not (found.maps or found.rows and not found.product):
                continue
            region = self.grown(frozenset([root]), self._alike(found.rows))
            taken |= region
            if any(self.access[node].rows for node in region):
                yield region
                yield self.grown(frozenset([root]), self._alike(found.rows), repeating=True)

    def _gates(self, cones: Sequence[Region]) -> Iterator[Region]:
        """What is computed of few elements in several steps, and the maps that read it."""
        taken: set[Node] = set()
        for root in self._downwards():
            if root not in taken and self._few(root):
                region = self.grown(frozenset([root]), self._few)
                taken |= region
                if self._steps(region) > 1:
                    yield region
        for cone in cones:
            region = self.grown(cone, lambda node: self.access[node].maps or self._few(node))
            if self._steps(region) > 1:
                yield region

    def _steps(self, region: Region) -> int:
        """How many reductions and contractions it has."""
        return sum(not self.access[node].maps for node in region)

    def _few(self, node: Node) -> bool:
        """Whether it has few elements and takes little to compute, or sums up whole dimensions to them."""
        found = self.access[node]
        whole = bool(found.rows) and not found.product
        return elements(node) <= FEW and not found.windows and (whole or found.work <= LITTLE)

    def _alike(self, rows: frozenset[int] = frozenset()) -> Allowed:
        """Maps, and reductions of whole dimensions that are as long as the first of them."""
        length = max(rows, default=inf)

        def allowed(node: Node) -> bool:
            nonlocal length
            found = self.access[node]
            if found.maps:
                return True
            if found.product or not found.rows or length < inf and max(found.rows) != length:
                return False
            length = max(found.rows)
            return True

        return allowed
