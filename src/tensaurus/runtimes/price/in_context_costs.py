"""Learns in-context costs: the times of choices within whole programs, which differ from their times alone.

A choice of an extraction stands at a place: it reads certain e-classes, and others read it.  Its cost is the
first of these that is known: its time at this place; the mean time of the same operators on the same types at
other places; its time alone, multiplied by the mean ratio of times in context and alone of its operator.

A program whose constants no longer fit in the cache slows all operators down.  This slowdown must not be
blamed on single choices: it is measured on the operators that the first program has, too, and divided out
(`_slowdown`).  It gives a price to each byte of constants that kernels read beyond the first program's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean

from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.measure.observe import Observation

__all__ = ["PlacedChoice", "InContextCosts"]

MIN_SECONDS = 1e-9  # an operator counts at least so much when a kernel's time is divided among operators
MIN_COMMON_SHARE = 0.1  # share of a program's time in operators of the first program, to measure a slowdown
# Weight of the mean over all operators in the mean of one operator, whose samples weigh 1.
PRIOR_WEIGHT = 0.25


@dataclass(frozen=True)
class PlacedChoice:
    """A choice in a program: its place, its piece, its seconds alone, and the nodes that it computes."""

    place: Hashable
    piece: Piece
    alone: float
    nodes: frozenset[Node]


@dataclass
class InContextCosts:
    """The costs that were learnt from the programs observed so far.

    places  seconds of choices by place, the mean over the programs in which they were observed
    rest    seconds of kernels of no choice (of opaque nodes), in the last program
    byte    seconds of each byte of constants that kernels read beyond the first program's
    """

    places: dict[Hashable, float] = field(default_factory=dict)
    rest: float = 0.0
    byte: float = 0.0
    _first: dict[str, float] = field(default_factory=dict)  # seconds in the first program, by text of a piece
    _footprint: int = 0  # bytes of constants that the first program's kernels read
    _times: dict[Hashable, int] = field(default_factory=dict)  # in how many programs each place was
    _likes: dict[str, list[float]] = field(default_factory=dict)  # seconds, by text of a piece
    _shares: dict[str, list[float]] = field(default_factory=dict)  # log(seconds / seconds alone), by operator

    def note(self, seen: Observation, parts: Sequence[PlacedChoice], footprint: int = 0) -> None:
        """Learn from the observation of a program whose kernels read `footprint` bytes of constants.

        The time of a kernel of several choices is divided in proportion to their times alone; a choice
        without a kernel took no time.  A choice in several programs had other neighbours in each: its mean
        counts.
        """
        owners: dict[Node, list[int]] = {}
        for number, part in enumerate(parts):
            for node in part.nodes:
                owners.setdefault(node, []).append(number)
        taken = [0.0] * len(parts)
        self.rest = 0.0
        for nodes, seconds in seen.kernels:
            sharing = list(dict.fromkeys(number for node in nodes for number in owners.get(node, ())))
            if not sharing:
                self.rest += seconds
                continue
            whole = sum(max(parts[number].alone, MIN_SECONDS) for number in sharing)
            for number in sharing:
                taken[number] += seconds * max(parts[number].alone, MIN_SECONDS) / whole
        slowdown = self._slowdown(parts, taken, footprint)
        for part, slowed in zip(parts, taken, strict=True):
            seconds = slowed / slowdown
            times = self._times[part.place] = self._times.get(part.place, 0) + 1
            self.places[part.place] = self.places.get(part.place, 0.0) * (times - 1) / times + seconds / times
            self._likes.setdefault(part.piece.text, []).append(seconds)
            if seconds > 0 and part.alone > 0:
                self._shares.setdefault(part.piece.label, []).append(log(seconds / part.alone))

    def _slowdown(self, parts: Sequence[PlacedChoice], taken: Sequence[float], footprint: int) -> float:
        """Return by which factor a program's operators are slower than in the first program.

        This is the median over the operators of both programs, weighted by their time in the first.
        """
        if not self._first:
            counts = Counter(part.piece.text for part in parts)
            for part, seconds in zip(parts, taken, strict=True):
                text = part.piece.text
                self._first[text] = self._first.get(text, 0.0) + seconds / counts[text]
            self._footprint = footprint
            return 1.0
        both = [
            (seconds / first, first)
            for part, seconds in zip(parts, taken, strict=True)
            if (first := self._first.get(part.piece.text, 0.0)) > 0 and seconds > 0
        ]
        common = sum(first for _, first in both)
        if common < MIN_COMMON_SHARE * sum(taken):
            return 1.0
        passed, slowdown = 0.0, 1.0
        for ratio, first in sorted(both):
            passed, slowdown = passed + first, ratio
            if 2 * passed >= common:
                break
        if slowdown > 1 and footprint > self._footprint:
            self.byte = max(self.byte, (1 - 1 / slowdown) * sum(taken) / (footprint - self._footprint))
        return slowdown

    def elsewhere(self, pieces: Iterable[Piece], alone: Iterable[float]) -> list[float]:
        """Return the cost of each piece at places where it was not observed, from its seconds `alone`."""
        if not self._likes:
            return list(alone)
        mean = fmean(share for shares in self._shares.values() for share in shares) if self._shares else 0.0
        factors = {
            name: exp((sum(shares) + PRIOR_WEIGHT * mean) / (len(shares) + PRIOR_WEIGHT))
            for name, shares in self._shares.items()
        }
        costs = []
        for piece, seconds in zip(pieces, alone, strict=True):
            likes = self._likes.get(piece.text)
            if likes:
                costs.append(fmean(likes))
            else:
                costs.append(seconds * factors.get(piece.label, exp(mean)))
        return costs
