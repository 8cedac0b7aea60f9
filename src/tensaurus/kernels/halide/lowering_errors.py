"""Defines the error of expressions and schedules that cannot be compiled."""

from __future__ import annotations

__all__ = ["LoweringError"]


class LoweringError(ValueError):
    """This expression has no kernel, or not with this schedule; the message is the reason in one line."""
