"""Times of whole models that are made up, so that what a busy machine measures decides no test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tensaurus.optimizer.result import candidate_models, winner
from tensaurus.runtimes.measure.measure import Pairs


def pretend_times(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, again: float | None = None
) -> None:
    """The original takes `before` seconds, every candidate `after`, and `again` in pairs with it."""

    def times(entries: Sequence[Any], *rest: Any, **more: Any) -> list[float]:
        return [before, *[after] * (len(entries) - 1)]

    monkeypatch.setattr(candidate_models, "time_models", times)
    monkeypatch.setattr(
        winner, "time_model_pairs", lambda *rest, **more: alike(before, after if again is None else again)
    )


def alike(before: float, after: float) -> Pairs:
    """Pairs that leave no doubt."""
    return Pairs(((before, after),) * 10, (True,) * 10)
