"""What a search finds: programs, each with the rewrites that lead to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensaurus.graph.node import Node
from tensaurus.graph.program import Program
from tensaurus.rules.rule import Rule

__all__ = ["Application", "Candidate", "Outcome", "Step"]


@dataclass(frozen=True)
class Application:
    """A rule at one place: its roots before and after."""

    rule: Rule
    before: tuple[Node, ...]
    after: tuple[Node, ...]


@dataclass(frozen=True)
class Step:
    """Rewrites of a whole program, and the program before them.

    The program after them is equal to it by these and by congruence: what reads equal tensors is equal.
    """

    applied: tuple[Application, ...]
    before: Candidate


@dataclass(frozen=True)
class Candidate:
    """A program on the way, with its cost in seconds and the step that made it.

    cost      as it was expected
    measured  as it took when it was run as a whole, if it was
    by        names of the searches that found it
    sure      whether the cost rests on measurements, not on estimates
    """

    program: Program
    cost: float
    step: Step | None = None
    measured: float | None = None
    by: frozenset[str] = frozenset()
    sure: bool = True

    @property
    def seconds(self) -> float:
        """The best that is known."""
        return self.cost if self.measured is None else self.measured

    @property
    def chain(self) -> list[Candidate]:
        """From the original program to this one."""
        line, at = [self], self
        while at.step is not None:
            at = at.step.before
            line.append(at)
        return line[::-1]


@dataclass
class Outcome:
    """best first; `ended_by` is a word that `report.summary` spells out, `detail` more than that.

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
