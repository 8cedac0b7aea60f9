"""How much error a result may have: what `judge` allows, or a multiple of it."""

from __future__ import annotations

__all__ = ["LEVELS", "LIKE"]

LIKE = "like"
LEVELS = {LIKE: 1.0, "fast": 4.0}  # the factor of the allowed error
