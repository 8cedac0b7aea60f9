"""Holds the values of the option `accuracy`: each is a factor of the error that `judge` allows."""

from __future__ import annotations

__all__ = ["ERROR_FACTORS", "LIKE_ORIGINAL"]

LIKE_ORIGINAL = "like"
ERROR_FACTORS = {LIKE_ORIGINAL: 1.0, "fast": 4.0}
