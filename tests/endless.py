"""What never returns, and is hard to end: planted as a finder, a rule, an extractor, whatever may hang."""

from __future__ import annotations

import time
from typing import Any


def spin(*given: Any) -> Any:
    while True:
        pass


def sleep(*given: Any) -> Any:
    time.sleep(1e6)


def ignore_exceptions(*given: Any) -> Any:
    while True:
        try:
            time.sleep(0.001)
            raise ValueError
        except Exception:
            pass
