"""Proposes fusions for the e-graph's programs, those with the largest estimated gain first.

A fusion is a kernel and all places of the program where it can be used. Each place adds one e-node, and
extraction decides which kernels are used. The finder limits and orders the proposals, because each different
kernel takes seconds of tuning, however often the program uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.finders.fuse.composition import compose_region
from tensaurus.finders.fuse.fusion_region import find_regions
from tensaurus.finders.fuse.read_patterns import read_pattern, value_arguments
from tensaurus.graph.ir.node import ITEM, Node, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.operation_counts import bytes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["Fuse", "Fusion"]

MAX_KERNELS = 200  # different kernels that are proposed for one program
PEAK_FRACTION = 0.5  # of the machine's peaks that a runtime's operator reaches, if it was not measured


@dataclass(frozen=True)
class Fusion:
    """A kernel with the pieces of the program that it computes, each with its equation.

    gain  the estimated seconds that the kernel saves in one run, over all its pieces
    """

    matches: tuple[tuple[Piece, Equation], ...]
    gain: float

    @property
    def kernel(self) -> Node:
        """The eOperator over the leaves x0, x1, ... of the first match."""
        return self.matches[0][1].right[0]


@dataclass
class Fuse:
    """Finds fusions in the e-graph's programs, as a `Finder`.

    seconds      returns the measured seconds of an operator, or None: then half of the peaks is assumed
    roofline     the machine's peaks
    max_kernels  different kernels for one program
    variants     returns programs that compute the same as a program in other ways; they are fused, too
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    max_kernels: int = MAX_KERNELS
    variants: Callable[[Program], Iterable[Program]] = lambda program: ()
    _fusions_of: dict[tuple[Node, ...], tuple[Fusion, ...]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        """Yields proposals for about `max_new_enodes` e-nodes."""
        programs = (each for program in graph.programs for each in (program, *self.variants(program)))
        fusions = (fusion for program in programs for fusion in self.find_fusions(program))
        matches = (match for fusion in fusions for match in fusion.matches)
        for piece, equation in islice(matches, max(max_new_enodes, 0)):
            yield Proposal(equation, tuple(map(graph.insert_term, piece.leaves)))

    def find_fusions(self, program: Program) -> tuple[Fusion, ...]:
        """Returns the fusions of one program, the largest gain first."""
        fusions = self._fusions_of.get(program.roots)
        if fusions is None:
            fusions = self._fusions_of[program.roots] = self._rank_fusions(program)
        return fusions

    def _rank_fusions(self, program: Program) -> tuple[Fusion, ...]:
        """Groups regions by form, and forms by kernel.

        Two regions have one form if the same operators compute them from leaves of the same types. Different
        forms may compose to the same expression, and then share a kernel.
        """
        alike: dict[Node, list[Piece]] = {}  # regions by their form: the root over the leaves x0, x1, ...
        for piece in find_regions(program, self.roofline):
            names = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}
            alike.setdefault(piece.with_leaves(names), []).append(piece)
        gains = {form: len(pieces) * self._estimate_gain(pieces[0]) for form, pieces in alike.items()}
        # by the attributes of the eOperator, which contain its expression and so identify the kernel
        fusions: dict[Any, Fusion] = {}
        for form in sorted(alike, key=lambda form: -gains[form]):
            pairs = [(piece, equation) for piece in alike[form] if (equation := compose_region(piece))]
            if not pairs or gains[form] <= 0:
                continue
            attrs = pairs[0][1].right[0].attrs
            if attrs not in fusions and len(fusions) >= self.max_kernels:
                break  # there are enough kernels, and all forms that follow gain less
            known = fusions.get(attrs, Fusion((), 0.0))
            fusions[attrs] = Fusion((*known.matches, *pairs), known.gain + gains[form])
        return tuple(sorted(fusions.values(), key=lambda fusion: -fusion.gain))

    def _estimate_gain(self, piece: Piece) -> float:
        """Estimates what the operators take without fusion, minus what one kernel takes at the peaks."""
        patterns = {node: found for node in piece.inner if (found := read_pattern(node)) is not None}
        moved = sum(bytes_of(node.types[0]) for node in (*piece.leaves, piece.root))
        fused = self.roofline.seconds(sum(found.work for found in patterns.values()), moved)
        return sum(self._operator_seconds(node, found.work) for node, found in patterns.items()) - fused

    def _operator_seconds(self, node: Node, work: int) -> float:
        """Returns the seconds in which a runtime computes a value: measured if possible, else estimated."""
        owner = node if node.op is not ITEM else node.args[0]
        assert owner is not None
        if (seconds := self.seconds(owner)) is not None:
            return seconds / len(owner.types)  # each output has an equal share
        read = dict.fromkeys(arg for arg in value_arguments(node) if arg is not None)
        return self.roofline.seconds(work, sum(bytes_of(n.types[0]) for n in (node, *read))) / PEAK_FRACTION
