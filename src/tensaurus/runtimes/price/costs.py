"""Prices every choice of an extraction (an e-node, or several that a runtime fuses) by all that is known.

The price of a choice is the first of these that is known: its in-context cost, observed at its place or of
equal operators elsewhere (`in_context_costs`); its time alone, as a model of its own (`operator_times`); an
optimistic estimate (`estimates`).  Constants have a price by the byte (`constant_limits`).

A search holds one `Costs`, which learns from measurements.  For each extraction it makes `Prices` of the
choices that the e-graph then has.
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
from tensaurus.runtimes.price.constant_limits import ConstantLimits
from tensaurus.runtimes.price.estimates import Estimates, Peaks
from tensaurus.runtimes.price.in_context_costs import InContextCosts, PlacedChoice
from tensaurus.runtimes.price.operation_counts import is_free

__all__ = ["StandaloneCosts", "PricedChoices", "Costs", "Prices"]

# To tune an eOperator (an expression whose kernel is generated) takes as long as this many measurements.
TUNING_COST = 20
# A kernel typically takes this many times the least seconds that kernels like it lead to expect.
TYPICAL_MULTIPLE = 1.33
# Shares of an observed program's time: its costliest operators up to CALIBRATED_SHARE are measured alone,
# too, but no more than MAX_CALIBRATED, and beyond these the costliest of each kind that takes more than
# MIN_SHARE.
CALIBRATED_SHARE, MIN_SHARE = 0.5, 0.01
MAX_CALIBRATED = 10
# Share of the first program's time below which an operator is not measured if one of its kind and size was.
NEGLIGIBLE_SHARE = 0.005


class StandaloneCosts(Peaks, Protocol):
    """Returns the costs of pieces that run alone, and what they take at the machine's peaks."""

    def known(self, piece: Piece) -> float | None:
        """Return the measured seconds, infinity where the runtime refuses the piece; None if not measured."""

    def measure(self, piece: Piece) -> float:
        """Return the seconds, measured now unless they are known."""

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Keep the seconds of a piece in a program: finders get them for a piece that is not measured."""


class PricedChoices(Protocol):
    """The choices of an extraction, as far as prices need them (`egraph/extract/extraction_choices`).

    A choice is named by its number; a selection is a program: {number of an e-class: number of its choice}.

    Each choice has a key.  Choices of one key compute the same operators on the same types, so they have one
    cost, except at places where they were observed in a program.
    """

    @property
    def keys(self) -> Sequence[int]:
        """The key of each choice, its number in `pieces`; -1 where the choice computes nothing."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """For each key a piece that has it."""

    def place(self, number: int) -> Hashable:
        """Return the place of a choice: its e-nodes, the same in every extraction from one e-graph."""

    def price_choices(self, costs: Sequence[float], seconds_per_byte: float) -> list[float]:
        """Return the cost of each choice, given the cost of each key and the price of a byte of constants."""

    def packed_bytes(self, selection: Mapping[int, int]) -> int:
        """Return the bytes of constants that the kernels of a selection read."""


@dataclass
class Costs:
    """All that one search knows of costs.

    standalone          costs of pieces that run alone
    kernel_cost_factor  factor of the costs of eOperators in an extraction; below 1 it favours them
    measuring_deadline  when measuring ends (of `time.monotonic`); unknown costs are infinite afterwards
    in_context          costs observed within programs
    constant_limits     limits on bytes of constants, and the price of a byte
    estimates           expected seconds of pieces that were not measured
    """

    standalone: StandaloneCosts
    kernel_cost_factor: float = 1.0
    measuring_deadline: float = inf
    in_context: InContextCosts = field(default_factory=InContextCosts)
    constant_limits: ConstantLimits = field(default_factory=ConstantLimits)
    estimates: Estimates = field(init=False)
    _measured: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.estimates = Estimates(self.standalone)

    def prices(self, choices: PricedChoices) -> Prices:
        """Return the prices of the choices by present knowledge."""
        return Prices(self, choices)

    def learn(
        self, run: Observation, computed: Mapping[int, frozenset[Node]], prices: Prices, read_bytes: int
    ) -> None:
        """Learn in-context costs from a run of a program.

        `computed` are the nodes that each choice computes, `read_bytes` those of constants that kernels read.
        """
        # each choice with its nodes: the times of kernels are divided among the choices of their nodes
        placed = [prices.placed_choice(number, nodes) for number, nodes in computed.items()]
        self.in_context.learn(run, placed, read_bytes)
        # single operators inside kernels of several
        shares = self._operator_shares(run)
        self.in_context.learn_shares(shares)
        # finders ask for pieces that were never measured: tell them what was observed
        pieces = [*(choice.piece for choice in placed), *(piece for piece, _ in shares)]
        for piece in dict.fromkeys(pieces):
            if (seconds := self.in_context.observed_seconds(piece)) is not None:
                self.standalone.note_observed(piece, seconds)

    def _operator_shares(self, run: Observation) -> list[tuple[Piece, float]]:
        """Divide the times of kernels of several operators among these, in proportion to their estimates.

        Several kernels may compute the same operators: onnxruntime runs a MatMul and an Add as a Reshape of 3
        microseconds, a Gemm of 120 and another Reshape.  An operator took what it has of all of them.
        """
        seconds_of: dict[Node, float] = {}
        for nodes, seconds in run.kernels:
            computed = [node for node in nodes if not is_free(node)]
            estimates = [self.standalone.estimate(Piece.of(node)) for node in computed]
            total = sum(estimates)
            if len(computed) > 1 and 0 < total < inf:
                for node, estimate in zip(computed, estimates, strict=True):
                    seconds_of[node] = seconds_of.get(node, 0.0) + seconds * estimate / total
        return [(Piece.of(node), seconds) for node, seconds in seconds_of.items()]

    def standalone_seconds(self, pieces: Sequence[Piece]) -> tuple[list[float], list[bool]]:
        """Return the seconds of each piece alone, estimates included, and whether they were measured."""
        known = [self._known_seconds(piece) for piece in pieces]
        for piece, seconds in zip(pieces, known, strict=True):
            if seconds is not None:
                self.estimates.learn(piece, seconds)
        expected = self.estimates.optimistic_seconds
        pairs = zip(pieces, known, strict=True)
        costs = [expected(piece) if seconds is None else seconds for piece, seconds in pairs]
        return costs, [seconds is not None for seconds in known]

    def _known_seconds(self, piece: Piece) -> float | None:
        """Return the measured or else observed seconds; without any None, infinity once measuring is over."""
        seconds = self.standalone.known(piece)
        if seconds is None:  # of a piece that runs only within the original, `measure` gave an estimate
            seconds = self._measured.get(piece.text)
        if seconds is None:
            seconds = self.in_context.observed_seconds(piece)
        if seconds is None:
            most = NEGLIGIBLE_SHARE * self.in_context.first_seconds
            seconds = self.estimates.scaled_seconds(piece, most)
        return inf if seconds is None and self.is_measuring_over else seconds

    @property
    def is_measuring_over(self) -> bool:
        """Whether measuring has ended."""
        return monotonic() >= self.measuring_deadline

    def measure(self, piece: Piece) -> float:
        """Measure a piece alone and return its seconds."""
        if self.is_measuring_over:
            return inf
        seconds = self._measured[piece.text] = self.standalone.measure(piece)
        self.estimates.learn(piece, seconds)
        self.in_context.learn_measured(piece, seconds)
        return seconds


class Prices:
    """The prices of one extraction's choices, which change as operators are measured.

    standalone   for each key, the seconds alone, measured or estimated
    is_measured  for each key, whether these seconds were measured
    _at_place    by choice: the in-context cost that was observed at its place
    _elsewhere   for each key, the cost of its choices at all other places
    """

    def __init__(self, costs: Costs, choices: PricedChoices) -> None:
        self._costs, self.choices = costs, choices
        self.standalone, self.is_measured = costs.standalone_seconds(choices.pieces)
        places = costs.in_context.places
        self._at_place = {
            number: places[place]
            for number, key in enumerate(choices.keys)
            if key >= 0 and places and (place := choices.place(number)) in places
        }
        self._elsewhere = costs.in_context.costs_elsewhere(choices.pieces, self.standalone)

    def placed_choice(self, number: int, nodes: frozenset[Node]) -> PlacedChoice:
        """Return a choice of a program with its place, its time alone, and the nodes that it computes."""
        place, key = self.choices.place(number), self.choices.keys[number]
        return PlacedChoice(
            place, self.choices.pieces[key], self.standalone[key], nodes, self.is_measured[key]
        )

    def of_choices(self, kernel_cost_factor: float | None = None) -> list[float]:
        """Return the price of each choice, with the bytes of constants that its kernels read.

        Prices of eOperators are multiplied by `kernel_cost_factor`; None stands for the search's factor.
        """
        costs = self._costs
        if kernel_cost_factor is None:
            kernel_cost_factor = costs.kernel_cost_factor
        per_byte = costs.constant_limits.seconds_per_byte + costs.in_context.seconds_per_byte
        prices = self.choices.price_choices(self._elsewhere, per_byte)
        for number, seconds in self._at_place.items():
            prices[number] = seconds
        if kernel_cost_factor != 1:
            pieces = self.choices.pieces
            for number, key in enumerate(self.choices.keys):
                prices[number] *= kernel_cost_factor if key >= 0 and pieces[key].has_eoperators else 1.0
        return prices

    @property
    def measured_choices(self) -> list[bool]:
        """For each choice, whether its seconds alone were measured; True where it computes nothing."""
        return [key < 0 or self.is_measured[key] for key in self.choices.keys]

    def keys_to_measure(self, gains: Mapping[int, float]) -> dict[int, float]:
        """Return the keys of unmeasured choices, each with the sum of its choices' gains.

        `gains` are the seconds that each choice saves a program.
        """
        gain_of_key: dict[int, float] = {}
        for number, gain in gains.items():
            key = self.choices.keys[number]
            gain_of_key[key] = gain_of_key.get(key, 0.0) + gain
        return gain_of_key

    def rank_by_expected_gain(
        self, gains: Mapping[int, float], places: Mapping[int, int]
    ) -> dict[int, float]:
        """Return unmeasured keys with their expected gains, the best gain per effort first.

        `gains` follow from estimates, which are optimistic.  A kernel is expected to be about as slow as
        others of its kind, at each of its `places`; of a kind that nobody tuned, the estimate is expected.
        So such kernels come early, and what they turn out to take orders the others.
        """
        expected = {key: gain - places[key] * self._optimistic_part(key) for key, gain in gains.items()}
        effort = {key: TUNING_COST if self.choices.pieces[key].has_eoperators else 1 for key in gains}
        return dict(sorted(expected.items(), key=lambda pair: -pair[1] / effort[pair[0]]))

    def _optimistic_part(self, key: int) -> float:
        """Return by how many seconds the estimate of a kernel is below what it is expected to take."""
        kernel_seconds = self._costs.standalone.kernel_seconds(self.choices.pieces[key])
        return max(0.0, TYPICAL_MULTIPLE * kernel_seconds - self.standalone[key])

    def keys_to_calibrate(self, selection: Mapping[int, int]) -> list[int]:
        """Return the keys of an observed program that are to be measured alone, too, the costliest first.

        The time of an operator alone is compared with that in the program: of each kind of operator the
        costliest is measured, and MAX_CALIBRATED others until they are CALIBRATED_SHARE of the program's
        time.
        """
        seconds: dict[int, float] = {}
        for number in selection.values():
            if (key := self.choices.keys[number]) >= 0:
                seconds[key] = seconds.get(key, 0.0) + self._at_place.get(number, self._elsewhere[key])
        total, passed = sum(seconds.values()), 0.0
        labels = set[str]()
        found = list[int]()
        for key in sorted(seconds, key=lambda key: -seconds[key]):
            label = self.choices.pieces[key].label
            is_first_of_kind = label not in labels and seconds[key] > MIN_SHARE * total
            if is_first_of_kind or (passed < CALIBRATED_SHARE * total and len(found) < MAX_CALIBRATED):
                found.append(key)
            labels.add(label)
            passed += seconds[key]
        return found

    def measure(self, key: int) -> None:
        """Measure the piece of a key alone."""
        self.standalone[key], self.is_measured[key] = self._costs.measure(self.choices.pieces[key]), True

    def are_measured(self, selection: Mapping[int, int], *, kernels_only: bool = False) -> bool:
        """Return whether the seconds of all choices of a program were measured, or of those with eOperators.

        An eOperator without a tuned kernel would run as many operators of the runtime, and be far slower.
        """
        keys = {self.choices.keys[number] for number in selection.values()} - {-1}
        unmeasured = (self.choices.pieces[key] for key in keys if not self.is_measured[key])
        return not any(piece.has_eoperators or not kernels_only for piece in unmeasured)

    def has_lost_gain(self, key: int, gain: float, places: int) -> bool:
        """Return whether what was measured since has raised a key's estimate by its `gain` at its places.

        For example, a MatMul of an optimistic 0.2 ms may save 0.1 ms; then another MatMul turns out to take
        twice its estimate, so the first one is expected to take 0.4 ms, and is not worth a measurement.
        """
        raised = self._costs.estimates.optimistic_seconds(self.choices.pieces[key]) - self.standalone[key]
        return raised > 0 and raised * places > gain

    def update(self) -> None:
        """Update prices after measurements: estimates too, which follow from what was measured.

        Once measuring is over, unknown costs become infinite.
        """
        is_over = self._costs.is_measuring_over
        self.standalone = [
            seconds if is_measured else inf if is_over else self._costs.estimates.optimistic_seconds(piece)
            for piece, seconds, is_measured in zip(
                self.choices.pieces, self.standalone, self.is_measured, strict=True
            )
        ]
        if is_over:
            self.is_measured = [True] * len(self.is_measured)
        self._elsewhere = self._costs.in_context.costs_elsewhere(self.choices.pieces, self.standalone)

    def total(self, selection: Mapping[int, int]) -> float:
        """Return the expected seconds of a program, given as the choice of each e-class."""
        keys, in_context = self.choices.keys, self._costs.in_context
        numbers = (n for n in selection.values() if keys[n] >= 0)
        seconds = sum(self._at_place.get(n, self._elsewhere[keys[n]]) for n in numbers)
        original_bytes = self._costs.constant_limits.original_read_bytes
        beyond = max(0, self.choices.packed_bytes(selection) - original_bytes)
        return seconds + in_context.other_seconds + in_context.seconds_per_byte * beyond
