"""Equalities that no rule writes: who finds them, and how they enter the e-graph.

A finder looks at the e-graph and says what it found as equations, each with the e-nodes that its leaves stand
for.  It changes nothing: what both sides need is inserted here, and merged, for all finders in one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import NamedTuple, Protocol, runtime_checkable

from tensaurus.egraph.core.class_analysis import typed
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.graph.analysis.cancellation import cancels, is_large
from tensaurus.graph.ir.node import CONSTANT, Node, again
from tensaurus.graph.ir.program import topological
from tensaurus.rules.language.equation import Equation
from tensaurus.system.deadline import Bounded

__all__ = [
    "Finder",
    "Proposal",
    "TimedFinder",
    "Unhurried",
    "ended_lines",
    "enter",
    "find_all",
    "timed_finders",
]

PASSES = 12  # of all finders, each taking in what the ones before have made
SHARE = 0.5  # of the time that is left, after which a finder that still looks is ended
LITTLE = 0.1  # of the search's time
PROPOSALS = 20_000  # of one look of a finder, after which it is ended, too


class Proposal(NamedTuple):
    """An equation, and the e-nodes that its leaves stand for, in their order."""

    equation: Equation
    terms: tuple[int, ...]


class Finder(Protocol):
    """Whoever knows equalities between e-nodes."""

    def __call__(self, graph: EGraph, room: int) -> Iterable[Proposal]:
        """What is equal in an e-graph that is rebuilt; about so many e-nodes may be inserted.

        What was found before is found again: it costs nothing more.
        """


@runtime_checkable
class Unhurried(Protocol):
    """A finder that leaves undone what there is no time for, as long as others have work to do."""

    def granted(self, seconds: float) -> bool:
        """So much more may be spent when it is called; false where nothing was left undone."""


@dataclass
class TimedFinder:
    """A finder that is ended where it takes too long, and then never asked again; what it found is kept.

    deadline  of the search (of `time.monotonic`): a look may take SHARE of what is left until then, beside
              what was granted; one that had less than LITTLE of the search's time says nothing of the finder
    ended     why the finder was ended, for people to read; "" where it was not
    """

    finder: Finder
    deadline: float
    ended: str = field(default="", init=False)
    _granted: float = field(default=0.0, init=False)
    _little: float = field(init=False)

    def __post_init__(self) -> None:
        self._little = LITTLE * (self.deadline - monotonic())

    def __call__(self, graph: EGraph, room: int) -> list[Proposal]:
        """What the finder finds in time."""
        began, found = monotonic(), list[Proposal]()
        left, granted, self._granted = self.deadline - began, self._granted, 0.0
        if left <= 0 or self.ended:
            return found
        with Bounded(began + min(left, SHARE * left + granted)) as looking:
            for proposal in islice(self.finder(graph, room), PROPOSALS):
                found.append(proposal)
        spent = monotonic() - began
        if looking.ended and spent > self._little or len(found) == PROPOSALS:
            name = getattr(self.finder, "__name__", type(self.finder).__name__)
            what = f"{spent:.1f} s" if looking.ended else f"{PROPOSALS} proposals"
            self.ended = f"the finder {name} was ended after {what}, and not asked again"
        return found


class _UnhurriedFinder(TimedFinder):
    """Of a finder that is `Unhurried`."""

    def granted(self, seconds: float) -> bool:
        assert isinstance(self.finder, Unhurried)
        self._granted = seconds
        return not self.ended and self.finder.granted(seconds)


def timed_finders(finders: Sequence[Finder], deadline: float) -> list[TimedFinder]:
    """Finders that keep within the time of a search."""
    kinds = (_UnhurriedFinder if isinstance(finder, Unhurried) else TimedFinder for finder in finders)
    return [kind(finder, deadline) for kind, finder in zip(kinds, finders, strict=True)]


def ended_lines(finders: Iterable[Finder]) -> list[str]:
    """Of the finders that had to be ended a line each, for people to read."""
    return [finder.ended for finder in finders if isinstance(finder, TimedFinder) and finder.ended]


def find_all(graph: EGraph, finders: Sequence[Finder], most: int) -> int:
    """Insert what the finders find until nothing is new, up to so many e-nodes; how many were merged.

    The e-graph must be rebuilt, and is afterwards.
    """
    merged = 0
    for _ in range(PASSES):
        before = merged
        for finder in finders:
            equal = []
            for equation, terms in list(finder(graph, most - len(graph))):
                instance = _inserted(graph, equation, terms, most - len(graph))
                if instance is not None:
                    equal.append(instance)
            for instance in equal:
                pairs = zip(instance.left, instance.right, strict=True)
                merged += sum(graph.union(left, right, instance) for left, right in pairs)
            graph.rebuild()
        if merged == before:
            break
    return merged


def enter(graph: EGraph, equations: Iterable[Equation], most: int) -> int:
    """Insert equations of concrete programs, up to so many e-nodes; how many of their sides were merged.

    This is the door for whoever has equations already: another search, a derivation by hand.  The e-graph
    must be rebuilt, and is afterwards.
    """
    merged = 0
    for equation in equations:
        terms = tuple(graph.adopt(leaf) for leaf in equation.leaves)
        if (instance := _inserted(graph, equation, terms, most - len(graph))) is not None:
            pairs = zip(instance.left, instance.right, strict=True)
            merged += sum(graph.union(left, right, instance) for left, right in pairs)
            graph.rebuild()
    return merged


@dataclass(frozen=True)
class _Instance:
    """An equation over terms: the e-nodes of both sides, and what their being there rests on."""

    equation: Equation
    terms: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    needs: tuple[tuple[int, int], ...]

    def evidence(self, graph: EGraph) -> tuple[list[Equation], Sequence[tuple[int, int]]]:
        """The equation of these terms."""
        leaves = dict(zip(self.equation.leaves, map(graph.term, self.terms), strict=True))
        return [self.equation.over(leaves)], self.needs


def _inserted(graph: EGraph, equation: Equation, terms: tuple[int, ...], room: int) -> _Instance | None:
    """Both sides as e-nodes; None where there is no room for what is new, or the two are one already."""
    order = topological((*equation.left, *equation.right), equation.leaves)
    numbers = dict(zip(equation.leaves, terms, strict=True))
    new = 0
    for node in order:  # first only looked up: nothing is inserted by halves
        args = _args(node, numbers)
        number = None if args is None else graph.peek(graph.head_of(node), args)
        if number is None:
            new += 1
        else:
            numbers[node] = number
    sides = equation.left, equation.right
    if new > room or _loses(graph, equation, terms):
        return None
    if not new and all(graph.find(numbers[a]) == graph.find(numbers[b]) for a, b in zip(*sides, strict=True)):
        return None
    needs: dict[tuple[int, int], None] = {}
    for node in order:
        args = _args(node, numbers)
        assert args is not None
        if node not in numbers:
            numbers[node] = graph.add(graph.head_of(node), args, typed(node.types))
        needs.update(((a, b), None) for a, b in zip(graph.born[numbers[node]], args, strict=True) if a != b)
    left, right = (tuple(numbers[node] for node in side) for side in sides)
    return _Instance(equation, terms, left, right, tuple(needs))


def _loses(graph: EGraph, equation: Equation, terms: tuple[int, ...]) -> bool:
    """Whether it combines or drops constants whose rounding matters (`graph/analysis/cancellation`)."""
    leaves = zip(equation.leaves, terms, strict=True)
    static = {leaf: number for leaf, number in leaves if graph.analyses[graph.find(number)].static}
    if not static:
        return False
    made = {leaf: graph.term(graph.constant_of(number)) for leaf, number in static.items()}
    before, after = (topological(side) for side in (equation.left, equation.right))
    if any(is_large(made[leaf]) for leaf in static.keys() - set(after)):
        return True
    for node in after:
        if node.op is CONSTANT:
            made[node] = node
        parts = [None if arg is None else made.get(arg) for arg in node.args]
        if node in made or not node.args or any(a and not b for a, b in zip(node.args, parts, strict=True)):
            continue
        made[node] = again(node, tuple(parts))
        if node not in before and cancels(made[node]):
            return True
    return False


def _args(node: Node, numbers: dict[Node, int]) -> tuple[int, ...] | None:
    """The e-nodes of a node's arguments; None where one is not there yet."""
    args = [ABSENT if arg is None else numbers.get(arg) for arg in node.args]
    return None if None in args else tuple(args)  # type: ignore[arg-type]
