"""Ranks the programs that a saturation ends with, and proves each one equal to the original.

In: `Extracted` programs with their costs.  Out: a `Candidate` for each, in the order of measuring; the
equations of its proof are its one step from the original.
"""

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
    """Turns extracted programs into candidates, whose steps are the rewrites of their proofs.

    program   the original
    roots     e-classes of its outputs
    patience  limits the time of each proof
    notes     receives a line for each program that is rejected
    """

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
        """Return at most `keep` of the `ranked` programs and the original, the best first.

        They are followed by the program that is cheapest by estimates, which comes first where nothing was
        measured, and by the `others`, candidates of another search.

        original   the original as extracted, None if it was not
        estimated  the program that is cheapest by estimates, with its cost and the original's
        """
        by_saturation = frozenset({SATURATION})
        # the original (`start`), and the best programs that can be proved, `keep` of them at most
        original = original or Extracted(self.program, (), inf)
        start = Candidate(self.program, original.cost, measured=original.measured)
        candidates = [start]
        for one in ranked:
            if len(candidates) <= keep and (step := self._prove(one.program, start)):
                proved = step, one.measured, by_saturation, one.sure
                candidates.append(Candidate(one.program, one.cost, *proved))
        candidates.sort(key=lambda candidate: (not candidate.sure, candidate.seconds))
        # then the guess, first where not even the original has a cost
        guessed = [] if estimated is None else self._estimated_candidates(*estimated, start, candidates)
        ordered = [*candidates, *guessed] if start.cost < inf else [*guessed, *candidates]
        return merge_candidates(ordered, others)

    def _estimated_candidates(
        self, program: Program, totals: Sequence[float], start: Candidate, known: Sequence[Candidate]
    ) -> list[Candidate]:
        """Return the cheapest program by estimates, unless known; `totals`: its cost, the original's."""
        if any(program.roots == candidate.program.roots for candidate in known):
            return []
        if (step := self._prove(program, start)) is None:
            return []
        cost, before = totals
        # scaled, so that the original's estimate (`before`) becomes its known time
        cost = cost if start.seconds == inf or not before else cost / before * start.seconds
        return [Candidate(program, cost, step, by=frozenset({SATURATION}), sure=False)]

    def _prove(self, program: Program, start: Candidate) -> Rewritten | None:
        """Return the rewrites that lead to a program; None, and a note, where they do not prove it."""
        with self.patience.part():
            proof = prove(self.graph, list(zip(self.roots, program.roots, strict=True)))
            applied = tuple(dict.fromkeys(proof.equations))
            if proof.holds():
                return Rewritten(lambda: applied, start)
            reason = f"its {len(applied)} rewrites do not prove that it equals the original"
            self.notes.append(f"dropped a rewritten program: {reason}")
            return None
        # reached only where the block was ended
        self.notes.append("dropped a rewritten program: its proof takes too long")
        return None
