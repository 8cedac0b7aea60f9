"""Python's garbage collector, out of the way of what has no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_resting"]


@contextmanager
def collector_resting() -> Iterator[None]:
    """E-graphs and programs have none in cycles, and the collector would walk through all of them again.

    What was made meanwhile counts as old at once: the collector would begin with it as soon as it is back.
    """
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            if not gc.get_freeze_count():  # what the program froze stays frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
