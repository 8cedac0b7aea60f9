"""Limits how many generated kernels are measured: each must be compiled and tuned first, which takes seconds.

An operator that such a kernel computes is an *eOperator*: an expression for which no runtime has a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from tensaurus.graph.ir.piece import Piece
from tensaurus.runtimes.price.costs import StandaloneCosts

__all__ = ["KernelQuota"]


class KernelQuota:
    """Returns standalone costs; measures a piece with eOperators only as long as `may_measure` allows it.

    After that an eOperator without a measurement costs infinity, so that no extraction chooses it.  Costs
    from the database do not use up the quota: a second run goes on where the first one ended.
    """

    def __init__(self, standalone: StandaloneCosts, may_measure: Callable[[Piece], bool]):
        self.standalone, self.may_measure = standalone, may_measure

    def known(self, piece: Piece) -> float | None:
        """Return the measured seconds, None where there are none yet, infinity where there never will be."""
        seconds = self.standalone.known(piece)
        return inf if seconds is None and self._is_over_quota(piece) else seconds

    def measure(self, piece: Piece) -> float:
        """Return the seconds, measured now unless they are known."""
        if self._is_over_quota(piece) and self.standalone.known(piece) is None:
            return inf
        return self.standalone.measure(piece)

    def estimate(self, piece: Piece) -> float:
        """Return the seconds that arithmetic and traffic take at the machine's peaks."""
        return self.standalone.estimate(piece)

    def product_seconds(self, piece: Piece) -> float:
        """Return the seconds that sums of products take at the machine's peak."""
        return self.standalone.product_seconds(piece)

    def kernel_seconds(self, piece: Piece) -> float:
        """Return the seconds that kernels take at least, by kernels that were tuned; 0 without kernels."""
        return self.standalone.kernel_seconds(piece)

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Pass on the seconds that were observed in a program."""
        self.standalone.note_observed(piece, seconds)

    def _is_over_quota(self, piece: Piece) -> bool:
        return piece.has_eoperators and not self.may_measure(piece)
