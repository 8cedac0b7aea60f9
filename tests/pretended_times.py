"""Times of whole models that are made up, so that what a busy machine measures decides no test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tensaurus.optimizer.result import contenders
from tensaurus.runtimes.measure.measure import Pairs


def pretend_times(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, again: float | None = None
) -> None:
    """The original takes `before` seconds, every candidate `after`, and `again` in pairs with it."""

    def times(entries: Sequence[Any], *rest: Any, **more: Any) -> list[float]:
        return [before, *[after] * (len(entries) - 1)]

    monkeypatch.setattr(contenders, "contest_times", times)
    monkeypatch.setattr(
        contenders, "contest_pairs", lambda *rest, **more: alike(before, after if again is None else again)
    )


def alike(before: float, after: float) -> Pairs:
    """Pairs that leave no doubt."""
    return Pairs(((before, after),) * 10, (True,) * 10)
