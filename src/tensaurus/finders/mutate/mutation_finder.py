"""The finder of mutants: proposes corrected mutants of the products that take longer than they should.

The search for mutants takes seconds for each product, so that it only gets time that other finders leave
(`DeferringFinder`).  Products that run near the machine's peak are left out: no mutant has less
arithmetic.  PET's optimizer (section 6.2: subsets, rounds, the best K programs) is here the e-graph, which
holds each corrected mutant beside all other equalities, so that a mutant of a mutant is found in the next
program that is extracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import monotonic
from typing import TypeAlias

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import Proposal
from tensaurus.finders.mutate.cancel_inverses import cancel_inverses
from tensaurus.finders.mutate.compare_boxes import BoxesUndecided
from tensaurus.finders.mutate.correct_mutant import CorrectedMutant, correct_mutant
from tensaurus.finders.mutate.mutant_search import Mutant, MutantSearch
from tensaurus.finders.mutate.subprogram import Subprogram, find_subprograms
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.ops import Untypable
from tensaurus.runtimes.price.operation_counts import bytes_of, is_free, operations
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["Mutate", "estimate_program_seconds", "rank_mutants"]

MAX_CORRECTED = 12  # mutants of a subprogram that are corrected: boxes are compared for each
MAX_PROPOSALS = 3  # corrected mutants of a subprogram that are proposed
MAX_TIME_RATIO = 0.8  # of a mutant's estimated time to the original's, beyond which it is left out
MIN_SHARE = 0.02  # fraction of a model's time that equal subprograms must take for a search
CORRECTION_COST = 2.0  # seconds of a corrected element over those of one of the mutant's
NEW_ENODES = 8  # that an equation is taken to add

Roots: TypeAlias = tuple[Node, ...]


@dataclass
class Mutate:
    """Proposes corrected mutants, as a `Finder`, for the products that take the most time first.

    seconds   returns the time of an operator, None where it was not measured
    roofline  the machine's peaks
    budget    seconds for all searches, until more are granted; in none of them the finder proposes nothing
    """

    seconds: Callable[[Node], float | None] = lambda node: None
    roofline: Roofline = ONE_CORE
    budget: float = inf
    _is_finished: bool = field(default=False, init=False, repr=False)
    _searches: dict[Roots, _Search] = field(default_factory=dict, repr=False)
    _subprograms: dict[Roots, tuple[Subprogram, ...]] = field(default_factory=dict, repr=False)

    def __call__(self, graph: EGraph, max_new_enodes: int) -> Iterator[Proposal]:
        """Yield proposals that add about `max_new_enodes` e-nodes."""
        if self.budget <= 0 and not self._searches:
            return
        for program in graph.programs:
            if program.roots not in self._subprograms:
                self._subprograms[program.roots] = tuple(find_subprograms(program))
        alike: dict[Roots, list[Subprogram]] = {}
        distinct = {each.nodes: each for found in self._subprograms.values() for each in found}
        for subprogram in distinct.values():
            alike.setdefault(subprogram.roots, []).append(subprogram)
        times = (sum(filter(None, map(self.seconds, program.active))) for program in graph.programs)
        total = max(times, default=0.0)
        spent = {roots: sum(map(self._measured, each)) for roots, each in alike.items()}
        slow = [r for r, each in alike.items() if spent[r] >= MIN_SHARE * total and self._may_gain(each[0])]
        chosen = [
            (subprogram, corrected)
            for roots in sorted(slow, key=lambda roots: -spent[roots])
            for corrected in self._corrected(alike[roots][0])
            for subprogram in alike[roots]
        ]
        pairs = [(corrected.equation, subprogram.leaves) for subprogram, corrected in chosen]
        pairs += [(equation, equation.leaves) for equation in cancel_inverses(chosen)]
        for equation, leaves in pairs[: max(max_new_enodes // NEW_ENODES, 0)]:
            yield Proposal(equation, tuple(map(graph.insert_term, leaves)))
        self._is_finished = all(search.is_finished for search in self._searches.values())

    def grant_time(self, seconds: float) -> bool:
        """Add to the time budget; return whether a search is left that needs it."""
        self.budget = max(self.budget, 0.0) + seconds
        return not self._is_finished

    def _measured(self, subprogram: Subprogram) -> float:
        return sum(self.seconds(node) or 0.0 for node in subprogram.nodes)

    def _may_gain(self, subprogram: Subprogram) -> bool:
        """Return whether the arithmetic, at the machine's peak, takes clearly less than was measured."""
        least = 2 * subprogram.multiplications * self.roofline.operation
        return least < MAX_TIME_RATIO * self._measured(subprogram)

    def _corrected(self, subprogram: Subprogram) -> list[CorrectedMutant]:
        """Return the best corrected mutants, searched for now as far as there is time."""
        search = self._searches.setdefault(subprogram.roots, _Search(MutantSearch(subprogram)))
        if not search.is_finished and self.budget > 0:
            began = monotonic()
            search.run(began + self.budget, self.roofline, self._measured(subprogram))
            self.budget -= monotonic() - began
        return search.proposed


