"""Keeps the programs that a saturation has extracted so far, each once.

The search prices, extracts and runs programs in turns (`saturating_search`).  A program's cost is what its
run was expected to take when it was extracted; once the whole program was run, the measured time counts.
"""

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

    places    for each choice that was made for it, the e-nodes chosen (`extraction_choices.Place`); a later
              extraction finds the program again by these, and starts from it
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
    """The cheapest program of one extraction, with what it was chosen from.

    entry    the program
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
    """The extracted programs.

    original  the program that was extracted from the model's own e-nodes alone; None until then
    _all      every program that was kept, by its roots; the original is one of them
    """

    original: Extracted | None = None
    _all: dict[tuple[Node, ...], Extracted] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Extracted]:
        """Yield the original, then every program that was kept: the original a second time, if it is kept."""
        yield from [] if self.original is None else [self.original]
        yield from self._all.values()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def best(self) -> float:
        """The seconds of the cheapest program kept; infinite where there is none."""
        return min((one.seconds for one in self._all.values()), default=inf)

    @property
    def best_run(self) -> float:
        """The seconds of the fastest program that was run whole; infinite where none was."""
        return min((one.measured for one in self._all.values() if one.measured is not None), default=inf)

    def keep(self, new: Extracted) -> Extracted:
        """Add a program, and return its entry: the earlier one where the program is known.

        A known program that was never run takes the new cost where that is lower, or is sure and the old one
        is not.
        """
        entry = self._all.setdefault(new.program.roots, new)
        if entry.measured is None and (new.cost < entry.cost or new.sure > entry.sure):
            entry.cost, entry.places, entry.sure = new.cost, new.places, new.sure
        return entry

    def forget_expectations(self) -> None:
        """Drop the programs that were never run.

        To call after a program was run: operators have new costs now, and these programs still have the old.
        """
        self._all = {roots: one for roots, one in self._all.items() if one.measured is not None}

    def ranked(self, excluded: tuple[Node, ...]) -> list[Extracted]:
        """Return the programs whose cost is sure, the cheapest first, then the cheapest one of the others.

        excluded  roots of a program that is left out: the original, which is ranked anyway
        """
        others = [one for roots, one in self._all.items() if roots != excluded]
        sure = sorted((one for one in others if one.sure), key=lambda one: one.seconds)
        return sure + sorted((one for one in others if not one.sure), key=lambda one: one.seconds)[:1]
