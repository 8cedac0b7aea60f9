"""Decides from pairs of runs by how much one of two models is faster, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, isnan, nan
from statistics import quantiles

__all__ = ["LOOKS", "Comparison"]

VOID_SPREAD = 0.15  # a comparison is void where the interquartile range exceeds this share of the median
PRECISE_WIDTH = 0.04  # a gain is precise where its bounds lie no further apart than this share of the median
LOOKS = (7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226)
"""Numbers of pairs at which a decision is tried: first at 7, as fewer can prove nothing."""
MISTAKE_PROBABILITY = 0.02  # of calling one of two equal models faster, over all looks together
# No host changes its speed by a larger factor between the two runs of a pair, several times in a row.
CERTAIN_RATIO = 5 / 3
CERTAIN_PAIRS = 3  # this many pairs are enough where all ratios are beyond CERTAIN_RATIO


@dataclass(frozen=True)
class Comparison:
    """The speedup of the second contender over the first: statistics of the pairs' ratios first / second.

    low, median, high  quartiles of the ratios
    least, most        bounds of the true median, each wrong with a probability below MISTAKE_PROBABILITY over
                       all looks; nan where the pairs are too few
    pairs              number of pairs
    disturbed          whether other processes disturbed most pairs
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
        """Compute the statistics of at least one ratio, given in the order of measuring.

        The bounds are those of the sign test, which assumes nothing about the distribution of times: each
        pair of equal contenders favours one of them like the toss of a coin.  Pairs after the last look count
        for the quartiles only.
        """
        least = most = nan
        # the bounds at the last look; before the first one, only ratios that are all beyond CERTAIN_RATIO
        if look := max((look for look in LOOKS if look <= len(ratios)), default=0):
            ordered, rank = sorted(ratios[:look]), _bound_rank(look)
            least, most = ordered[rank - 1], ordered[-rank]
        elif len(ratios) >= CERTAIN_PAIRS and (
            min(ratios) > CERTAIN_RATIO or max(ratios) < 1 / CERTAIN_RATIO
        ):
            least, most = min(ratios), max(ratios)
        low, middle, high = quantiles(ratios, method="inclusive") if len(ratios) > 1 else [*ratios] * 3
        return cls(low, middle, high, least, most, len(ratios), disturbed)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        return (self.high - self.low) / self.median

    @property
    def is_void(self) -> bool:
        """Whether the spread, or other processes, make the speedup worthless."""
        return self.disturbed or self.spread > VOID_SPREAD

    @property
    def doubt(self) -> str:
        """Why the comparison is void, in words; empty where it is not."""
        if not self.is_void:
            return ""
        return "other processes disturbed it" if self.disturbed else "the rounds disagree"

    @property
    def is_tie(self) -> bool:
        """Whether the quartiles lie on both sides of 1, so that no difference shows."""
        return self.low <= 1 <= self.high

    def shows(self, gain: float) -> bool:
        """Return whether the second contender is certainly faster, by this share at least: 0.02 for 1.02x."""
        return self.least > 1 and self.median >= 1 + gain

    def settles(self, gain: float) -> bool:
        """Return whether more pairs would not change the answer to `shows`, and the speedup is precise."""
        if self.most < 1 + gain:
            return True
        return self.shows(gain) and self.most - self.least <= PRECISE_WIDTH * self.median

    def refusal(self, gain: float) -> str:
        """Return why the second contender is not kept, where the pairs do not show this gain."""
        median = f"its median speedup is {self.median:.3f}x"
        if self.least > 1:
            return f"{median}, less than the required {1 + gain:.2f}x ({self})"
        return f"{'it is slower' if self.most < 1 else 'no difference seen'}: {median} ({self})"

    def __str__(self) -> str:
        pairs = f"{self.pairs} pair{'s' * (self.pairs != 1)}"
        known = "" if isnan(self.least) else f"; {self.least:.2f}x to {self.most:.2f}x beyond doubt"
        return f"{pairs} of runs, the middle half {self.low:.2f}x to {self.high:.2f}x{known}"


def _bound_rank(look: int) -> int:
    """Return the k for which the k-th smallest of `look` ratios is a lower bound of the true median.

    That ratio is above the median only if fewer than k of n coins show heads: the largest k is taken whose
    probability is within this look's share of MISTAKE_PROBABILITY.  The first look's share is the probability
    of seven equal tosses, the other looks divide the rest evenly.
    """
    first = 2.0 ** -LOOKS[0]
    allowed = first if look == LOOKS[0] else (MISTAKE_PROBABILITY - first) / (len(LOOKS) - 1)
    rank, ways = 0, 1
    while ways <= allowed * 2**look:
        rank += 1
        ways += comb(look, rank)
    return rank