@dataclass
class _Search:
    """A search for mutants, what it found, and what is proposed of it."""

    search: MutantSearch
    found: list[Mutant] = field(default_factory=list)
    proposed: list[CorrectedMutant] = field(default_factory=list)
    is_finished: bool = False

    def run(self, deadline: float, roofline: Roofline, measured: float) -> None:
        """Go on until the deadline; propose what is estimated to be faster than was measured."""
        self.found += self.search.run(deadline)
        if not self.search.is_finished:
            return
        self.is_finished = True
        ranked = rank_mutants(self.search.subprogram, self.found, roofline, deadline)
        within = [mutant for seconds, mutant in ranked if seconds <= MAX_TIME_RATIO * measured]
        self.proposed = within[:MAX_PROPOSALS]


def rank_mutants(
    subprogram: Subprogram, mutants: list[Mutant], roofline: Roofline, deadline: float = inf
) -> list[tuple[float, CorrectedMutant]]:
    """Return mutants with corrections and the seconds that they should take, the fastest first.

    Only the MAX_CORRECTED mutants with the least arithmetic, corrections included, are looked at: of those
    that arrange the data alike and have equal steps, one.
    """
    promising = sorted(mutants, key=_arithmetic)
    distinct: dict[object, Mutant] = {}
    for mutant in promising:
        candidate = mutant.candidate
        distinct.setdefault((candidate.op, str(candidate.arrangements[0]), candidate.steps), mutant)
    ranked = list[tuple[float, CorrectedMutant]]()
    for mutant in islice(distinct.values(), MAX_CORRECTED):
        if ranked and monotonic() >= deadline:
            break
        try:
            corrected = correct_mutant(subprogram, mutant, deadline=deadline)
        except (BoxesUndecided, Untypable):
            continue
        seconds = estimate_program_seconds(subprogram, corrected.equation.right, roofline)
        ranked.append((seconds, corrected))
    return sorted(ranked, key=lambda pair: (pair[0], pair[1].mutant.candidate.steps))


def _arithmetic(mutant: Mutant) -> tuple[float, int]:
    """Return the key by which mutants are ranked: multiplications, then strides and dilations."""
    return mutant.work + CORRECTION_COST * (1 - mutant.share), mutant.candidate.steps


def estimate_program_seconds(subprogram: Subprogram, roots: Roots, roofline: Roofline) -> float:
    """Return the seconds of the operators from the subprogram's inputs to the roots, at the machine's peaks.

    What depends on constants alone, as re-indexed weights, is computed ahead of time.
    """
    pairs = zip(subprogram.inputs, subprogram.leaves, strict=True)
    constant = {node for node, leaf in pairs if leaf.static}
    seconds = 0.0
    for node in topological_order(roots, subprogram.inputs):
        if all(arg is None or arg in constant for arg in node.args):
            constant.add(node)
        elif not is_free(node):
            seconds += _least_seconds(node, roofline)
    return seconds


def _least_seconds(node: Node, roofline: Roofline) -> float:
    moved = sum(bytes_of(kind) for one in (node, *filter(None, node.args)) for kind in one.types)
    return roofline.seconds(operations(node), moved)
