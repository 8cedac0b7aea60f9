"""The finder: regions of the programs that are known to be good, those first that promise most.

Each region is one more e-node.  Which are worth a kernel is for the extraction to say; how many are proposed,
and in which order, is said here: a kernel costs seconds of tuning, wherever it then stands in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.finders.fuse.composition import composition
from tensaurus.finders.fuse.fusion_region import regions
from tensaurus.finders.fuse.read_patterns import access, arguments
from tensaurus.graph.ir.node import ITEM, Node, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.operation_counts import bytes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["Fuse", "Fusion"]

KERNELS = 200  # different ones that are proposed for one program
REACHED = 0.5  # of the machine's peaks, by a runtime's operator that nobody has measured


@dataclass(frozen=True)
class Fusion:
    """One kernel: where it may stand, each place with its equation, and seconds that it may save there."""

    places: tuple[tuple[Piece, Equation], ...]
    gain: float

    @property
    def kernel(self) -> Node:
        """The eOperator, over leaves x0, x1, ... of the first place."""
        return self.places[0][1].right[0]


@dataclass
class Fuse:
    """Fusions of the e-graph's programs, as a `Finder`.

    seconds   what an operator takes; by default, and where it says None, what the roofline says of a runtime
              that reaches half of the peaks
    roofline  the machine's
    kernels   different ones at most, of one program
    variants  of a program, that are fused as it is
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    kernels: int = KERNELS
    variants: Callable[[Program], Iterable[Program]] = lambda program: ()
    _known: dict[tuple[Node, ...], tuple[Fusion, ...]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """What may be fused, in about so many e-nodes."""
        programs = (each for program in graph.programs for each in (program, *self.variants(program)))
        fusions = (fusion for program in programs for fusion in self.of(program))
        places = (place for fusion in fusions for place in fusion.places)
        for piece, equation in islice(places, max(room, 0)):
            yield Proposal(equation, tuple(map(graph.adopt, piece.leaves)))

    def of(self, program: Program) -> tuple[Fusion, ...]:
        """The fusions of one program, the largest gain first."""
        found = self._known.get(program.roots)
        if found is None:
            found = self._known[program.roots] = self._ranked(program)
        return found

    def _ranked(self, program: Program) -> tuple[Fusion, ...]:
        alike: dict[Node, list[Piece]] = {}  # by what they are over leaves of no name
        for piece in regions(program, self.roofline):
            names = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}
            alike.setdefault(piece.over(names), []).append(piece)
        gains = {form: len(pieces) * self._gain(pieces[0]) for form, pieces in alike.items()}
        found: dict[Any, list[tuple[Piece, Equation]]] = {}
        saved: dict[Any, float] = {}
        for form in sorted(alike, key=lambda form: -gains[form]):
            pairs = [(piece, equation) for piece in alike[form] if (equation := composition(piece))]
            if not pairs or gains[form] <= 0:
                continue
            kernel = pairs[0][1].right[0].attrs
            if kernel in found or len(found) < self.kernels:
                found.setdefault(kernel, []).extend(pairs)
                saved[kernel] = saved.get(kernel, 0.0) + gains[form]
            else:
                break
        order = sorted(found, key=lambda kernel: -saved[kernel])
        return tuple(Fusion(tuple(found[kernel]), saved[kernel]) for kernel in order)

    def _gain(self, piece: Piece) -> float:
        """Seconds of its operators, less those of one kernel that reaches the peaks."""
        values = {node: found for node in piece.inner if (found := access(node)) is not None}
        moved = sum(bytes_of(node.types[0]) for node in (*piece.leaves, piece.root))
        fused = self.roofline.seconds(sum(found.work for found in values.values()), moved)
        return sum(self._seconds(node, found.work) for node, found in values.items()) - fused

    def _seconds(self, node: Node, work: int) -> float:
        owner = node if node.op is not ITEM else node.args[0]
        assert owner is not None
        if (seconds := self.seconds(owner)) is not None:
            return seconds / len(owner.types)
        read = dict.fromkeys(arg for arg in arguments(node) if arg is not None)
        return self.roofline.seconds(work, sum(bytes_of(n.types[0]) for n in (node, *read))) / REACHED
