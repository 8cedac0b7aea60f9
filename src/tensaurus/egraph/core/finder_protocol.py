"""Defines finders, which propose equalities that no rule writes, and inserts their equations in the e-graph.

A finder reads the e-graph and yields equations, each with the e-nodes for which its leaves stand.  It may
insert these leaves and no more: both sides of an equation are inserted and merged here, for all finders.

E-nodes are given by their numbers.  Each stands for one term as well: the program as which the e-node
was inserted (`EGraph.term`).  Terms of one class are equal, and a proof says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import NamedTuple, Protocol, runtime_checkable

from tensaurus.egraph.core.class_analysis import types_only
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.graph.analysis.needed_rounding import is_large_constant, removes_needed_rounding
from tensaurus.graph.ir.node import CONSTANT, Node, replace_args
from tensaurus.graph.ir.program import topological_order
from tensaurus.rules.language.equation import Equation
from tensaurus.system.deadline import DeadlineBlock

__all__ = [
    "Finder",
    "Proposal",
    "TimedFinder",
    "DeferringFinder",
    "ended_lines",
    "insert_all",
    "find_all",
    "timed_finders",
]

MAX_PASSES = 12  # over all finders; each pass sees the equations of the passes before
TIME_SHARE = 0.5  # share of the time left that one call of a finder may take
# A call that was ended before it took this share of the search's time says nothing against its finder.
LITTLE_TIME_SHARE = 0.1
MAX_PROPOSALS = 20_000  # of one call of a finder; a finder with more is not called again


class Proposal(NamedTuple):
    """An equation, and the e-nodes for which its leaves stand, in the order of the leaves.

    Concat(Concat(x, y), z) = Concat(x, y, z) with terms (4, 9, 2) has e-nodes 4, 9 and 2 for x, y and z.
    """

    equation: Equation
    terms: tuple[int, ...]


class Finder(Protocol):
    """Proposes equalities between e-nodes."""

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterable[Proposal]:
        """Return equations for a rebuilt e-graph, which may grow by about `max_new_enodes` e-nodes.

        Equations that were proposed before may be proposed again.
        """


@runtime_checkable
class DeferringFinder(Protocol):
    """A finder that defers work for which there is no time while the search has other work to do."""

    def grant_time(self, seconds: float) -> bool:
        """Let the next call take `seconds` more; return False where no work was deferred."""


@dataclass
class TimedFinder:
    """Wraps a finder: a call that takes too long is ended, and the finder is not called again.

    Proposals made before the end are kept.  Late in the search a call may be ended after less than
    LITTLE_TIME_SHARE of the search's time: that says nothing against the finder, which is called again.

    deadline          of the search (of `time.monotonic`)
    ended             why the finder was ended, for people to read; "" where it was not
    _granted_seconds  what the next call may take beyond its share (`grant_time`)
    _little_seconds   LITTLE_TIME_SHARE of the search's time
    """

    finder: Finder
    deadline: float
    ended: str = field(default="", init=False)
    _granted_seconds: float = field(default=0.0, init=False)
    _little_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._little_seconds = LITTLE_TIME_SHARE * (self.deadline - monotonic())

    def __call__(self, graph: EGraph, max_new_enodes: int) -> list[Proposal]:
        """Return the proposals that the finder makes in time."""
        began, proposals = monotonic(), list[Proposal]()
        seconds_left = self.deadline - began
        granted, self._granted_seconds = self._granted_seconds, 0.0  # a grant is for one call
        if seconds_left <= 0 or self.ended:
            return proposals
        with DeadlineBlock(began + min(seconds_left, TIME_SHARE * seconds_left + granted)) as call:
            for proposal in islice(self.finder(graph, max_new_enodes), MAX_PROPOSALS):
                proposals.append(proposal)
        spent = monotonic() - began
        # two reasons not to call it again: it did not end in a fair share of time, or it proposes too much
        if call.ended and spent > self._little_seconds or len(proposals) == MAX_PROPOSALS:
            name = getattr(self.finder, "__name__", type(self.finder).__name__)
            what = f"{spent:.1f} s" if call.ended else f"{MAX_PROPOSALS} proposals"
            self.ended = f"the finder {name} was ended after {what}, and not asked again"
        return proposals


class _TimedDeferringFinder(TimedFinder):
    """Wraps a `DeferringFinder`, and is one itself: the search asks each finder by `isinstance`."""

    def grant_time(self, seconds: float) -> bool:
        assert isinstance(self.finder, DeferringFinder)
        self._granted_seconds = seconds
        return not self.ended and self.finder.grant_time(seconds)


def timed_finders(finders: Sequence[Finder], deadline: float) -> list[TimedFinder]:
    """Wrap finders so that they keep within the time of a search."""
    kinds = (
        _TimedDeferringFinder if isinstance(finder, DeferringFinder) else TimedFinder for finder in finders
    )
    return [kind(finder, deadline) for kind, finder in zip(kinds, finders, strict=True)]


def ended_lines(finders: Iterable[Finder]) -> list[str]:
    """Return a line for each finder that was ended, for people to read."""
    return [finder.ended for finder in finders if isinstance(finder, TimedFinder) and finder.ended]


def find_all(graph: EGraph, finders: Sequence[Finder], max_enodes: int) -> int:
    """Call the finders until nothing is new; return how many pairs of classes were merged.

    The e-graph grows to at most `max_enodes` e-nodes.  It must be rebuilt before, and is rebuilt afterwards.
    """
    merged = 0
    for _ in range(MAX_PASSES):
        before = merged
        for finder in finders:
            merged += _apply(graph, list(finder(graph, max_enodes - len(graph))), max_enodes)
        if merged == before:
            break
    return merged


def insert_all(graph: EGraph, equations: Iterable[Equation], max_enodes: int) -> int:
    """Insert equations of concrete programs; return how many pairs of classes were merged.

    The equations may come from another search, or from a derivation by hand.  The e-graph grows to at most
    `max_enodes` e-nodes.  It must be rebuilt before, and is rebuilt afterwards.
    """
    merged = 0
    for equation in equations:
        terms = tuple(graph.insert_term(leaf) for leaf in equation.leaves)
        merged += _apply(graph, [Proposal(equation, terms)], max_enodes)
    return merged


def _apply(graph: EGraph, proposals: Iterable[Proposal], max_enodes: int) -> int:
    """Insert both sides of each equation and merge them; return how many pairs of classes were merged.

    All sides are inserted first and merged afterwards: a union leaves the e-graph's tables, which insertion
    reads, out of date until `rebuild`.
    """
    found = (_insert_sides(graph, *proposal, max_enodes - len(graph)) for proposal in proposals)
    merged = 0
    for instance in [instance for instance in found if instance is not None]:
        pairs = zip(instance.left, instance.right, strict=True)
        merged += sum(graph.union(left, right, instance) for left, right in pairs)
    graph.rebuild()
    return merged


@dataclass(frozen=True)
class _Instance:
    """An equation whose sides are in the e-graph: in proofs, the reason why `left` and `right` were merged.

    terms  the e-nodes for which the leaves stand
    left   the e-nodes of the left side's roots, in order; `right` those of the right side
    needs  pairs of equal terms on which a proof relies.  The e-node of a node may have existed before, over
           other terms of the same classes: each of these is paired with the node's own argument.
    """

    equation: Equation
    terms: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    needs: tuple[tuple[int, int], ...]

    def evidence(self, graph: EGraph) -> tuple[list[Equation], Sequence[tuple[int, int]]]:
        """Return the equation over the terms of its leaves, and `needs`."""
        leaves = dict(zip(self.equation.leaves, map(graph.term, self.terms), strict=True))
        return [self.equation.over(leaves)], self.needs


def _insert_sides(
    graph: EGraph, equation: Equation, terms: tuple[int, ...], max_new_enodes: int
) -> _Instance | None:
    """Insert both sides of an equation; None where they are too large, or are one class already."""
    order = topological_order((*equation.left, *equation.right), equation.leaves)
    enode_of = dict(zip(equation.leaves, terms, strict=True))  # the e-node of each node, as far as it exists
    new = 0
    for node in order:  # count new e-nodes first, so that no equation is inserted by halves
        args = _argument_enodes(node, enode_of)
        enode = None if args is None else graph.peek(graph.head_of(node), args)
        if enode is None:
            new += 1
        else:
            enode_of[node] = enode
    sides = equation.left, equation.right
    if new > max_new_enodes or _loses_rounding(graph, equation, terms):
        return None
    find = graph.find
    if not new and all(find(enode_of[a]) == find(enode_of[b]) for a, b in zip(*sides, strict=True)):
        return None
    needs: dict[tuple[int, int], None] = {}  # insert what is new, and note where an e-node reads other terms
    for node in order:
        args = _argument_enodes(node, enode_of)
        assert args is not None
        if node not in enode_of:
            enode_of[node] = graph.add(graph.head_of(node), args, types_only(node.types))
        needs.update(
            ((a, b), None) for a, b in zip(graph.original_args[enode_of[node]], args, strict=True) if a != b
        )
    left, right = (tuple(enode_of[node] for node in side) for side in sides)
    return _Instance(equation, terms, left, right, tuple(needs))


def _loses_rounding(graph: EGraph, equation: Equation, terms: tuple[int, ...]) -> bool:
    """Return whether the right side combines or drops constants whose rounding matters."""
    leaves = zip(equation.leaves, terms, strict=True)
    static = {leaf: enode for leaf, enode in leaves if graph.analyses[graph.find(enode)].static}
    if not static:
        return False
    # for each node of the equation that depends on constants only, that node over the e-graph's constants
    made = {leaf: graph.term(graph.constant_of(enode)) for leaf, enode in static.items()}
    before, after = (topological_order(side) for side in (equation.left, equation.right))
    if any(is_large_constant(made[leaf]) for leaf in static.keys() - set(after)):  # a dropped constant
        return True
    for node in after:
        if node.op is CONSTANT:
            made[node] = node
        parts = [None if arg is None else made.get(arg) for arg in node.args]
        if node in made or not node.args or any(a and not b for a, b in zip(node.args, parts, strict=True)):
            continue  # known, an input, or a node with an argument that is no constant
        made[node] = replace_args(node, tuple(parts))
        if node not in before and removes_needed_rounding(made[node]):
            return True
    return False


def _argument_enodes(node: Node, enode_of: dict[Node, int]) -> tuple[int, ...] | None:
    """Return the e-nodes of a node's arguments; None where one does not exist yet."""
    args = [ABSENT if arg is None else enode_of.get(arg) for arg in node.args]
    return None if None in args else tuple(args)  # type: ignore[arg-type]
