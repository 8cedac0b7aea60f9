"""A program that should equal the original, with the rewrites that lead to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.rules.language.equation import Equation

__all__ = ["Candidate", "Rewritten", "continued", "joined"]


@dataclass(frozen=True)
class Rewritten:
    """How a program was made: rewrites of a whole program, and that program.

    The program after them is equal to it by these and by congruence: what reads equal tensors is equal.
    """

    equations: Callable[[], tuple[Equation, ...]]  # made when asked for: most candidates lead nowhere
    before: Candidate

    @cached_property
    def applied(self) -> tuple[Equation, ...]:
        """The rewrites, in order."""
        return self.equations()


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
    step: Rewritten | None = None
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

    @property
    def applied(self) -> tuple[Equation, ...]:
        """Every rewrite from the original program to this one, in order."""
        return tuple(e for at in self.chain if at.step is not None for e in at.step.applied)

    def also(self, by: frozenset[str]) -> Candidate:
        """The same, found by these searches, too."""
        return replace(self, by=self.by | by)


def continued(candidate: Candidate, first: Candidate) -> Candidate:
    """The same candidate, whose chain begins with that of `first`, the program where it began so far."""
    if candidate.step is None:
        return replace(candidate, step=first.step, by=candidate.by | first.by)
    before = continued(candidate.step.before, first)
    return replace(candidate, step=Rewritten(candidate.step.equations, before))


def joined(made: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """All of them, each program once, with the names of the searches that have it."""
    joined: dict[tuple[Node, ...], Candidate] = {}
    for candidate in (*made, *others):
        known = joined.get(candidate.program.roots)
        joined[candidate.program.roots] = candidate if known is None else known.also(candidate.by)
    return list(joined.values())
