"""What does it cost?  One answer for every choice of an extraction, by all that is known so far.

In this order: what a choice took at its place in a program that was run as a whole, or what its like took
there (`runtimes/price/in_context_costs`); what it takes alone (`runtimes/price/operator_times`); and where
nobody has measured it, an estimate that flatters it, as one that is too high would never be found out.
Constants cost by the byte (`runtimes/price/weight_costs`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Protocol

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.in_context_costs import Placed, PlacedCosts
from tensaurus.runtimes.price.weight_costs import Allowance

__all__ = ["Alone", "Choosable", "Costs", "Prices"]

TUNED = 20  # operators of the runtime that are measured in the time in which an eOperator is tuned
FLATTERY = 0.7  # of what the luckiest operator of its kind would make of its estimate


class Alone(Protocol):
    """What pieces cost by themselves."""

    def known(self, piece: Piece) -> float | None:
        """Seconds, where it was measured; infinite where the runtime refuses it."""

    def measure(self, piece: Piece) -> float:
        """Seconds; measured now unless they are known."""

    def estimate(self, piece: Piece) -> float:
        """Seconds by arithmetic and traffic alone."""


class Choosable(Protocol):
    """The choices of an extraction, as far as they cost: choices of one key cost the same elsewhere."""

    @property
    def keys(self) -> Sequence[int]:
        """Of each choice, its number in `pieces`; -1 where it computes nothing."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Of each key, one that has it."""

    def place(self, number: int) -> Hashable:
        """Where a choice stands, the same in every extraction from one e-graph."""

    def keyed(self, costs: Sequence[float], byte: float) -> list[float]:
        """What each choice costs, by the costs of each key and of a byte."""

    def footprint(self, choice: Mapping[int, int]) -> int:
        """Bytes of constants that the kernels of a choice read."""


@dataclass
class Costs:
    """What is known of costs in one search.

    alone      what pieces cost by themselves
    favour     what part of their costs eOperators count in an extraction
    until      when measuring ends (of `time.monotonic`): what is not known then is no choice
    placed     what was learnt of them within programs
    allowance  bytes of constants that a program may have, and their price
    luck       of each kind of operator, the least share of its estimate that one took
    largest    of each kind of operator, the largest estimate of those that were measured
    """

    alone: Alone
    favour: float = 1.0
    until: float = inf
    placed: PlacedCosts = field(default_factory=PlacedCosts)
    allowance: Allowance = field(default_factory=Allowance)
    luck: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    _answers: dict[str, float] = field(default_factory=dict)

    def prices(self, choices: Choosable) -> Prices:
        """Of the choices, by what is known now."""
        return Prices(self, choices)

    def learn(
        self, seen: Observation, parts: Mapping[int, frozenset[Node]], prices: Prices, read: int
    ) -> None:
        """Of a program that was run as a whole: the nodes that each choice computes, and the bytes of
        constants that its kernels read."""
        choices = prices.choices
        placed = [
            Placed(choices.place(n), choices.pieces[choices.keys[n]], prices.alone[choices.keys[n]], nodes)
            for n, nodes in parts.items()
        ]
        self.placed.note(seen, placed, read)

    def read(self, pieces: Sequence[Piece]) -> tuple[list[float], list[bool]]:
        """Of each piece its seconds alone, and whether they were measured."""
        known = [self._known(piece) for piece in pieces]
        for piece, seconds in zip(pieces, known, strict=True):
            if seconds is not None:
                self._note(piece, seconds)
        pairs = zip(pieces, known, strict=True)
        costs = [self._flattered(piece) if seconds is None else seconds for piece, seconds in pairs]
        return costs, [seconds is not None for seconds in known]

    def _known(self, piece: Piece) -> float | None:
        seconds = self.alone.known(piece)
        if seconds is None:  # of what runs in the original alone there is an answer, but no measurement
            seconds = self._answers.get(piece.text, inf if self.over else None)
        return seconds

    @property
    def over(self) -> bool:
        """Whether measuring has ended."""
        return monotonic() >= self.until

    def measure(self, piece: Piece) -> float:
        """Seconds alone, from now on."""
        if self.over:
            return inf
        seconds = self._answers[piece.text] = self.alone.measure(piece)
        self._note(piece, seconds)
        return seconds

    def _note(self, piece: Piece, seconds: float) -> None:
        estimate = self.alone.estimate(piece)
        if estimate > 0 and seconds < inf:
            name = piece.label
            self.luck[name] = min(self.luck.get(name, inf), seconds / estimate)
            self.largest[name] = max(self.largest.get(name, 0.0), estimate)

    def _flattered(self, piece: Piece) -> float:
        """The larger an operator, the less of its estimate it takes: beyond what was measured of its kind, it
        has the luck of the luckiest."""
        name, estimate = piece.label, self.alone.estimate(piece)
        luck = min(self.luck.values(), default=1.0)
        if estimate <= self.largest.get(name, 0.0):  # of what has no elements the estimate may be 0
            luck = self.luck.get(name, luck)
        return FLATTERY * luck * estimate


