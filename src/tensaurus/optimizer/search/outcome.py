"""The outcome of a search: its candidates, the best first, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.egraph import EGraph

__all__ = ["Outcome", "describe_size", "describe_unmeasured"]


def describe_size(graph: EGraph, rounds: int, is_measured: Sequence[bool]) -> str:
    """Return the size of the e-graph, and how many operators are measured, for people."""
    known = f", {sum(is_measured)} of {len(is_measured)} operators measured" if is_measured else ""
    return f"{len(graph)} e-nodes in {len(graph.members)} classes after {rounds} rounds{known}"


def describe_unmeasured(is_measured: Sequence[bool], ended_by: str) -> str:
    """Return a line for people on operators that there was no time to measure; "" where there are none."""
    if ended_by != "time" or all(is_measured):
        return ""
    known = f"{sum(is_measured)} of the model's {len(is_measured)} kinds of operators"
    return (
        f"only {known} were measured in time: only rewrites with a good estimate are tried."
        " Raise --time-limit, or run again: measurements are kept"
    )


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
