"""Python's garbage collector, out of the way of what has no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

__all__ = ["collector_resting"]

LONG = 0.1  # seconds


@contextmanager
def collector_resting() -> Iterator[None]:
    """E-graphs and programs have none in cycles, and the collector would walk through all of them again.

    What was made meanwhile counts as old at once, if it took long: the collector would begin with it as soon
    as it is back.
    """
    working, start = gc.isenabled(), monotonic()
    gc.disable()
    try:
        yield
    finally:
        if working:
            # what the program froze stays frozen; counting that walks through all of it
            if monotonic() - start > LONG and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
