"""Keeps the programs that a saturation has extracted so far, each once.

The search prices, extracts and runs programs in turns (`saturating_search`).  A program's cost is what its
run was expected to take when it was extracted; once the whole program was run, the measured time counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tensaurus.egraph.extract.extraction_choices import Choices, Place
from tensaurus.egraph.extract.problem import Selection
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.costs import Prices

__all__ = ["Extracted", "Extraction", "ProgramPool"]


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


class Extraction(NamedTuple):
    """An extracted program, with what it was chosen from.

    choices    what could be chosen: the e-nodes of the e-graph, and fused chains of them
    selection  which of them was chosen in each e-class
    prices     the costs of `choices`
    """

    extracted: Extracted
    choices: Choices
    selection: Selection
    prices: Prices


@dataclass
class ProgramPool:
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
    def best_seconds(self) -> float:
        """The seconds of the cheapest program kept; infinite where there is none."""
        return min((one.seconds for one in self._all.values()), default=inf)

    @property
    def is_original_run(self) -> bool:
        """Whether the original was run whole, which tells whether programs can be."""
        return self.original is not None and self.original.measured is not None

    @property
    def has_run_other(self) -> bool:
        """Whether a program beside the original was run whole, or none can be."""
        others = (one for one in self._all.values() if one is not self.original)
        return not self.is_original_run or any(one.measured is not None for one in others)

    def has_gain(self, share: float) -> bool:
        """Return whether a program takes less time than the original, by this share at least.

        Where programs can be run whole, only those that were run count: costs promise small gains in vain.
        """
        if self.original is None:
            return False
        run_seconds = (one.measured for one in self._all.values() if one.measured is not None)
        best = min(run_seconds, default=inf) if self.is_original_run else self.best_seconds
        return best < (1 - share) * self.original.seconds

    def add(self, new: Extracted) -> Extracted:
        """Add a program, and return its record: the earlier one where the program is known.

        A known program that was never run takes the new cost where that is lower, or is sure and the old one
        is not.
        """
        known = self._all.setdefault(new.program.roots, new)
        if known.measured is None and (new.cost < known.cost or new.sure > known.sure):
            known.cost, known.places, known.sure = new.cost, new.places, new.sure
        return known

    def drop_programs_not_run(self) -> None:
        """Drop the programs that were never run.

        The search calls this after each run: operators have new costs then, and these programs the old ones.
        """
        self._all = {roots: one for roots, one in self._all.items() if one.measured is not None}

    def rank(self, excluded: tuple[Node, ...]) -> list[Extracted]:
        """Return the programs whose cost is sure, the cheapest first, then the cheapest one of the others.

        excluded  roots of a program that is left out: the original, which has a place of its own
        """
        others = [one for roots, one in self._all.items() if roots != excluded]
        sure = sorted((one for one in others if one.sure), key=lambda one: one.seconds)
        return sure + sorted((one for one in others if not one.sure), key=lambda one: one.seconds)[:1]
