"""The outcome of a search: its candidates, the best first, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensaurus.check.program.candidate import Candidate

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """The candidates of a search of one program.

    candidates  the best first; the original is among them
    ended_by    a key of `optimizer.result.summary`'s texts for users
    steps       extractions of a saturation, or programs taken from backtracking's queue
    programs    number of programs that the search saw
    detail      the size of the search, for users
    notes       lines for users on parts that were ended and programs that were dropped
    """

    candidates: list[Candidate]
    ended_by: str = "exhausted"
    steps: int = 0
    programs: int = 0
    detail: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def original(self) -> Candidate:
        """The original program, where every chain begins."""
        return self.best.chain[0]
