"""Prices every choice of an extraction by all that is known so far.

The price of a choice is the first of these that is known: its in-context cost, observed at its place or of
equal operators elsewhere (`in_context_costs`); its time alone (`operator_times`); an optimistic estimate.
The estimate is optimistic because extraction would never choose, and so never measure, what seems too dear.
Constants have a price by the byte (`weight_costs`).
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
from tensaurus.runtimes.price.in_context_costs import InContextCosts, PlacedChoice
from tensaurus.runtimes.price.weight_costs import Allowance

__all__ = ["StandaloneCosts", "PricedChoices", "Costs", "Prices"]

TUNING_COST = 20  # to tune an eOperator takes as long as to measure so many operators of the runtime
# An optimistic estimate is this part of the luckiest operator's share of its roofline estimate.
OPTIMISM = 0.7


class StandaloneCosts(Protocol):
    """Returns the costs of pieces that run alone."""

    def known(self, piece: Piece) -> float | None:
        """Return the measured seconds, infinity where the runtime refuses the piece; None if not measured."""

    def measure(self, piece: Piece) -> float:
        """Return the seconds, measured now unless they are known."""

    def estimate(self, piece: Piece) -> float:
        """Return the seconds by arithmetic and traffic at the machine's peaks."""


class PricedChoices(Protocol):
    """The choices of an extraction, as far as prices need them; each choice has a key.

    Choices of one key have the same cost wherever they were not observed.
    """

    @property
    def keys(self) -> Sequence[int]:
        """The key of each choice, its number in `pieces`; -1 where the choice computes nothing."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """For each key a piece that has it."""

    def place(self, number: int) -> Hashable:
        """Return the place of a choice, the same in every extraction from one e-graph."""

    def keyed(self, costs: Sequence[float], byte: float) -> list[float]:
        """Return the cost of each choice, from the costs of all keys and the price of a byte of constants."""

    def footprint(self, choice: Mapping[int, int]) -> int:
        """Return the bytes of constants that the kernels of a program read."""


@dataclass
class Costs:
    """All that one search knows of costs.

    alone               costs of pieces that run alone
    kernel_cost_factor  factor of the costs of eOperators in an extraction; below 1 it favours them
    measuring_deadline  when measuring ends (of `time.monotonic`); unknown costs are infinite afterwards
    in_context          costs observed within programs
    allowance           limits on bytes of constants, and the price of a byte
    least_share         for each kind of operator, the least quotient of measured and estimated time
    largest_estimate    for each kind of operator, the largest estimate of a measured one
    """

    alone: StandaloneCosts
    kernel_cost_factor: float = 1.0
    measuring_deadline: float = inf
    in_context: InContextCosts = field(default_factory=InContextCosts)
    allowance: Allowance = field(default_factory=Allowance)
    least_share: dict[str, float] = field(default_factory=dict)
    largest_estimate: dict[str, float] = field(default_factory=dict)
    _answers: dict[str, float] = field(default_factory=dict)

    def prices(self, choices: PricedChoices) -> Prices:
        """Return the prices of the choices by present knowledge."""
        return Prices(self, choices)

    def learn(
        self, seen: Observation, parts: Mapping[int, frozenset[Node]], prices: Prices, read: int
    ) -> None:
        """Learn in-context costs from a run of a program.

        `parts` are the nodes that each choice computes, `read` the bytes of constants that kernels read.
        """
        choices = prices.choices
        in_context = [
            PlacedChoice(
                choices.place(n), choices.pieces[choices.keys[n]], prices.alone[choices.keys[n]], nodes
            )
            for n, nodes in parts.items()
        ]
        self.in_context.note(seen, in_context, read)

    def read(self, pieces: Sequence[Piece]) -> tuple[list[float], list[bool]]:
        """Return the seconds of each piece alone, estimates included, and whether they were measured."""
        known = [self._known(piece) for piece in pieces]
        for piece, seconds in zip(pieces, known, strict=True):
            if seconds is not None:
                self._note(piece, seconds)
        pairs = zip(pieces, known, strict=True)
        costs = [self._optimistic_estimate(piece) if seconds is None else seconds for piece, seconds in pairs]
        return costs, [seconds is not None for seconds in known]

    def _known(self, piece: Piece) -> float | None:
        seconds = self.alone.known(piece)
        if seconds is None:  # pieces that run within the original only have an estimate as their answer
            seconds = self._answers.get(piece.text, inf if self.is_measuring_over else None)
        return seconds

    @property
    def is_measuring_over(self) -> bool:
        """Whether measuring has ended."""
        return monotonic() >= self.measuring_deadline

    def measure(self, piece: Piece) -> float:
        """Measure a piece alone and return its seconds."""
        if self.is_measuring_over:
            return inf
        seconds = self._answers[piece.text] = self.alone.measure(piece)
        self._note(piece, seconds)
        return seconds

    def _note(self, piece: Piece, seconds: float) -> None:
        estimate = self.alone.estimate(piece)
        if estimate > 0 and seconds < inf:
            name = piece.label
            self.least_share[name] = min(self.least_share.get(name, inf), seconds / estimate)
            self.largest_estimate[name] = max(self.largest_estimate.get(name, 0.0), estimate)

    def _optimistic_estimate(self, piece: Piece) -> float:
        """Return an estimate that is too low rather than too high.

        The larger an operator, the smaller the share of its estimate that it takes.  So an operator larger
        than all that were measured of its kind gets the least share of any kind, others that of their kind.
        """
        name, estimate = piece.label, self.alone.estimate(piece)
        least_share = min(self.least_share.values(), default=1.0)
        if estimate <= self.largest_estimate.get(name, 0.0):  # the estimate of an empty tensor may be 0
            least_share = self.least_share.get(name, least_share)
        return OPTIMISM * least_share * estimate


class Prices:
    """The prices of one extraction's choices, which change as operators are measured.

    alone  for each key, the seconds alone
    sure   for each key, whether these seconds were measured
    """

    def __init__(self, costs: Costs, choices: PricedChoices) -> None:
        self._costs, self.choices = costs, choices
        self.alone, self.sure = costs.read(choices.pieces)
        places = costs.in_context.places
        self._at = {
            number: places[place]
            for number, key in enumerate(choices.keys)
            if key >= 0 and places and (place := choices.place(number)) in places
        }
        self._elsewhere = costs.in_context.elsewhere(choices.pieces, self.alone)

    def of_choices(self, kernel_cost_factor: float | None = None) -> list[float]:
        """Return the price of each choice, with the bytes of constants that its kernels read.

        Prices of eOperators are multiplied by `kernel_cost_factor`, that of the search where None.
        """
        kernel_cost_factor = (
            self._costs.kernel_cost_factor if kernel_cost_factor is None else kernel_cost_factor
        )
        byte = self._costs.allowance.byte + self._costs.in_context.byte
        prices = self.choices.keyed(self._elsewhere, byte)
        for number, seconds in self._at.items():
            prices[number] = seconds
        if kernel_cost_factor != 1:
            pieces = self.choices.pieces
            for number, key in enumerate(self.choices.keys):
                prices[number] *= kernel_cost_factor if key >= 0 and pieces[key].has_eoperators else 1.0
        return prices

    @property
    def sure_choices(self) -> list[bool]:
        """For each choice, whether its seconds alone were measured; True where it computes nothing."""
        return [key < 0 or self.sure[key] for key in self.choices.keys]

    def unsure(self, gains: Mapping[int, float]) -> dict[int, float]:
        """Return the keys of these choices with the sums of their gains, the best to measure first.

        The order is by gain over the time that measuring takes.
        """
        gain_of_key: dict[int, float] = {}
        for number, gain in gains.items():
            key = self.choices.keys[number]
            gain_of_key[key] = gain_of_key.get(key, 0.0) + gain
        effort = {key: TUNING_COST if self.choices.pieces[key].has_eoperators else 1 for key in gain_of_key}
        return dict(sorted(gain_of_key.items(), key=lambda pair: -pair[1] / effort[pair[0]]))

    def measure(self, key: int) -> None:
        """Measure the piece of a key alone."""
        self.alone[key], self.sure[key] = self._costs.measure(self.choices.pieces[key]), True

    def settle(self) -> None:
        """Update prices after measurements; once measuring is over, unknown costs become infinite."""
        if self._costs.is_measuring_over:
            pairs = zip(self.alone, self.sure, strict=True)
            self.alone = [seconds if sure else inf for seconds, sure in pairs]
            self.sure = [True] * len(self.sure)
        self._elsewhere = self._costs.in_context.elsewhere(self.choices.pieces, self.alone)

    def total(self, choice: Mapping[int, int]) -> float:
        """Return the expected seconds of a program, given as the choice of each e-class."""
        keys, in_context, allowance = self.choices.keys, self._costs.in_context, self._costs.allowance
        seconds = sum(self._at.get(n, self._elsewhere[keys[n]]) for n in choice.values() if keys[n] >= 0)
        beyond = max(0, self.choices.footprint(choice) - allowance.footprint)
        return seconds + in_context.rest + in_context.byte * beyond
