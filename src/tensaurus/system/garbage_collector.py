"""Pause Python's garbage collector while large structures without garbage are built.

E-graphs and programs hold millions of objects and no garbage in cycles; the collector would walk through all
of them again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

__all__ = ["pause_collector"]

LONG_BLOCK_SECONDS = 0.1  # a longer block makes so many objects that they are moved to the oldest generation


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector in this block.

    After a long block its objects move to the oldest generation at once: else the collector would begin with
    them as soon as it works again.
    """
    was_enabled, start = gc.isenabled(), monotonic()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # objects that the caller froze stay frozen; counting them takes time, so the clock is asked first
            if monotonic() - start > LONG_BLOCK_SECONDS and not gc.get_freeze_count():
                gc.freeze()  # the two calls together move all objects to the oldest generation
                gc.unfreeze()
            gc.enable()
