"""Keeps the programs that a saturation has extracted so far, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from tensaurus.egraph.extract.extraction_choices import Choices, Place
from tensaurus.egraph.extract.problem import Choice
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.costs import Prices

__all__ = ["Cheapest", "Extracted", "Programs"]


@dataclass
class Extracted:
    """A program that was extracted from the e-graph: the first step of a candidate, before it has a proof.

    places    the e-nodes of each choice that was made for it (`extraction_choices.Place`)
    cost      the sum of its pieces' costs in seconds, as last priced
    measured  seconds of one run of the whole program, where it was run
    sure      whether the cost rests on measurements of all pieces, on no estimates
    """

    program: Program
    places: tuple[Place, ...]
    cost: float
    measured: float | None = None
    sure: bool = True

    @property
    def seconds(self) -> float:
        """The measured time, or the cost where the program was never run as a whole."""
        return self.cost if self.measured is None else self.measured


@dataclass(frozen=True)
class Cheapest:
    """The cheapest program of an extraction.

    choices  what could be chosen: the e-nodes of the e-graph, and fused chains of them
    choice   which of them was chosen in each e-class
    prices   the costs of `choices`
    """

    entry: Extracted
    choices: Choices
    choice: Choice
    prices: Prices


@dataclass
class Programs:
    """Extracted programs by their roots; `original` is the original with equal nodes merged."""

    original: Extracted | None = None
    _all: dict[tuple[Node, ...], Extracted] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Extracted]:
        """Yield the original first, then all others."""
        yield from [] if self.original is None else [self.original]
        yield from self._all.values()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def best(self) -> float:
        """The seconds of the cheapest program; infinite where there is none."""
        return min((one.seconds for one in self._all.values()), default=inf)

    @property
    def best_run(self) -> float:
        """The seconds of the fastest program that was run whole; infinite where none was."""
        return min((one.measured for one in self._all.values() if one.measured is not None), default=inf)

    def keep(self, new: Extracted) -> Extracted:
        """Add a program, or update its cost where the new one is lower or sure; return its entry."""
        entry = self._all.setdefault(new.program.roots, new)
        if entry.measured is None and (new.cost < entry.cost or new.sure > entry.sure):
            entry.cost, entry.places, entry.sure = new.cost, new.places, new.sure
        return entry

    def forget_expectations(self) -> None:
        """Drop programs that were never run: their costs are older than the run that was just observed."""
        self._all = {roots: one for roots, one in self._all.items() if one.measured is not None}

    def ranked(self, excluded: tuple[Node, ...]) -> list[Extracted]:
        """Return the programs whose cost is sure, the cheapest first; of the others the cheapest one only.

        excluded  roots of a program that is left out
        """
        others = [one for roots, one in self._all.items() if roots != excluded]
        sure = sorted((one for one in others if one.sure), key=lambda one: one.seconds)
        return sure + sorted((one for one in others if not one.sure), key=lambda one: one.seconds)[:1]
