"""Holds a candidate: a program that a search found, with the rewrites that lead to it from the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation

__all__ = ["Candidate", "Rewritten", "prepend_chain", "merge_candidates"]


@dataclass(frozen=True)
class Rewritten:
    """One step from a candidate to the next: the program `before`, and the equations that were applied to it.

    The program after the step equals the one before it by these equations and congruence (nodes of equal
    operators and equal arguments are equal).  `equations` is a function, called when a result is checked:
    most candidates never become results.
    """

    equations: Callable[[], tuple[Equation, ...]]
    before: Candidate

    @cached_property
    def applied(self) -> tuple[Equation, ...]:
        """The equations, in the order in which they were applied."""
        return self.equations()


@dataclass(frozen=True)
class Candidate:
    """A program that a search proposes, with the step that made it; the original has no step.

    It comes after `Extracted` (`optimizer/search/program_pool`), a saturation's program without a proof, and
    before `CandidateModel` (`optimizer/result/candidate_models`), which is written as ONNX and measured
    beside the original.

    cost      the sum of the costs of its operators, in seconds
    measured  seconds of a run of the whole program, where there was one
    by        names of the searches that found it
    sure      whether the cost rests on measurements only, on no estimates
    """

    program: Program
    cost: float
    step: Rewritten | None = None
    measured: float | None = None
    by: frozenset[str] = frozenset()
    sure: bool = True

    @property
    def seconds(self) -> float:
        """The measured time, or the cost where the program was never run as a whole."""
        return self.cost if self.measured is None else self.measured

    @property
    def chain(self) -> list[Candidate]:
        """The candidates from the original program to this one."""
        line, at = [self], self
        while at.step is not None:
            at = at.step.before
            line.append(at)
        return line[::-1]

    @property
    def applied(self) -> tuple[Equation, ...]:
        """The equations of all steps from the original program to this one, in order."""
        return tuple(e for at in self.chain if at.step is not None for e in at.step.applied)

    def with_searches(self, searches: frozenset[str]) -> Candidate:
        """Return a copy that names these searches, too, as those that found it."""
        return replace(self, by=self.by | searches)


def prepend_chain(candidate: Candidate, first: Candidate) -> Candidate:
    """Return the candidate, whose chain began at the program of `first`, with the chain of `first` before.

    The chains original -> p (of `first`) and p -> q (of the candidate) make original -> p -> q.
    """
    if candidate.step is None:
        return replace(candidate, step=first.step, by=candidate.by | first.by)
    before = prepend_chain(candidate.step.before, first)
    return replace(candidate, step=Rewritten(candidate.step.equations, before))


def merge_candidates(made: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates, each program once, with the names of all searches that found it."""
    by_roots: dict[tuple[Node, ...], Candidate] = {}
    for candidate in (*made, *others):
        known = by_roots.get(candidate.program.roots)
        by_roots[candidate.program.roots] = candidate if known is None else known.with_searches(candidate.by)
    return list(by_roots.values())
