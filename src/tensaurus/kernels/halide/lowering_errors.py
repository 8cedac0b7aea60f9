"""What cannot be lowered."""

from __future__ import annotations

__all__ = ["Unlowered"]


class Unlowered(ValueError):
    """There is no kernel of this expression, or not by this schedule; the reason in one line."""
