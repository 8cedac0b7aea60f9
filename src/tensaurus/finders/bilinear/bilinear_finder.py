"""Proposes fast algorithms for the convolutions of the e-graph's programs.

For each convolution node come one or two equations: the node, and an eOperator that computes it by a fast
algorithm (`fast_convolution_equation`). Those that should save most seconds come first, as room is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.finders.bilinear.algorithm_candidates import candidate_algorithms, estimate_seconds
from tensaurus.finders.bilinear.convolution_equation import fast_convolution_equation
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.recognize_convolution import recognize_convolution
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.node import Node, replace_args, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["Bilinear"]


def _allow_all(convolution: Convolution, algorithms: Algorithms) -> bool:
    return True


@dataclass
class Bilinear:
    """Finds fast algorithms for convolutions, as a `Finder`, those with the largest estimated gain first.

    roofline  the machine's peaks
    allowed   returns whether errors are small enough: `optimizer/run/fast_algorithm_accuracy` measures them
    _known    the gain in seconds and the equations of nodes over leaves x0, x1, ..., as many layers are equal
    """

    roofline: Roofline = ONE_CORE
    allowed: Callable[[Convolution, Algorithms], bool] = _allow_all
    _known: dict[Node, tuple[float, tuple[Equation, ...]]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        """Yields proposals that add about `max_new_enodes` e-nodes."""
        nodes = dict.fromkeys(node for program in graph.programs for node in program.active)
        ranked = [(node, *self._gain_and_equations(node)) for node in nodes]
        ranked.sort(key=lambda each: -each[1])  # each: a node, its gain, its equations
        proposals = ((node, equation) for node, _, equations in ranked for equation in equations)
        # an equation adds two e-nodes, the transformed weights and the convolution by them
        for node, equation in islice(proposals, max(max_new_enodes // 2, 0)):
            yield Proposal(equation, tuple(map(graph.insert_term, Piece.of(node).leaves)))

    def variants(self, program: Program) -> Iterator[Program]:
        """Yields the program with the first algorithm of each convolution, with the second, and so on."""
        equations_of = {node: self.find_equations(node) for node in program.active}
        for place in range(max(map(len, equations_of.values()), default=0)):

            def build(node: Node, args: tuple[Node | None, ...], place: int = place) -> Node:
                equations = equations_of.get(node, ())
                if place >= len(equations):
                    return replace_args(node, args)
                leaves = zip(equations[place].leaves, _distinct_args(args), strict=True)
                return equations[place].over(dict(leaves)).right[0]

            yield program.rebuild(build)

    def find_equations(self, node: Node) -> tuple[Equation, ...]:
        """Returns the equations of one node over leaves x0, x1, ..., in the order of its arguments."""
        return self._gain_and_equations(node)[1]

    def _gain_and_equations(self, node: Node) -> tuple[float, tuple[Equation, ...]]:
        """Returns the estimated seconds that the first equation saves, and the equations over x0, x1, ..."""
        piece = Piece.of(node)
        names = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}
        form = piece.with_leaves(names)
        if form not in self._known:
            self._known[form] = self._search_algorithms(form)
        return self._known[form]

    def _search_algorithms(self, node: Node) -> tuple[float, tuple[Equation, ...]]:
        recognized = recognize_convolution(node)
        if recognized is None:
            return 0.0, ()
        convolution = recognized.convolution
        chosen = candidate_algorithms(convolution, self.roofline, partial(self.allowed, convolution))
        if not chosen:
            return 0.0, ()
        direct = (None,) * len(convolution.spatial_axes)
        times = [estimate_seconds(convolution, each, self.roofline) for each in (direct, chosen[0])]
        equations = (fast_convolution_equation(node, algorithms) for algorithms in chosen)
        return times[0] - times[1], tuple(equation for equation in equations if equation is not None)


def _distinct_args(args: tuple[Node | None, ...]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(arg for arg in args if arg is not None))
