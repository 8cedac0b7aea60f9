"""The finder: convolutions of the programs that are known to be good, by fast algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.finders.bilinear.algorithm_candidates import candidates, seconds
from tensaurus.finders.bilinear.convolution_equation import convolution
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.recognize_convolution import recognised
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.node import Node, again, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["Bilinear"]


def _any(of: Convolution, algorithms: Algorithms) -> bool:
    return True


@dataclass
class Bilinear:
    """Fast algorithms of the e-graph's convolutions, as a `Finder`: those that should gain most first.

    roofline  the machine's
    allowed   whether the algorithms' errors are
    """

    roofline: Roofline = ONE_CORE
    allowed: Callable[[Convolution, Algorithms], bool] = _any
    _known: dict[Node, tuple[float, tuple[Equation, ...]]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """What convolutions are equal to, in about so many e-nodes."""
        nodes = dict.fromkeys(node for program in graph.programs for node in program.active)
        found = [(gain, node, equations) for node in nodes for gain, equations in [self._of(node)]]
        found.sort(key=lambda each: -each[0])
        places = ((node, equation) for _, node, equations in found for equation in equations)
        for node, equation in islice(places, max(room // 2, 0)):
            yield Proposal(equation, tuple(map(graph.adopt, Piece.of(node).leaves)))

    def variants(self, program: Program) -> Iterator[Program]:
        """The program with the first algorithm of each of its convolutions, with the second, and so on."""
        found = {node: self.of(node) for node in program.active}
        for place in range(max(map(len, found.values()), default=0)):

            def build(node: Node, args: tuple[Node | None, ...], place: int = place) -> Node:
                equations = found.get(node, ())
                if place >= len(equations):
                    return again(node, args)
                leaves = zip(equations[place].leaves, _distinct(args), strict=True)
                return equations[place].over(dict(leaves)).right[0]

            yield program.rebuilt(build)

    def of(self, node: Node) -> tuple[Equation, ...]:
        """Of one node, over leaves x0, x1, ... in the order of its arguments."""
        return self._of(node)[1]

    def _of(self, node: Node) -> tuple[float, tuple[Equation, ...]]:
        """With the seconds that the first one may save."""
        piece = Piece.of(node)
        names = {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}
        form = piece.over(names)
        if form not in self._known:
            self._known[form] = self._found(form)
        return self._known[form]

    def _found(self, node: Node) -> tuple[float, tuple[Equation, ...]]:
        found = recognised(node)
        if found is None:
            return 0.0, ()
        own = found.convolution
        chosen = candidates(own, self.roofline, lambda algorithms: self.allowed(own, algorithms))
        if not chosen:
            return 0.0, ()
        times = [seconds(own, each, self.roofline) for each in ((None,) * len(own.windows), chosen[0])]
        equations = (convolution(node, algorithms) for algorithms in chosen)
        return times[0] - times[1], tuple(equation for equation in equations if equation is not None)


def _distinct(args: tuple[Node | None, ...]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(arg for arg in args if arg is not None))
