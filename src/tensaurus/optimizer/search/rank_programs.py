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
from tensaurus.optimizer.search.estimated_program import EstimatedProgram
from tensaurus.optimizer.search.part_time_limits import SearchClock
from tensaurus.optimizer.search.program_pool import Extracted, ProgramPool

__all__ = ["SATURATION", "Ranking"]

SATURATION = "saturation"


@dataclass(frozen=True)
class Ranking:
    """Proves extracted programs and ranks them as candidates, whose steps are the rewrites of the proofs.

    program  the original
    roots    e-classes of its outputs
    clock    limits the time of each proof
    notes    receives a line for each program that is rejected
    """

    graph: EGraph
    program: Program
    roots: Sequence[int]
    clock: SearchClock
    notes: list[str]

    def rank(
        self,
        pool: ProgramPool,
        max_programs: int,
        estimated: EstimatedProgram | None,
        others: Sequence[Candidate],
    ) -> list[Candidate]:
        """Return the original and at most `max_programs` extracted programs that are proved, the best first.

        They are followed by the program that is cheapest by estimates, which comes first where nothing was
        measured, and by the `others`, candidates of another search.
        """
        extracted = pool.original or Extracted(self.program, (), inf)
        original = Candidate(self.program, extracted.cost, measured=extracted.measured)
        candidates = [original]
        for one in pool.rank(excluded=self.program.roots):
            if len(candidates) <= max_programs and (step := self._prove(one.program, original)):
                by = frozenset({SATURATION})
                candidates.append(Candidate(one.program, one.cost, step, one.measured, by, one.sure))
        candidates.sort(key=lambda candidate: (not candidate.sure, candidate.seconds))
        guessed = [] if estimated is None else self._estimated_candidates(estimated, original, candidates)
        ordered = [*candidates, *guessed] if original.cost < inf else [*guessed, *candidates]
        return merge_candidates(ordered, others)

    def _estimated_candidates(
        self, estimated: EstimatedProgram, original: Candidate, known: Sequence[Candidate]
    ) -> list[Candidate]:
        """Return the estimated program as a candidate; [] where it is known or cannot be proved."""
        program, cost, original_cost = estimated
        if any(program.roots == candidate.program.roots for candidate in known):
            return []
        if (step := self._prove(program, original)) is None:
            return []
        if original.seconds < inf and original_cost:
            cost = cost / original_cost * original.seconds  # the original's estimate becomes its known time
        return [Candidate(program, cost, step, by=frozenset({SATURATION}), sure=False)]

    def _prove(self, program: Program, original: Candidate) -> Rewritten | None:
        """Return the rewrites that lead to a program; None, and a note, where they do not prove it."""
        with self.clock.limit_part():
            proof = prove(self.graph, list(zip(self.roots, program.roots, strict=True)))
            applied = tuple(dict.fromkeys(proof.equations))
            if proof.holds():
                return Rewritten(lambda: applied, original)
            reason = f"its {len(applied)} rewrites do not prove that it equals the original"
            self.notes.append(f"dropped a rewritten program: {reason}")
            return None
        # reached only where the block was ended
        self.notes.append("dropped a rewritten program: its proof takes too long")
        return None
