"""So many kernels and no more: each that is measured was compiled and tuned before, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.price.costs import Alone

__all__ = ["Rationed"]


class Rationed:
    """Costs of pieces by themselves, where eOperators are measured while there may be `more` of them.

    From then on an eOperator that nobody has measured is no choice: it costs infinity.  What was known before
    costs nothing, so a second run, from the database, goes on where the first one ended.
    """

    def __init__(self, alone: Alone, more: Callable[[], bool]):
        self.alone, self.more = alone, more

    def known(self, piece: Piece) -> float | None:
        """Seconds, where they were measured; infinite where they never will be."""
        seconds = self.alone.known(piece)
        return inf if seconds is None and self._spent(piece) else seconds

    def measure(self, piece: Piece) -> float:
        """Seconds; measured now unless they are known."""
        if self._spent(piece) and self.alone.known(piece) is None:
            return inf
        return self.alone.measure(piece)

    def estimate(self, piece: Piece) -> float:
        """Seconds by arithmetic and traffic alone."""
        return self.alone.estimate(piece)

    def _spent(self, piece: Piece) -> bool:
        return piece.generated and not self.more()
