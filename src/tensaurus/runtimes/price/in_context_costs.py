"""Learns in-context costs: the times of choices within whole programs, which differ from their times alone.

A choice of an extraction is an e-node, or several that a runtime fuses.  These e-nodes are its *place* in the
e-graph: they read certain e-classes, and others read them.  The choice's cost is the first of these that is
known: its time at this place; the mean time of the same operators on the same types at other places; its time
alone, multiplied by the mean ratio of times in context and alone of its operator.  Generated kernels have
means of their own, as they are measured in another way.  Samples count in a mean by their seconds alone: a
Reshape that takes 6 microseconds instead of 1 says nothing of a kernel of 20 ms.

A program whose constants no longer fit in the cache slows all operators down.  This slowdown must not be
blamed on single choices: it is measured on the operators that the first program has, too, and divided out
(`_slowdown`).  It gives a price to each byte of constants that kernels read beyond the first program's.

A generated kernel also slows its neighbours down: among operators on a blocked layout it makes some run on
plain tensors.  What the operators at the first program's places lose together is added to the kernels' times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from statistics import fmean

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.measure.observe import Observation

__all__ = ["PlacedChoice", "InContextCosts"]

MIN_SECONDS = 1e-9  # least seconds alone that count when a kernel's time is divided among choices
# A slowdown is measured if operators of the first program take at least this share of a program's time.
MIN_COMMON_SHARE = 0.1
# Weight of the mean ratio over all operators in that of one operator, whose samples have the mean weight 1.
PRIOR_WEIGHT = 0.25


@dataclass(frozen=True)
class PlacedChoice:
    """A choice in a program: its place, its operators (`piece`), and the nodes that it computes there.

    standalone   its seconds alone
    is_measured  whether these were measured; an estimate only divides a kernel's time among its choices
    """

    place: Hashable
    piece: Piece
    standalone: float
    nodes: frozenset[Node]
    is_measured: bool = True


@dataclass
class InContextCosts:
    """The costs that were learnt from the programs observed so far.

    places            seconds of choices by place, the mean over the programs in which they were observed
    other_seconds     seconds of kernels that belong to no choice (of opaque nodes), in the last program
    seconds_per_byte  price of each byte of constants that kernels read beyond the first program's
    first_seconds     seconds of a run of the first program; 0 before any was observed
    """

    places: dict[Hashable, float] = field(default_factory=dict)
    other_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    first_seconds: float = 0.0
    _seconds_in_first: dict[str, float] = field(default_factory=dict)  # by text of a piece
    _first_places: dict[Hashable, float] = field(default_factory=dict)  # seconds in the first program
    _first_read_bytes: int = 0  # bytes of constants that the first program's kernels read
    _visits: dict[Hashable, int] = field(default_factory=dict)  # in how many programs each place was
    _seconds_by_text: dict[str, list[float]] = field(default_factory=dict)  # by text of a piece
    _shares_by_text: dict[str, list[float]] = field(default_factory=dict)  # of kernels of several operators
    # (log(in context / alone), seconds alone), by whether it is a kernel and by operator
    _log_ratios: dict[tuple[bool, str], list[tuple[float, float]]] = field(default_factory=dict)
    _unpaired: dict[str, list[float]] = field(default_factory=dict)  # seconds by text, not yet measured alone

    def learn(self, run: Observation, choices: Sequence[PlacedChoice], read_bytes: int = 0) -> None:
        """Learn from the observation of a program whose kernels read `read_bytes` bytes of constants.

        The time of a kernel of several choices is divided in proportion to their times alone; a choice
        without a kernel took no time.  A choice in several programs had other neighbours in each: its mean
        counts.
        """
        spent = self._divide_kernel_times(run, choices)
        self.first_seconds = self.first_seconds or run.seconds
        slowdown = self._slowdown(choices, spent, read_bytes)
        spent = [seconds / slowdown for seconds in spent]  # without the slowdown of the whole program
        if not self._first_places:
            self._first_places = {one.place: spent[k] for k, one in enumerate(choices)}
        for choice, seconds in zip(choices, self._charge_losses(choices, spent), strict=True):
            visits = self._visits[choice.place] = self._visits.get(choice.place, 0) + 1
            mean = self.places.get(choice.place, 0.0)
            self.places[choice.place] = mean * (visits - 1) / visits + seconds / visits
            self._seconds_by_text.setdefault(choice.piece.text, []).append(seconds)
            if choice.is_measured:
                self._add_ratio(choice.piece, seconds, choice.standalone)
            else:
                self._unpaired.setdefault(choice.piece.text, []).append(seconds)

    def _charge_losses(self, choices: Sequence[PlacedChoice], spent: Sequence[float]) -> list[float]:
        """Return the choices' seconds, with losses at the first program's places charged to the kernels."""
        kept = [None if one.piece.has_eoperators else self._first_places.get(one.place) for one in choices]
        lost = sum(now - before for now, before in zip(spent, kept, strict=True) if before is not None)
        in_kernels = sum(now for now, one in zip(spent, choices, strict=True) if one.piece.has_eoperators)
        if lost <= 0 or in_kernels <= 0:
            return list(spent)
        factor = 1 + lost / in_kernels
        pairs = zip(spent, choices, kept, strict=True)
        return [
            now * factor if one.piece.has_eoperators else now if before is None else before
            for now, one, before in pairs
        ]

    def _divide_kernel_times(self, run: Observation, choices: Sequence[PlacedChoice]) -> list[float]:
        """Divide the time of each kernel among the choices whose nodes it computes; return that of each."""
        owners: dict[Node, list[int]] = {}  # the choices that compute a node
        for number, choice in enumerate(choices):
            for node in choice.nodes:
                owners.setdefault(node, []).append(number)
        weights = [max(choice.standalone, MIN_SECONDS) for choice in choices]
        spent = [0.0] * len(choices)
        self.other_seconds = 0.0
        for nodes, seconds in run.kernels:
            sharing = list(dict.fromkeys(number for node in nodes for number in owners.get(node, ())))
            if not sharing:
                self.other_seconds += seconds
                continue
            total = sum(weights[number] for number in sharing)
            for number in sharing:
                spent[number] += seconds * weights[number] / total
        return spent

    def learn_shares(self, shares: Iterable[tuple[Piece, float]]) -> None:
        """Learn the cost of single operators in kernels of several, each with its share of the kernel's time.

        It is taken where the operator was neither observed in a kernel of its own nor measured alone.  For
        example, a BatchNormalization has half of the 0.22 ms that it takes with a Relu, and alone takes 0.31.
        """
        for piece, seconds in shares:
            self._shares_by_text.setdefault(piece.text, []).append(seconds)

    def learn_measured(self, piece: Piece, standalone: float) -> None:
        """Learn the seconds alone of a piece, which may have been observed before it was measured."""
        for seconds in self._unpaired.pop(piece.text, ()):
            self._add_ratio(piece, seconds, standalone)

    def _add_ratio(self, piece: Piece, seconds: float, standalone: float) -> None:
        if seconds > 0 and 0 < standalone < inf:
            self._log_ratios.setdefault(_ratio_key(piece), []).append((log(seconds / standalone), standalone))

    def observed_seconds(self, piece: Piece) -> float | None:
        """Return the mean seconds of the piece's operators in the programs that were observed, or a share."""
        seen = self._seconds_by_text.get(piece.text) or self._shares_by_text.get(piece.text)
        return fmean(seen) if seen else None

    def _slowdown(self, choices: Sequence[PlacedChoice], spent: Sequence[float], read_bytes: int) -> float:
        """Return by which factor a program's operators are slower than in the first program.

        This is the median over the operators of both programs, weighted by their time in the first.
        """
        if not self._seconds_in_first:  # this is the first program: keep the mean time of each operator
            counts = Counter(choice.piece.text for choice in choices)
            for choice, seconds in zip(choices, spent, strict=True):
                text = choice.piece.text
                self._seconds_in_first[text] = self._seconds_in_first.get(text, 0.0) + seconds / counts[text]
            self._first_read_bytes = read_bytes
            return 1.0
        # (ratio to the time in the first program, weight) of the operators of both
        both = [
            (seconds / first, first)
            for choice, seconds in zip(choices, spent, strict=True)
            if (first := self._seconds_in_first.get(choice.piece.text, 0.0)) > 0 and seconds > 0
        ]
        common = sum(first for _, first in both)
        if common < MIN_COMMON_SHARE * sum(spent):
            return 1.0
        # the weighted median
        passed, slowdown = 0.0, 1.0
        for ratio, first in sorted(both):
            passed, slowdown = passed + first, ratio
            if 2 * passed >= common:
                break
        # the time lost is the price of the bytes that the program reads beyond the first one
        if slowdown > 1 and read_bytes > self._first_read_bytes:
            lost = (1 - 1 / slowdown) * sum(spent)
            self.seconds_per_byte = max(self.seconds_per_byte, lost / (read_bytes - self._first_read_bytes))
        return slowdown

    def costs_elsewhere(self, pieces: Iterable[Piece], standalone: Iterable[float]) -> list[float]:
        """Return the cost of each piece at places where it was not observed, from its seconds alone."""
        if not self._seconds_by_text:
            return list(standalone)
        # the mean ratio in context / alone of the runtime's operators, and that of kernels
        samples: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for (is_kernel, _), ratios in self._log_ratios.items():
            samples[is_kernel] += ratios
        means = {is_kernel: _mean_ratio(ratios) for is_kernel, ratios in samples.items()}
        # by operator: its mean ratio, drawn towards the mean of its kind
        factors = {}
        for key, ratios in self._log_ratios.items():
            prior = means[key[0]], PRIOR_WEIGHT * fmean(alone for _, alone in ratios)
            factors[key] = exp(_mean_ratio([*ratios, prior]))
        costs = []
        for piece, seconds in zip(pieces, standalone, strict=True):
            seen = self.observed_seconds(piece)
            if seen is None or (seen != seconds and piece.text not in self._seconds_by_text):
                # it was not observed, or only a share was, while it was measured alone as well
                key = _ratio_key(piece)
                seen = seconds * (factors[key] if key in factors else exp(means[key[0]]))
            costs.append(seen)
        return costs


def _ratio_key(piece: Piece) -> tuple[bool, str]:
    """Return whether a piece is a kernel, and its operators: pieces of one key share a ratio."""
    return piece.has_eoperators, piece.label


def _mean_ratio(samples: Sequence[tuple[float, float]]) -> float:
    """Return the mean of the first numbers, weighted by the second; 0 without samples."""
    if not samples:
        return 0.0
    ratios, weights = zip(*samples, strict=True)
    return fmean(ratios, weights)
