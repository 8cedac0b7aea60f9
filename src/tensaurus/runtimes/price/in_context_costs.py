"""What choices cost within whole programs, where that is another cost than alone.

A choice of an e-graph stands at a place: it reads certain classes, and is read by others.  Where it was seen
there, its cost is what it took there; else what its like took (the same operators on the same types); else
what it costs alone, by as much dearer or cheaper as others of its operators were.

A program whose constants no longer fit in the cache slows everything down.  What all operators of a look have
in common is therefore no choice's: the pace, by which those that the first program has too are slower than
there.  It makes a price of each byte that kernels read of constants beyond the first program's.
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

__all__ = ["Placed", "PlacedCosts"]

LEAST = 1e-9  # seconds: no operator counts less when a kernel's time is shared out
COMMON = 0.1  # of a program's time, at least, is that of what the first program has too, to tell a pace
FEW = 0.25  # of the share that is known of all operators, in that of one


@dataclass(frozen=True)
class Placed:
    """A choice in a program: its place, what it is, its seconds alone, and the nodes that it computes."""

    place: Hashable
    piece: Piece
    alone: float
    nodes: frozenset[Node]


@dataclass
class PlacedCosts:
    """What was observed so far.

    places  seconds of the choices that were seen, the mean over the programs that they were seen in
    rest    seconds that are no choice's: of opaque nodes, in the last program that was seen
    byte    seconds of each byte that kernels read of constants, beyond the first program's
    """

    places: dict[Hashable, float] = field(default_factory=dict)
    rest: float = 0.0
    byte: float = 0.0
    _first: dict[str, float] = field(default_factory=dict)  # seconds in the first program, by text
    _footprint: int = 0  # bytes, of the first program
    _times: dict[Hashable, int] = field(default_factory=dict)  # how often each place was seen
    _likes: dict[str, list[float]] = field(default_factory=dict)  # seconds, by the text of a piece
    _shares: dict[str, list[float]] = field(default_factory=dict)  # log of seconds over those alone, by name

    def note(self, seen: Observation, parts: Sequence[Placed], footprint: int = 0) -> None:
        """What was seen of a program whose kernels read so many bytes of constants.

        A kernel of several choices is shared out by what they cost alone; one without a kernel took none.
        A choice that is seen in several programs had other neighbours in each: its mean counts.
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
            whole = sum(max(parts[number].alone, LEAST) for number in sharing)
            for number in sharing:
                taken[number] += seconds * max(parts[number].alone, LEAST) / whole
        pace = self._pace(parts, taken, footprint)
        for part, slowed in zip(parts, taken, strict=True):
            seconds = slowed / pace
            times = self._times[part.place] = self._times.get(part.place, 0) + 1
            self.places[part.place] = self.places.get(part.place, 0.0) * (times - 1) / times + seconds / times
            self._likes.setdefault(part.piece.text, []).append(seconds)
            if seconds > 0 and part.alone > 0:
                self._shares.setdefault(part.piece.label, []).append(log(seconds / part.alone))

    def _pace(self, parts: Sequence[Placed], taken: Sequence[float], footprint: int) -> float:
        """How much slower than the first program it runs: the median over the time of what both have."""
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
        if common < COMMON * sum(taken):
            return 1.0
        passed, pace = 0.0, 1.0
        for ratio, first in sorted(both):
            passed, pace = passed + first, ratio
            if 2 * passed >= common:
                break
        if pace > 1 and footprint > self._footprint:
            self.byte = max(self.byte, (1 - 1 / pace) * sum(taken) / (footprint - self._footprint))
        return pace

    def elsewhere(self, pieces: Iterable[Piece], alone: Iterable[float]) -> list[float]:
        """Of each piece, what it costs where it was not seen."""
        if not self._likes:
            return list(alone)
        every = fmean(share for shares in self._shares.values() for share in shares) if self._shares else 0.0
        factors = {
            name: exp((sum(shares) + FEW * every) / (len(shares) + FEW))
            for name, shares in self._shares.items()
        }
        costs = []
        for piece, seconds in zip(pieces, alone, strict=True):
            likes = self._likes.get(piece.text)
            if likes:
                costs.append(fmean(likes))
            else:
                costs.append(seconds * factors.get(piece.label, exp(every)))
        return costs
