"""The programs that a saturation ends with, the best first, each with its proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tensaurus.check.program.candidate import Candidate, Rewritten, merge_candidates
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.egraph_proof import prove
from tensaurus.graph.ir.program import Program
from tensaurus.optimizer.search.part_time_limits import Patience
from tensaurus.optimizer.search.program_pool import Extracted

__all__ = ["SATURATION", "Ranking"]

SATURATION = "saturation"


@dataclass(frozen=True)
class Ranking:
    """Of a program whose outputs are the `roots` in an e-graph; `notes` gets lines on what is dropped."""

    graph: EGraph
    program: Program
    roots: Sequence[int]
    patience: Patience
    notes: list[str]

    def candidates(
        self,
        original: Extracted | None,
        ranked: Sequence[Extracted],
        keep: int,
        estimated: tuple[Program, list[float]] | None,
        others: Sequence[Candidate],
    ) -> list[Candidate]:
        """The cheapest programs, each with the rewrites that its proof is made of, and the original.

        Behind them the cheapest by estimates, which comes first where nothing was measured, and the other
        search's best.
        """
        own = frozenset({SATURATION})
        original = original or Extracted(self.program, (), inf)
        first = Candidate(self.program, original.cost, measured=original.measured)
        made = [first]
        for one in ranked:
            if len(made) <= keep and (step := self._step(one.program, first)):
                made.append(Candidate(one.program, one.cost, step, one.measured, own, one.sure))
        made.sort(key=lambda candidate: (not candidate.sure, candidate.seconds))
        guessed = [] if estimated is None else self._estimated(*estimated, first, made)
        return merge_candidates([*made, *guessed] if first.cost < inf else [*guessed, *made], others)

    def _estimated(
        self, program: Program, totals: Sequence[float], first: Candidate, made: Sequence[Candidate]
    ) -> list[Candidate]:
        """The program that is cheapest by estimates, unless it is among these."""
        if any(program.roots == candidate.program.roots for candidate in made):
            return []
        if (step := self._step(program, first)) is None:
            return []
        cost, before = totals
        cost = cost if first.seconds == inf or not before else cost / before * first.seconds
        return [Candidate(program, cost, step, by=frozenset({SATURATION}), sure=False)]

    def _step(self, program: Program, first: Candidate) -> Rewritten | None:
        """The rewrites that lead to a program; None, and a note, where they do not."""
        with self.patience.part():
            proof = prove(self.graph, list(zip(self.roots, program.roots, strict=True)))
            applied = tuple(dict.fromkeys(proof.equations))
            if proof.holds():
                return Rewritten(lambda: applied, first)
            self.notes.append(f"rejected a candidate: its {len(applied)} rewrites do not prove it equal")
            return None
        self.notes.append("rejected a candidate: its proof takes too long")
        return None
