"""The finder: what the linear parts of the programs that are known to be good are derived to.

A part is an operator that adds up products, with what only moves elements around it (EINNET, section 6.3:
programs are split at what is not linear).  Of eOperators there are none: what they were made of was derived.
Where moves lie behind it, too, or mask it, its expression is read from the elements themselves
(`derive/trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.algebra.analysis import multiply_adds
from tensaurus.algebra.expr import Read
from tensaurus.cost.demand import free, number_of, scopes_of
from tensaurus.cost.roofline import ONE_CORE, Roofline
from tensaurus.derive.equation import equation
from tensaurus.derive.memory import Memory
from tensaurus.derive.search import REACHED, Derived, Search, initial
from tensaurus.derive.state import INTENSE, intensity
from tensaurus.derive.trace import Flow, traced
from tensaurus.egraph.egraph import EGraph
from tensaurus.egraph.finder import Proposal
from tensaurus.graph.node import Node, source
from tensaurus.graph.piece import Piece
from tensaurus.graph.program import Program
from tensaurus.ops import TensorType, Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.equation import Equation

__all__ = ["Derive"]

FORMS = 3  # of one part, that are proposed
KEPT = 6  # of one part, that are kept for other runs and sizes
STATES = 60  # of the search for one part
GAIN = 0.8  # of a part's time, that a form should take at most
WORTH = 0.02  # of a program's time, that others of its parts' forms may save, at least

Part: TypeAlias = tuple[Piece, Node]  # with its product


@dataclass
class Derive:
    """Derivations of the e-graph's programs, as a `Finder`: those that should gain most first.

    seconds   what an operator takes; None where it is not known
    roofline  the machine's
    states    of the search for one part, at most
    budget    seconds for all searches
    memory    what was derived before
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    states: int = STATES
    budget: float = inf
    memory: Memory = field(default_factory=Memory)
    _parts: dict[tuple[Node, ...], tuple[Part, ...]] = field(default_factory=dict, repr=False)
    _known: dict[Node, tuple[tuple[float, Equation], ...]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, room: int) -> Iterator[Proposal]:
        """What parts are equal to, in about so many e-nodes."""
        for program in graph.programs:
            if program.roots not in self._parts:
                self._parts[program.roots] = tuple(_parts_of(program))
        # of the first programs nothing was measured when they were shown, and later ones are fused
        alike: dict[Node, list[tuple[Piece, Node, float]]] = {}  # by what they are over leaves of no name
        hoped: dict[Node, float] = {}
        for piece, product in dict.fromkeys(chain(*self._parts.values())):
            now, least = self._times(piece, product)
            if GAIN * now > least:
                form = _form(piece)
                alike.setdefault(form, []).append((piece, product, now))
                hoped[form] = hoped.get(form, 0.0) + now - least
        whole = max((self._whole(program) for program in graph.programs), default=0.0)
        found = [
            (gain, piece, derivation)
            for form in sorted(alike, key=lambda form: -hoped[form])
            if hoped[form] >= WORTH * whole
            for piece, product, now in alike[form]
            for gain, derivation in self._of(piece, product, now)
        ]
        found.sort(key=lambda each: -each[0])
        for _, piece, derivation in islice(found, max(room // 4, 0)):
            yield Proposal(derivation, tuple(map(graph.adopt, piece.leaves)))

    def _whole(self, program: Program) -> float:
        """What the program takes, as far as that is known."""
        return sum(filter(None, map(self.seconds, program.active)))

    def _times(self, piece: Piece, product: Node) -> tuple[float, float]:
        """What the part takes, and what an operator of the runtime that does as much may be expected to."""
        times = (self.seconds(node) for node in piece.inner if not free(node))
        now = sum(filter(None, times))  # at least: nobody measures alone what a runtime fuses
        least = 2 * number_of(multiply_adds(scopes_of(product)[0])) * self.roofline.operation / REACHED
        # of a band of chunks half of the products, about, are read
        return now, least if piece.root is product else least / 2

    def _of(self, piece: Piece, product: Node, now: float) -> tuple[tuple[float, Equation], ...]:
        """Forms over leaves x0, x1, ... with the seconds that each should save."""
        names, form = _names(piece), _form(piece)
        if form not in self._known and self.budget > 0:
            began = monotonic()
            search = Search(self.roofline, states=self.states, deadline=began + self.budget)
            start = form if piece.root is product else None
            if (made := traced(piece, product)) is not None:
                start = Piece(made, piece.leaves).over(names)
            leaves = tuple(names.values())
            found = () if start is None else self._searched(form, start, leaves, search, now)
            self._known[form] = tuple(found)
            self.budget -= monotonic() - began
        return self._known.get(form, ())

    def _searched(
        self, form: Node, start: Node, leaves: tuple[Node, ...], search: Search, now: float
    ) -> Iterator[tuple[float, Equation]]:
        made = 0
        for one in _kinds(self._programs(start, leaves, search, now)):
            if one.seconds > GAIN * now or made == FORMS:
                return
            try:
                found = equation(form, leaves, one)
            except Untypable:
                continue
            if found is not None:
                made += 1
                yield now - one.seconds, found

    def _programs(
        self, node: Node, leaves: tuple[Node, ...], search: Search, now: float
    ) -> list[Derived]:
        """What an expression is equal to: on the trails that are known of it or, where these lead to what may
        be faster, of its like at other sizes; else what a search finds."""
        scope, nodes = initial(node, leaves)
        known = self.memory.at(scope)
        trails = self.memory.alike(scope) if known is None else known
        ends = [search.followed(scope, nodes, trail) for trail in trails]
        unlike = {one.state.key: one for found in ends for one in found}
        found = sorted(unlike.values(), key=lambda one: (one.seconds, one.length))
        useful, cut = any(one.seconds <= GAIN * now for one in found), search.late
        if cut or (useful if known is None else not known or ends[0]):
            return found
        searched = search.run(scope, nodes)
        if search.late:
            return found or searched
        self.memory.keep(scope, list(islice(_kinds(searched), KEPT)))
        return searched


def _kinds(found: Iterable[Derived]) -> Iterator[Derived]:
    """The first of those whose parts became the same: the same around it is no other form."""
    kinds = set[tuple[Node, ...]]()
    for one in found:
        kind = tuple(node for _, node in one.state.nodes)
        if kind not in kinds:
            kinds.add(kind)
            yield one


def _names(piece: Piece) -> dict[Node, Node]:
    """Leaves x0, x1, ... for its own."""
    return {leaf: source(f"x{k}", leaf.types[0]) for k, leaf in enumerate(piece.leaves)}


def _form(piece: Piece) -> Node:
    return piece.over(_names(piece))


def _parts_of(program: Program) -> Iterator[Part]:
    flow = Flow(program)
    for product in program.active:
        if product.op is not eop and (piece := flow.surrounded(product) or part(product)) is not None:
            yield piece, product


def part(node: Node) -> Piece | None:
    """The operator, if it adds up products, with those that only move elements in front of it."""
    (scope,) = scopes_of(node) if len(scopes_of(node)) == 1 else (None,)
    kind = node.types[0]
    if scope is None or not isinstance(kind, TensorType) or not kind.static or intensity(scope) < INTENSE:
        return None
    if not all(isinstance(a.types[0], TensorType) and a.types[0].static for a in node.args if a is not None):
        return None
    leaves = dict.fromkeys(arg for arg in node.args if arg is not None)
    while (moving := next((leaf for leaf in leaves if _moves(leaf)), None)) is not None:
        del leaves[moving]
        leaves |= dict.fromkeys(arg for arg in moving.args if arg is not None)
    return Piece(node, tuple(leaves))


def _moves(node: Node) -> bool:
    """Whether it only moves elements of one tensor."""
    if node.static or len(node.types) != 1 or sum(arg is not None for arg in node.args) != 1:
        return False
    found = scopes_of(node)
    return len(found) == 1 and isinstance(found[0].body, Read)

