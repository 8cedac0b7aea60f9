"""Samples a stream of unknown length: each item is kept with the same probability.

Vitter's algorithm R (ACM Transactions on Mathematical Software 11, 1985).
"""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

__all__ = ["Reservoir"]

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Holds a sample of at most `capacity` of the offered items, the same one for the same seed."""

    def __init__(self, capacity: int, seed: int = 0):
        self.capacity, self.offered = capacity, 0
        self.sample: list[T] = []
        self._random = Random(seed)

    def offer(self, item: T) -> None:
        """Take the stream's next item into the sample, or not."""
        self.offered += 1
        if len(self.sample) < self.capacity:
            self.sample.append(item)
        elif (position := self._random.randrange(self.offered)) < self.capacity:
            self.sample[position] = item