class Prices:
    """The prices of one extraction's choices, which change as operators are measured.

    alone  of each key, seconds by itself
    sure   of each key, whether these were measured
    """

    def __init__(self, costs: Costs, choices: Choosable) -> None:
        self._costs, self.choices = costs, choices
        self.alone, self.sure = costs.read(choices.pieces)
        places = costs.placed.places
        self._at = {
            number: places[place]
            for number, key in enumerate(choices.keys)
            if key >= 0 and places and (place := choices.place(number)) in places
        }
        self._elsewhere = costs.placed.elsewhere(choices.pieces, self.alone)

    def of_choices(self, favour: float | None = None) -> list[float]:
        """What each choice costs, constants by the byte that kernels read of them, and eOperators by the part
        that an extraction counts of theirs."""
        favour = self._costs.favour if favour is None else favour
        byte = self._costs.allowance.byte + self._costs.placed.byte
        prices = self.choices.keyed(self._elsewhere, byte)
        for number, seconds in self._at.items():
            prices[number] = seconds
        if favour != 1:
            pieces = self.choices.pieces
            for number, key in enumerate(self.choices.keys):
                prices[number] *= favour if key >= 0 and pieces[key].generated else 1.0
        return prices

    @property
    def sure_choices(self) -> list[bool]:
        """Of each choice, whether what it takes alone was measured, or is nothing."""
        return [key < 0 or self.sure[key] for key in self.choices.keys]

    def unsure(self, gains: Mapping[int, float]) -> dict[int, float]:
        """The keys of these choices, and what they may save in all: those first that may save most for the
        time that it takes to measure them."""
        found: dict[int, float] = {}
        for number, gain in gains.items():
            key = self.choices.keys[number]
            found[key] = found.get(key, 0.0) + gain
        dear = {key: TUNED if self.choices.pieces[key].generated else 1 for key in found}
        return dict(sorted(found.items(), key=lambda pair: -pair[1] / dear[pair[0]]))

    def measure(self, key: int) -> None:
        """What the key's piece takes alone, from now on."""
        self.alone[key], self.sure[key] = self._costs.measure(self.choices.pieces[key]), True

    def settle(self) -> None:
        """Take in what was measured, and that nothing else will be."""
        if self._costs.over:
            pairs = zip(self.alone, self.sure, strict=True)
            self.alone = [seconds if sure else inf for seconds, sure in pairs]
            self.sure = [True] * len(self.sure)
        self._elsewhere = self._costs.placed.elsewhere(self.choices.pieces, self.alone)

    def total(self, choice: Mapping[int, int]) -> float:
        """Seconds that a program is expected to take."""
        keys, placed, allowance = self.choices.keys, self._costs.placed, self._costs.allowance
        seconds = sum(self._at.get(n, self._elsewhere[keys[n]]) for n in choice.values() if keys[n] >= 0)
        beyond = max(0, self.choices.footprint(choice) - allowance.footprint)
        return seconds + placed.rest + placed.byte * beyond
