"""Two contenders measured side by side: by how much one is faster, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, isnan, nan
from statistics import quantiles

__all__ = ["LOOKS", "Comparison"]

WIDE = 0.15  # a comparison is void where half of its ratios lie further apart than this share
NARROW = 0.04  # a gain is measured well enough where its bounds lie no further apart than this share
LOOKS = (7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226)
"""How many pairs there are when they are asked to decide: at 7 the first time, as fewer can prove nothing."""
MISTAKE = 0.02  # the probability, over all looks together, that equal contenders are told apart as faster
CERTAIN = 5 / 3  # no host slows down by more between two runs that follow each other, and again, and again
FEW = 3  # pairs that are enough where each of them is beyond CERTAIN


@dataclass(frozen=True)
class Comparison:
    """How many times as long as the second contender does the first take, by pairs of runs side by side.

    low, median, high   quartiles of the pairs' ratios
    least, most         bounds of the true median, each wrong with a probability that is below MISTAKE over
                        all looks; not known (nan) where the pairs are too few
    pairs               how many decided
    disturbed           whether other processes disturbed most of them
    """

    low: float
    median: float
    high: float
    least: float
    most: float
    pairs: int
    disturbed: bool = False

    @classmethod
    def of(cls, ratios: Sequence[float], disturbed: bool = False) -> Comparison:
        """Describe the ratios of pairs, one at least, in the order in which they were measured.

        The bounds are those of the sign test, which assumes nothing of how times are distributed: of n pairs
        of equal contenders each favours one of them like the toss of a coin.  What was measured after the
        last look does not move them.
        """
        least = most = nan
        if look := max((look for look in LOOKS if look <= len(ratios)), default=0):
            seen, beyond = sorted(ratios[:look]), _beyond(look)
            least, most = seen[beyond - 1], seen[-beyond]
        elif len(ratios) >= FEW and (min(ratios) > CERTAIN or max(ratios) < 1 / CERTAIN):
            least, most = min(ratios), max(ratios)
        low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else [*ratios] * 3
        return cls(low, middle, high, least, most, len(ratios), disturbed)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        return (self.high - self.low) / self.median

    @property
    def void(self) -> bool:
        """Whether the spread, or other processes, make the figure worthless."""
        return self.disturbed or self.spread > WIDE

    @property
    def doubt(self) -> str:
        """Why the comparison is void, in words; empty where it is not."""
        if not self.void:
            return ""
        return "other processes disturbed it" if self.disturbed else "the rounds disagree"

    @property
    def tie(self) -> bool:
        """Whether no difference can be told from the quartiles."""
        return self.low <= 1 <= self.high

    def shows(self, gain: float) -> bool:
        """Whether the second contender is faster beyond doubt, and by this share at least: 0.02 for 1.02x."""
        return self.least > 1 and self.median >= 1 + gain

    def settles(self, gain: float) -> bool:
        """Whether more pairs would not change the answer to `shows`, and the figure is known well enough."""
        if self.most < 1 + gain:
            return True
        return self.shows(gain) and self.most - self.least <= NARROW * self.median

    def refusal(self, gain: float) -> str:
        """Why a result is not kept that must gain so much, where the pairs do not show that it does."""
        if self.least > 1:
            return f"{self.median:.3f}x is less than the {1 + gain:.2f}x that a result must gain ({self})"
        found = "it is slower" if self.most < 1 else "no difference seen"
        return f"{found} in {self}, {self.median:.3f}x"

    def __str__(self) -> str:
        pairs = f"{self.pairs} pair{'s' * (self.pairs != 1)}"
        known = "" if isnan(self.least) else f"; {self.least:.2f} to {self.most:.2f} beyond doubt"
        return f"{pairs} of runs, half of them {self.low:.2f} to {self.high:.2f}{known}"


def _beyond(look: int) -> int:
    """The k for which the k-th smallest of so many ratios is a lower bound of the true median.

    It is above the median only if fewer than k of n coins show heads: the largest k is taken whose
    probability is within this look's share of MISTAKE.  The first look has what seven equal tosses need, the
    others share the rest.
    """
    first = 2.0 ** -LOOKS[0]
    allowed = first if look == LOOKS[0] else (MISTAKE - first) / (len(LOOKS) - 1)
    beyond, ways = 0, 1
    while ways <= allowed * 2**look:
        beyond += 1
        ways += comb(look, beyond)
    return beyond
