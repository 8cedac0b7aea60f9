"""A sample of a stream whose length nobody knows: each item is kept with the same probability.

Vitter's algorithm R (ACM Transactions on Mathematical Software 11, 1985).
"""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

__all__ = ["Reservoir"]

T = TypeVar("T")


class Reservoir(Generic[T]):
    """At most `size` of the items that are offered, in `kept`; the same ones for the same seed."""

    def __init__(self, size: int, seed: int = 0):
        self.size, self.offered = size, 0
        self.kept: list[T] = []
        self._random = Random(seed)

    def offer(self, item: T) -> None:
        """One more item of the stream."""
        self.offered += 1
        if len(self.kept) < self.size:
            self.kept.append(item)
        elif (place := self._random.randrange(self.offered)) < self.size:
            self.kept[place] = item
