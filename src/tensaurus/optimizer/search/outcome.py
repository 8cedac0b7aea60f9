"""What a search ends with: its programs, the best first, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensaurus.check.program.candidate import Candidate

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """best first; `ended_by` is a word that `optimizer.result.summary` spells out, `detail` more than that.

    `notes` are lines on what went wrong.
    """

    candidates: list[Candidate]
    ended_by: str = "exhausted"
    steps: int = 0
    programs: int = 0
    seconds: float = 0.0
    detail: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def original(self) -> Candidate:
        """The program as it was, where every chain begins."""
        return self.best.chain[0]
