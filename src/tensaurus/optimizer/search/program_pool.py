"""The programs that a saturation has extracted so far."""

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
    """A program with the seconds that were expected of it, and those that it took, if it was run.

    places  of the choices that it is made of
    sure    whether what was expected rests on measurements of all of its operators
    """

    program: Program
    places: tuple[Place, ...]
    cost: float
    measured: float | None = None
    sure: bool = True

    @property
    def seconds(self) -> float:
        """The best that is known."""
        return self.cost if self.measured is None else self.measured


@dataclass(frozen=True)
class Cheapest:
    """A program that was extracted, with the choices that it is made of and their prices."""

    entry: Extracted
    choices: Choices
    choice: Choice
    prices: Prices


@dataclass
class Programs:
    """Programs by their roots; `original` is the program as it was, what it computes twice written once."""

    original: Extracted | None = None
    _all: dict[tuple[Node, ...], Extracted] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Extracted]:
        """The original first."""
        yield from [] if self.original is None else [self.original]
        yield from self._all.values()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def best(self) -> float:
        """Seconds of the cheapest."""
        return min((one.seconds for one in self._all.values()), default=inf)

    def keep(self, new: Extracted) -> Extracted:
        """What is known of the program from now on: by its measured time, else by what is cheapest."""
        entry = self._all.setdefault(new.program.roots, new)
        if entry.measured is None and (new.cost < entry.cost or new.sure > entry.sure):
            entry.cost, entry.places, entry.sure = new.cost, new.places, new.sure
        return entry

    def forget_expectations(self) -> None:
        """Only programs that were run stay: what was expected of others was expected before that was seen."""
        self._all = {roots: one for roots, one in self._all.items() if one.measured is not None}

    def ranked(self, besides: tuple[Node, ...]) -> list[Extracted]:
        """The cheapest first, without one program, and with one at most of those that are not sure."""
        others = [one for roots, one in self._all.items() if roots != besides]
        sure = sorted((one for one in others if one.sure), key=lambda one: one.seconds)
        return sure + sorted((one for one in others if not one.sure), key=lambda one: one.seconds)[:1]
